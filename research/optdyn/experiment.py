"""An experiment, all that determines a run, and the config that it is read from.

A config file defines `get_config()`, starts from `default()` and changes what it means to change;
the result is locked, so a misspelt key is an error and not a silent default.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from ml_collections import ConfigDict

from optdyn import methods, setup
from optdyn.base import lookup, type_checks
from optdyn.base.errors import ConfigError
from optdyn.base.trees import Json
from optdyn.clock.base import Timeline
from optdyn.methods.chosen import Chosen
from optdyn.methods.method import Methods
from optdyn.setup import PARTS, Cluster, Pieces, Setup

__all__ = [
    "ConfigError",
    "Experiment",
    "check_whole",
    "default",
    "differences",
    "parse",
    "read",
    "to_json",
    "usual",
    "with_defaults",
]


@dataclass(frozen=True, kw_only=True)
class Experiment(Setup):
    """All that determines a run, as a value: it hashes, and can be the key of a cache.

    `checks.check` refuses fields that do not go together. `method` has the keys of all methods.
    """

    method: Chosen

    @classmethod
    def of(cls, values: Mapping[str, Any], method: Callable[..., Any]) -> Self:
        """From the nested dict of a config, which must have all keys. Raises `ConfigError`."""
        parts: dict[str, Callable[..., Any]] = {"method": method, **PARTS}
        own = {key: value for key, value in values.items() if key not in parts}
        for name, part in parts.items():
            of = dict(values[name])
            if part is Cluster:
                of["pieces"] = Pieces(**of["pieces"])
            own[name] = part(**of)
        return cls(**own)

    @property
    def methods(self) -> Methods:
        """The methods with their numbers. Raises `ConfigError`."""
        return self.method.methods

    def timeline(self, **known: Any) -> Timeline:
        """The timeline of a run, as far as its past epochs decide it.

        `known` are the fields of `ClockInputs` besides the setup. Raises `TimelineError`.
        """
        return self.methods.timeline(self, **known)


@cache
def usual() -> Experiment:
    """The experiment of all defaults."""
    return parse(default())


def read(
    held: Mapping[str, object],
    file: object = "config.json",
    keys: Sequence[str] = lookup.KEYS,
) -> Experiment:
    """The experiment of a run that wrote `held` as its `config.json`.

    Raises `ConfigError`, also where it lacks a key (`check_whole`), or where one of the keys names
    what is not to be run (`check_read`).
    """
    check_whole(held, file)
    experiment = parse(held)
    lookup.check_read(experiment, file, keys)
    return experiment


def parse(config: ConfigDict | Mapping[str, object]) -> Experiment:
    """The experiment that a config is of, each value of its kind and in its range.

    Raises `ConfigError` at the first that is not.
    """
    values = config.to_dict() if isinstance(config, ConfigDict) else config
    type_checks.check(values, _defaults())
    return Experiment.of(values, Chosen.of)


def default() -> ConfigDict:
    """All keys: the fields of an experiment's parts, and the keys of all methods."""
    nested = _defaults()
    config = ConfigDict(nested).lock()
    for section, values in nested.items():
        for key, value in values.items() if isinstance(values, dict) else ():
            if value == {}:  # whose keys are those of what is chosen
                config[section][key].unlock()
    return config


def _defaults() -> Json:
    """The default of every key, nested."""
    nested = Json()
    for name, value in (setup.defaults() | methods.defaults()).items():
        part, (*sections, key) = nested, name.split(".")
        for section in sections:
            part = part.setdefault(section, {})
        part[key] = dict(value) if isinstance(value, Mapping) else value
    return nested


def to_json(config: ConfigDict | Experiment) -> str:
    """The resolved config, as it is written to `config.json`.

    A method that has no numbers of its own, apart from the other methods', has no section there.
    """
    whole = config.to_dict()
    keys, known = whole["method"], methods.built_in()
    whole["method"] = {key: v for key, v in keys.items() if key not in known or v}
    return json.dumps(whole, indent=2, sort_keys=True) + "\n"


def with_defaults(held: Mapping[str, object]) -> Json:
    """A nested config with the defaults of the keys that it lacks."""

    def merged(given: Any, usual: Any) -> Any:
        if not (isinstance(given, Mapping) and isinstance(usual, Mapping)):
            return given
        return {**usual, **{key: merged(v, usual.get(key)) for key, v in given.items()}}

    return merged(held, json.loads(to_json(default())))


def check_whole(held: Mapping[str, Any], file: object) -> None:
    """Raises `ConfigError` unless `held`, of a run's `config.json`, has all keys."""

    def missing(given: Any, usual: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
        for key, value in usual.items():
            if not isinstance(given, Mapping) or key not in given:
                yield prefix + key
            elif isinstance(value, Mapping):
                yield from missing(given[key], value, f"{prefix}{key}.")

    if key := next(missing(held, json.loads(to_json(default()))), ""):
        raise ConfigError(f"{file} has no {key}")


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
