"""A pytest plugin (`-p tests.mutation.plugin`) that takes the protection named by SHARDWHEEL_MUTATION out of a module.

The text is changed as the module is imported; files stay as they are, and no compiled code is kept.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from tests.mutation.catalogue import MUTATIONS, Mutation

VARIABLE = "SHARDWHEEL_MUTATION"


class MutatingLoader(SourceFileLoader):
    """Loads a module without one of its protections."""

    def __init__(self, fullname: str, path: str, mutation: Mutation) -> None:
        super().__init__(fullname, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self._mutation.apply(self.get_data(path).decode())
        return compile(source, path, "exec", dont_inherit=True)


class MutatingFinder(MetaPathFinder):
    """Finds the module that is to be changed, and leaves all others to the finders after it."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutation.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = MutatingLoader(fullname, spec.origin, self._mutation)
        return spec


def install(name: str) -> None:
    """Arrange for the mutation; its module must not have been imported yet."""
    [mutation] = [one for one in MUTATIONS if one.name == name]
    if mutation.module in sys.modules:
        raise RuntimeError(f"{mutation.module} is imported already")
    sys.meta_path.insert(0, MutatingFinder(mutation))


if os.environ.get(VARIABLE):
    install(os.environ[VARIABLE])
