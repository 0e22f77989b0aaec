"""What a value of a config may be, and the error where it is not that."""

from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict


class InputError(ValueError):
    """Something that was given cannot be used; the message is one line: what, where, what would do.

    A command prints it and exits with code 2.
    """


class ConfigError(InputError):
    """A configuration that cannot run; the message is one line: what, where, what would do."""


def require(config: ConfigDict, name: str, holds: Callable[[Any], Any], wanted: str) -> None:
    """Raises `ConfigError` unless the value of a key is as wanted."""
    value: Any = config
    for part in name.split("."):
        value = value[part]
    try:
        good = holds(value)
    except TypeError:
        good = False
    if not good:
        shown = tuple(value) if isinstance(value, (list, tuple)) else value
        raise ConfigError(f"config.{name} = {shown!r}: must be {wanted}")


def one_of(config: ConfigDict, name: str, values: Sequence[str]) -> None:
    """Raises `ConfigError` unless the value of a key is one of these."""
    require(config, name, lambda v: v in values, "one of " + ", ".join(map(repr, values)))
