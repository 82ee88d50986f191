"""The clients, built once."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.clients.languages import LANGUAGES, Language, reason_to_skip


@pytest.fixture(scope="session")
def built() -> Mapping[str, Language]:
    """The languages that run here, by name, with their programs built."""
    chosen = [language for language in LANGUAGES if not reason_to_skip(language)]

    def build(language: Language) -> None:
        for line in language.build:
            language.run(line)

    with ThreadPoolExecutor() as pool:
        list(pool.map(build, chosen))
    return {language.name: language for language in chosen}
