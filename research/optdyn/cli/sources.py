"""What the files say of commands, flags, keys and configs without being imported, which takes long.

Help, typing errors and completion are answered from here in a tenth of a second.
"""

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from optdyn import setup
from optdyn.base.errors import meant

PACKAGE = Path(__file__).parents[1]
# In an installed package the configs lie in it, in a checkout beside `research/`.
CONFIGS = next(
    path for path in (PACKAGE / "configs", PACKAGE.parents[1] / "configs") if path.is_dir()
)
WRITTEN = Path(__file__).with_name("written.py")  # reads what runs wrote down

METHODS = "A method (`optdyn list methods`), several joined by '+', or your own."
OWN = "Keys of a method of your own."


@cache
def tree(module: str) -> ast.Module:
    """The syntax of a module, named as it is below `optdyn`."""
    return ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text())


def doc(module: str) -> str:
    """The docstring of a module."""
    return ast.get_docstring(tree(module)) or ""


def flags(module: str) -> dict[str, str]:
    """What a module defines by `flags.DEFINE_...` or `add_argument`: {"--name": its help}."""
    found = {}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name.startswith("DEFINE_") or name == "add_argument":
                more = [k.value for k in node.keywords if k.arg in ("help", "help_string")]
                given = [n.value for n in (*node.args, *more) if isinstance(n, ast.Constant)]
                first, *words = [text for text in given if isinstance(text, str)]
                about = words[-1] if words else ""
                found["--" * name.startswith("DEFINE_") + first] = about
    return found


def configs() -> dict[str, Path]:
    """The shipped config files by name, such as `grids/quickstart`."""
    files = sorted(CONFIGS.rglob("*.py"), key=lambda path: (len(path.parts), path))
    given = (path for path in files if re.search(r"^def get_config\(", path.read_text(), re.M))
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in given}


def config_file(name: str) -> Path:
    """The config file of a path, or of the name of a shipped one.

    Raises FileNotFoundError, whose message says which there are and which may be meant.
    """
    shipped = configs()
    path = Path(name)
    if path.is_file() and path.suffix in (".py", ".json"):
        return path
    if (path / "config.json").is_file():
        raise FileNotFoundError(
            f"config file {name}: is a workdir; its config is {path}/config.json"
        )
    if path.is_file() and name not in shipped:
        raise FileNotFoundError(
            f"config file {name}: must be a .py file, which is run, or a .json file"
        )
    if name not in shipped:
        hint = meant(name.removesuffix(".py"), shipped) or f"; shipped are {', '.join(shipped)}"
        raise FileNotFoundError(f"config file {name}: not found{hint}")
    return shipped[name]


def methods() -> dict[str, str]:
    """The files of methods that have a `METHOD`, with the first line of each."""
    return {name: doc(module_of(name)).split("\n")[0] for name in _methods()}


def module_of(name: str) -> str:
    """`methods.mix.daso`, the module of a file of methods, as `doc` takes it."""
    path = _files()[name].relative_to(PACKAGE)
    return ".".join(path.with_suffix("").parts)


@cache
def keys() -> dict[str, str]:
    """Dotted names of all keys of a run's config, with the comments that explain them."""
    found = {name: each.metadata["about"] for name, each in setup.every_key()}
    found |= {"method.name": METHODS, "method.options": OWN}
    for name in _methods():
        found |= {f"method.{key}": text for key, text in _of_method(name).items()}
    return found


@cache
def owners() -> dict[str, list[str]]:
    """{`method.KEY`: the methods that have the key}."""
    found = dict[str, list[str]]()
    for method in _methods():
        for key in _of_method(method):
            found.setdefault(f"method.{key}", []).append(method)
    return found


def unknown_key(name: str) -> bool:
    """Whether neither a run's config nor a grid's has such a key. Those of options are free.

    A method that is joined with others may have keys of its own, `method.METHOD.KEY`.
    """
    name = re.sub(r"\[.*", "", name).removeprefix("base.")
    above, _, last = name.rpartition(".")
    section, _, method = above.rpartition(".")
    if section == "method" and method in _methods():
        return last not in _of_method(method)
    sections = {key.rpartition(".")[0] for key in keys()} | {"base", "points", "note"}
    return not (
        name in keys() or name in sections or (above.endswith("options") and above in keys())
    )


def no_key(name: str) -> str:
    """A line on a key that there is not."""
    hint = meant(name.removeprefix("base."), keys()) or "; `optdyn list keys` shows them all"
    return f"config has no key {name!r}{hint}"


def no_flag(name: str, flags: Sequence[str]) -> str:
    """A line on a flag that is none of these, and may be meant to be one or a key of the config.

    The name is without its dashes.
    """
    of_config = keys() if "config" in flags else {}
    every = [f"--{flag}" for flag in flags] + [f"--config.{key}" for key in of_config]
    if f"{name}.name" in of_config:  # --model=cnn
        hint = f"; did you mean --config.{name}.name?"
    elif of_config and not unknown_key(name):  # also those of options
        hint = f"; did you mean --config.{name}?"
    else:
        own = every[: len(flags)]
        hint = meant(name, own) or meant(name, every) or f"; there are {', '.join(own)}"
    return f"Unknown command line flag {name!r}{hint}"


def _methods() -> list[str]:
    made = re.compile(r"^METHOD = ", re.M)
    return [name for name, path in _files().items() if made.search(path.read_text())]


def _files() -> dict[str, Path]:
    """The files of methods, by their names."""
    every = (PACKAGE / "methods").rglob("*.py")
    return dict(sorted((path.stem, path) for path in every if path.stem != "__init__"))


@cache
def _classes() -> dict[str, ast.ClassDef]:
    """The classes of all files of methods, by their names."""
    every = (node for path in _files().values() for node in ast.parse(path.read_text()).body)
    return {node.name: node for node in every if isinstance(node, ast.ClassDef)}


def _of_method(name: str) -> dict[str, str]:
    """The fields of a method, those of the classes that it is made of first, and their words."""
    (made,) = re.findall(r"^METHOD = (\w+)$", _files()[name].read_text(), re.M)
    return _fields(made)


def _fields(name: str) -> dict[str, str]:
    found = dict[str, str]()
    node = _classes().get(name)
    for base in reversed(node.bases) if node else ():
        found |= _fields(ast.unparse(base).rpartition(".")[2])
    for each in node.body if node else ():
        if isinstance(each, ast.AnnAssign) and isinstance(each.value, ast.Call):
            found[ast.unparse(each.target)] = ast.literal_eval(each.value.args[1])
    return found
