"""The coverage of the momentum meter's 95 % sets: `python -m analysis.benchmarks.meter_coverage`.

Every run is read once, and none is refused. Of each cell the table says how many sets have the true
momentum, how wide they are, how many say nothing, and how often the model is rejected. `--cells`:

    cover      14 cells, chosen before the first run of any of them
    widths     g = 4, beside which `cover` has g = 16 and synchronous runs
    terms      explicit momentum beside implicit: two terms of the parameters' own steps
    laws       laws of service that are not one term of momentum
    races      real workers on this machine (extra `ray`); the truth is E tau / (1 + E tau)

Runs that have ended are in a file of lines and are not done again. With `--recordings=DIR` their
records are kept there, 8 MB each, and read again from there.
"""

from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import numpy as np

import optdyn as od
from optdyn.train import single

STEPS = 1000
MNIST = od.MNIST5k(train_examples=4000)
MODELS = {
    "mlp": (od.MLP(hidden=(64, 64)), MNIST),
    "tanh": (od.OwnModel(f"{__file__}:tanh_network"), MNIST.with_(image_size=14)),
    "lenet": (od.CNN(channels=(6, 16), hidden=(120, 84)), MNIST),
    "transformer": (od.Transformer(blocks=2, width=32), od.KJV(sequence_length=32)),
}


class TanhNetwork(nn.Module):
    """(B, 14, 14, 1) -> (B, classes)."""

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for channels in (4, 8):
            x = nn.avg_pool(nn.tanh(nn.Conv(channels, (3, 3))(x)), (2, 2), (2, 2))
        return nn.Dense(self.classes)(x.reshape(len(x), -1))


def tanh_network(classes: int) -> nn.Module:
    return TanhNetwork(classes)


class Cell(NamedTuple):
    groups: int
    model: str = "mlp"
    batch: int = 64
    optimizer: od.Optimizer = od.SGD(0.05, momentum=0.0)
    law: od.Law = od.Exponential()
    staleness_bound: int = -1
    windows: int = 1  # of equal length, pooled


ADAM = od.Adam(1e-3)
CELLS: dict[str, dict[str, Cell]] = {
    "cover": {
        "MLP, g = 1": Cell(1),
        "MLP, g = 3": Cell(3),
        "MLP, g = 5": Cell(5),
        "MLP, g = 9": Cell(9),
        "MLP, g = 16": Cell(16),
        "tanh network, g = 3": Cell(3, "tanh", 48, windows=2),
        "tanh network, g = 5": Cell(5, "tanh", 48, windows=2),
        "tanh network, g = 9": Cell(9, "tanh", 48, windows=2),
        "LeNet, g = 3": Cell(3, "lenet", 16),
        "transformer, g = 3": Cell(3, "transformer", 8, od.SGD(0.1, momentum=0.0)),
        "MLP, Adam, g = 3": Cell(3, optimizer=ADAM),
        "MLP, Adam, g = 9": Cell(9, optimizer=ADAM),
        "MLP, batch 8, g = 4": Cell(4, batch=8, optimizer=od.SGD(0.02, momentum=0.0)),
        "MLP, batch 128, g = 4": Cell(4, batch=128),
    },
    "widths": {"MLP, g = 4": Cell(4)},
    "terms": {
        "MLP, explicit 0.5, g = 4": Cell(4, optimizer=od.SGD(0.05, momentum=0.5)),
        "MLP, explicit 0.5, g = 16": Cell(16, optimizer=od.SGD(0.02, momentum=0.5)),
    },
    "laws": {
        "MLP, log-normal, g = 4": Cell(4, law=od.LogNormal(variation=0.5)),
        "MLP, gamma, g = 4": Cell(4, law=od.Gamma(variation=0.5)),
        "MLP, constant, g = 4": Cell(4, law=od.Constant()),
        "MLP, bounded by 4, g = 4": Cell(4, staleness_bound=4),
    },
}


def config_of(cell: Cell, seed: int) -> od.Experiment:
    model, data = MODELS[cell.model]
    many = od.Asynchronous(groups=cell.groups, staleness_bound=cell.staleness_bound)
    return od.Experiment(
        model=model,
        data=data,
        optimizer=cell.optimizer,
        method=many if cell.groups > 1 else od.Sync(),
        cluster=od.Cluster(nodes=cell.groups, service=cell.law),
        batch_size=cell.batch,
        steps=STEPS,
        log_every=STEPS,
        checkpoint_every=0,
        seed=seed,
    )


class Record(NamedTuple):
    displacements: np.ndarray  # (T, q)
    raw_steps: np.ndarray  # (T, q)
    gradients: np.ndarray  # (T, q)
    worker: np.ndarray  # (T,), the groups that arrived


def record(config: od.Experiment, kept: Path | None) -> Record:
    """Returns the run's record, from the file if it is there; writes it."""
    if kept and kept.exists():
        with np.load(kept) as file:
            return Record(**file)
    worker = config.timeline(steps_per_epoch=1, update_bytes=0).worker
    found = Record(*single.record(config)[:3], worker)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **found._asdict())
    return found
