"""What can be chosen by name in a config, each with a line that says what it is."""

from collections.abc import Callable, Mapping

from optdyn import methods, optimizers
from optdyn.clock.service import Law
from optdyn.methods import names
from optdyn.problem import losses
from optdyn.problem.data.kinds import Data
from optdyn.problem.models import Model

Lines = dict[str, str]


def _of(registry: Mapping[str, object]) -> Lines:
    """The first lines of docstrings."""
    docs = {name: (getattr(thing, "__doc__", "") or "").strip() for name, thing in registry.items()}
    return {name: doc.partition("\n")[0] for name, doc in docs.items()}


def _optimizers() -> Lines:
    """Some of optax are another with some arguments fixed, whose line they then have."""
    return _of({name: getattr(f, "func", f) for name, f in optimizers.known().items()})


def _methods() -> Lines:
    return _of({name: methods.load(name) for name in methods.built_in()})


# Every registered name of a kind, and the first line of what it says of itself.
KINDS: Mapping[str, Callable[[], Lines]] = {
    "models": lambda: _of(Model.members),
    "data": lambda: _of(Data.members),
    "losses": lambda: _of(losses.LOSSES),
    "metrics": lambda: _of(losses.METRICS),
    "optimizers": _optimizers,
    "transforms": lambda: _of(optimizers.TRANSFORMS),
    "schedules": lambda: _of(optimizers.SCHEDULES),
    "methods": _methods,
    "names": lambda: {name: names.flags(name) for name in names.NAMES},
    "laws": lambda: _of(Law.members),
}
