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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from optdyn.base import calls, type_checks
from optdyn.base.errors import ConfigError, is_as_wanted, one_of_these, shown

NAMES = ("name", "loss", "schedule", "service")  # fields that take a thing, or what it is called


class Options(dict[str, Any]):
    """Arguments whose keys are free, as a value: it hashes, and is not to be changed.

    1, 1.0 and True are three values here, for a function may tell them apart.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        same = super().__eq__(other)
        return same and self._text == other._text if isinstance(other, Options) else same

    @property
    def _text(self) -> str:
        return repr(sorted(self.items()))


OPTIONS = Options()  # the default of a field whose keys are free


def plain(value: Any) -> Any:
    """The value as functions take it: dicts for options, also inside, for each caller its own."""
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return tuple(map(plain, value)) if isinstance(value, (list, tuple)) else value


@dataclasses.dataclass(frozen=True)
class Range:
    """What a value may be, in words and as a test."""

    wanted: str
    holds: Callable[[Any], Any]


def field(
    default: Any,
    about: str,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    wanted: str = "",
    holds: Callable[[Any], Any] | None = None,
    one_of: Sequence[str] = (),
    static: bool = False,
) -> Any:
    """A field of a `Value`: its default, what it is, and its range.

    `wanted` and `holds` say a range that no two numbers say, `one_of` the texts that there are. A
    program is compiled anew for another value of a `static` field; others are data of it.
    """
    of = Range(wanted, holds) if holds else _between(at_least, at_most, above, below)
    metadata = {"about": about, "range": of, "one_of": tuple(one_of), "static": static}
    if default is OPTIONS:
        return dataclasses.field(default_factory=Options, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Value:
    """Base of the frozen dataclasses that an experiment is made of."""

    section: ClassVar[str] = ""  # of the config, whose keys its fields are

    def __init_subclass__(cls, section: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.section = section or cls.section

    def __new__(cls, *args: Any, **given: Any) -> Self:
        if args or given:  # a copy has its fields later
            calls.bound(cls.__init__, None, *args, **given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            usual, name = default_of(each), f"config.{self.key(each.name)}"
            value = like(getattr(self, each.name), usual)
            object.__setattr__(self, each.name, value)
            if "about" in each.metadata:  # others are values by themselves
                check(name, value, each)
            elif isinstance(usual, Value) and not isinstance(value, type(usual)):
                wanted = f"must be of type {type(usual).__name__}"
                raise ConfigError(f"{name} = {shown(value)}: {wanted}")

    @classmethod
    def key(cls, name: str) -> str:
        """The key of a config, dotted, that a field is."""
        return f"{cls.section}.{name}" if cls.section else name

    def require(self, name: str, good: bool, wanted: str) -> None:
        """Raises `ConfigError` unless the value of a field is as wanted."""
        if not good:
            raise ConfigError(
                f"config.{self.key(name)} = {shown(getattr(self, name))}: must be {wanted}"
            )

    @calls.checked
    def with_(self, **changes: Any) -> Self:
        """A copy with other values of some fields. Raises `ConfigError`."""
        return dataclasses.replace(self, **changes)


def check(name: str, value: Any, of: "dataclasses.Field[Any]") -> None:
    """Raises `ConfigError` unless the value is of the field's kind, and in its range."""
    if of.name in NAMES and callable(value):
        return  # the thing itself
    wanted, usual = type_checks.refusal(name, value, default_of(of)), of.metadata.get("range")
    if not wanted and usual and not is_as_wanted(usual.holds, value):
        wanted = usual.wanted
    if not wanted and (known := of.metadata.get("one_of")) and value not in known:
        wanted = one_of_these(value, known)
    if wanted:
        raise ConfigError(f"{name} = {shown(value)}: must be {wanted}")


def default_of(of: "dataclasses.Field[Any]") -> Any:
    """The default of a field."""
    made = of.default_factory
    return of.default if made is dataclasses.MISSING else made()


def like(value: Any, usual: Any) -> Any:
    """The value with tuples for lists, so that it hashes, and as a float where the default is one.

    Arrays of NumPy and JAX are lists or numbers here. Of a dict the keys are texts, or it stays as
    it is, for `check` to refuse.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(like(entry, None) for entry in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return Options({key: like(entry, None) for key, entry in value.items()})
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_whole and isinstance(usual, float) else value


def _between(at_least: float, at_most: float, above: float, below: float) -> Range | None:
    """The range between two ends, in the words that fit them; None if there is no end."""
    if above > -math.inf:
        wanted = f"between {above:g} and {below:g}" if below < math.inf else f"more than {above:g}"
    elif at_least == -math.inf:
        return None
    elif at_most < math.inf:
        wanted = f"from {at_least:,} to {at_most:,}"
    else:
        wanted = f"at least {at_least:g}" + f" and less than {below:g}" * (below < math.inf)
    return Range(wanted, lambda v: at_least <= v <= at_most and above < v < below)
