"""Tunes any method with any optimizer on ladders: `config.tune.mode = 'ladders'`.

The search is that of `evidence/arms.py`, from the config's values on, by simulated seconds to
`config.tune.target`. There are ladders of the learning rate (of SGD as a long-run step), of the
momentum if the optimizer has one, and of the method's numbers: period, outer rate and momentum,
compression. Settings are chosen on some seeds and reported on others.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from optdyn import optimizers
from optdyn.base.errors import Join
from optdyn.base.trees import Json
from optdyn.evidence import arms
from optdyn.evidence.arms import MOMENTUM, RATE, STEP, Arm, Ladder
from optdyn.evidence.study import Study
from optdyn.evidence.trial import to_loss
from optdyn.experiment import Config, refuse_first
from optdyn.methods import Method
from optdyn.tune.bench import tunable

CHOOSE, REPORT = 2, 5  # seeds
OFFSET = 500  # of the choosing seeds from the config's


def ladders(config: Config) -> dict[str, tuple[Ladder, float]]:
    """Returns the ladders of the numbers to tune, by key of the config, with their first values.

    Raises `ConfigError` where the optimizer's numbers are not constant, the learning rate is 0, or
    the config starts from a run.
    """
    optimizer, methods = config.optimizer, config.methods
    tunable(config)
    expected = "must be above 0: the search starts from it"
    join = Join("optimizer.learning_rate", optimizer.learning_rate <= 0, expected)
    refuse_first(config, [join])
    found: dict[str, tuple[Ladder, float]] = {}
    if optimizers.takes_momentum(optimizer.name):
        outer = math.prod(1 - getattr(one, "outer_momentum", 0.0) for one in methods.members)
        long_run = optimizer.learning_rate / (1 - optimizer.momentum) / outer
        found[STEP] = arms.rates, long_run
        found[MOMENTUM] = arms.momenta, optimizer.momentum
    else:
        found[RATE] = arms.rates, optimizer.learning_rate
    for section, one in methods.by_section.items():
        prefix = f"method.{section}." if len(methods.members) > 1 else "method."
        found |= {prefix + key: ladder for key, ladder in _of_method(one)}
    return found


def _of_method(method: Method) -> Iterator[tuple[str, tuple[Ladder, float]]]:
    """Yields the fields of a method that can be tuned, with their ladders and values."""
    shortest = getattr(method, "fragments", 1) * (getattr(method, "delay", 0) + 1)
    known: Mapping[str, Ladder] = {
        "period": lambda i: max(arms.counts(i), shortest),
        "outer_learning_rate": lambda i: round(2.0 ** (i / 2), 6),
        "outer_momentum": arms.not_negative,
        "slow_learning_rate": lambda i: round(2.0 ** (i / 2), 6),
        "slow_momentum": arms.not_negative,
        "error_decay": arms.not_negative,
        "compression_share": lambda i: 2.0 ** min(i, 0),
        "compression_rank": arms.counts,
    }
    sent = {"top_k": "compression_share", "powersgd": "compression_rank"}
    sparse = hasattr(method, "error_decay")  # sparseloco, which is always top_k
    compressed = sent.get("top_k" if sparse else getattr(method, "compression", ""), "")
    for key, ladder in known.items():
        if hasattr(method, key) and (key == compressed or not key.startswith("compression_")):
            yield key, (ladder, getattr(method, key))


def arm(config: Config) -> Arm:
    """Returns the arm of the config: its ladders, from the rungs nearest to its values."""
    values = ladders(config)
    start = {key: arms.rung(ladder, value) for key, (ladder, value) in values.items()}
    return Arm(config, {key: ladder for key, (ladder, _) in values.items()}, start)


def tuned(config: Config, workdir: Path) -> Json:
    """Returns the best setting, and the updates and seconds to the target of the reporting seeds.

    `neighbours` are the simulated seconds of the neighbouring rungs, by ladder; `interior` says
    whether none of them is better.
    """
    target, seed = config.tune.target, config.seed
    choose = range(seed + OFFSET, seed + OFFSET + CHOOSE)
    with Study(workdir, "ladders", choose, range(seed, seed + REPORT)) as study:
        return searched(study, config, target)


def searched(study: Study, config: Config, target: float) -> Json:
    start = arm(config)
    found = arms.tuned(study, start, target, "seconds", ends="seconds")
    curves = arms.reported(study, start, found.point, target)
    reported = {
        clock: [to_loss(curve, target, clock) for curve in curves]
        for clock in ("updates", "seconds")
    }
    return {
        "target": target,
        "setting": dict(found.point),
        "interior": found.interior,
        "settings_tried": len(found.tried),
        "neighbours": found.neighbours,
        **reported,
    }
