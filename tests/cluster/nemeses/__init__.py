"""Faults, plans of them, and the nemesis that carries a plan out.

Every module of this package registers its faults when it is imported, and importing the package imports them all.
"""

import importlib
import pkgutil

from tests.cluster.nemeses.base import REGISTRY, Blow, Fault, Need, Times, offers, possible, register
from tests.cluster.nemeses.nemesis import Nemesis
from tests.cluster.nemeses.plan import plan

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["REGISTRY", "Blow", "Fault", "Need", "Nemesis", "Times", "offers", "plan", "possible", "register"]
