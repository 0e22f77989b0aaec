"""A user's own things: from a name in a config to the thing, and how one is told from another.

A name is that of a registry, or MODULE:ATTRIBUTE of a module that can be imported, also from the
current folder, or some/folder/file.py:ATTRIBUTE. What the user's own code raises, on import or when
it is called, becomes one line that says in which file and where.

A module is what Python has of it in this process: after an edit `importlib.reload` is the user's to
call. A file is looked at every time, and executed anew if its bytes are others; `once` is for what
must not change midway.

In a process a thing is itself (`Is`): what is defined again is another one, and makes another
program. What a function reads from its module is not followed, as in `jax.jit`. A run that goes on
in another process compares hashes (`fingerprint`): of a file that of its bytes, of what has no file
that of what is in it (`digest`).

Names in files that a run, or a stranger, wrote run nothing by themselves (`check_read`).
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import shlex
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from threading import RLock
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

from optdyn.base.errors import ConfigError, InputError, meant, one_line, shown

Hint = Callable[[str, Mapping[str, Any]], str]
OWN = "MODULE:NAME or path/to/file.py:NAME of your own"
MODEL = ("model.name", "loss", "metrics")
OPTIMIZER = ("optimizer.name", "optimizer.chain")
METHOD = ("method.name",)
DATA = ("data.name",)
# The keys of a config that may name what is the user's own.
CLOCK = (*OPTIMIZER, *METHOD, "optimizer.schedule", "cluster.service.name")  # of pages on a run
KEYS = (*MODEL, *DATA, *CLOCK)
ANY = "any"  # of config.code: go on with the code that there is
DIGITS = 12  # of a hash in config.code
ENTRY = re.compile(rf"(.+?) ([0-9a-f]{{{DIGITS}}})(?:, |$)")
# The name of what Python was given itself.
IN_MEMORY = re.compile(r"optdyn\.base\.in_memory:(\w+)_\d+")
INSTALLED = re.compile("site-packages|dist-packages")
OURS_AND_PYTHONS = (Path(__file__).parents[1], *map(sysconfig.get_path, ("stdlib", "platstdlib")))
LIBRARIES = ("<frozen", *(f"{folder}{os.sep}" for folder in OURS_AND_PYTHONS))
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), np.dtype)
IMPORTING = RLock()
_used = set[tuple[str, str]]()  # keys and names of the user's own that this process looked up
_looked_at: ContextVar[dict[Path, ModuleType]] = ContextVar("looked_at")


class Is(NamedTuple):
    """A thing as a key of a cache, equal to itself only."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Is) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


Key = tuple[Is, ...]


class _Missing(Exception):
    """There is no such module or file."""


# Names.


def is_own(name: str) -> bool:
    """Whether it names something of the user's own."""
    return isinstance(name, str) and ":" in name


def is_used(key: str, name: str) -> bool:
    """Whether this process has looked it up already, as who runs it asked for it."""
    return (key, name) in _used


def is_given(key: str, name: str) -> bool:
    """Whether it stands on the command line, as the key's value or in it."""
    flag = rf"^--?({re.escape(key)}|methods)[=\n]"
    given = rf"""{flag}(.*['"(,+])?{re.escape(name)}(['"),+]|$)"""
    return bool(re.search(given, "\n".join(sys.argv), re.M))


def words(name: str) -> str:
    """What was given itself, and not by a name, as `arrays` or `a function`; else ''."""
    match = IN_MEMORY.fullmatch(str(name))
    return match[1].replace("_", " ") if match else ""


def unnumbered(text: str) -> str:
    """A text in which the names of what was given itself lack their numbers.

    These follow the order of naming in a process; hashes tell one thing from another.
    """
    return IN_MEMORY.sub(r"\1", text)


def setting(key: str, name: str) -> str:
    """`KEY = NAME`, the start of a line; or, as `words` has it, `config.data given as arrays`."""
    given = words(name)
    return f"{key.removesuffix('.name')} given as {given}" if given else f"{key} = {name!r}"


def names(config: Any, keys: Sequence[str] = KEYS) -> Iterator[tuple[str, str]]:
    """(key, name) of all of the user's own that these keys of a config name."""
    for key in keys:
        value = _at(config, key)
        if key in METHOD:
            value = str(value).split("+")
        for name in value if isinstance(value, (list, tuple)) else [value]:
            if is_own(name):
                yield f"config.{key}", name


