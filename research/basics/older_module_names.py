"""Modules by the names that they once had, as older configs have them.

`research.config` is `optdyn.config` today, `configs.race` is `optdyn.configs.race`, and
`optdyn.data` is `optdyn.problem.data`. A module of the user's own that is called like one of the
older packages goes first.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

NAMES = {
    "research": "optdyn",
    "analysis": "optdyn.analysis",
    "configs": "optdyn.configs",
    "launch": "optdyn.launch",
}
# What may stand in a config file of before, and lies in a folder today.
MOVED = {
    "optdyn.data": "optdyn.problem.data",
    "optdyn.errors": "optdyn.basics.errors",
    "optdyn.losses": "optdyn.problem.losses",
    "optdyn.models": "optdyn.problem.models",
    "optdyn.trainer": "optdyn.training.trainer",
    "optdyn.strategies.base": "optdyn.core",
}
PIECES = {
    "gradient": ("dynamic_batch", "local"),
    "read": ("ad_psgd", "async_local_sgd", "asynchronous", "buffered", "elastic", "stale_pipeline"),
    "mix": ("daso", "diloco", "gossip", "model_averaging", "slowmo"),
}
MOVED |= {
    f"optdyn.strategies.{name}": f"optdyn.strategies.{piece}.{name}"
    for piece, names in PIECES.items()
    for name in names
}


def today(name: str) -> str:
    """What a module is called today."""
    package, dot, rest = name.partition(".")
    new = f"{NAMES[package]}{dot}{rest}" if _is_ours(package) else name
    for old, moved in MOVED.items():
        if new == old or new.startswith(f"{old}."):
            return moved + new.removeprefix(old)
    return new


def heed() -> None:
    """From now on modules can be imported by their older names too."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _is_ours(package: str) -> bool:
    """Whether nobody else's package is called so."""
    if package not in NAMES:
        return False
    held = sys.modules.get(package)
    spec = held.__spec__ if held else PathFinder.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return spec is None
    there = [Path(place).resolve() for place in spec.submodule_search_locations]
    return there == [Path(place).resolve() for place in import_module(NAMES[package]).__path__]


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if today(name) != name else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(today(spec.name))
        self._own = module.__spec__  # Python writes the other name over it
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own
