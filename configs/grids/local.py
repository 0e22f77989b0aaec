"""Local parallelism against backpropagation: `--config=configs/grids/local.py:TABLE`.

    mlp       residual MLP of 8 blocks on MNIST
    pareto    the residual MLP over batch sizes and widths, for losses by compute

All variants start from the same trunk and have the same batches; losses are those of the last
block's output, also if a variant trains other heads.
"""

from collections.abc import Iterator

import optdyn as od
from optdyn.base.errors import config_variant
from optdyn.train.grid import Point

SEEDS = (0, 1, 2)
VARIANTS: dict[str, Point] = {
    "backprop": {"method.variant": "backprop"},
    "chunked2": {"method.variant": "chunked", "method.chunks": 2},
    "overlapping2": {"method.variant": "overlapping", "method.window": 2},
    "greedy": {"method.variant": "greedy"},
}
MLP: Point = {"model.name": "resmlp", "model.blocks": 8, "model.width": 128}


def get_config(table: str = "mlp") -> od.Grid:
    base = od.Experiment(
        optimizer=od.Adam(1e-3),
        method=od.Local(),
        cluster=od.Cluster(service=od.Constant()),
        batch_size=64,
        steps=1600,
        log_every=200,
        checkpoint_every=0,
    )
    return od.Grid(base, config_variant(TABLES, table)())


def mlp() -> Iterator[Point]:
    for seed in SEEDS:
        for name, variant in VARIANTS.items():
            yield {
                "name": f"{name}-seed{seed}",
                "method.probes": True,
                **MLP,
                **variant,
                "seed": seed,
            }


def pareto() -> Iterator[Point]:
    """Equal numbers of updates; the larger a batch, the more work each is."""
    for seed in SEEDS:
        for width in (32, 128, 256):
            for batch_size in (32, 128, 512):
                for name, variant in VARIANTS.items():
                    yield {
                        "name": f"{name}-width{width}-batch{batch_size}-seed{seed}",
                        **MLP,
                        **variant,
                        "model.width": width,
                        "batch_size": batch_size,
                        "steps": 400,
                        "log_every": 40,
                        "data.train_evaluated": 1000,
                        "seed": seed,
                    }


TABLES = {table.__name__: table for table in (mlp, pareto)}
