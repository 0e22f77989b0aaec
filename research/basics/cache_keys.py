"""What a thing of the user's own is: itself, and what its code reaches by the names that it reads.

As a key of a cache these are the very objects, so a function, or a number that it reads, which a
notebook defines anew is another one. A list, a dict or an array counts as itself: what is written
into it is not seen. Of code that is a library's nothing further is looked at.
"""

import dataclasses
import dis
import hashlib
import inspect
from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from optdyn.basics import sources

PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Is(NamedTuple):
    """A thing as a key of a cache, equal to itself only."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Is) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


Key = tuple[Hashable, ...]


class Reads(NamedTuple):
    """The names in a function and in those that are defined in it."""

    names: tuple[str, ...]  # of its module, that it reads and does not write
    attributes: tuple[str, ...]
    written: frozenset[str]  # of the functions around it


def key(*things: object) -> Key:
    """These things and all that they reach: plain values as texts, the rest as itself."""
    found = dict[Hashable, None]()
    seen, left = dict[int, object](), list(reversed(things))
    while left:
        thing = left.pop()
        if isinstance(thing, PLAIN):
            found[f"{type(thing).__name__} {thing!r}"] = None
        elif id(thing) not in seen:
            seen[id(thing)] = thing
            if not (isinstance(thing, (tuple, partial)) or _is_record(thing)):
                found[Is(thing)] = None
            left += reversed(_parts(thing))
    return tuple(found)


def text(thing: object) -> str:
    """What it is and reaches, the same in every process of this version of Python."""
    return repr([_shown(each.thing) if isinstance(each, Is) else each for each in key(thing)])


def _is_record(thing: object) -> bool:
    return dataclasses.is_dataclass(thing) and not isinstance(thing, type)


def _parts(thing: Any) -> list[object]:
    if isinstance(thing, tuple):
        return list(thing)
    if isinstance(thing, partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, MethodType):
        return [thing.__func__, thing.__self__]
    if _is_record(thing):
        fields = (field.name for field in dataclasses.fields(thing))
        return [type(thing), *(getattr(thing, name, None) for name in fields)]
    if isinstance(thing, type):
        users = _is_users(inspect.getmodule(thing))
        return [*thing.__bases__, *_functions(vars(thing))] if users else []
    inner = [inspect.getattr_static(thing, "__wrapped__", None)]  # of jax.jit, say
    return inner + (_of_function(thing) if isinstance(thing, FunctionType) else [])


def _of_function(function: FunctionType) -> list[object]:
    code, reads = function.__code__, _reads(function.__code__)
    around = zip(code.co_freevars, function.__closure__ or (), strict=True)
    found = [each for name, cell in around if name not in reads.written for each in _held(cell)]
    found += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if sources.is_library(code.co_filename):
        return found
    for name in reads.names:
        value = function.__globals__.get(name)
        found.append(value)
        if isinstance(value, ModuleType) and _is_users(value):
            found += [vars(value)[name] for name in reads.attributes if name in vars(value)]
    return found


def _held(cell: CellType) -> list[object]:
    try:
        return [cell.cell_contents]
    except ValueError:  # of a name that has no value yet
        return []


def _functions(attributes: Mapping[str, object]) -> Iterator[object]:
    for value in attributes.values():
        if isinstance(value, (staticmethod, classmethod)):
            yield value.__func__
        elif isinstance(value, property):
            yield value.fget
        elif isinstance(value, FunctionType):
            yield value


def _is_users(module: ModuleType | None) -> bool:
    """Whether a module is the user's, which may be one that is only typed in."""
    file = getattr(module, "__file__", None)
    return not sources.is_library(file) if file else getattr(module, "__spec__", None) is None


@lru_cache(maxsize=256)
def _reads(code: CodeType) -> Reads:
    by_step = dict[str, set[str]]()
    for part in _nested(code):
        for step in dis.get_instructions(part):
            if isinstance(step.argval, str):
                by_step.setdefault(step.opname, set()).add(step.argval)

    def of(*steps: str) -> set[str]:
        return set().union(*(by_step.get(step, set()) for step in steps))

    names = of("LOAD_GLOBAL", "LOAD_NAME") - of("STORE_GLOBAL")
    attributes = of("LOAD_ATTR", "LOAD_METHOD")
    return Reads(tuple(sorted(names)), tuple(sorted(attributes)), frozenset(of("STORE_DEREF")))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _shown(thing: object) -> Any:
    if isinstance(thing, FunctionType) and not sources.is_library(thing.__code__.co_filename):
        return _shown(thing.__code__)
    if isinstance(thing, CodeType):  # what it does, wherever it stands
        return thing.co_code, thing.co_names, [_shown(each) for each in thing.co_consts]
    if isinstance(thing, (np.ndarray, jax.Array)):
        array = np.asarray(thing)
        return str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()
    if isinstance(thing, (list, tuple)):
        return [_shown(each) for each in thing]
    if isinstance(thing, (set, frozenset)):  # whose order is another in every process
        return sorted(repr(_shown(each)) for each in thing)
    if isinstance(thing, dict):
        return sorted((repr(_shown(name)), repr(_shown(each))) for name, each in thing.items())
    if isinstance(thing, PLAIN):
        return repr(thing)
    return getattr(thing, "__qualname__", type(thing).__qualname__)
