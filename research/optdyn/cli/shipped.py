"""Configs by name or path, from Python: `od.config("quickstart")`."""

import importlib.util

from ml_collections import ConfigDict

from optdyn.base.errors import ConfigError
from optdyn.cli import sources, written


def config(name: str) -> ConfigDict:
    """Returns what `get_config()` of a config file returns, which is the caller's to change.

    `name` is that of a shipped config (`optdyn list configs`) or a path; TEXT of `NAME:TEXT` is
    given to `get_config`. Of a run's `config.json` it is the config of that run. Raises
    `ConfigError`.
    """
    file, _, text = name.partition(":")
    try:
        path = sources.config_file(file)
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from error
    if path.suffix == ".json":
        return written.get_config(str(path))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(*[text] * bool(text))
