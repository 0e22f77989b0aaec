"""What `config.tune` may say."""

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

MODES = ("predictive", "omnivore")
BASELINES = ("synchronous", "asynchronous", "random", "tpe")


def check(require: Callable[[str, Callable[[Any], bool], str], None]) -> None:
    """Calls `require(key, holds, wanted)` for every key of `config.tune`."""

    def positive(value: float) -> bool:
        return 0 < value < math.inf

    require("tune.target", math.isfinite, "a finite number")
    require("tune.seeds", lambda v: v >= 1, "at least 1")
    for key in ("tune.seconds", "tune.epoch_seconds", "tune.probe_seconds"):
        require(key, positive, "finite and more than 0")
    require("tune.probe_share", lambda v: 0 < v <= 1, "above 0 and at most 1")
    momenta = "one number or more between -1 and 1"
    require("tune.momenta", lambda v: len(v) > 0 and all(-1 < m < 1 for m in v), momenta)
    rates = "one finite number or more above 0"
    require("tune.learning_rates", lambda v: len(v) > 0 and all(map(positive, v)), rates)
    names = "of " + ", ".join(map(repr, BASELINES))
    require("tune.baselines", lambda v: set(v) <= set(BASELINES), names)
    installed = "() where there is no optuna (pip install 'optdyn[tune]')"
    require("tune.baselines", lambda v: not v or bool(find_spec("optuna")), installed)
