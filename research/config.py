"""The configuration of a run: the keys are the fields of an `experiment`.

A config file defines `get_config()`, starts from `default()` and changes what it means to change;
the result is locked, so a misspelt key is an error and not a silent default.
"""

import json
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from optdyn import experiment, strategies
from optdyn.values import ConfigError

__all__ = ["ConfigError", "as_begun", "default", "differences", "to_json", "with_new_keys"]


def default() -> ConfigDict:
    """All keys: the fields of an experiment's parts, and the keys of all methods."""
    values = experiment.defaults() | {"strategy.name": strategies.PLAIN, "strategy.options": {}}
    for method in map(strategies.load, strategies.built_in()):
        values |= {f"strategy.{key}": value for key, value in method.keys.items()}
    nested = dict[str, Any]()
    for name, value in values.items():
        part, (*sections, key) = nested, name.split(".")
        for section in sections:
            part = part.setdefault(section, {})
        part[key] = value
    config = ConfigDict(nested).lock()
    for name, value in values.items():
        if isinstance(value, dict):  # whose keys are those of what is chosen
            section, key = name.split(".")
            config[section][key].unlock()
    return config


def to_json(config: ConfigDict) -> str:
    """The resolved config, as it is written to `config.json`."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


# What runs had before there was the key, where that is not its default.
BEFORE = {"cluster.collective": "drawn"}


def with_new_keys(held: Mapping[str, Any]) -> dict[str, Any]:
    """A config that was written before some keys were there: they have what runs had then."""

    def merged(given: Any, usual: Any) -> Any:
        if not (isinstance(given, Mapping) and isinstance(usual, Mapping)):
            return given
        return {**usual, **{key: merged(v, usual.get(key)) for key, v in given.items()}}

    usual = json.loads(to_json(default()))
    for key, value in BEFORE.items():
        section, _, name = key.partition(".")
        usual[section][name] = value
    return merged(held, usual)


def as_begun(config: ConfigDict, held: Mapping[str, Any]) -> ConfigDict:
    """The config of a run that was begun as `held` says, before some keys were there."""
    usual, begun = default(), config.copy_and_resolve_references()
    for key, value in BEFORE.items():
        section, _, name = key.partition(".")
        is_older = isinstance(held.get(section), Mapping) and name not in held[section]
        if is_older and begun[section][name] == usual[section][name]:
            begun[section][name] = value
    return begun


def differences(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the keys in which two plain configs differ."""
    names = []
    for key in sorted(one.keys() | other.keys()):
        a, b = one.get(key), other.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            names += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(prefix + key)
    return names
