"""The user's code: finding it by the names in a config, and telling whether it has changed.

A name is `MODULE:NAME` or `FILE.py:NAME`. A module is imported once; a file is read at every
look-up, and executed again if its bytes have changed. Within a process things are compared by
identity (`Is`), which does not see changes of what a function reads from its module, in another
process by hashes (`fingerprint`).
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

from optdyn.base.errors import ConfigError, InputError, did_you_mean, one_line, short_repr

Hint = Callable[[str, Mapping[str, Any]], str]
USER_NAMES = "MODULE:NAME or path/to/file.py:NAME of your own"
# The keys of a config that may name the user's code.
MODEL = ("model.name", "loss", "metrics")
OPTIMIZER = ("optimizer.name", "optimizer.chain")
METHOD = ("method.name",)
DATA = ("data.name",)
CLOCK = (*OPTIMIZER, *METHOD, "optimizer.schedule", "cluster.service.name")  # for pages on a run
KEYS = (*MODEL, *DATA, *CLOCK)
ANY = "any"  # config.code of a run that goes on with the code as it is now
DIGITS = 12  # of a hash in config.code
ENTRY = re.compile(rf"(.+?) ([0-9a-f]{{{DIGITS}}})(?:, |$)")
IN_MEMORY = re.compile(r"optdyn\.base\.in_memory:(\w+)_\d+")
INSTALLED = re.compile("site-packages|dist-packages")
LIBRARY_FOLDERS = (Path(__file__).parents[1], *map(sysconfig.get_path, ("stdlib", "platstdlib")))
LIBRARIES = ("<frozen", *(f"{folder}{os.sep}" for folder in LIBRARY_FOLDERS))
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), np.dtype)
IMPORTING = RLock()
_found_names = set[tuple[str, str]]()  # keys and names that this process looked up
_files_read: ContextVar[dict[Path, ModuleType]] = ContextVar("files_read")


class Is(NamedTuple):
    """A thing as a key of a cache, equal to itself only."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Is) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


Key = tuple[Is, ...]


class _NotFound(Exception):
    """There is no such module or file."""


def is_user_name(name: str) -> bool:
    return isinstance(name, str) and ":" in name


def was_found(key: str, name: str) -> bool:
    return (key, name) in _found_names


def is_on_command_line(key: str, name: str) -> bool:
    """Returns whether the command line has the name as the value of the key, or inside it."""
    flag = rf"^--?({re.escape(key)}|methods)[=\n]"
    value = rf"""{flag}(.*['"(,+])?{re.escape(name)}(['"),+]|$)"""
    return bool(re.search(value, "\n".join(sys.argv), re.M))


def kind_in_memory(name: str) -> str:
    """Returns `arrays` or `a function` for the name of a thing in memory; '' for other names."""
    match = IN_MEMORY.fullmatch(str(name))
    return match[1].replace("_", " ") if match else ""


def unnumbered(text: str) -> str:
    """Returns the text without the numbers of things in memory, which differ by process."""
    return IN_MEMORY.sub(r"\1", text)


def key_value(key: str, name: str) -> str:
    """Returns `KEY = NAME`, or `KEY given as arrays` for a thing in memory: the start of a line."""
    kind = kind_in_memory(name)
    return f"{key.removesuffix('.name')} given as {kind}" if kind else f"{key} = {name!r}"


def user_names(config: Any, keys: Sequence[str] = KEYS) -> Iterator[tuple[str, str]]:
    """Yields (key, name) for the names of the user's code among the values of these keys."""
    for key in keys:
        value = _value_of_key(config, key)
        if key in METHOD:
            value = str(value).split("+")
        for name in value if isinstance(value, (list, tuple)) else [value]:
            if is_user_name(name):
                yield f"config.{key}", name


