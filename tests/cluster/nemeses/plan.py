"""Plans of faults that follow from a seed."""

import random
from collections.abc import Sequence
from typing import Final

from tests.cluster.nemeses.base import REGISTRY, Blow, Times

EVERY_S: Final = 3.2
_FIRST_S: Final = 1.5
_WEIGHT_FOR_ALL: Final = 0.3


def plan(seed: int, seconds: float, faults: Sequence[str], *, times: Times, every_s: float = EVERY_S) -> list[Blow]:
    """Return blows for `seconds` of load: every fault at least once, then at random, in a random order.

    Those that hit all nodes at once are drawn less often. The mean distance of blows is `every_s`, or shorter if
    all faults would not fit otherwise. What is broken is whole again when the load ends, as far as a fault takes no
    longer than that. The same arguments give the same plan.
    """
    draw = random.Random(seed)
    count = max(len(faults), int((seconds - _FIRST_S) / every_s))
    weights = [_WEIGHT_FOR_ALL if REGISTRY[kind].for_all else 1.0 for kind in faults]
    order = [*faults, *draw.choices(faults, weights, k=count - len(faults))]
    draw.shuffle(order)
    step = (seconds - _FIRST_S) / count
    blows = []
    for number, kind in enumerate(order):
        hold_s = REGISTRY[kind].hold_s(draw, times)
        at_s = _FIRST_S + number * step + draw.uniform(0.0, 0.5 * step)
        at_s = max(0.0, min(at_s, seconds - hold_s))
        blows.append(Blow(at_s=round(at_s, 3), fault=kind, victim=draw.randrange(1000), hold_s=round(hold_s, 3)))
    return sorted(blows, key=lambda blow: blow.at_s)
