"""An experiment: all that determines a run, as one frozen value.

A config file defines `get_config()`, which returns one. `config.json` of a run is its nested dict.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as made
from functools import cache
from typing import Any, Self

from optdyn.base.errors import ConfigError, shown
from optdyn.base.fields import Value, default_of, not_one, plain
from optdyn.clock.base import Timeline
from optdyn.methods.method import PLAIN, Method, Methods
from optdyn.methods.setup import Setup
from optdyn.problem import own_code

__all__ = ["ConfigError", "Experiment", "differences", "read", "to_json", "usual"]


@dataclass(frozen=True, kw_only=True)
class Experiment(Setup):
    """All that determines a run, as a value: it hashes, and can be the key of a cache.

    Values that do not go together are refused by `train.checks.check`.
    """

    method: Any = made(default_factory=lambda: Methods.named(PLAIN))

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", Methods.wrap(self.method))
        super().__post_init__()
        if not isinstance(self.method, Methods):
            raise ConfigError(not_one("config.method", self.method, Method))
        self.method.checked()

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """The experiment of a nested dict, with defaults of what it lacks. Raises `ConfigError`."""
        return cls().with_(values)

    def changed_keys(self) -> dict[str, Any]:
        """The dotted keys whose values are not the defaults, with their values."""
        found = dict[str, Any]()

        def walk(value: Value, usual: Any, key: Callable[[str], str]) -> None:
            if value.root and value.name != usual:
                found[key("name")] = value.name
            for name, each in value.field_table().items():
                now, default = getattr(value, name), default_of(each)
                if isinstance(now, Value):
                    walk(now, default.name, now.key)
                elif not isinstance(now, Methods) and name != "name" and now != default:
                    found[key(name)] = plain(now)

        walk(self, "", self.key)
        if self.method.name != PLAIN:
            found["method.name"] = self.method.name
        for section, one in self.method.by_section.items():
            inner = f"{section}." if len(self.method.every) > 1 else ""
            walk(one, one.name, lambda name, at=f"method.{inner}": at + name)  # type: ignore[misc]
        return found

    @property
    def methods(self) -> Methods:
        """The methods with their numbers."""
        return self.method

    def __str__(self) -> str:
        """One screen of what differs from the defaults."""
        changed = self.changed_keys()
        width = max(map(len, changed), default=0)
        lines = [f"  {key:{width}}  {shown(value)}" for key, value in changed.items()]
        return "\n".join(["Experiment, all defaults but", *lines] if lines else ["Experiment()"])

    def timeline(self, **known: Any) -> Timeline:
        """The timeline of a run, as far as its past epochs decide it.

        `known` are the fields of `ClockInputs` besides the setup. Raises `TimelineError`.
        """
        return self.methods.timeline(self, **known)


@cache
def usual() -> Experiment:
    """The experiment of all defaults."""
    return Experiment()


def read(
    held: Mapping[str, object],
    file: object = "config.json",
    keys: Sequence[str] = own_code.KEYS,
) -> Experiment:
    """The experiment of a run that wrote `held` as its `config.json`.

    Raises `ConfigError`, also where it lacks a key, or where one of the keys names what is not to
    be run (`check_read`).
    """
    own_code.check_read(held, file, keys)
    experiment = Experiment.read(held)
    if lacks := [key for key in differences(held, json.loads(to_json(experiment)))]:
        raise ConfigError(f"{file} has no {lacks[0]}")
    return experiment


def to_json(config: Setup) -> str:
    """The resolved config, as it is written to `config.json`."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def differences(
    one: Mapping[str, object], other: Mapping[str, object], prefix: str = ""
) -> list[str]:
    """Dotted names of the keys in which two plain configs differ."""
    names = []
    for key in sorted(one.keys() | other.keys()):
        a, b = one.get(key), other.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            names += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(prefix + key)
    return names
