"""Frozen dataclasses whose fields are documented and checked: the parts of an experiment.

    @dataclass(frozen=True)
    class Cluster(Value, section="cluster"):
        nodes: int = field(1, "Nodes of the cluster.", at_least=1)

A field has a default, whose type its values must have, a description, and a range. Config keys,
`optdyn list keys`, `help` and error messages are generated from them.

A union is a section that is one of several dataclasses. They derive from its root, and `name` says
which one it is:

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

from optdyn.base import arguments, ranges
from optdyn.base.errors import ConfigError, and_list, did_you_mean, one_of_these, passes, short_repr
from optdyn.base.in_memory import name_of
from optdyn.base.lookup import USER_NAMES, is_user_name
from optdyn.base.ranges import LARGEST, Range

FUNCTION_FIELDS = ("name", "loss", "schedule", "service")  # of things, or their names


class Options(dict[str, Any]):
    """A dict with free keys that hashes and must not be changed; 1, 1.0 and True differ in it."""

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
    """Returns a copy for functions and JSON, with dicts in place of options at all depths."""
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
    """Returns a field of a `Value` with its default, its description and its range.

    `expected` and `is_valid` describe a range that has no two ends, `one_of` the texts allowed. A
    `static` field is part of the compiled program. `largest` bounds whole numbers.
    """
    limits = ranges.between(at_least, at_most, above, below)
    metadata: dict[str, Any] = {
        "about": about,
        "range": Range(expected, is_valid) if is_valid else limits,
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

    section: ClassVar[str] = ""  # of the config; the fields are its keys
    tag: ClassVar[str] = ""  # the name of a member of a union
    root: ClassVar["type[Value] | None"] = None  # of a union
    members: ClassVar[dict[str, "type[Value]"]]  # of a root, by name
    custom: ClassVar[Any] = None  # of a root: the member for functions of the user's
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
        cls.__doc__ = f"{cls.__doc__ or ''}\n\n{_field_docs(cls)}".strip()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if args or kwargs:  # a copy gets its fields later
            arguments.bind(cls.__init__, None, *args, **kwargs)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if "about" in field.metadata:
                default = field.metadata["default"]
                if value is default:
                    continue
                value = normalize(function_name(field.name, value), default)
                if expected := refusal(value, field):
                    raise ConfigError(self._must_be(field.name, value, expected))
            elif isinstance(default := default_of(field), Value):
                kind = default.root or type(default)
                is_class = isinstance(value, type) and issubclass(value, kind)
                value = value if is_class else kind.from_object(value)
                if not isinstance(value, kind):
                    name = f"config.{self.key(field.name)}"
                    raise ConfigError(wrong_type_line(name, value, kind))
            object.__setattr__(self, field.name, value)

    @property
    def name(self) -> Any:
        return self.tag

    @classmethod
    def named(cls, name: Any) -> "Value":
        """Returns the union's member of that name, with its defaults. Raises `ConfigError`."""
        assert cls.root
        if cls.root.custom and is_user_name(name):
            return cast(Value, cls.root.custom(name=name))
        if not isinstance(name, str) or name not in cls.root.members:
            known = [*cls.root.members]
            expected = f"one of {', '.join(known)}, or {USER_NAMES}{did_you_mean(str(name), known)}"
            line = f"config.{cls.section}.name = {short_repr(name)}: must be {expected}"
            raise ConfigError(line)
        return cls.root.members[name]()

    @classmethod
    def from_object(cls, thing: Any) -> Any:
        """Returns the union's member for a function; other things as they are."""
        custom = cls.root and cls.root.custom
        return custom(name=thing) if custom and callable(thing) else thing

    @classmethod
    def key(cls, name: str) -> str:
        return f"{cls.section}.{name}" if cls.section else name

    @classmethod
    def field_table(cls) -> "dict[str, dataclasses.Field[Any]]":
        return {field.name: field for field in dataclasses.fields(cls)}

    def to_dict(self) -> dict[str, Any]:
        name = {"name": self.name} if self.root else {}
        return name | {key: plain(getattr(self, key)) for key in self.field_table()}

    def require(self, name: str, good: bool, expected: str) -> None:
        """Raises `ConfigError`, `KEY = VALUE: must be EXPECTED`, unless the field is good."""
        if not good:
            raise ConfigError(self._must_be(name, getattr(self, name), expected))

    @classmethod
    def _must_be(cls, name: str, value: object, expected: str) -> str:
        return f"config.{cls.key(name)} = {short_repr(value)}: must be {expected}"

    @arguments.check_arguments
    def with_(self, **changes: Any) -> Self:
        """Returns a copy with other values of some fields. Raises `ConfigError`."""
        return dataclasses.replace(self, **changes)

    def changed(self, changes: Mapping[str, Any]) -> "Value":
        """Returns a copy with other values of some keys, dotted or in nested dicts.

        Another `name` gives another member of the union, with its defaults. A `Text` is parsed as
        the field's type. Raises `ConfigError`.
        """
        new, inner = split_nested(changes)
        value: Value = self
        if self.root and "name" in new:
            name = new.pop("name")
            if isinstance(name, str):
                name = str(name)  # of a `Text`
            is_same = isinstance(name, str) and name == self.name
            value = self if is_same else self.root.named(name)
        fields = value.field_table()
        for key in (*new, *inner):
            if key not in fields:
                raise ConfigError(value._no_key(key))
        for key, change in new.items():
            before, where = getattr(value, key), f"config.{value.key(key)}"
            if isinstance(change, Text) and hasattr(before, "changed"):
                hint = f"; did you mean {where}.name?" * bool(getattr(before, "root", before))
                raise ConfigError(
                    f"{where} = {short_repr(str(change))}: must be set key by key{hint}"
                )
            if isinstance(change, Text):
                new[key] = change.parse(default_of(fields[key]), where)
            if isinstance(change, Mapping) and hasattr(before, "changed"):
                new[key] = before.changed(change)
        for key, part in inner.items():
            before = new.get(key, getattr(value, key))
            if isinstance(before, Mapping):  # options, whose keys are free
                new[key] = {**before, **{k: parse_literal(v) for k, v in part.items()}}
            elif hasattr(before, "changed"):
                new[key] = before.changed(part)
            else:
                raise ConfigError(f"config.{value.key(key)} has no keys of its own")
        return dataclasses.replace(value, **new) if new else value

    def _no_key(self, key: str) -> str:
        where = f"config.{self.key(key)}"
        others = self.root.members.items() if self.root else ()
        owners = [name for name, member in others if key in member.field_table()]
        if owners:
            owner = and_list(sorted(owners))
            return f"{where}: {self.name!r} has no such key, which is of {owner}"
        known = ["name"] * bool(self.root) + [*self.field_table()]
        section = f"config.{self.section}" if self.section else "config"
        return f"{section} has no key {key!r}{did_you_mean(key, known)}"


