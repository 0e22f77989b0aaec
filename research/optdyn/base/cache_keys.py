"""What a thing of the user's own is: itself, and what its code reaches by the names that it reads.

As a key of a cache these are the very objects, so a function, or a number that it reads, which a
notebook defines anew is another one. A list, a dict or an array counts as itself: what is written
into it is not seen. As text they are what is in them. Of code that is a library's nothing further
is looked at.
"""

import dataclasses
import dis
import hashlib
import inspect
import sys
from argparse import Namespace
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cached_property, lru_cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from optdyn.base import sources

PLAIN = (bool, int, float, complex, str, bytes, type(None))
HOLDERS = (Namespace, SimpleNamespace, ConfigDict)  # of a library, but what they hold is the user's


class Is(NamedTuple):
    """A thing as a key of a cache, equal to itself only."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Is) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


Key = tuple[Hashable, ...]


class NamesRead(NamedTuple):
    """The names in a function and in those that are defined in it."""

    names: tuple[str, ...]  # of its module, that it reads and does not write
    attributes: tuple[str, ...]
    written: frozenset[str]  # of the functions around it


def key(*things: object) -> Key:
    """These things and all that they reach: plain values as texts, the rest as itself."""
    return tuple(_reached(things, _parts))


def text(thing: object) -> str:
    """What it is and reaches, the same in every process of this version of Python."""
    return same(thing)[0]


def same(thing: object) -> tuple[str, *tuple[Is, ...]]:
    """Equal for two things that no run of this process tells apart.

    That is their text, and the very objects in it of which no more than the kind shows.
    """
    told = _told(thing)
    return repr([shown for shown, _ in told]), *(hidden for _, hidden in told if hidden)


def _told(thing: object) -> list[tuple[object, Is | None]]:
    """What shows of a thing and its parts, each beside itself where that is only its kind."""
    told = list[tuple[object, Is | None]]()
    for each in _reached([thing], _contents):
        if not isinstance(each, Is):
            told.append((each, None))
        elif (shown := _shown(each.thing)) is not None:
            told.append((shown, None))
        else:
            told.append((type(each.thing).__qualname__, each))
    return told


def _reached(things: Iterable[object], parts: Callable[[Any], Iterable[object]]) -> list[Hashable]:
    """Things and their parts in order, so that they are told apart by which of them has what.

    A thing that was met before is its number among those met.
    """
    found = list[Hashable]()
    seen, left = dict[int, tuple[int, object]](), [*things][::-1]
    while left:
        thing = left.pop()
        if isinstance(thing, PLAIN):
            found.append(f"{type(thing).__name__} {thing!r}")
        elif isinstance(thing, tuple):
            found.append(f"{type(thing).__name__} of {len(thing)}")
            left += thing[::-1]
        elif id(thing) in seen:
            found.append(seen[id(thing)][0])
        else:
            seen[id(thing)] = len(seen), thing
            if not (isinstance(thing, partial) or _is_record(thing)):
                found.append(Is(thing))
            left += [*parts(thing)][::-1]
    return found


def _is_record(thing: object) -> bool:
    return dataclasses.is_dataclass(thing) and not isinstance(thing, type)


def _is_open(thing: object) -> bool:
    """Whether what it holds is the user's."""
    users = (module := sys.modules.get(type(thing).__module__)) and _is_users(module)
    return hasattr(thing, "__dict__") and (isinstance(thing, HOLDERS) or bool(users))


def _parts(thing: Any) -> list[object]:
    if isinstance(thing, partial):
        return [thing.func, thing.args, tuple(thing.keywords.items())]
    if isinstance(thing, MethodType):
        return [thing.__func__, thing.__self__]
    if _is_record(thing):
        fields = (field.name for field in dataclasses.fields(thing))
        return [type(thing), *(getattr(thing, name, None) for name in fields)]
    if isinstance(thing, type):
        users = _is_users(inspect.getmodule(thing))
        return [*thing.__bases__, *_attributes(thing)] if users else []
    if _is_open(thing):
        return [type(thing), *vars(thing).items()]
    inner = [inspect.getattr_static(thing, "__wrapped__", None)]  # of jax.jit, say
    return inner + (_of_function(thing) if isinstance(thing, FunctionType) else [])