def _at(config: Any, key: str) -> Any:
    """The value of a dotted key of an experiment, or of its nested dict, where that has it."""
    for part in key.split("."):
        config = config.get(part, "") if isinstance(config, Mapping) else getattr(config, part, "")
    return config


# Things.


@contextmanager
def once() -> Iterator[None]:
    """Inside, every file is looked at once, so a run is of one code whatever is edited meanwhile.

    Inside of another `once` it adds nothing. Threads of a pool have it where they are started in a
    copy of the context.
    """
    token = _looked_at.set(_looked_at.get({}))
    try:
        yield
    finally:
        _looked_at.reset(token)


def find(key: str, name: str, known: Mapping[str, Any], hint: Hint = meant) -> Any:
    """What `name`, the value of `key`, stands for: of `known`, or of the user's own.

    `hint(name, known)` ends the line that refuses a name. Raises `ConfigError`, also where the
    user's file cannot be imported or has no such attribute.
    """
    if is_own(name):
        _, thing = _found(key, name)
        _used.add((key, name))
        return thing
    if name not in known:
        wanted = f"must be one of {', '.join(known)}, or {OWN}{hint(name, known)}"
        raise ConfigError(f"{key} = {name!r}: {wanted}")
    return known[name]


def objects(config: Any, keys: Sequence[str]) -> Key:
    """What of the user's own these keys name, as a key of caches; () if nothing. `ConfigError`."""
    return tuple(Is(find(key, name, {})) for key, name in names(config, keys))


def _found(key: str, name: str) -> tuple[ModuleType, Any]:
    """The module or file that a name of the user's own is of, and the thing. `ConfigError`."""
    (where, _, attribute), line = name.rpartition(":"), setting(key, name)
    try:
        module = _file(Path(where)) if where.endswith(".py") else _module(where)
    except _Missing as error:
        raise ConfigError(f"{line}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{line}: cannot be imported ({told(error)})") from error
    if not hasattr(module, attribute):
        public = {n: value for n, value in vars(module).items() if not n.startswith("_")}
        here = [n for n, v in public.items() if getattr(v, "__module__", "") == module.__name__]
        file, only = getattr(module, "__file__", module.__name__), ", ".join(here) or "nothing"
        raise ConfigError(f"{line}: {file} has no {attribute!r}, only {only}")
    return module, getattr(module, attribute)


def _module(name: str) -> ModuleType:
    """Ours and those installed go before those of the current folder."""
    _search(Path.cwd())
    if name not in sys.modules:
        importlib.invalidate_caches()  # it may have been written a moment ago
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # but one that it imports
            raise
        raise _Missing(f"no module {name!r}, neither installed nor in {Path.cwd()}") from error
    _hash_of(module)  # now, before it is edited
    return module


def _file(path: Path) -> ModuleType:
    """The module of a file as it is now, or inside `once` as it was when it was looked at."""
    path, looked_at = path.expanduser().resolve(), _looked_at.get({})
    with IMPORTING:
        if path not in looked_at:
            looked_at[path] = _executed(path)
        return looked_at[path]


def _executed(path: Path) -> ModuleType:
    """The module of a file as it is now, which is executed only if its bytes are others."""
    if not path.is_file():
        raise _Missing(f"no file {path}")
    content, name = path.read_bytes(), f"{path.stem}_{zlib.crc32(bytes(path)):08x}"
    before, found = sys.modules.get(name), hashlib.sha256(content).hexdigest()
    if before and _hash_of(before) == found:
        return before
    _search(path.parent)  # for what the file imports of its neighbours
    importlib.invalidate_caches()
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)
    except Exception:
        del sys.modules[name]
        raise
    vars(spec)["sha256"] = found
    return module


def _search(folder: Path) -> None:
    """Lets modules be imported from there, where no other place has them."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


# Lines.


def call(key: str, name: str, function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """`function(*args, **kwargs)`; if it is the user's own, all that it raises is `ConfigError`."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        if isinstance(error, InputError) or not is_own(name):
            raise
        raise ConfigError(f"{setting(key, name)}: {told(error, function)}") from error


