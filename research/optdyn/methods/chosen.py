"""What the name of methods says of them, for pages on runs."""

from functools import lru_cache

from optdyn.base import lookup
from optdyn.base.errors import ConfigError
from optdyn.methods.method import KEY, Methods


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
    """Whether methods of that name have the key of config.method."""
    methods = seen(name)
    return bool(methods and methods.having(key))


def seen(name: str) -> Methods | None:
    """The methods of a run that is read here; None if a file of theirs is not, or not run yet."""
    own = [part for part in str(name).split("+") if lookup.is_own(part)]
    if not all(lookup.is_used(KEY, part) or lookup.is_given(KEY, part) for part in own):
        return None
    try:
        return Methods.named(name) if own else _built(name)
    except ConfigError:
        return None


@lru_cache(maxsize=256)
def _built(name: str) -> Methods:
    """`Methods.named` of built-in methods, which stay what they are."""
    return Methods.named(name)
