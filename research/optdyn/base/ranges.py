"""Valid values of fields: of the type of the default, of a size to compute with, and in a range."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LARGEST = 2**31 - 1  # of whole numbers, which index arrays
SMALL, LARGE = 1e-30, 1e30  # sizes of other numbers: products of some stay finite in float64
CHARACTERS, ENTRIES, DEPTH = 4096, 2**20, 8  # of a text, of a list, of lists in lists, at most
WORDS = f"a text of at most {CHARACTERS:,} characters, none of which controls the terminal"
FLOAT = f"a number, 0 or of a size from {SMALL:g} to {LARGE:g}"
BLOCKS = 1000  # of a model, which is traced block by block
WIDTH = 2**20  # of a layer, or of a set of workers
PIXELS = 4096  # a side


def refusal(value: Any, default: object, largest: float = LARGEST) -> str:
    """Returns what a value must be, by the type of its default; '' if it is valid.

    `largest` bounds whole numbers; infinity there allows other numbers to be infinite, too.
    """
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "True or False"
    if isinstance(default, int):
        good = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= largest
        return "" if good else f"a whole number of a size up to {largest:,}"
    if isinstance(default, float):
        infinite = value == math.inf == largest
        return "" if infinite or _is_number(value) else FLOAT
    if isinstance(default, str):
        return "" if _is_text(value) else WORDS
    if isinstance(default, (list, tuple)):
        return _of_list(value, default)
    is_open = isinstance(default, Mapping)
    if _is_plain(value) and (isinstance(value, Mapping) or not is_open):
        return ""
    return "a dict, " * is_open + "plain: numbers, texts, and lists of them"


def _of_list(value: object, default: Sequence[object]) -> str:
    if not isinstance(value, (list, tuple)) or len(value) > ENTRIES:
        return f"a list of at most {ENTRIES:,} entries, as (1, 2) or ()"
    if default:
        refusals = (refusal(entry, default[0]) for entry in value)
        return next(
            (f"a list whose entries are {expected}" for expected in refusals if expected), ""
        )
    good = all(_is_plain(entry) and not isinstance(entry, (bool, dict)) for entry in value)
    return "" if good and None not in value else "a list of numbers or texts, or of lists of them"


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return value == 0 or SMALL <= abs(value) <= LARGE


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= CHARACTERS and value.isprintable()


def _is_plain(value: object, depth: int = DEPTH) -> bool:
    """Returns whether a JSON file can have the value, and its texts and numbers are valid."""
    if value is None or isinstance(value, bool) or _is_number(value) or _is_text(value):
        return True
    if isinstance(value, Mapping):
        return depth > 0 and all(_is_text(k) and _is_plain(value[k], depth - 1) for k in value)
    if isinstance(value, (list, tuple)):
        few = depth > 0 and len(value) <= ENTRIES
        return few and all(_is_plain(entry, depth - 1) for entry in value)
    return False


@dataclass(frozen=True)
class Range:
    """Valid values, in words and as a test."""

    expected: str
    is_valid: Callable[[Any], Any]


def between(at_least: float, at_most: float, above: float, below: float) -> Range | None:
    """Returns the range between the ends, `above` and `below` exclusive; None if there is none."""
    if above > -math.inf:
        expected = (
            f"between {above:g} and {below:g}" if below < math.inf else f"more than {above:g}"
        )
    elif at_least == -math.inf:
        return None
    elif at_most < math.inf:
        expected = f"from {at_least:,} to {at_most:,}"
    else:
        expected = f"at least {at_least:g}" + f" and less than {below:g}" * (below < math.inf)
    return Range(expected, lambda v: at_least <= v <= at_most and above < v < below)


def _numbers(value: Any) -> bool:
    return all(isinstance(entry, (int, float)) for entry in value)


def counts(value: Any) -> bool:
    return all(type(entry) is int and 1 <= entry <= BLOCKS for entry in value)


def positive(value: Any) -> bool:
    return bool(0 < value < math.inf)


# Ranges of several fields, as arguments of `fields.field`.
Known = dict[str, Any]
WIDTHS: Known = {
    "expected": f"at most {BLOCKS:,} widths from 1 to {WIDTH:,}",
    "is_valid": lambda v: len(v) <= BLOCKS and all(1 <= width <= WIDTH for width in v),
}
A_CHANNEL: Known = {"expected": "numbers, one a channel, or ()", "is_valid": _numbers}
A_WORKER: Known = {"expected": "numbers, one a worker, or ()", "is_valid": _numbers}
LEAST_AND_MOST: Known = {
    "expected": "two numbers from 0 up, the least and the most",
    "is_valid": lambda v: len(v) == 2 and 0 <= v[0] <= v[1],
}
FINITE: Known = {"expected": "finite and at least 0", "is_valid": lambda v: 0 <= v < math.inf}
POSITIVE: Known = {"expected": "finite and more than 0", "is_valid": positive}
PART: Known = {"expected": "above 0 and at most 1", "is_valid": lambda v: 0 < v <= 1}
WIDE: Known = {"at_least": 1, "at_most": WIDTH}
