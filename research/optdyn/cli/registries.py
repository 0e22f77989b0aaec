"""What can be chosen by name in a config, each with a line that says what it is."""

import sys
from collections.abc import Callable, Mapping

from optdyn import methods, optimizers
from optdyn.base.errors import ConfigError
from optdyn.base.lookup import summary
from optdyn.clock import service
from optdyn.clock.geometric import geometric
from optdyn.clock.trace import Held
from optdyn.methods import names
from optdyn.problem import losses, models
from optdyn.problem.data import loading

Lines = dict[str, str]


def _of(registry: Mapping[str, object]) -> Lines:
    return {name: summary(thing) for name, thing in registry.items()}


def _models() -> Lines:
    return {name: summary(sys.modules[f.__module__]) for name, f in models.MODELS.items()}


def _data() -> Lines:
    """The sources of data; a name that needs more says what."""
    shown = {"tfds": "tfds:NAME", "folder": "folder:PATH", "text": "text:PATH"}
    return {shown.get(name, name): summary(read) for name, read in loading.SOURCES.items()}


def _optimizers() -> Lines:
    """Some of optax are another with some arguments fixed, whose line they then have."""
    return {name: summary(getattr(f, "func", f)) for name, f in optimizers.known().items()}


def _methods() -> Lines:
    return {n: summary(sys.modules[methods.load(n).__module__]) for n in methods.built_in()}


def _laws() -> Lines:
    others = {"geometric": summary(sys.modules[geometric.__module__])}
    others["trace"] = summary(sys.modules[Held.__module__])
    others["measured"] = "Real workers of dynamic batches, timed while they train."
    others["race"] = "Real workers that race, of launch.race."
    return _of(service.LAWS) | others


KINDS: Mapping[str, Callable[[], Lines]] = {
    "models": _models,
    "data": _data,
    "losses": lambda: _of(losses.LOSSES),
    "metrics": lambda: _of(losses.METRICS),
    "optimizers": _optimizers,
    "transforms": lambda: _of(optimizers.TRANSFORMS),
    "schedules": lambda: _of(optimizers.SCHEDULES),
    "methods": _methods,
    "names": lambda: {name: names.flags(name) for name in names.NAMES},
    "laws": _laws,
}


def listed(kind: str) -> Lines:
    """Every registered name of a kind and the first line of what it says of itself.

    `kind` is one of KINDS; raises `ConfigError` otherwise.
    """
    if kind not in KINDS:
        raise ConfigError(f"{kind!r}: must be one of {', '.join(KINDS)}")
    return KINDS[kind]()
