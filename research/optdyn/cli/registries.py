"""What can be chosen by name in a config, each with a line that says what it is."""

import sys
from collections.abc import Callable, Mapping

from optdyn import methods, optimizers
from optdyn.base.fields import Value
from optdyn.base.lookup import summary
from optdyn.clock.service import Law
from optdyn.methods import names
from optdyn.problem import losses
from optdyn.problem.data.kinds import Data
from optdyn.problem.models import Model

Lines = dict[str, str]


def _of(registry: Mapping[str, object]) -> Lines:
    return {name: summary(thing) for name, thing in registry.items()}


def _optimizers() -> Lines:
    """Some of optax are another with some arguments fixed, whose line they then have."""
    return {name: summary(getattr(f, "func", f)) for name, f in optimizers.known().items()}


def _members(root: type[Value]) -> Lines:
    return {name: summary(one) for name, one in root.members.items()}


def _methods() -> Lines:
    return {n: summary(sys.modules[methods.load(n).__module__]) for n in methods.built_in()}


KINDS: Mapping[str, Callable[[], Lines]] = {
    "models": lambda: _members(Model),
    "data": lambda: _members(Data),
    "losses": lambda: _of(losses.LOSSES),
    "metrics": lambda: _of(losses.METRICS),
    "optimizers": _optimizers,
    "transforms": lambda: _of(optimizers.TRANSFORMS),
    "schedules": lambda: _of(optimizers.SCHEDULES),
    "methods": _methods,
    "names": lambda: {name: names.flags(name) for name in names.NAMES},
    "laws": lambda: _members(Law),
}


def listed(kind: str) -> Lines:
    """Every name of a kind, one of KINDS, and the first line of what it says of itself."""
    return KINDS[kind]()
