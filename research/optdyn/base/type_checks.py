"""The kind of every value: that of its default, and of a size that can be computed with.

It is asked of the whole tree before any other rule, so that no rule meets a text where it compares
numbers, and no array is asked for whose length has no 32 bits.
"""

import math
from collections.abc import Mapping, Sequence

from optdyn.base.errors import ConfigError, refuse, shown

LARGEST = 2**31 - 1  # of whole numbers, which count what lies in arrays
WIDER = {"config.seed": 2**32 - 1, "config.plan.memory": 2**63 - 1}
SMALL, LARGE = 1e-30, 1e30  # sizes of other numbers: products of some stay finite in float64
INFINITE = ("config.plan.noise_scale",)  # keys of which infinity is a value
CHARACTERS, ENTRIES, DEPTH = 4096, 2**20, 8  # of a text, of a list, of lists in lists, at most
WORDS = f"a text of at most {CHARACTERS:,} characters, none of which controls the terminal"
FLOAT = f"a number, 0 or of a size from {SMALL:g} to {LARGE:g}"


def check(
    values: Mapping[str, object], reference: Mapping[str, object], name: str = "config"
) -> None:
    """Raises `ConfigError` unless `values` has the keys of `reference`, with values of their kinds.

    A dict that is empty in `reference` has keys that are free, and may be left out. Their values
    must be plain: what a JSON file can hold.
    """
    for key in values:
        if key not in reference:
            raise ConfigError(f"{name}.{shown(key).strip(chr(39))}: no such key")
    for key, usual in reference.items():
        inner = f"{name}.{key}"
        if key not in values and usual == {}:
            continue
        if key not in values:
            raise ConfigError(f"{inner}: missing; start from optdyn.experiment.default()")
        value = values[key]
        if not isinstance(usual, Mapping):
            wanted = refusal(inner, value, usual)
            if wanted:
                raise ConfigError(f"{inner} = {shown(value)}: must be {wanted}")
        elif not isinstance(value, Mapping):
            raise ConfigError(f"{inner}: must hold keys of its own")
        elif usual:
            check(value, usual, inner)
        else:
            _open(value, inner)


def refusal(name: str, value: object, usual: object) -> str:
    """What the value of a key must be, by its default; '' if it is that."""
    if isinstance(usual, bool):
        return "" if isinstance(value, bool) else "True or False"
    if isinstance(usual, int):
        most = WIDER.get(name, LARGEST)
        return "" if _whole(value, most) else f"a whole number of a size up to {most:,}"
    if isinstance(usual, float):
        infinite = name in INFINITE and value == math.inf
        return "" if infinite or _number(value) else FLOAT
    if isinstance(usual, str):
        return "" if _text(value) else WORDS
    if isinstance(usual, (list, tuple)):
        return _of_list(name, value, usual)
    is_open = isinstance(usual, Mapping)
    if _plain(value) and (isinstance(value, Mapping) or not is_open):
        return ""
    return "a dict, " * is_open + "plain: numbers, texts, and lists of them"


def _of_list(name: str, value: object, usual: Sequence[object]) -> str:
    if not isinstance(value, (list, tuple)) or len(value) > ENTRIES:
        return f"a list of at most {ENTRIES:,} entries, as (1, 2) or ()"
    if usual:
        each = (refusal(name, entry, usual[0]) for entry in value)
        return next((f"a list, of which each is {wanted}" for wanted in each if wanted), "")
    good = all(_plain(entry) and not isinstance(entry, (bool, dict)) for entry in value)
    return "" if good and None not in value else "a list of numbers or texts, or of lists of them"


def _open(values: Mapping[str, object], name: str) -> None:
    for key in values:
        refuse(
            (not _text(key), f"{name}: its keys must be texts, and one is {shown(key)}"),
            (
                not _plain(values[key]),
                f"{name}.{key} = {shown(values[key])}: must be plain, finite numbers, texts, and "
                "lists of them",
            ),
        )


def _whole(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -most <= value <= most


def _number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value == 0 or SMALL <= abs(value) <= LARGE


def _text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= CHARACTERS and value.isprintable()


def _plain(value: object, depth: int = DEPTH) -> bool:
    """Whether the value is what a JSON file can hold, and no text or number in it is odd."""
    if value is None or isinstance(value, bool) or _number(value) or _text(value):
        return True
    if isinstance(value, Mapping):
        return depth > 0 and all(_text(k) and _plain(value[k], depth - 1) for k in value)
    if isinstance(value, (list, tuple)):
        few = depth > 0 and len(value) <= ENTRIES
        return few and all(_plain(entry, depth - 1) for entry in value)
    return False
