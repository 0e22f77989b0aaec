"""Methods by their names: `config.method`, and what names of methods mean.

A built-in method is a file of `gradient/`, `read/` or `mix/` with a class `METHOD`.
"""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from optdyn.base import lookup
from optdyn.base.errors import ConfigError, refuse, require_known
from optdyn.base.fields import OPTIONS, Options, default_of, like, plain
from optdyn.base.fields import check as check_field
from optdyn.base.trees import Json
from optdyn.methods.method import MEANING, Method, Methods, Mixes, as_one
from optdyn.methods.names import meant as meant_method

PLAIN, GROUPED = "sync", "asynchronous"  # the limit of all methods; groups that arrive alone
PACKAGE = "optdyn.methods"
KEY = "config.method.name"


@dataclass(frozen=True)
class Chosen:
    """`config.method`: the methods' names, and the keys of all methods, chosen or not.

    A key belongs to all methods that have it, except to one with a value of its own, such as
    `config.method.diloco.period`.
    """

    name: str = PLAIN
    options: Options = OPTIONS  # keys of methods of the user's own
    keys: Options = OPTIONS  # all of the built-in methods
    own: Options = OPTIONS  # {method: {key: value}} of those that have their own

    @classmethod
    def of(cls, name: str = PLAIN, options: Mapping[str, object] = OPTIONS, **keys: Any) -> Self:
        """From the section of a config. Raises `ConfigError` for a key out of its range."""
        own = {key: keys.pop(key) for key in built_in() if key in keys}
        return cls(name, like(options, None), Options(keys), like(own, None))

    def __post_init__(self) -> None:
        usual = usual_keys()
        whole = {**usual, **{key: like(v, usual.get(key)) for key, v in self.keys.items()}}
        object.__setattr__(self, "keys", Options(whole))
        own = {name: Options(keys) for name, keys in self.own.items() if keys}
        object.__setattr__(self, "own", Options(own))
        _checked(self.keys, tuple(str(self.name).split("+")))
        for name, keys in self.own.items():
            held = {each.name: each for each in fields(load(name))}
            for key, value in keys.items():
                where = f"config.method.{name}.{key}"
                require_known(key, held, f"{where}: {name} has no such key")
                check_field(where, value, held[key])

    @cached_property
    def methods(self) -> Methods:
        """The methods with their numbers.

        A method of the user's own takes `options`, and the keys of those fields that it inherits
        from a built-in method. Raises `ConfigError` if a name is unknown, or if the methods do not
        go together.
        """
        made, of = [], chosen(self.name)
        for name, method in zip(self.name.split("+"), of.every, strict=True):
            if ":" in name:
                usual_of = keys_of(type(method))
                shared = (key for key, v in usual_keys().items() if usual_of.get(key) == v)
                given = {key: self.keys[key] for key in shared}
                given |= {k: v for k, v in self.options.items() if k in usual_of}
                made.append(method.with_(**given))
            else:
                own = {key: self.keys[key] for key in keys_of(type(method))}
                made.append(method.with_(**own | self.own.get(name, {})))
        return Methods(self.name, tuple(made))

    def to_dict(self) -> Json:
        """The section of a config, with a method's own values only where it has some."""
        whole = {"name": self.name, "options": self.options, **self.keys, **self.own}
        return {key: plain(value) for key, value in whole.items()}

    def with_(self, changes: Mapping[str, object]) -> Self:
        """A copy with other values of some keys, also `options.KEY` and `METHOD.KEY`.

        Raises `ConfigError` for a key that there is not.
        """
        whole: Json = self.to_dict()
        for key, value in changes.items():
            part, _, rest = key.partition(".")
            if rest:
                whole[part] = {**whole.get(part, {}), rest: value}
            else:
                if key not in built_in():
                    require_known(key, whole, f"config.method has no key {key!r}")
                whole[key] = value
        return self.of(**whole)

    def __getstate__(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


@cache
def _methods() -> Mapping[str, type[Method]]:
    """The methods of the files of `gradient/`, `read/` and `mix/`, plain SGD's first."""
    beside = {
        module.name: f"{PACKAGE}.{piece}.{module.name}"
        for piece in MEANING
        for module in pkgutil.iter_modules([str(Path(__file__).parent / piece)])
    }
    files = {PLAIN: f"{PACKAGE}.{PLAIN}", **{name: beside[name] for name in sorted(beside)}}
    made = {name: import_module(file) for name, file in files.items()}
    return {name: file.METHOD for name, file in made.items() if hasattr(file, "METHOD")}


def built_in() -> tuple[str, ...]:
    """The names of the built-in methods, plain SGD's first."""
    return tuple(_methods())


def keys_of(method: type[Method]) -> dict[str, object]:
    """The defaults of a method's fields."""
    return {each.name: default_of(each) for each in fields(method)}


@cache
def usual_keys() -> Mapping[str, object]:
    """The default of every key of config.method that belongs to a built-in method."""
    return {key: value for method in _methods().values() for key, value in keys_of(method).items()}


def defaults() -> dict[str, object]:
    """The default of every key of config.method, by its dotted name; {} where keys are free."""
    own = {name: OPTIONS for name, method in _methods().items() if fields(method)}
    values = {"name": PLAIN, "options": OPTIONS, **usual_keys(), **own}
    return {f"method.{key}": value for key, value in values.items()}


@lru_cache(maxsize=256)
def _checked(keys: Options, names: tuple[str, ...]) -> None:
    """Raises `ConfigError` unless every key is known, and its value one that a method takes.

    What the methods called `names` have is theirs to check, when they are made: another method
    that has these keys too may take values with them or with its defaults.
    """
    for key in keys:
        require_known(key, usual_keys(), f"config.method.{key}: no such key")
    every = _methods()
    theirs = {key for name in names if name in every for key in keys_of(every[name])}
    for method in every.values():
        given = {k: v for k, v in keys.items() if k in keys_of(method)}
        try:
            method(**given)
        except ConfigError:
            if not theirs & given.keys():
                raise
            method(**{k: v for k, v in given.items() if k not in theirs})


def load(name: str) -> type[Method]:
    """The method called `name`: a built-in one, or MODULE:METHOD of the user's own file.

    Raises `ConfigError` if there is none.
    """
    found = lookup.find(KEY, name, _methods(), meant_method)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(
            f"config.method.name = {name!r}: must be a Method of optdyn.methods, and is "
            f"{lookup.shown(found)}"
        )
    return found


def chosen(name: str) -> Methods:
    """The methods joined by '+' in `name`, with their defaults.

    Raises `ConfigError` if they do not go together.
    """
    names = str(name).split("+")
    every = tuple(load(part)() for part in names)
    taken: dict[str, str] = {}
    for part, method in zip(names, every, strict=True):
        for piece in method.pieces:
            if piece in taken and not (piece == "mix" and _mix_as_one(every)):
                raise ConfigError(
                    f"config.method.name = {name!r}: {taken[piece]} and {part} both say "
                    f"{MEANING[piece]}, of which there is one"
                )
            taken[piece] = part
    found = Methods(name, every)
    gradient, read, mix = (taken.get(piece) for piece in MEANING)
    refuse(
        (
            found.reduces_itself and found.read and not found.read.barrier,
            f"config.method.name = {name!r}: {gradient} divides the work of workers that wait "
            f"for one another, and those of {read} do not",
        ),
        (
            found.gradient and found.gradient.staged and found.mix,
            f"config.method.name = {name!r}: {gradient} cuts one model over the nodes, and "
            f"those of {mix} have a model each",
        ),
    )
    return found


def _mix_as_one(every: tuple[Method, ...]) -> bool:
    """Whether two of the methods mix, and as one."""
    mixes = [method for method in every if isinstance(method, Mixes)]
    return len(mixes) == 2 and as_one(*mixes) is not None


def arrives(name: str) -> bool:
    """Whether methods of that name have groups that arrive by themselves."""
    methods = seen(name)
    return bool(methods and methods.read and not methods.read.barrier)


def is_shared(name: str) -> bool:
    """Whether groups of methods of that name share parameters, of which they read versions."""
    methods = seen(name)
    return bool(methods and methods.shared)


def is_simple(name: str) -> bool:
    """Whether an update of methods of that name is one gradient of the whole batch."""
    methods = seen(name)
    return bool(methods and methods.simple)


def owns(name: str, key: str) -> bool:
    """Whether methods of that name have the key of config.method.

    `diloco.period` belongs to those that have `diloco` among them.
    """
    first, _, own = key.partition(".")
    if own and first in str(name).split("+"):
        return owns(first, own)
    methods = seen(name)
    return bool(methods and any(key in keys_of(type(method)) for method in methods.every))


def seen(name: str) -> Methods | None:
    """The methods of a run that is read here; None if a file of theirs is not, or not run yet."""
    own = [part for part in str(name).split("+") if lookup.is_own(part)]
    if not all(lookup.is_used(KEY, part) or lookup.is_given(KEY, part) for part in own):
        return None
    try:
        return chosen(name) if own else _built(name)
    except ConfigError:
        return None


@lru_cache(maxsize=256)
def _built(name: str) -> Methods:
    """`chosen` of built-in methods, which stay what they are."""
    return chosen(name)