def told(error: BaseException, *functions: object) -> str:
    """One line: file and line, the exception and its message.

    The place is the last one outside of installed libraries, or where one of `functions` begins.
    """
    codes = [getattr(f, "__code__", None) for f in functions]
    places = [(code.co_filename, code.co_firstlineno) for code in codes if code]
    places += [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    mine = [f"{file}, line {line}: " for file, line in places if is_users(file)]
    return f"{''.join(mine[-1:])}{type(error).__name__}: {one_line(error, 300)}"


# Files.


def is_library(filename: str) -> bool:
    """Whether a file is installed, Python's, or one of this package."""
    return filename.startswith(LIBRARIES) or bool(INSTALLED.search(filename))


def is_users(filename: str) -> bool:
    """Whether it is a file of the user's own."""
    return not filename.startswith("<") and not is_library(filename)


def file_of(module: ModuleType) -> Path | None:
    """The Python file of a module; None of what is typed in, and of a script, `__main__`."""
    path = str(getattr(module, "__file__", None))
    return Path(path) if path.endswith(".py") and module.__name__ != "__main__" else None


def _hash_of(module: ModuleType) -> str:
    """The hash of a module's file when the module was first looked up, or reloaded; '' of none.

    It is kept in the module's spec, in whose place `importlib.reload` puts another.
    """
    spec, path = getattr(module, "__spec__", None), file_of(module)
    kept = vars(spec) if spec else {}
    if "sha256" not in kept and path and path.is_file():
        kept["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return str(kept.get("sha256", ""))


def _file_of_code(thing: Any) -> str:
    """The file of the code of a function, or of a thing's class.

    '<frozen' if it is a part of Python that has no file, and '<' if it was typed in.
    """
    if isinstance(code := getattr(thing, "__code__", None), CodeType):
        return code.co_filename
    module = sys.modules.get((thing if isinstance(thing, type) else type(thing)).__module__)
    unfiled = "<frozen" if getattr(module, "__spec__", None) else "<"
    return getattr(module, "__file__", None) or unfiled


# Contents.


def digest(thing: Any) -> str:
    """A hash of what is in a thing, the same in every process of this version of Python.

    Of a function it is of its code and closure, of a library's of its name and closure.
    """
    known = dict[int, tuple[Any, str]]()  # hashes by identity; beside the part, which so stays

    def of(part: Any) -> str:
        if id(part) not in known:
            known[id(part)] = part, ""  # of what reaches itself
            text = repr((_qualified(type(part)), _inside(part, of)))
            known[id(part)] = part, hashlib.sha256(text.encode()).hexdigest()
        return known[id(part)][1]

    return of(thing)


def _inside(thing: Any, of: Callable[[Any], str]) -> Any:
    """What tells a thing from others of its type, and `of` its parts; '' if no more is known."""
    if isinstance(thing, PLAIN):
        return repr(thing)
    if isinstance(thing, (list, tuple)):
        return [of(part) for part in thing]
    if isinstance(thing, (set, frozenset)):  # whose order is another in every process
        return sorted(map(of, thing))
    if isinstance(thing, Mapping):
        return sorted((of(key), of(value)) for key, value in thing.items())
    if isinstance(thing, CodeType):
        return thing.co_code, thing.co_names, of(thing.co_consts)
    if isinstance(thing, CellType):
        return "" if thing == CellType() else of(thing.cell_contents)  # a name may have no value
    if isinstance(thing, partial):
        return of(thing.func), of(thing.args), of(thing.keywords)
    if isinstance(thing, MethodType):
        return of(thing.__func__), of(thing.__self__)
    is_theirs = is_library(_file_of_code(thing))
    if isinstance(thing, FunctionType):
        code = _qualified(thing) if is_theirs else of(thing.__code__)
        return code, of(thing.__closure__), of(thing.__defaults__), of(thing.__kwdefaults__)
    if isinstance(thing, type):
        body = {n: v for n, v in vars(thing).items() if isinstance(v, FunctionType) or n[0] != "_"}
        return _qualified(thing), "" if is_theirs else of((thing.__bases__, body))
    if dataclasses.is_dataclass(thing):
        fields = [getattr(thing, field.name, None) for field in dataclasses.fields(thing)]
        return of(type(thing)), of(fields)
    if (array := _array(thing)) is not None:
        if array.dtype.hasobject:
            return array.shape, of(array.tolist())
        return str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()
    if isinstance(thing, SimpleNamespace) or (hasattr(thing, "__dict__") and not is_theirs):
        return of(type(thing)), of(vars(thing))
    wrapped = inspect.getattr_static(thing, "__wrapped__", None)  # of jax.jit, say
    return _qualified(thing), of(wrapped) if wrapped else ""


def _qualified(thing: Any) -> str:
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", "")
    return f"{getattr(thing, '__module__', '')}.{name}"


def _array(thing: Any) -> np.ndarray | None:
    """What has numbers as an array: of NumPy, JAX, pandas and the like; None if it has none."""
    if not hasattr(type(thing), "__array__"):
        return None
    try:
        if isinstance(thing, jax.Array) and jax.dtypes.issubdtype(thing.dtype, jax.dtypes.prng_key):
            thing = jax.random.key_data(thing)
        return np.asarray(thing)
    except Exception:  # a library's, of whatever it cannot show
        return None


# What a run was started with.


def fingerprint(config: Any, keys: Sequence[str] = KEYS) -> str:
    """`WHAT HASH, WHAT HASH` of what of the user's own these keys name; '' if nothing.

    WHAT is a file or a module; of what has no file its name, or the key that it was given for.
    """
    found = dict[str, str]()
    for key, name in names(config, keys):
        module, thing = _found(key, name)
        if words(name):
            given = key.removesuffix(".name")
            found[given] = digest((found.get(given), thing))  # a chain has several
        elif not (file := file_of(module)):
            found[name] = digest(thing)
        elif is_users(str(file)):
            found[name.rpartition(":")[0]] = _hash_of(module)
    return ", ".join(f"{what} {text[:DIGITS]}" for what, text in sorted(found.items()))


def entries(code: object) -> dict[str, str]:
    """The hashes in a `fingerprint`, by what they are of; {} of what is none."""
    return dict(ENTRY.findall(code)) if isinstance(code, str) else {}


def changed(before: object, now: str) -> str:
    """What is other now than in the `fingerprint` from before, in words.

    '' if nothing is, and where there was none.
    """
    if not before or before == now:
        return ""
    other = [what for what, _ in entries(now).items() - entries(before).items()]
    return " and ".join(sorted(other)) or "your own files"


def check(config: Any) -> None:
    """Raises `ConfigError` where `config.code` asks for other code than there is."""
    if config.code in ("", ANY):
        return
    if said := changed(config.code, found := fingerprint(config)):
        good = " or ".join(map(repr, dict.fromkeys((found, ANY, ""))))
        raise ConfigError(f"config.code = {shown(config.code)}: {said} is another; must be {good}")


# What a file may have run.


def check_read(config: Mapping[str, Any], file: object, keys: Sequence[str] = KEYS) -> None:
    """Raises `ConfigError` where a config that was read from a file names what it is not to run.

    What it names of the user's own must stand on the command line too; and it must be of the kind
    that the key wants, or code in a file of the user's. What this process has used before is both.
    A dotted key is refused, for it would be another place of a name.
    """
    if dotted := next(_dotted(config), ""):
        raise ConfigError(f"{file}: its key {dotted!r} must be in its section, without a dot")
    for key, name in names(config, keys):
        short, where = key.removeprefix("config."), f"{key} = {name!r} of {file}"
        is_known = is_used(key, name)
        if is_known and words(name):  # whose number may be another thing's in this process
            is_known = not changed(config.get("code"), fingerprint(config, (short,)))
        if is_known:
            continue
        if not is_given(key, name):
            flag = shlex.quote(f"--{key}={_at(config, short)}")
            raise ConfigError(f"{where}: a file runs no code by itself; if it is yours, add {flag}")
        if not _may_be_called(short, _found(key, name)[1]):
            raise ConfigError(
                f"{where}: must be code in a file of your own; what is installed is named in a "
                "config in Python"
            )


def _dotted(config: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a nested dict, but for options, that have a dot in them."""
    for key, value in config.items():
        if "." in key:
            yield key
        elif isinstance(value, Mapping) and not key.endswith("options"):
            yield from _dotted(value)


def _may_be_called(key: str, thing: Any) -> bool:
    """Whether it is of the kind that the key wants, or code in a file of the user's.

    The kind is that of a class, or of what a function says that it returns: nothing is called.
    """
    import flax.linen as nn  # here, for they take long
    import optax

    from optdyn.base.fields import Value  # which needs this module

    kinds = {
        "model.name": nn.Module,
        "method.name": Value,
        **dict.fromkeys(OPTIMIZER, optax.GradientTransformation),
    }
    result = getattr(thing, "__annotations__", {}).get("return")
    kind = thing if isinstance(thing, type) else result
    is_of_kind = isinstance(kind, type) and issubclass(kind, kinds.get(key, ()))
    return is_of_kind or is_users(_file_of_code(inspect.unwrap(thing)))
