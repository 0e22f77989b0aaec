"""What `config.plan` may say."""

import math
from collections.abc import Callable
from typing import Any


def check(require: Callable[[str, Callable[[Any], bool], str], None]) -> None:
    """Calls `require(key, holds, wanted)` for every key of `config.plan`."""
    require("plan.memory", lambda v: 0 < v < math.inf, "bytes, more than 0")
    require("plan.batches", lambda v: all(b >= 1 for b in v), "mini-batches of at least 1")
    require("plan.efficiency", lambda v: 0 < v <= 1, "above 0 and at most 1")
    require("plan.devices", lambda v: v >= 1, "at least 1")
    require("plan.rounds", lambda v: v >= 2, "at least 2")
    for key in ("plan.overhead", "plan.server_bandwidth", "plan.loss"):
        require(key, lambda v: 0 <= v < math.inf, "finite and at least 0")

    require("plan.noise_scale", lambda v: v >= 0, "at least 0; infinite is one")

    def ordered(updates: Any) -> bool:
        low, median, high = updates
        return 0 < low <= median <= high < math.inf

    three = "(), or three numbers above 0, the low end, median and high end of an interval"
    require("plan.updates", lambda v: len(v) == 0 or (len(v) == 3 and ordered(v)), three)
