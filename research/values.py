"""What a value of a config may be, and the error where it is not that."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from optdyn.likeness import meant

T = TypeVar("T")
LONGEST = 80  # characters of a value that a message shows


class InputError(ValueError):
    """Something that was given cannot be used; the message is one line: what, where, what would do.

    A command prints it and exits with code 2.
    """


class ConfigError(InputError):
    """A configuration that cannot run; the message is one line: what, where, what would do."""


def require(config: object, name: str, holds: Callable[[Any], object], wanted: str) -> None:
    """Raises `ConfigError` unless the value of a key is as wanted."""
    value = _at(config, name)
    if not is_as_wanted(holds, value):
        raise ConfigError(f"config.{name} = {shown(value)}: must be {wanted}")


def is_as_wanted(holds: Callable[[Any], object], value: object) -> bool:
    """Whether the test holds of a value; a value that it cannot be asked of is not as wanted."""
    try:
        return bool(holds(value))
    except TypeError:
        return False


def one_of(name: str, value: object, values: Sequence[str]) -> None:
    """Raises `ConfigError` unless the value is one of these."""
    if value not in values:
        raise ConfigError(f"{name} = {shown(value)}: must be {one_of_these(value, values)}")


def one_of_these(value: object, values: Sequence[str]) -> str:
    """What a value must be that is none of these."""
    return f"one of {', '.join(map(repr, values))}{meant(str(value), values)}"


def entry(table: Mapping[str, T], name: str) -> T:
    """What a config file's argument names, `--config=FILE:NAME`.

    Raises `ConfigError`, which lists the names, if it is none of the table's.
    """
    if name not in table:
        known = ", ".join(map(repr, filter(None, table))) + ", or left out" * ("" in table)
        raise ConfigError(
            f"config argument {shown(name)}: must be one of {known}{meant(name, table)}"
        )
    return table[name]


def shown(value: object) -> str:
    """The value in one line of at most `LONGEST` characters, whatever it is."""
    if hasattr(value, "keys"):
        return "keys of its own"
    try:
        text = repr(tuple(value) if isinstance(value, (list, tuple)) else value)
    except (ValueError, RecursionError):  # a number of more digits than Python writes out
        text = f"a value of type {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _at(config: object, name: str) -> Any:
    """The value of a dotted key of an experiment."""
    return attrgetter(name)(config)
