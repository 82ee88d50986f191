"""The example workers keep to the worker protocol."""

import asyncio
from collections.abc import Mapping

import pytest

from tests.clients.languages import LANGUAGES, Language, reason_to_skip
from tests.conformance.checklist import Verdict
from tests.conformance.runner import examine

Verdicts = Mapping[str, list[Verdict]]


@pytest.fixture(scope="module")
def verdicts(built: Mapping[str, Language]) -> Verdicts:
    """What came of the checks, by language. The languages go through them side by side: mostly they wait."""

    async def examine_all() -> list[list[Verdict]]:
        return await asyncio.gather(*(_all_verdicts(language) for language in built.values()))

    return dict(zip(built, asyncio.run(examine_all()), strict=True))


async def _all_verdicts(language: Language) -> list[Verdict]:
    return [verdict async for verdict in examine(language.worker)]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_example_worker(language: Language, request: pytest.FixtureRequest) -> None:
    if reason := reason_to_skip(language):
        pytest.skip(reason)
    verdicts: Verdicts = request.getfixturevalue("verdicts")
    faults = [str(verdict) for verdict in verdicts[language.name] if not verdict.passed]
    assert not faults, "\n".join(faults)
