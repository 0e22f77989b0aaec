"""Ranges that several fields have: arguments of `fields.field`, in words and as a test."""

import math
from typing import Any

BLOCKS = 1000  # of a model, which is traced block by block
WIDTH = 2**20  # of a layer, or of a set of workers
PIXELS = 4096  # a side


def _numbers(value: Any) -> bool:
    return all(isinstance(entry, (int, float)) for entry in value)


def _widths(value: Any) -> bool:
    return len(value) <= BLOCKS and all(1 <= width <= WIDTH for width in value)


def counts(value: Any) -> bool:
    return all(type(entry) is int and 1 <= entry <= BLOCKS for entry in value)


def _ordered(value: Any) -> bool:
    return len(value) == 2 and 0 <= value[0] <= value[1]


def momenta(value: Any) -> bool:
    return _numbers(value) and all(-1 < m < 1 for m in value)


def _finite(value: Any) -> bool:
    return bool(0 <= value < math.inf)


def positive(value: Any) -> bool:
    return bool(0 < value < math.inf)


Known = dict[str, Any]  # arguments of `field`
WIDTHS: Known = {
    "wanted": f"at most {BLOCKS:,} widths from 1 to {WIDTH:,}",
    "holds": _widths,
}
A_CHANNEL: Known = {"wanted": "numbers, one a channel, or ()", "holds": _numbers}
A_WORKER: Known = {"wanted": "numbers, one a worker, or ()", "holds": _numbers}
LEAST_AND_MOST: Known = {
    "wanted": "two numbers from 0 up, the least and the most",
    "holds": _ordered,
}
FINITE: Known = {"wanted": "finite and at least 0", "holds": _finite}
POSITIVE: Known = {"wanted": "finite and more than 0", "holds": positive}
PART: Known = {"wanted": "above 0 and at most 1", "holds": lambda v: 0 < v <= 1}
WIDE: Known = {"at_least": 1, "at_most": WIDTH}
