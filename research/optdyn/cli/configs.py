"""Configs by name or path: a file with a function `get_config()`, or the `config.json` of a run."""

import importlib.util
import re
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optdyn.base.errors import ConfigError, InputError, did_you_mean

if TYPE_CHECKING:
    from optdyn.cli.python import Experiment
    from optdyn.train.grid import Grid

PACKAGE = Path(__file__).parents[1]
# An installed package has the configs in it, a checkout beside `research/`.
CONFIGS = next(
    path for path in (PACKAGE / "configs", PACKAGE.parents[1] / "configs") if path.is_dir()
)


def configs() -> dict[str, Path]:
    """Returns the shipped config files by name, such as `grids/quickstart`."""
    files = sorted(CONFIGS.rglob("*.py"), key=lambda path: (len(path.parts), path))
    found = (path for path in files if re.search(r"^def get_config\(", path.read_text(), re.M))
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in found}


def config_file(name: str) -> Path:
    """Returns the config file of a path or of a shipped config's name. Raises `ConfigError`."""
    path = Path(name)
    if path.is_file() and path.suffix in (".py", ".json"):
        return path
    shipped, is_workdir = configs(), (path / "config.json").is_file()
    if name in shipped and not is_workdir:
        return shipped[name]
    hint = did_you_mean(name.removesuffix(".py"), shipped) or f"; shipped are {', '.join(shipped)}"
    reason = f"not found{hint}"
    if is_workdir:
        reason = f"is a workdir; its config is {path}/config.json"
    elif path.is_file():
        reason = "must be a .py file, which is run, or a .json file"
    raise ConfigError(f"config file {name}: {reason}")


def config(name: str, changes: Mapping[str, Any] = {}) -> "Experiment | Grid":
    """Returns the experiment or grid of a config, with other values of some keys.

    `name` is that of a shipped config (`optdyn list configs`) or a path; with `NAME:TEXT` the text
    is the argument of `get_config`. For a run's `config.json` it is that run's experiment. Raises
    `ConfigError`, also if such a file names user code that is not in `changes`.
    """
    file, _, text = name.partition(":")
    path = config_file(file)
    if path.suffix == ".json":
        return _experiment_of_run(path, changes)
    return _execute(path, text).with_(changes)


def _experiment_of_run(path: Path, changes: Mapping[str, Any]) -> "Experiment":
    from optdyn.base import lookup
    from optdyn.base.files import read_json
    from optdyn.cli.python import Experiment

    stored = read_json(path)
    merged = _merge(stored, changes)
    lookup.check_names_in_file(merged, path)
    methods = [list(lookup.user_names(config, lookup.METHOD)) for config in (stored, merged)]
    if methods[0] != methods[1]:
        stored.pop("method", None)  # it would be imported, although another replaces it
    try:
        return Experiment().with_(stored).with_(changes)
    except InputError as error:
        raise ConfigError(f"config file {path}: is no config of a run: {error}") from error


def _merge(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for key, value in changes.items():
        first, _, rest = key.partition(".")
        inner = merged.get(first)
        if rest:
            value = _merge(inner if isinstance(inner, Mapping) else {}, {rest: value})
        merged[first] = value
    return merged


def _execute(path: Path, text: str) -> Any:
    from optdyn.experiment import Config
    from optdyn.train.grid import Grid

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not callable(getattr(module, "get_config", None)):
            raise ConfigError(
                f"{_relative(path)}: has no attribute 'get_config'; it must be a function"
            )
        config = module.get_config(*[text] * bool(text))
    except InputError:
        raise
    except Exception as error:
        raise ConfigError(_error_line(error, path)) from error
    if not isinstance(config, (Config, Grid)):
        raise ConfigError(
            f"config file {_relative(path)}: its get_config() returns no Experiment and no Grid"
        )
    return config


def _error_line(error: Exception, path: Path) -> str:
    if isinstance(error, SyntaxError):
        where = f"{_relative(Path(error.filename or path))}:{error.lineno}"
        return f"{where}: SyntaxError: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    if isinstance(error, TypeError) and str(error).startswith("get_config() "):
        return f"{_relative(path)}: {error}; it is given what follows a colon, --config=FILE:TEXT"
    reason = error.args[0] if isinstance(error, KeyError) and error.args else error
    text = repr(reason) if isinstance(reason, str) and " " not in reason else str(reason)
    return f"{_relative(path)}:{lines[-1] if lines else 1}: {type(error).__name__}: {text}"


def _relative(path: Path) -> str:
    with suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)
