"""Which code of the user's own a config names: as a key of caches, and as text in `config.json`.

A compiled program is of the objects that the names stand for (`cache_keys.key`), never of the
names: a loss that a notebook defines anew is another program, and one that it leaves as it is
shares one.

A run that goes on later, in another process, is of the files that its config names and of the
modules that they import, as far as these are the user's too (`sources.digests`). What is typed into
a notebook, or stands in the script that is run, has no file of its own: of that it is the code that
Python made of it (`cache_keys.text`).
"""

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from operator import attrgetter

from optdyn.basics import cache_keys, lookup, sources
from optdyn.basics.errors import ConfigError, shown
from optdyn.problem.data.loading import SOURCES
from optdyn.setup import Setup

ANY = "any"  # of config.code: go on with the code that there is
MODEL = ("model.name", "loss", "metrics")
OPTIMIZER = ("optimizer.name", "optimizer.chain")
METHOD = ("strategy.name",)
DATA = ("data.name",)
# Those of a config that may name what is the user's own.
KEYS = (*MODEL, *OPTIMIZER, *METHOD, *DATA, "optimizer.schedule", "cluster.service")
DIGITS = 12  # of a checksum
ENTRY = re.compile(rf"(.+?) ([0-9a-f]{{{DIGITS}}})(?:, |$)")


def names(config: Setup, keys: Sequence[str] = KEYS) -> Iterator[tuple[str, str]]:
    """(key, name) of all of the user's own that these keys name."""
    for key in keys:
        value = attrgetter(key)(config)
        if key in METHOD:
            value = str(value).split("+")
        for name in value if isinstance(value, (list, tuple)) else [value]:
            built_in = key in DATA and str(name).partition(":")[0] in SOURCES
            if lookup.is_own(name) and not built_in:
                yield f"config.{key}", name


def objects(config: Setup, keys: Sequence[str]) -> cache_keys.Key:
    """What of the user's own these keys name, as a key of caches; () if nothing.

    Raises `ConfigError` where there is no such thing.
    """
    return cache_keys.key(*(lookup.find(key, name, {}) for key, name in names(config, keys)))


def fingerprint(config: Setup, keys: Sequence[str] = KEYS) -> str:
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

    '' if nothing is, and where there was none, as workdirs had none once.
    """
    if not before or before == now:
        return ""
    held = entries(before)
    other = [what for what, checksum in entries(now).items() if held.get(what) != checksum]
    return " and ".join(other) or "your own files"


def check(config: Setup) -> None:
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
