"""Values: frozen dataclasses whose fields say what they are, and that refuse what cannot be.

    @dataclass(frozen=True)
    class Cluster(Value, section="cluster"):
        nodes: int = field(1, "Nodes of the cluster.", at_least=1)

A field has a default, whose kind every value must be of, words that explain it by itself, and the
range of what it may be. Keys of configs, their defaults, `optdyn list keys` and the lines on bad
values are made of these (`experiment.py`).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

from optdyn import kinds
from optdyn.values import ConfigError, shown

NAMES = ("name", "loss", "schedule", "service")  # fields that take a thing, or what it is called
OPTIONS: Mapping[str, Any] = MappingProxyType({})  # the default of a field whose keys are free


@dataclasses.dataclass(frozen=True)
class Range:
    """What a value may be, in words and as a test."""

    wanted: str
    holds: Callable[[Any], Any]


def field(
    default: Any,
    about: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    wanted: str = "",
    holds: Callable[[Any], Any] | None = None,
) -> Any:
    """A field of a `Value`: its default, what it is, and its range.

    `wanted` and `holds` say a range that no two numbers say.
    """
    of = Range(wanted, holds) if holds else _between(at_least, at_most, above, below)
    metadata = {"about": about, "range": of}
    if default is OPTIONS:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Value:
    """Base of the frozen dataclasses that an experiment is made of."""

    section: ClassVar[str] = ""  # of the config, whose keys its fields are

    def __init_subclass__(cls, section: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.section = section

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            if "about" in each.metadata:  # others are values by themselves
                value = _like(getattr(self, each.name), default_of(each))
                object.__setattr__(self, each.name, value)
                check(f"config.{self.section}.{each.name}".replace("..", "."), value, each)

    def with_(self, **changes: Any) -> Self:
        """The same with other values of some fields. Raises `ConfigError`."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


def check(name: str, value: Any, of: "dataclasses.Field[Any]") -> None:
    """Raises `ConfigError` unless the value is of the field's kind, and in its range."""
    if of.name in NAMES and callable(value):
        return  # the thing itself
    wanted, usual = kinds.refusal(name, value, default_of(of)), of.metadata.get("range")
    if not wanted and usual and not _holds(usual, value):
        wanted = usual.wanted
    if wanted:
        raise ConfigError(f"{name} = {shown(value)}: must be {wanted}")


def default_of(of: "dataclasses.Field[Any]") -> Any:
    """The default of a field."""
    made = of.default_factory
    return of.default if made is dataclasses.MISSING else made()


def _like(value: Any, usual: Any) -> Any:
    """The value with tuples for lists, and as a float where the default is one."""
    if isinstance(value, list):
        return tuple(_like(entry, None) for entry in value)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole and isinstance(usual, float) else value


def _holds(of: Range, value: Any) -> bool:
    try:
        return bool(of.holds(value))
    except TypeError:
        return False


def _between(
    at_least: float | None, at_most: float | None, above: float | None, below: float | None
) -> Range | None:
    """The range between two ends, in the words that fit them."""
    if at_least is above is at_most is below is None:
        return None
    if above is not None and below is not None:
        wanted = f"between {above:g} and {below:g}"
    elif above is not None:
        wanted = "more than 0" if above == 0 else f"more than {above:g}"
    elif at_most is not None:
        wanted = f"from {at_least:,} to {at_most:,}"
    elif below is not None:
        wanted = f"at least {at_least:g} and less than {below:g}"
    else:
        wanted = f"at least {at_least:g}"
    least = -math.inf if at_least is None else at_least
    most = math.inf if at_most is None else at_most
    low = -math.inf if above is None else above
    high = math.inf if below is None else below

    def holds(value: Any) -> bool:
        return least <= value <= most and low < value < high

    return Range(wanted, holds)