def _contents(thing: Any) -> Iterable[object]:
    """Its parts, and what is in it."""
    if isinstance(thing, list):
        return thing
    if isinstance(thing, dict):
        return sorted(thing.items(), key=lambda item: repr(item[0]))
    if (array := _array(thing)) is None:
        return _parts(thing)
    return array.ravel().tolist() if array.dtype.hasobject else []


def _array(thing: Any) -> np.ndarray | None:
    """What has numbers as an array: of NumPy, JAX, pandas and the like; else None."""
    if not hasattr(type(thing), "__array__"):
        return None
    try:
        if isinstance(thing, jax.Array) and jax.dtypes.issubdtype(thing.dtype, jax.dtypes.prng_key):
            return np.asarray(jax.random.key_data(thing))
        return np.asarray(thing)
    except Exception:  # a library's, of whatever it cannot show
        return None


def _of_function(function: FunctionType) -> list[object]:
    code, reads = function.__code__, _reads(function.__code__)
    around = zip(code.co_freevars, function.__closure__ or (), strict=True)
    found = [each for name, cell in around if name not in reads.written for each in _held(cell)]
    found += [function.__defaults__, tuple((function.__kwdefaults__ or {}).items())]
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


def _attributes(of: type) -> Iterator[tuple[str, object]]:
    """What the body of a class says, but for what Python and libraries write beside it."""
    for name, value in vars(of).items():
        inner = value
        if isinstance(value, (staticmethod, classmethod)):
            inner = value.__func__
        elif isinstance(value, (property, cached_property)):
            inner = value.fget if isinstance(value, property) else value.func
        is_code = isinstance(inner, FunctionType) or hasattr(inner, "__wrapped__")
        if is_code or not (name.startswith("__") or hasattr(type(inner), "__get__")):
            yield name, inner


def _is_users(module: ModuleType | None) -> bool:
    """Whether a module is the user's, which may be one that is only typed in."""
    file = getattr(module, "__file__", None)
    return not sources.is_library(file) if file else getattr(module, "__spec__", None) is None


@lru_cache(maxsize=256)
def _reads(code: CodeType) -> NamesRead:
    by_step = dict[str, set[str]]()
    for part in _nested(code):
        for step in dis.get_instructions(part):
            if isinstance(step.argval, str):
                by_step.setdefault(step.opname, set()).add(step.argval)

    def of(*steps: str) -> set[str]:
        return set().union(*(by_step.get(step, set()) for step in steps))

    names = of("LOAD_GLOBAL", "LOAD_NAME") - of("STORE_GLOBAL")
    attributes = of("LOAD_ATTR", "LOAD_METHOD")
    return NamesRead(tuple(sorted(names)), tuple(sorted(attributes)), frozenset(of("STORE_DEREF")))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _shown(thing: object) -> Any:
    """What shows of a thing without its parts; None where that is no more than its kind."""
    if isinstance(thing, FunctionType) and not sources.is_library(thing.__code__.co_filename):
        return _code(thing.__code__)
    if isinstance(thing, (list, dict)):
        return type(thing).__name__, len(thing)
    if isinstance(thing, (set, frozenset)):  # whose order is another in every process
        return sorted(text(each) for each in thing)
    if isinstance(thing, ModuleType):
        return thing.__name__
    if (array := _array(thing)) is not None:
        held = "" if array.dtype.hasobject else hashlib.sha256(array.tobytes()).hexdigest()
        return str(array.dtype), array.shape, held
    return type(thing).__qualname__ if _is_open(thing) else getattr(thing, "__qualname__", None)


def _code(code: CodeType) -> Any:
    """What it does, wherever it stands."""
    inner = [_code(each) if isinstance(each, CodeType) else text(each) for each in code.co_consts]
    return code.co_code, code.co_names, inner
