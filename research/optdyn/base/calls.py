"""Calls from Python: arguments that a public function cannot take are refused in one line."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from optdyn.base.errors import ConfigError, meant, shown

F = TypeVar("F", bound=Callable[..., Any])
# The classes of annotations that are asked for, besides those of the package, and their words.
WORDS: Mapping[Any, str] = {
    str: "a text",
    Path: "a path",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    NoneType: "None",
    Mapping: "a dict",
    Callable: "a function",
    Iterable: "a sequence of {}, as range(5)",
}


def checked(function: F) -> F:
    """The function with a `ConfigError` for arguments that it cannot take.

    They are of other names, too many or too few, or of another kind than their annotations.
    """

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        kinds = _kinds(function)
        for name, value in bound(function, *args, **given).items():
            several = _signature(function).parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for each in value if several else (value,):
                _check(name, each, kinds.get(name, ()))
        return function(*args, **given)

    return call  # type: ignore[return-value]


def bound(function: Callable[..., Any], *args: Any, **given: Any) -> dict[str, Any]:
    """The arguments by their names. Raises `ConfigError`."""
    signature = _signature(function)
    try:
        return signature.bind(*args, **given).arguments
    except TypeError as error:
        name = function.__qualname__.removesuffix(".__init__")
        what = "argument" if name == function.__qualname__ else "field"
        own = [each for each in signature.parameters.values() if each.name != "self"]
        known = [each.name for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
        has = f"; its {what}s are {', '.join(known)}" if known else ""
        said = f"{name}: {error}{has}"
        unknown = [key for key in given if key not in known]
        if unknown and len(known) == len(own):
            said = f"{name} has no {what} {unknown[0]!r}{meant(unknown[0], known)}"
        raise ConfigError(said) from error


_signature = lru_cache(maxsize=256)(inspect.signature)


@lru_cache(maxsize=256)
def _kinds(function: Callable[..., Any]) -> Mapping[str, tuple[type, ...]]:
    """The classes that arguments may be of, by their names; of those without, all will do."""
    found = dict[str, tuple[type, ...]]()
    wanted = {name: of for name, of in function.__annotations__.items() if name != "return"}
    hints = SimpleNamespace(__annotations__=wanted)
    for name, of in get_type_hints(hints, function.__globals__).items():
        parts = get_args(of) if get_origin(of) in (Union, UnionType) else (of,)
        kinds = tuple(get_origin(part) or part for part in parts)
        if Any not in kinds:
            found[name] = kinds
    return found


def _check(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    if kinds and not any(_is(value, kind) for kind in kinds):
        *words, last = [WORDS.get(kind, f"of type {kind.__name__}") for kind in kinds]
        wanted = f"{', '.join(words)} or {last}" if words else last
        raise ConfigError(f"{name} = {shown(value)}: must be {wanted.format(name)}")


def _is(value: Any, kind: type) -> bool:
    if hasattr(value, "tolist"):  # of NumPy and JAX
        value = value.tolist()
    if kind in (int, float):
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is Iterable and isinstance(value, str))