def _field_docs(kind: type[Value]) -> str:
    bases = [base for base in kind.__mro__[1:] if dataclasses.is_dataclass(base)]
    inherited = {f.name: f for base in bases for f in dataclasses.fields(base)}
    new = {key: f for key, f in vars(kind).items() if isinstance(f, dataclasses.Field)}
    lines = ["Fields:"]
    for name, field in (inherited | new).items():
        if about := field.metadata.get("about"):
            limits = field.metadata["range"]
            text = f"{about} Must be {limits.expected}." if limits else about
            text = textwrap.indent(textwrap.fill(text, 84), " " * 8)
            lines += [f"    {name} = {default_of(field)!r}", text]
    return "\n".join(lines) if len(lines) > 1 else ""


def split_nested(changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Returns the changes of keys without a dot, and of others those below each first part."""
    whole, inner = dict[str, Any](), dict[str, dict[str, Any]]()
    for key, value in changes.items():
        if not isinstance(key, str):
            raise ConfigError(f"config: keys must be texts, and one is {short_repr(key)}")
        first, _, rest = key.partition(".")
        if rest:
            inner.setdefault(first, {})[rest] = value
        else:
            whole[first] = value
    return whole, inner


class Text(str):
    """A value as it stands on a command line."""

    def parse(self, default: Any, where: str) -> Any:
        """Returns the value in the default's type, if it fits. Raises `ConfigError` for bools."""
        if isinstance(default, str):
            return str(self)
        if isinstance(default, bool):
            if self.lower() not in ("true", "false", "1", "0"):
                raise ConfigError(f"{where} = {short_repr(str(self))}: must be True or False")
            return self.lower() in ("true", "1")
        value = parse_literal(self)
        if isinstance(default, tuple) and not isinstance(value, (tuple, list)):
            return tuple(value.split(",")) if isinstance(value, str) else (value,)
        if isinstance(default, float) and isinstance(value, str):
            try:
                return float(value)  # inf
            except ValueError:
                return value
        return value


def parse_literal(value: Any) -> Any:
    """Returns the Python literal that a `Text` is, else the text; other values as they are."""
    if not isinstance(value, Text):
        return value
    try:
        return ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
    except (ValueError, SyntaxError):
        return str(value)


def all_fields(value: Value) -> "Iterator[tuple[str, dataclasses.Field[Any]]]":
    """Yields the dotted key and the field of all keys of a value and of its parts."""
    for field in dataclasses.fields(value):
        if "about" in field.metadata:
            yield value.key(field.name), field
        elif isinstance(part := getattr(value, field.name), Value):
            yield from all_fields(part)


def wrong_type_line(name: str, value: Any, kind: type[Value]) -> str:
    member = value if isinstance(value, type) else None
    if isinstance(value, str) and kind.root:
        member = kind.members.get(value)
    hint = f", such as {member.__name__}(...)" if member and issubclass(member, kind) else ""
    return f"{name} = {short_repr(value)}: must be of type {kind.__name__}{hint}"


def function_name(name: str, value: Any) -> Any:
    """Returns the name of a function that is the value of a field for names; others as they are."""
    if name == "metrics" and (callable(value) or isinstance(value, (tuple, list))):
        functions = value if isinstance(value, (tuple, list)) else (value,)
        return tuple(name_of(one) if callable(one) else one for one in functions)
    return name_of(value) if name in FUNCTION_FIELDS and callable(value) else value


@dataclasses.dataclass(frozen=True)
class ConstantFunction:
    """A function that returns the same thing for any arguments."""

    thing: Any

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.thing


def refusal(value: Any, field: "dataclasses.Field[Any]") -> str:
    """Returns what the value of a field must be, by its type and range; '' if it is valid."""
    known = field.metadata
    if expected := ranges.refusal(value, known["default"], known["largest"]):
        return expected
    limits: Range | None = known["range"]
    if limits and not passes(limits.is_valid, value):
        return limits.expected
    names = known["one_of"]
    return one_of_these(value, names) if names and value not in names else ""


def default_of(field: "dataclasses.Field[Any]") -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def normalize(value: Any, default: Any) -> Any:
    """Returns the value with tuples for lists and arrays, and a float if the default is one.

    A dict with keys that are no texts stays as it is, for `refusal`.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(normalize(entry, None) for entry in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return Options({key: normalize(entry, None) for key, entry in value.items()})
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    fits = is_whole and abs(value) < 2**1000  # into a float
    return float(value) if fits and isinstance(default, float) else value


@dataclasses.dataclass(frozen=True)
class Custom(Value):
    name: Any = field("", "FILE:NAME, MODULE:NAME, or the function itself.")
    options: Options = field(OPTIONS, "Arguments of the function.")
