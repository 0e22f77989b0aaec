"""Any method with any optimizer, tuned on ladders: `config.tune.mode = 'ladders'`.

The search is that of `evidence/arms.py`, from where the config stands, by simulated seconds to
`config.tune.target`. Ladders are of the learning rate (of SGD as a long-run step), of momentum
where the optimizer has one, and of the method's own numbers: period, outer rate and momentum,
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
APART = 500  # of those that choose from the config's own


def ladders(config: Config) -> dict[str, tuple[Ladder, float]]:
    """What can be tuned, by key of the config, with the value to start from.

    A ladder whose end is reached stays there. Raises `ConfigError` where the optimizer's numbers
    are not constant, there is no learning rate to start from, or the config starts from a run.
    """
    optimizer, methods = config.optimizer, config.methods
    tunable(config)
    said = "the search starts from it, and it must be above 0"
    join = Join("optimizer.learning_rate", optimizer.learning_rate <= 0, said)
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
    """The fields of a method that can be tuned, with their ladders and values."""
    shortest = getattr(method, "fragments", 1) * (getattr(method, "delay", 0) + 1)
    every: Mapping[str, Ladder] = {
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
    for key, ladder in every.items():
        if hasattr(method, key) and (key == compressed or not key.startswith("compression_")):
            yield key, (ladder, getattr(method, key))


def arm(config: Config) -> Arm:
    """The experiment with its ladders, at the rungs nearest to the config's own values."""
    every = ladders(config)
    start = {key: arms.rung(ladder, value) for key, (ladder, value) in every.items()}
    return Arm(config, {key: ladder for key, (ladder, _) in every.items()}, start)


def tuned(config: Config, workdir: Path) -> Json:
    """The setting found, as JSON has it, and what each of the seeds that report took at it.

    `neighbours` are simulated seconds of the rungs beside, by ladder, and `interior` whether none
    of them is better. Trials are remembered in the workdir: a killed search goes on from there.
    """
    target, seed = config.tune.target, config.seed
    choose = range(seed + APART, seed + APART + CHOOSE)
    with Study(workdir, "ladders", choose, range(seed, seed + REPORT)) as study:
        return searched(study, config, target)


def searched(study: Study, config: Config, target: float) -> Json:
    """`tuned`, by the trials of a study."""
    start = arm(config)
    found = arms.tuned(study, start, target, "seconds", ends="seconds")
    curves = arms.reported(study, start, found.point, target)
    taken = {
        clock: [to_loss(curve, target, clock) for curve in curves]
        for clock in ("updates", "seconds")
    }
    return {
        "target": target,
        "setting": dict(found.point),
        "interior": found.interior,
        "settings_tried": len(found.tried),
        "neighbours": found.neighbours,
        **taken,
    }
