"""The config that a run wrote: `--config=DIR/config.json` is `get_config("DIR/config.json")`."""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from optdyn.base import type_checks
from optdyn.base.errors import ConfigError, InputError
from optdyn.base.files import read_json
from optdyn.experiment import default, with_defaults


def get_config(path: str) -> ConfigDict:
    """The config in a JSON file, with defaults for keys that it lacks.

    Raises `ConfigError` if it holds something else.
    """
    config = default()
    try:
        held = _with_tuples(with_defaults(read_json(Path(path))))
        type_checks.check(held, config.to_dict())
    except InputError as error:
        raise ConfigError(f"config file {path}: is no config of a run: {error}") from error
    config.update(ConfigDict(held))
    return config


def _with_tuples(value: Any) -> Any:
    """The value with tuples where JSON has lists."""
    if isinstance(value, dict):
        return {key: _with_tuples(inner) for key, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
