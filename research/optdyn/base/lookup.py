"""From a name in a config to the thing: one of ours, or one of a file of the user's own.

A name is that of a registry, or MODULE:ATTRIBUTE of a module that can be imported, also from the
current folder, or some/folder/file.py:ATTRIBUTE. What the user's own code raises, on import or when
it is called, becomes one line that says in which file and where.

A module is what Python has of it in this process: after an edit `importlib.reload` is the user's to
call. A file is looked at every time, and executed anew if it, or what it imports of the user's own,
has been edited; `once` is for what must not change midway.

Names in files that a run, or a stranger, wrote are not to run anything by themselves: whoever reads
them asks first whether it `is_given` or `is_used`.
"""

import importlib
import importlib.util
import re
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from optdyn.base import sources
from optdyn.base.errors import ConfigError, InputError, meant, one_line

Hint = Callable[[str, Mapping[str, Any]], str]
OWN = "MODULE:NAME or path/to/file.py:NAME of your own"
# What Python was given itself, not by a name, has a name in that module of what it is.
GIVEN = re.compile(r"optdyn\.cli\.in_memory:(.+?)_[0-9a-f]{6}(_\d+)?")
IMPORTING = RLock()
_found = set[tuple[str, str]]()  # keys and names of the user's own that this process looked up
_looked_at: ContextVar[dict[Path, ModuleType] | None] = ContextVar("looked_at", default=None)


@contextmanager
def once() -> Iterator[None]:
    """Inside, every file is looked at once, so a run is of one code whatever is edited meanwhile.

    Inside of another `once` it adds nothing. Threads of a pool have it where they are started in a
    copy of the context.
    """
    if _looked_at.get() is not None:
        yield
        return
    token = _looked_at.set({})
    try:
        yield
    finally:
        _looked_at.reset(token)


def is_own(name: str) -> bool:
    """Whether it names something of the user's own."""
    return isinstance(name, str) and ":" in name


def is_used(key: str, name: str) -> bool:
    """Whether this process has looked it up already, as who runs it asked for it."""
    return (key, name) in _found


def is_given(key: str, name: str) -> bool:
    """Whether it stands on the command line, as the key's value or in it."""
    flag = rf"^--?({re.escape(key)}|methods)[=\n]"
    given = rf"""{flag}(.*['"(,+])?{re.escape(name)}(['"),+]|$)"""
    return bool(re.search(given, "\n".join(sys.argv), re.M))


def words(name: str) -> str:
    """What was given itself, and not by a name, as `arrays` or `a function`; else ''."""
    match = GIVEN.fullmatch(str(name))
    return match[1].replace("_", " ") if match else ""


def setting(key: str, name: str) -> str:
    """`KEY = NAME`, the start of a line; or, as `words` has it, `config.data given as arrays`."""
    given = words(name)
    return f"{key.removesuffix('.name')} given as {given}" if given else f"{key} = {name!r}"


def find(key: str, name: str, known: Mapping[str, Any], hint: Hint = meant) -> Any:
    """What `name`, the value of `key`, stands for: of `known`, or of the user's own.

    `hint(name, known)` ends the line that refuses a name. Raises `ConfigError`, also where the
    user's file cannot be imported or has no such attribute.
    """
    if not is_own(name):
        if name not in known:
            wanted = f"must be one of {', '.join(known)}, or {OWN}{hint(name, known)}"
            raise ConfigError(f"{key} = {name!r}: {wanted}")
        return known[name]
    thing = own(key, name)
    _found.add((key, name))
    return thing


def own(key: str, name: str) -> Any:
    """The same of a name of the user's own, by which it does not count as used. `ConfigError`."""
    module, attribute = module_of(key, name), name.rpartition(":")[2]
    if not hasattr(module, attribute):
        here = [n for n in vars(module) if not n.startswith("_") and _is_of(module, n)]
        raise ConfigError(
            f"{setting(key, name)}: {getattr(module, '__file__', module.__name__)} has no "
            f"{attribute!r}, only {', '.join(here) or 'nothing'}"
        )
    return getattr(module, attribute)


def module_of(key: str, name: str) -> ModuleType:
    """The module or file that a name of the user's own is of. Raises `ConfigError`."""
    where, said = name.rpartition(":")[0], setting(key, name)
    return _file(said, Path(where)) if where.endswith(".py") else _module(said, where)


def call(key: str, name: str, function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """`function(*args, **kwargs)`; if it is the user's own, all that it raises is `ConfigError`."""
    if not is_own(name):
        return function(*args, **kwargs)
    try:
        return function(*args, **kwargs)
    except InputError:
        raise
    except Exception as error:
        raise ConfigError(f"{setting(key, name)}: {told(error, function)}") from error


def told(error: BaseException, *functions: object) -> str:
    """One line: file and line, the exception and its message.

    The place is the last one outside of installed libraries, or where one of `functions` begins.
    """
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    codes = [getattr(f, "__code__", None) for f in functions]
    begun = [(code.co_filename, code.co_firstlineno) for code in codes if code]
    mine = [frame for frame in (*begun, *frames) if sources.is_users(frame[0])]
    where = f"{mine[-1][0]}, line {mine[-1][1]}: " if mine else ""
    return f"{where}{type(error).__name__}: {shown(str(error), 300)}"


def shown(thing: object, most: int = 80) -> str:
    """The start of its text, in one line."""
    text = one_line(thing)
    return text if len(text) <= most else text[:most] + " ..."


def summary(thing: object) -> str:
    """The first line of its docstring."""
    return ((getattr(thing, "__doc__", "") or "").strip().splitlines() or [""])[0]


def _module(said: str, name: str) -> ModuleType:
    """Ours and those installed go before those of the current folder."""
    _search(Path.cwd())
    if name not in sys.modules:
        importlib.invalidate_caches()  # it may have been written a moment ago
    try:
        module = importlib.import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        none = missing and (name == missing or name.startswith(missing + "."))
        why = f"no module {name!r}, neither installed nor in {Path.cwd()}"
        raise ConfigError(f"{said}: {why if none else _unimported(error)}") from error
    sources.note(module)
    return module


def _file(said: str, path: Path) -> ModuleType:
    """The module of a file as it is now, or inside `once` as it was when it was looked at."""
    path, looked_at = path.expanduser().resolve(), _looked_at.get()
    name = f"{path.stem}_{zlib.crc32(bytes(path)):08x}"
    with IMPORTING:
        if looked_at is not None and path in looked_at:
            return looked_at[path]
        module = sys.modules.get(name)
        if module is None or sources.is_old(module):
            module = _executed(said, name, path, module)
        if looked_at is not None:
            looked_at[path] = module
        return module


def _executed(said: str, name: str, path: Path, before: ModuleType | None) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{said}: no file {path}")
    _search(path.parent)  # for what the file imports of its neighbours
    importlib.invalidate_caches()
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        sources.renew(module, before)
        sources.run(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{said}: {_unimported(error)}") from error
    return module


def _unimported(error: Exception) -> str:
    return f"cannot be imported ({told(error)})"


def _search(folder: Path) -> None:
    """Lets modules be imported from there, where no other place has them."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _is_of(module: ModuleType, name: str) -> bool:
    return getattr(getattr(module, name), "__module__", None) == module.__name__
