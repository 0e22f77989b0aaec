"""Configs by name or path: a file that defines `get_config()`, or the `config.json` of a run.

`get_config()` returns an `Experiment`, or a `Grid` of them.
"""

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
# In an installed package the configs lie in it, in a checkout beside `research/`.
CONFIGS = next(
    path for path in (PACKAGE / "configs", PACKAGE.parents[1] / "configs") if path.is_dir()
)


def configs() -> dict[str, Path]:
    """The shipped config files by name, such as `grids/quickstart`."""
    files = sorted(CONFIGS.rglob("*.py"), key=lambda path: (len(path.parts), path))
    given = (path for path in files if re.search(r"^def get_config\(", path.read_text(), re.M))
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in given}


def config_file(name: str) -> Path:
    """The config file of a path, or of the name of a shipped one. Raises `ConfigError`."""
    path = Path(name)
    if path.is_file() and path.suffix in (".py", ".json"):
        return path
    shipped, is_workdir = configs(), (path / "config.json").is_file()
    if name in shipped and not is_workdir:
        return shipped[name]
    hint = did_you_mean(name.removesuffix(".py"), shipped) or f"; shipped are {', '.join(shipped)}"
    said = f"not found{hint}"
    if is_workdir:
        said = f"is a workdir; its config is {path}/config.json"
    elif path.is_file():
        said = "must be a .py file, which is run, or a .json file"
    raise ConfigError(f"config file {name}: {said}")


def config(name: str, changes: Mapping[str, Any] = {}) -> "Experiment | Grid":
    """What `get_config()` of a config file returns, with other values of some keys.

    `name` is that of a shipped config (`optdyn list configs`) or a path; TEXT of `NAME:TEXT` is
    given to `get_config`. Of a run's `config.json` it is the experiment of that run. Raises
    `ConfigError`, also where a file of a run names code of one's own that is not in `changes`.
    """
    file, _, text = name.partition(":")
    path = config_file(file)
    return _written(path, changes) if path.suffix == ".json" else _made(path, text).with_(changes)


def _written(path: Path, changes: Mapping[str, Any]) -> "Experiment":
    from optdyn.base import lookup
    from optdyn.base.files import read_json
    from optdyn.cli.python import Experiment

    held = read_json(path)
    merged = _merged(held, changes)
    lookup.check_names_in_file(merged, path)
    theirs, asked = (list(lookup.user_names(found, lookup.METHOD)) for found in (held, merged))
    if theirs != asked:
        held.pop("method", None)  # which would be imported, though another is in its place
    try:
        return Experiment.read(held).with_(changes)
    except InputError as error:
        raise ConfigError(f"config file {path}: is no config of a run: {error}") from error


def _merged(held: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A nested dict with other values of dotted keys."""
    found = dict(held)
    for key, value in changes.items():
        first, _, rest = key.partition(".")
        inner = found.get(first)
        if rest:
            value = _merged(inner if isinstance(inner, Mapping) else {}, {rest: value})
        found[first] = value
    return found


def _made(path: Path, text: str) -> Any:
    from optdyn.experiment import Config
    from optdyn.train.grid import Grid

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not callable(getattr(module, "get_config", None)):
            raise ConfigError(
                f"{_near(path)}: has no attribute 'get_config'; it must be a function"
            )
        made = module.get_config(*[text] * bool(text))
    except InputError:
        raise
    except Exception as error:
        raise ConfigError(_line_of(error, path)) from error
    if not isinstance(made, (Config, Grid)):
        raise ConfigError(
            f"config file {_near(path)}: its get_config() returns no Experiment and no Grid"
        )
    return made


def _line_of(error: Exception, path: Path) -> str:
    """The line for an error in a config file, with the file and where in it."""
    if isinstance(error, SyntaxError):
        where = f"{_near(Path(error.filename or path))}:{error.lineno}"
        return f"{where}: SyntaxError: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    if isinstance(error, TypeError) and str(error).startswith("get_config() "):
        return f"{_near(path)}: {error}; it is given what follows a colon, --config=FILE:TEXT"
    what = error.args[0] if isinstance(error, KeyError) and error.args else error
    said = repr(what) if isinstance(what, str) and " " not in what else str(what)
    return f"{_near(path)}:{lines[-1] if lines else 1}: {type(error).__name__}: {said}"


def _near(path: Path) -> str:
    """The path from here, if it lies below."""
    with suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)
