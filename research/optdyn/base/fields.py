"""Values: frozen dataclasses whose fields say what they are, and that refuse what cannot be.

    @dataclass(frozen=True)
    class Cluster(Value, section="cluster"):
        nodes: int = field(1, "Nodes of the cluster.", at_least=1)

A field has a default, whose type every value must have, words that explain it by itself, and a
range. Keys of configs, their defaults, `optdyn list keys` and the lines on bad values are made of
these.

A section that is one of several dataclasses is a union. Its root is the class that all of them
derive from, and `name` says which one it is:

    @dataclass(frozen=True)
    class Law(Value, section="cluster.service", union=True): ...

    @dataclass(frozen=True)
    class Gamma(Law, name="gamma"):
        variation: float = field(1.0, "Standard deviation over mean.", at_least=0)
"""

import ast
import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, cast

from optdyn.base import calls, ranges
from optdyn.base.errors import ConfigError, and_, meant, one_of_these, passes, shown
from optdyn.base.in_memory import name_of
from optdyn.base.lookup import OWN, is_own
from optdyn.base.ranges import LARGEST, Range

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
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return tuple(map(plain, value)) if isinstance(value, (list, tuple)) else value


def field(
    default: Any,
    about: str,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    expected: str = "",
    is_valid: Callable[[Any], Any] | None = None,
    one_of: Sequence[str] = (),
    static: bool = False,
    largest: float = LARGEST,
) -> Any:
    """A field of a `Value`: its default, what it is, and its range.

    `expected` and `is_valid` describe a range that no two numbers can, `one_of` the texts allowed.
    A program is compiled anew for another value of a `static` field; others are data of it.
    `largest` bounds whole numbers (`ranges.refusal`).
    """
    of = Range(expected, is_valid) if is_valid else ranges.between(at_least, at_most, above, below)
    metadata: dict[str, Any] = {
        "about": about,
        "range": of,
        "one_of": tuple(one_of),
        "static": static,
        "default": default,
        "largest": largest,
    }
    if default is OPTIONS:
        return dataclasses.field(default_factory=Options, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Value:
    """Base of the frozen dataclasses that an experiment is made of."""

    section: ClassVar[str] = ""  # of the config, whose keys its fields are
    tag: ClassVar[str] = ""  # of one of a union, its name
    root: ClassVar["type[Value] | None"] = None  # of a union
    members: ClassVar[dict[str, "type[Value]"]]  # of a root, by name
    custom: ClassVar[Any] = None  # of a root, the member that is a function of one's own
    roots: ClassVar[list["type[Value]"]] = []  # of all unions

    def __init_subclass__(
        cls, section: str = "", union: bool = False, name: str = "", custom: bool = False
    ) -> None:
        super().__init_subclass__()
        cls.section = section or cls.section
        cls.tag = name
        if union:
            cls.root, cls.members = cls, {}
            Value.roots.append(cls)
        if name:
            cls.members[name] = cls
        if custom and cls.root:
            cls.root.custom = cls
        cls.__doc__ = f"{cls.__doc__ or ''}\n\n{_described(cls)}".strip()

    def __new__(cls, *args: Any, **given: Any) -> Self:
        if args or given:  # a copy has its fields later
            calls.bound(cls.__init__, None, *args, **given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if "about" in each.metadata and value is each.metadata["default"]:
                continue
            if "about" in each.metadata:
                value = like(named(each.name, value), each.metadata["default"])
                if expected := wrong(value, each):
                    where = f"config.{self.key(each.name)} = {shown(value)}"
                    raise ConfigError(f"{where}: must be {expected}")
            elif isinstance(usual := default_of(each), Value):
                name = f"config.{self.key(each.name)}"
                kind = usual.root or type(usual)
                is_class = isinstance(value, type) and issubclass(value, kind)
                value = value if is_class else kind.of(value)
                if not isinstance(value, kind):
                    raise ConfigError(not_one(name, value, kind))
            object.__setattr__(self, each.name, value)

    @property
    def name(self) -> Any:
        """Which one of its union it is."""
        return self.tag

    @classmethod
    def named(cls, name: Any) -> "Value":
        """The one of this union that has the name, with its defaults. Raises `ConfigError`."""
        assert cls.root
        if cls.root.custom and is_own(name):
            return cast(Value, cls.root.custom(name=name))
        if not isinstance(name, str) or name not in cls.root.members:
            known = [*cls.root.members]
            expected = f"must be one of {', '.join(known)}, or {OWN}{meant(str(name), known)}"
            raise ConfigError(f"config.{cls.section}.name = {shown(name)}: {expected}")
        return cls.root.members[name]()

    @classmethod
    def of(cls, given: Any) -> Any:
        """The value of a thing that may stand for one, such as a function; others as they are."""
        custom = cls.root and cls.root.custom
        return custom(name=given) if custom and callable(given) else given

    @classmethod
    def key(cls, name: str) -> str:
        """The key of a config, dotted, that a field is."""
        return f"{cls.section}.{name}" if cls.section else name

    @classmethod
    def field_table(cls) -> "dict[str, dataclasses.Field[Any]]":
        """The fields by their names."""
        return {each.name: each for each in dataclasses.fields(cls)}

    def to_dict(self) -> dict[str, Any]:
        """The nested dict of a config's section."""
        named = {"name": self.name} if self.root else {}
        return named | {key: plain(getattr(self, key)) for key in self.field_table()}

    def require(self, name: str, good: bool, expected: str) -> None:
        """Raises `ConfigError` unless the value of a field is as wanted."""
        if not good:
            raise ConfigError(
                f"config.{self.key(name)} = {shown(getattr(self, name))}: must be {expected}"
            )

    @calls.checked
    def with_(self, **changes: Any) -> Self:
        """A copy with other values of some fields. Raises `ConfigError`."""
        return dataclasses.replace(self, **changes)

    def changed(self, changes: Mapping[str, Any]) -> "Value":
        """A copy with other values of some keys, which may be dotted or nested dicts.

        Another `name` makes another one of the union, which begins with its defaults. A `Text` is
        read as the field's type. Raises `ConfigError` for a key that there is not, and says whose
        it is.
        """
        new, inner = nested(changes)
        value: Value = self
        if self.root and "name" in new:
            name = new.pop("name")
            if isinstance(name, str):
                name = str(name)  # of a `Text`
            is_same = isinstance(name, str) and name == self.name
            value = self if is_same else self.root.named(name)
        keys = value.field_table()
        for key in (*new, *inner):
            if key not in keys:
                raise ConfigError(value._no_key(key))
        for key, one in new.items():
            held = getattr(value, key)
            if isinstance(one, Text) and hasattr(held, "changed"):
                where, is_union = f"config.{value.key(key)}", getattr(held, "root", held)
                hint = f"; did you mean {where}.name?" * bool(is_union)
                raise ConfigError(f"{where} = {shown(str(one))}: must be set key by key{hint}")
            if isinstance(one, Text):
                new[key] = one.like(default_of(keys[key]), f"config.{value.key(key)}")
            if isinstance(one, Mapping) and hasattr(held, "changed"):
                new[key] = held.changed(one)
        for key, part in inner.items():
            held = new.get(key, getattr(value, key))
            if isinstance(held, Mapping):  # options, whose keys are free
                new[key] = {**held, **{k: plain_text(v) for k, v in part.items()}}
            elif hasattr(held, "changed"):
                new[key] = held.changed(part)
            else:
                raise ConfigError(f"config.{value.key(key)} has no keys of its own")
        return dataclasses.replace(value, **new) if new else value

    def _no_key(self, key: str) -> str:
        where = f"config.{self.key(key)}"
        others = self.root.members.items() if self.root else ()
        owners = [name for name, one in others if key in one.field_table()]
        if owners:
            return f"{where}: {self.name!r} has no such key, which is of {and_(sorted(owners))}"
        known = ["name"] * bool(self.root) + [*self.field_table()]
        section = f"config.{self.section}" if self.section else "config"
        return f"{section} has no key {key!r}{meant(key, known)}"


def _described(kind: type[Value]) -> str:
    """The fields of a class with their types, defaults, words and ranges, for `help`."""
    bases = [base for base in kind.__mro__[1:] if dataclasses.is_dataclass(base)]
    inherited = {f.name: f for base in bases for f in dataclasses.fields(base)}
    own = {key: f for key, f in vars(kind).items() if isinstance(f, dataclasses.Field)}
    lines = ["Fields:"]
    for name, each in (inherited | own).items():
        if about := each.metadata.get("about"):
            span = each.metadata["range"]
            expected = f" Must be {span.expected}." if span else ""
            said = textwrap.fill(f"{about}{expected}", 92, initial_indent=" " * 8)
            lines += [f"    {name} = {default_of(each)!r}", said.replace("\n", "\n" + " " * 8)]
    return "\n".join(lines) if len(lines) > 1 else ""


def nested(changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The values of whole keys, and of each part its changes."""
    whole, inner = dict[str, Any](), dict[str, dict[str, Any]]()
    for key, value in changes.items():
        if not isinstance(key, str):
            raise ConfigError(f"config: keys must be texts, and one is {shown(key)}")
        first, _, rest = key.partition(".")
        if rest:
            inner.setdefault(first, {})[rest] = value
        else:
            whole[first] = value
    return whole, inner


class Text(str):
    """A value as it stands on a command line."""

    def like(self, usual: Any, where: str) -> Any:
        """The value, of the type of a default. Raises `ConfigError` where it is none."""
        if isinstance(usual, str):
            return str(self)
        if isinstance(usual, bool):
            if self.lower() not in ("true", "false", "1", "0"):
                raise ConfigError(f"{where} = {shown(str(self))}: must be True or False")
            return self.lower() in ("true", "1")
        value = plain_text(self)
        if isinstance(usual, tuple) and not isinstance(value, (tuple, list)):
            return tuple(value.split(",")) if isinstance(value, str) else (value,)
        if isinstance(usual, float) and isinstance(value, str):
            try:
                return float(value)  # inf
            except ValueError:
                return value
        return value


def plain_text(value: Any) -> Any:
    """What a `Text` says where no type is wanted: a literal, else the text; others as they are."""
    if not isinstance(value, Text):
        return value
    try:
        return ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
    except (ValueError, SyntaxError):
        return str(value)


def every_field(value: Value) -> "Iterator[tuple[str, dataclasses.Field[Any]]]":
    """The dotted key and the field of every key of a value and of its parts."""
    for each in dataclasses.fields(value):
        if "about" in each.metadata:
            yield value.key(each.name), each
        elif isinstance(part := getattr(value, each.name), Value):
            yield from every_field(part)


def not_one(name: str, value: Any, kind: type[Value]) -> str:
    """The line that refuses a value which is none of a type, and says what may be meant."""
    member = value if isinstance(value, type) else None
    if isinstance(value, str) and kind.root:
        member = kind.members.get(value)
    hint = f", such as {member.__name__}(...)" if member and issubclass(member, kind) else ""
    return f"{name} = {shown(value)}: must be of type {kind.__name__}{hint}"


def named(name: str, value: Any) -> Any:
    """The name of a function that is the value of one of `NAMES`; others as they are."""
    if name == "metrics" and (callable(value) or isinstance(value, (tuple, list))):
        several = value if isinstance(value, (tuple, list)) else (value,)
        return tuple(name_of(one) if callable(one) else one for one in several)
    return name_of(value) if name in NAMES and callable(value) else value


@dataclasses.dataclass(frozen=True)
class Returns:
    """A function that returns the thing, whatever it is given."""

    thing: Any

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.thing


def wrong(value: Any, of: "dataclasses.Field[Any]") -> str:
    """What the value of a field must be, by its type and range; '' if it is that."""
    known = of.metadata
    if expected := ranges.refusal(value, known["default"], known["largest"]):
        return expected
    span: Range | None = known["range"]
    if span and not passes(span.is_valid, value):
        return span.expected
    names = known["one_of"]
    return one_of_these(value, names) if names and value not in names else ""


def default_of(of: "dataclasses.Field[Any]") -> Any:
    """The default of a field."""
    made = of.default_factory
    return of.default if made is dataclasses.MISSING else made()


def like(value: Any, usual: Any) -> Any:
    """The value with tuples for lists, so that it hashes, and as a float where the default is one.

    Arrays of NumPy and JAX are lists or numbers here. Of a dict the keys are texts, or it stays as
    it is, for `wrong` to refuse.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(like(entry, None) for entry in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return Options({key: like(entry, None) for key, entry in value.items()})
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    small = is_whole and abs(value) < 2**1000  # a float can be of it
    return float(value) if small and isinstance(usual, float) else value


@dataclasses.dataclass(frozen=True)
class Custom(Value):
    """The fields of a member of a union that is a function of one's own."""

    name: Any = field("", "FILE:NAME, MODULE:NAME, or the function itself.")
    options: Options = field(OPTIONS, "Arguments of the function.")