def _value_of_key(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config.get(part, "") if isinstance(config, Mapping) else getattr(config, part, "")
    return config


@contextmanager
def files_read_once() -> Iterator[None]:
    """Inside, a file is read at its first look-up only; threads need a copy of the context."""
    token = _files_read.set(_files_read.get({}))
    try:
        yield
    finally:
        _files_read.reset(token)


def find(key: str, name: str, known: Mapping[str, Any], hint: Hint = did_you_mean) -> Any:
    """Returns the thing, in `known` or of the user, that `name`, the value of `key`, stands for.

    `hint(name, known)` ends the line that refuses a name. Raises `ConfigError`.
    """
    if is_user_name(name):
        _, thing = _find_with_module(key, name)
        _found_names.add((key, name))
        return thing
    if name not in known:
        expected = f"must be one of {', '.join(known)}, or {USER_NAMES}{hint(name, known)}"
        raise ConfigError(f"{key} = {name!r}: {expected}")
    return known[name]


def user_objects(config: Any, keys: Sequence[str]) -> Key:
    """Returns the user's things that these keys name, as a key of caches. Raises `ConfigError`."""
    return tuple(Is(find(key, name, {})) for key, name in user_names(config, keys))


def _find_with_module(key: str, name: str) -> tuple[ModuleType, Any]:
    (where, _, attribute), line = name.rpartition(":"), key_value(key, name)
    try:
        module = _module_of_file(Path(where)) if where.endswith(".py") else _module_by_name(where)
    except _NotFound as error:
        raise ConfigError(f"{line}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{line}: cannot be imported ({describe_error(error)})") from error
    if not hasattr(module, attribute):
        public = {n: value for n, value in vars(module).items() if not n.startswith("_")}
        here = [n for n, v in public.items() if getattr(v, "__module__", "") == module.__name__]
        file, only = getattr(module, "__file__", module.__name__), ", ".join(here) or "nothing"
        raise ConfigError(f"{line}: {file} has no {attribute!r}, only {only}")
    return module, getattr(module, attribute)


def _module_by_name(name: str) -> ModuleType:
    _add_to_path(Path.cwd())
    if name not in sys.modules:
        importlib.invalidate_caches()  # it may have been written a moment ago
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # but one that it imports
            raise
        raise _NotFound(f"no module {name!r}, neither installed nor in {Path.cwd()}") from error
    _hash_of(module)  # now, before it is edited
    return module


def _module_of_file(path: Path) -> ModuleType:
    path, modules = path.expanduser().resolve(), _files_read.get({})
    with IMPORTING:
        if path not in modules:
            modules[path] = _execute_file(path)
        return modules[path]


def _execute_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise _NotFound(f"no file {path}")
    content, name = path.read_bytes(), f"{path.stem}_{zlib.crc32(bytes(path)):08x}"
    before, sha256 = sys.modules.get(name), hashlib.sha256(content).hexdigest()
    if before and _hash_of(before) == sha256:
        return before
    _add_to_path(path.parent)  # for modules beside it, which it may import
    importlib.invalidate_caches()
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)
    except Exception:
        del sys.modules[name]
        raise
    vars(spec)["sha256"] = sha256
    return module


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def call_user_code(
    key: str, name: str, function: Callable[..., Any], *args: object, **kwargs: object
) -> Any:
    """Returns `function(*args, **kwargs)`; exceptions of the user's code become `ConfigError`."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        if isinstance(error, InputError) or not is_user_name(name):
            raise
        raise ConfigError(f"{key_value(key, name)}: {describe_error(error, function)}") from error


def describe_error(error: BaseException, *functions: object) -> str:
    """Returns one line with the exception, and the file and line in the user's code.

    The place is the innermost frame outside libraries, or else where one of `functions` begins.
    """
    codes = [getattr(f, "__code__", None) for f in functions]
    places = [(code.co_filename, code.co_firstlineno) for code in codes if code]
    places += [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    users = [f"{file}, line {line}: " for file, line in places if is_user_file(file)]
    return f"{''.join(users[-1:])}{type(error).__name__}: {one_line(error, 300)}"


def is_library(filename: str) -> bool:
    """Returns whether a file is installed, Python's, or this package's."""
    return filename.startswith(LIBRARIES) or bool(INSTALLED.search(filename))


def is_user_file(filename: str) -> bool:
    return not filename.startswith("<") and not is_library(filename)


def file_of(module: ModuleType) -> Path | None:
    """Returns the Python file of a module; None for typed-in code and for the script `__main__`."""
    path = str(getattr(module, "__file__", None))
    return Path(path) if path.endswith(".py") and module.__name__ != "__main__" else None


def _hash_of(module: ModuleType) -> str:
    """Returns the hash of a module's file as it was imported or reloaded; '' if it has no file."""
    spec, path = getattr(module, "__spec__", None), file_of(module)
    stored = vars(spec) if spec else {}
    if "sha256" not in stored and path and path.is_file():
        stored["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return str(stored.get("sha256", ""))


def _file_of_code(thing: Any) -> str:
    """Returns the file, '<frozen' for parts of Python without one, '<' for typed-in code."""
    if isinstance(code := getattr(thing, "__code__", None), CodeType):
        return code.co_filename
    module = sys.modules.get((thing if isinstance(thing, type) else type(thing)).__module__)
    without_file = "<frozen" if getattr(module, "__spec__", None) else "<"
    return getattr(module, "__file__", None) or without_file


def digest(thing: Any) -> str:
    """Returns a hash of a thing's contents, the same in all processes of this Python version.

    A function's is of its code and closure; a library function's of its name and closure.
    """
    # By identity. The part stays beside its hash, so that its identity is not used again.
    hashes = dict[int, tuple[Any, str]]()

    def hash_part(part: Any) -> str:
        if id(part) not in hashes:
            hashes[id(part)] = part, ""  # for parts that contain themselves
            text = repr((_qualified_name(type(part)), _contents(part, hash_part)))
            hashes[id(part)] = part, hashlib.sha256(text.encode()).hexdigest()
        return hashes[id(part)][1]

    return hash_part(thing)


def _contents(thing: Any, hash_part: Callable[[Any], str]) -> Any:
    """Returns what distinguishes a thing from others of its type; '' if that is not known."""
    if isinstance(thing, PLAIN):
        return repr(thing)
    if isinstance(thing, (list, tuple)):
        return [hash_part(part) for part in thing]
    if isinstance(thing, (set, frozenset)):  # whose order differs between processes
        return sorted(map(hash_part, thing))
    if isinstance(thing, Mapping):
        return sorted((hash_part(key), hash_part(value)) for key, value in thing.items())
    if isinstance(thing, CodeType):
        return thing.co_code, thing.co_names, hash_part(thing.co_consts)
    if isinstance(thing, CellType):  # which may be empty
        return "" if thing == CellType() else hash_part(thing.cell_contents)
    if isinstance(thing, partial):
        return hash_part(thing.func), hash_part(thing.args), hash_part(thing.keywords)
    if isinstance(thing, MethodType):
        return hash_part(thing.__func__), hash_part(thing.__self__)
    in_library = is_library(_file_of_code(thing))
    if isinstance(thing, FunctionType):
        code = _qualified_name(thing) if in_library else hash_part(thing.__code__)
        parts = thing.__closure__, thing.__defaults__, thing.__kwdefaults__
        return code, *map(hash_part, parts)
    if isinstance(thing, type):
        body = {n: v for n, v in vars(thing).items() if isinstance(v, FunctionType) or n[0] != "_"}
        return _qualified_name(thing), "" if in_library else hash_part((thing.__bases__, body))
    if dataclasses.is_dataclass(thing):
        fields = [getattr(thing, field.name, None) for field in dataclasses.fields(thing)]
        return hash_part(type(thing)), hash_part(fields)
    if (array := _array(thing)) is not None:
        if array.dtype.hasobject:
            return array.shape, hash_part(array.tolist())
        return str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()
    if isinstance(thing, SimpleNamespace) or (hasattr(thing, "__dict__") and not in_library):
        return hash_part(type(thing)), hash_part(vars(thing))
    wrapped = inspect.getattr_static(thing, "__wrapped__", None)  # of jax.jit, say
    return _qualified_name(thing), hash_part(wrapped) if wrapped else ""


def _qualified_name(thing: Any) -> str:
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", "")
    return f"{getattr(thing, '__module__', '')}.{name}"


def _array(thing: Any) -> np.ndarray | None:
    if not hasattr(type(thing), "__array__"):
        return None
    try:
        if isinstance(thing, jax.Array) and jax.dtypes.issubdtype(thing.dtype, jax.dtypes.prng_key):
            thing = jax.random.key_data(thing)
        return np.asarray(thing)
    except Exception:  # a library's, for things that it cannot convert
        return None


def fingerprint(config: Any, keys: Sequence[str] = KEYS) -> str:
    """Returns `NAME HASH, NAME HASH` of the user's code that these keys name; '' if there is none.

    NAME is a file or a module; for a thing without a file its name, or its key if it is in memory.
    """
    found = dict[str, str]()
    for key, name in user_names(config, keys):
        module, thing = _find_with_module(key, name)
        if kind_in_memory(name):
            short = key.removesuffix(".name")
            found[short] = digest((found.get(short), thing))  # a chain has several
        elif not (file := file_of(module)):
            found[name] = digest(thing)
        elif is_user_file(str(file)):
            found[name.rpartition(":")[0]] = _hash_of(module)
    return ", ".join(f"{name} {sha256[:DIGITS]}" for name, sha256 in sorted(found.items()))


def hashes_of(code: object) -> dict[str, str]:
    return dict(ENTRY.findall(code)) if isinstance(code, str) else {}


def changed_files(before: object, now: str) -> str:
    """Returns `a.py and b.py` for what differs; '' if nothing does, or there was none before."""
    if not before or before == now:
        return ""
    changed = [name for name, _ in hashes_of(now).items() - hashes_of(before).items()]
    return " and ".join(sorted(changed)) or "your own files"


def check_code(config: Any) -> None:
    """Raises `ConfigError` if `config.code` is another fingerprint than that of the code now."""
    if config.code in ("", ANY):
        return
    now = fingerprint(config)
    if names := changed_files(config.code, now):
        valid = " or ".join(map(repr, dict.fromkeys((now, ANY, ""))))
        line = f"config.code = {short_repr(config.code)}: {names} is another; must be {valid}"
        raise ConfigError(line)


def check_names_in_file(
    config: Mapping[str, Any], file: object, keys: Sequence[str] = KEYS
) -> None:
    """Raises `ConfigError` if a config that was read from a file names code that must not run.

    The command line must have the name, too, and the thing must be of the type that the key wants
    or code in a file of the user's. Names that this process has found before pass.
    """
    if dotted := next(_dotted_keys(config), ""):
        raise ConfigError(f"{file}: its key {dotted!r} must be in its section, without a dot")
    for key, name in user_names(config, keys):
        short, where = key.removeprefix("config."), f"{key} = {name!r} of {file}"
        is_known = was_found(key, name)
        if is_known and kind_in_memory(name):  # its number may be another thing's here
            is_known = not changed_files(config.get("code"), fingerprint(config, (short,)))
        if is_known:
            continue
        if not is_on_command_line(key, name):
            flag = shlex.quote(f"--{key}={_value_of_key(config, short)}")
            raise ConfigError(f"{where}: a file runs no code by itself; if it is yours, add {flag}")
        if not _is_expected_kind(short, _find_with_module(key, name)[1]):
            raise ConfigError(
                f"{where}: must be code in a file of your own; what is installed is named in a "
                "config in Python"
            )


def _dotted_keys(config: Mapping[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        if "." in key:
            yield key
        elif isinstance(value, Mapping) and not key.endswith("options"):
            yield from _dotted_keys(value)


def _is_expected_kind(key: str, thing: Any) -> bool:
    """Returns whether the thing, which is not called, fits the key or is in a user's file."""
    import flax.linen as nn  # here, for they take long
    import optax

    from optdyn.base.fields import Value  # which needs this module

    types = {
        "model.name": nn.Module,
        "method.name": Value,
        **dict.fromkeys(OPTIMIZER, optax.GradientTransformation),
    }
    result = getattr(thing, "__annotations__", {}).get("return")
    kind = thing if isinstance(thing, type) else result
    is_expected = isinstance(kind, type) and issubclass(kind, types.get(key, ()))
    return is_expected or is_user_file(_file_of_code(inspect.unwrap(thing)))
