"""The type of every value: that of its default, and of a size that can be computed with.

It is asked before any range, so that no rule meets a text where it compares numbers, and no array
is asked for whose length has no 32 bits.
"""

import math
from collections.abc import Mapping, Sequence

LARGEST = 2**31 - 1  # of whole numbers, which count what lies in arrays
SMALL, LARGE = 1e-30, 1e30  # sizes of other numbers: products of some stay finite in float64
CHARACTERS, ENTRIES, DEPTH = 4096, 2**20, 8  # of a text, of a list, of lists in lists, at most
WORDS = f"a text of at most {CHARACTERS:,} characters, none of which controls the terminal"
FLOAT = f"a number, 0 or of a size from {SMALL:g} to {LARGE:g}"


def refusal(value: object, usual: object, largest: float = LARGEST) -> str:
    """What a value must be, by its default; '' if it is that.

    `largest` is of whole numbers; of others infinity says that they may be infinite, too.
    """
    if isinstance(usual, bool):
        return "" if isinstance(value, bool) else "True or False"
    if isinstance(usual, int):
        good = _whole(value, largest)
        return "" if good else f"a whole number of a size up to {largest:,}"
    if isinstance(usual, float):
        infinite = value == math.inf == largest
        return "" if infinite or _number(value) else FLOAT
    if isinstance(usual, str):
        return "" if _text(value) else WORDS
    if isinstance(usual, (list, tuple)):
        return _of_list(value, usual)
    is_open = isinstance(usual, Mapping)
    if _plain(value) and (isinstance(value, Mapping) or not is_open):
        return ""
    return "a dict, " * is_open + "plain: numbers, texts, and lists of them"


def _of_list(value: object, usual: Sequence[object]) -> str:
    if not isinstance(value, (list, tuple)) or len(value) > ENTRIES:
        return f"a list of at most {ENTRIES:,} entries, as (1, 2) or ()"
    if usual:
        each = (refusal(entry, usual[0]) for entry in value)
        return next((f"a list, of which each is {wanted}" for wanted in each if wanted), "")
    good = all(_plain(entry) and not isinstance(entry, (bool, dict)) for entry in value)
    return "" if good and None not in value else "a list of numbers or texts, or of lists of them"


def _whole(value: object, most: float) -> bool:
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
