"""The files that a module of the user's own is made of, as they were when it was executed.

These are the module's own file and those of the modules that it imports, followed from one to the
next, as far as they are the user's: neither installed, nor Python's, nor of this package. Imports
are read off the text, wherever in it they stand, so nothing is executed to find them.
"""

import ast
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from weakref import WeakKeyDictionary

OURS = Path(__file__).parents[1]
PYTHONS = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (OURS, *PYTHONS))


class Text(NamedTuple):
    """A file as it was read."""

    digest: str
    imports: tuple[str, ...]  # of `from a import b` both a and a.b, which may be no module


class Made(NamedTuple):
    """What a module was made of when it was executed."""

    spec: ModuleSpec | None  # `importlib.reload` gives a module another one
    text: Text  # its own
    files: Mapping[str, str]  # digests by module: its own, and of all that it imports


_made = WeakKeyDictionary[ModuleType, Made]()


def is_library(filename: str) -> bool:
    """Whether a file is installed, Python's, or one of this package."""
    installed = "site-packages" in filename or "dist-packages" in filename
    return installed or filename.startswith((*LIBRARIES, "<frozen"))


def is_users(filename: str) -> bool:
    """Whether it is a file of the user's own."""
    return not filename.startswith("<") and not is_library(filename)


def file_of(module: ModuleType) -> Path | None:
    """The Python file of a module; None of what is typed in, and of a script, `__main__`."""
    path = getattr(module, "__file__", None)
    is_text = path and path.endswith(".py") and module.__name__ != "__main__"
    return Path(path) if path and is_text else None


def run(module: ModuleType) -> None:
    """Executes the module's file, as it is now, in the module."""
    path = file_of(module)
    assert path
    content = path.read_bytes()
    exec(compile(content, str(path), "exec"), module.__dict__)
    _record(module, content)


def note(module: ModuleType) -> None:
    """Remembers what a module, which Python has imported, was made of; best right afterwards."""
    path = file_of(module)
    before = _made.get(module)
    if path and (before is None or before.spec is not module.__spec__):
        _record(module, path.read_bytes() if path.is_file() else b"")


def digests(module: ModuleType) -> dict[str, str]:
    """Digests of the module's files as they were executed, by module; of its own by ''.

    A file that is not executed yet, as it is imported in a function, counts as it is now.
    """
    note(module)

    def executed(name: str) -> Text | None:
        if loaded := _loaded(name):
            note(loaded)
            return _made[loaded].text
        return _on_disk(name)

    name = module.__name__
    every = _followed(name, _made[module].text, executed)
    return {"" if other == name else other: text.digest for other, text in every.items()}


def is_old(module: ModuleType) -> bool:
    """Whether a file that the module is made of is another now, or gone."""
    note(module)
    return _files(module, _now(module)) != _made[module].files


def renew(module: ModuleType, before: ModuleType | None) -> None:
    """Imports anew what the file of a module imports and is old, what is imported going first.

    `before`: what was made of the file then. Whoever has the old modules keeps them.
    """
    held = _made[before].files if before else {}
    for name, text in _inner_first(module.__name__, _now(module), set()):
        other = _loaded(name)
        if other and (is_old(other) or held.get(name, text.digest) != text.digest):
            _replace(name, other)


def _replace(name: str, old: ModuleType) -> None:
    """Not by Python's import, which does not notice every edit within a second."""
    assert old.__spec__
    sys.modules[name] = new = importlib.util.module_from_spec(old.__spec__)
    for inner, module in list(sys.modules.items()):
        if inner.rpartition(".")[0] == name:
            setattr(new, inner.rpartition(".")[2], module)
    try:
        run(new)
    except BaseException:
        sys.modules[name] = old
        raise
    above, _, short = name.rpartition(".")
    if above in sys.modules:
        setattr(sys.modules[above], short, new)


def _record(module: ModuleType, content: bytes) -> None:
    text = _text(content, _package(module.__spec__))
    _made[module] = made = Made(module.__spec__, text, _files(module, text))
    for name in made.files:
        if other := _loaded(name):
            note(other)


def _files(module: ModuleType, text: Text | None) -> dict[str, str]:
    """Digests of that text and of all that it imports, as it is on disk, by module."""
    every = _followed(module.__name__, text, _on_disk) if text else {}
    return {name: each.digest for name, each in every.items()}


def _now(module: ModuleType) -> Text | None:
    return _read(file_of(module), module.__spec__)


def _followed(name: str, text: Text, text_of: Callable[[str], Text | None]) -> dict[str, Text]:
    """A module's text and those of all that it imports, by module."""
    found, left = {name: text}, list(text.imports)
    while left:
        other = left.pop()
        if other not in found and (its := text_of(other)):
            found[other] = its
            left += its.imports
    return found


def _inner_first(name: str, text: Text | None, seen: set[str]) -> Iterator[tuple[str, Text]]:
    """The modules that one imports, each after those that it imports itself."""
    seen.add(name)
    for other in text.imports if text else ():
        if other not in seen and (its := _on_disk(other)):
            yield from _inner_first(other, its, seen)
            yield other, its


def _loaded(name: str) -> ModuleType | None:
    """A module of the user's own that is in this process."""
    module = sys.modules.get(name)
    is_users = module and file_of(module) and _users_file(module.__spec__)
    return module if is_users else None


def _on_disk(name: str) -> Text | None:
    """The text of a module of the user's own as it is now; None of any other."""
    spec = _spec(name)
    return _read(_users_file(spec), spec)


def _users_file(spec: ModuleSpec | None) -> Path | None:
    origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") and is_users(origin) else None


def _spec(name: str) -> ModuleSpec | None:
    """The place of a module, which is not imported for it; of libraries only the first part is."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    above, _, _ = name.rpartition(".")
    try:
        if not above:
            return importlib.util.find_spec(name)
        package = _spec(above)
        places = package.submodule_search_locations if package else None
        if not package or not places or (package.origin and not _users_file(package)):
            return None
        return PathFinder.find_spec(name, places)
    except (ImportError, ValueError):
        return None


def _read(path: Path | None, spec: ModuleSpec | None) -> Text | None:
    try:
        return _text(path.read_bytes(), _package(spec)) if path else None
    except OSError:
        return None


def _package(spec: ModuleSpec | None) -> str:
    """What the relative imports of a module are relative to."""
    return (spec.parent if spec else None) or ""


def _text(content: bytes, package: str) -> Text:
    return Text(hashlib.sha256(content).hexdigest(), imports_of(content, package))


@lru_cache(maxsize=256)
def imports_of(content: bytes, package: str) -> tuple[str, ...]:
    """The modules that a text imports, and those above them; () of one that is no Python."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return ()
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            start = ".".join(filter(None, (above, node.module)))
            names = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            found |= dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return tuple(found)
