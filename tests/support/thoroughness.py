"""How many examples property tests try: a fifth of what is written down, all of them under `make soak`."""

import os

from hypothesis import settings

THOROUGH = bool(os.environ.get("SHARDWHEEL_THOROUGH"))


def examples(count: int) -> int:
    """Return how many of `count` examples to try in this run."""
    return count if THOROUGH else max(1, count // 5)


def choose() -> None:
    """Apply this to property tests that do not say a number."""
    settings.register_profile("shardwheel", max_examples=examples(100))
    settings.load_profile("shardwheel")
