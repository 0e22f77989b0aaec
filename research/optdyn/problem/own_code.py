"""Which code of the user's own a config names: as a key of caches, and as text in `config.json`.

A compiled program is of the objects that the names stand for (`cache_keys.key`), never of the
names: a loss that a notebook defines anew is another program, and one that it leaves as it is
shares one.

A run that goes on later, in another process, is of the files that its config names and of the
modules that they import, as far as these are the user's too (`sources.digests`). What is typed into
a notebook, or stands in the script that is run, has no file of its own: of that it is the code that
Python made of it (`cache_keys.text`).

A config that is read from a file of a run is data. What it names is run only as `check_read` says.
"""

import hashlib
import inspect
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optdyn.base import cache_keys, lookup, sources
from optdyn.base.errors import ConfigError, shown

ANY = "any"  # of config.code: go on with the code that there is
MODEL = ("model.name", "loss", "metrics")
OPTIMIZER = ("optimizer.name", "optimizer.chain")
METHOD = ("method.name",)
DATA = ("data.name",)
# Those of a config that may name what is the user's own.
CLOCK = (*OPTIMIZER, *METHOD, "optimizer.schedule", "cluster.service.name")  # of pages on a run
KEYS = (*MODEL, *DATA, *CLOCK)
DIGITS = 12  # of a checksum
ENTRY = re.compile(rf"(.+?) ([0-9a-f]{{{DIGITS}}})(?:, |$)")


def names(config: Any, keys: Sequence[str] = KEYS) -> Iterator[tuple[str, str]]:
    """(key, name) of all of the user's own that these keys name."""
    for key in keys:
        value = _at(config, key)
        if key in METHOD:
            value = str(value).split("+")
        for name in value if isinstance(value, (list, tuple)) else [value]:
            if lookup.is_own(name):
                yield f"config.{key}", name


def _at(config: Any, key: str) -> Any:
    """The value of a dotted key of an experiment, or of its nested dict, where that has it."""
    for part in key.split("."):
        config = config.get(part, "") if isinstance(config, Mapping) else getattr(config, part, "")
    return config


def check_read(config: Any, file: object, keys: Sequence[str] = KEYS) -> None:
    """Raises `ConfigError` where a config that was read from a file names what it is not to run.

    What it names of the user's own must stand on the command line too; and it must be of the kind
    that the key wants, or code in a file of the user's. What this process has used before is both.
    """
    for key, name in names(config, keys):
        if lookup.is_used(key, name):
            continue
        said, is_given = f"{key} = {name!r} of {file}", lookup.is_given(key, name)
        if _is_pythons(name) or (is_given and not _may_be_called(key, lookup.own(key, name))):
            raise ConfigError(
                f"{said}: must be code in a file of your own; what is installed is named in a "
                "config in Python"
            )
        if not is_given:
            flag = f"--{key}={_at(config, key.removeprefix('config.'))}"
            raise ConfigError(
                f"{said}: a file runs no code by itself; if it is yours, add {shlex.quote(flag)}"
            )


def _is_pythons(name: str) -> bool:
    module = name.rpartition(":")[0]
    return not module.endswith(".py") and module.partition(".")[0] in sys.stdlib_module_names


def _may_be_called(key: str, thing: Any) -> bool:
    """Whether it is of the kind that the key wants, or code in a file of the user's.

    The kind is that of a class, or of what a function says that it returns: nothing is called.
    """
    import flax.linen as nn  # here, for they take long
    import optax

    kinds = {
        **dict.fromkeys(MODEL[:1], nn.Module),
        **dict.fromkeys(OPTIMIZER, optax.GradientTransformation),
        **dict.fromkeys(METHOD, object),  # of which only a Method is called (`methods.load`)
    }
    is_class = isinstance(thing, type)
    made = thing if is_class else getattr(thing, "__annotations__", {}).get("return")
    kind = kinds.get(key.removeprefix("config."), ())
    is_of_kind = isinstance(made, type) and issubclass(made, kind)
    return is_of_kind or sources.is_users(_file_of(thing))


def _file_of(thing: Any) -> str:
    """The file of the code of a function, or of a thing's class; '<' of what has none."""
    if code := getattr(inspect.unwrap(thing), "__code__", None):
        return str(code.co_filename)
    of = thing if isinstance(thing, type) else type(thing)
    return getattr(sys.modules.get(of.__module__), "__file__", None) or "<"


def objects(config: Any, keys: Sequence[str]) -> cache_keys.Key:
    """What of the user's own these keys name, as a key of caches; () if nothing.

    Raises `ConfigError` where there is no such thing.
    """
    return cache_keys.key(*(lookup.find(key, name, {}) for key, name in names(config, keys)))


def fingerprint(config: Any, keys: Sequence[str] = KEYS) -> str:
    """`FILE CHECKSUM, FILE CHECKSUM` of what of the user's own these keys name; '' if nothing."""
    found = dict[str, str]()
    for key, name in names(config, keys):
        module, thing = lookup.module_of(key, name), lookup.find(key, name, {})
        if sources.file_of(module):
            found[name.rpartition(":")[0]] = repr(sorted(sources.digests(module).items()))
        defined = sys.modules.get(getattr(thing, "__module__", None) or module.__name__, module)
        if not sources.file_of(defined):
            found[name] = cache_keys.text(thing)
    return ", ".join(f"{what} {_checksum(text)}" for what, text in sorted(found.items()))


def entries(code: object) -> dict[str, str]:
    """The checksums in a `fingerprint`, by file; {} of what is none."""
    return dict(ENTRY.findall(code)) if isinstance(code, str) else {}


def changed(before: object, now: str) -> str:
    """What is other code now than in the `fingerprint` from before, in words.

    '' if nothing is, and where there was none.
    """
    if not before or before == now:
        return ""
    held = entries(before)
    other = [what for what, checksum in entries(now).items() if held.get(what) != checksum]
    return " and ".join(other) or "your own files"


def check(config: Any) -> None:
    """Raises `ConfigError` where `config.code` asks for other code than there is."""
    if config.code in ("", ANY):
        return
    if said := changed(config.code, found := fingerprint(config)):
        good = " or ".join(map(repr, dict.fromkeys((found, ANY, ""))))
        raise ConfigError(
            f"config.code = {shown(config.code)}: the code of {said} is another; must be {good}"
        )


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:DIGITS]
