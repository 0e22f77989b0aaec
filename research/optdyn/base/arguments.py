"""Arguments of public functions are checked against their annotations, with errors in one line."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from optdyn.base.errors import ConfigError, did_you_mean, short_repr

F = TypeVar("F", bound=Callable[..., Any])
# How messages call the types of annotations; other types go by their names.
DESCRIPTIONS: Mapping[Any, str] = {
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


def check_arguments(function: F) -> F:
    """Decorates a function: arguments of unknown name or other type raise `ConfigError`."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        types = _allowed_types(function)
        for name, value in bind(function, *args, **kwargs).items():
            parameter = _signature(function).parameters[name]
            is_many = parameter.kind is inspect.Parameter.VAR_POSITIONAL
            for argument in value if is_many else (value,):
                _check(name, argument, types.get(name, ()))
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def bind(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Returns the arguments by the names of parameters. Raises `ConfigError`."""
    signature = _signature(function)
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        name = function.__qualname__.removesuffix(".__init__")
        noun = "argument" if name == function.__qualname__ else "field"
        parameters = [item for item in signature.parameters.values() if item.name != "self"]
        known = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
        line = f"{name}: {error}" + f"; its {noun}s are {', '.join(known)}" * bool(known)
        unknown = [key for key in kwargs if key not in known]
        if unknown and len(known) == len(parameters):
            line = f"{name} has no {noun} {unknown[0]!r}{did_you_mean(unknown[0], known)}"
        raise ConfigError(line) from error


_signature = lru_cache(maxsize=256)(inspect.signature)


@lru_cache(maxsize=256)
def _allowed_types(function: Callable[..., Any]) -> Mapping[str, tuple[type, ...]]:
    found = dict[str, tuple[type, ...]]()
    annotations = {n: hint for n, hint in function.__annotations__.items() if n != "return"}
    hints = get_type_hints(SimpleNamespace(__annotations__=annotations), function.__globals__)
    for name, hint in hints.items():
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        types = tuple(get_origin(part) or part for part in parts)
        if Any not in types:
            found[name] = types
    return found


def _check(name: str, value: Any, types: tuple[type, ...]) -> None:
    if types and not any(_is_instance(value, kind) for kind in types):
        *first, last = [DESCRIPTIONS.get(kind, f"of type {kind.__name__}") for kind in types]
        expected = f"{', '.join(first)} or {last}" if first else last
        raise ConfigError(f"{name} = {short_repr(value)}: must be {expected.format(name)}")


def _is_instance(value: Any, kind: type) -> bool:
    if hasattr(value, "tolist"):  # of NumPy and JAX
        value = value.tolist()
    if kind in (int, float):
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind) and not (kind is Iterable and isinstance(value, str))
