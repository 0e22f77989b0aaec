"""Every fixed setting that `launch.tune` could choose, each trained by itself.

`--config=configs/grids/tune.py:MODEL,CLUSTER`, as for `configs/tune.py`. All runs last equally many
simulated seconds, so that `analysis.report` has the best and the worst of them at the target loss.
"""

from ml_collections import ConfigDict

from configs import tune
from research import timeline
from research.grid import Points, grid, product, seeds, zipped

GROUPS = (1, 2, 4, 8, 16, 32)
SAMPLE = 4000  # updates that seconds an update are measured over


def get_config(case: str = "mlp,gpu") -> ConfigDict:
    base = tune.get_config(case)
    base.checkpoint_every = 0
    return grid(base, points(base))


def points(base: ConfigDict) -> Points:
    return product(
        zipped({"strategy.groups": GROUPS, "steps": [updates(base, g) for g in GROUPS]}),
        {
            "optimizer.momentum": base.tune.momenta,
            "optimizer.learning_rate": base.tune.learning_rates,
            "seed": seeds(3),
        },
    )


def updates(base: ConfigDict, groups: int) -> int:
    """Of so many groups in `config.tune.seconds`, to the next log point."""
    size = {"steps": SAMPLE, "batch_size": base.batch_size}
    line = timeline.make(base.cluster, groups=groups, seed=base.seed, **size)
    each = float(line.seconds[-1]) / SAMPLE
    return int(base.tune.seconds / each // base.log_every + 1) * base.log_every
