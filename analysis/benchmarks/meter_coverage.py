"""The coverage of the momentum meter's 95 % sets: `python -m analysis.benchmarks.meter_coverage`.

Every run is read once, and none is refused. Of each cell the table says how many sets have the true
momentum, how wide they are, how many say nothing, and how often the model is rejected. `--cells`:

    cover      14 cells, chosen before the first run of any of them
    widths     g = 4, beside which `cover` has g = 16 and synchronous runs
    terms      explicit momentum beside implicit: two terms of the parameters' own steps
    laws       laws of service that are not one term of momentum
    methods    other methods than asynchronous groups
    races      real workers on this machine (extra `ray`); the truth is E tau / (1 + E tau)

Runs that have ended are in a file of lines and are not done again. With `--recordings=DIR` their
records are kept there, 8 MB each, and read again from there.
"""

import json
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import pandas as pd

import optdyn as od
from analysis.benchmarks.record import options, publish
from optdyn.base.files import read_rows
from optdyn.base.progress import Progress
from optdyn.implicit_momentum import moments, order_of_arrivals
from optdyn.implicit_momentum.moments import REJECTED, Reading
from optdyn.implicit_momentum.readings import Window, of_window, together, with_arrivals
from optdyn.problem import shared_data
from optdyn.problem.data import order
from optdyn.race.race import race
from optdyn.report import raced
from optdyn.train import single
from optdyn.train.workdir import SKETCHES

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
    race: bool = False
    method: od.MethodStack | None = None  # in place of asynchronous groups, each with a node
    nodes: int = 0  # 0: as many as groups


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
    "methods": {
        "MLP, synchronous, 4 nodes": Cell(1, nodes=4),
        "MLP, Ringmaster, g = 4": Cell(4, method=od.Ringmaster(groups=4)),
        "MLP, DiLoCo, 4 nodes": Cell(1, method=od.DiLoCo(period=8), nodes=4),
        "MLP, local SGD, 4 nodes": Cell(1, method=od.ModelAveraging(period=8), nodes=4),
    },
    "races": {f"MLP, a race of {g}": Cell(g, race=True) for g in (2, 4)},
}


def config_of(cell: Cell, seed: int) -> od.Experiment:
    model, data = MODELS[cell.model]
    many = od.Asynchronous(groups=cell.groups, staleness_bound=cell.staleness_bound)
    return od.Experiment(
        model=model,
        data=data,
        optimizer=cell.optimizer,
        method=cell.method or (many if cell.groups > 1 else od.Sync()),
        cluster=od.Cluster(nodes=cell.nodes or cell.groups, service=cell.law),
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
    momentum: np.ndarray  # the true one


def record(cell: Cell, seed: int, kept: Path | None) -> Record:
    """Returns the run's record, from the file if it is there; writes it."""
    if kept and kept.exists():
        with np.load(kept) as file:
            return Record(**file)
    found = (_raced if cell.race else _simulated)(cell, config_of(cell, seed))
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **found._asdict())
    return found


def _simulated(cell: Cell, config: od.Experiment) -> Record:
    line = config.timeline()
    late = float(line.staleness.mean())
    memoryless = 1 - 1 / cell.groups
    truth = late / (1 + late) if cell.staleness_bound >= 0 else memoryless
    return Record(*single.record(config)[:3], line.worker, np.array(truth))


def _raced(cell: Cell, config: od.Experiment) -> Record:
    from optdyn.race.on_ray import ray_workers  # an extra, which the other cells do without

    windows = {"probes.momentum": True, "probes.window": STEPS, "probes.every": STEPS}
    one = config.with_({**windows, "cluster.service.name": "race"})
    with TemporaryDirectory(prefix="optdyn-race-") as folder:
        workdir = Path(folder, "race")
        race(one, workdir, partial(ray_workers, gpus=0.0, servers=1, address=""))
        sketches = np.load(workdir / SKETCHES).swapaxes(0, 1)
        found = raced.load(workdir)
    late = float(found.staleness.mean())
    return Record(*sketches, found.worker, np.array(late / (1 + late)))


def line_of(cell: Cell, seed: int, record: Record) -> dict[str, Any]:
    """Returns what the meter says of a run, and what is true."""
    terms = 2 if cell.optimizer.momentum else 1
    config = config_of(cell, seed)
    examples = len(next(iter(shared_data.load(config).train.values())))
    heed = order.distance_to_epoch(0, STEPS, cell.batch, examples, past=terms)
    steps = record.displacements / config.optimizer.learning_rate
    signals = (record.raw_steps if terms == 1 else steps, record.gradients, heed)
    parts = list(zip(*(np.array_split(signal, cell.windows) for signal in signals), strict=True))
    ages = order_of_arrivals.ages(record.worker, cell.groups) if cell.groups > 1 else None
    truths = {"implicit": float(record.momentum), "explicit": cell.optimizer.momentum}
    began = time.process_time()
    if terms == 1:
        found = (together([of_window(Window(*part, None)) for part in parts]),)
    else:
        found = moments.two_terms([its for part in parts for its in moments.products(*part)])
    seconds, p = time.process_time() - began, found[0].p
    found = (with_arrivals(found[0], [ages]), *found[1:])
    readings = {
        name: {**reading._asdict(), "truth": truth}
        for (name, truth), reading in zip(truths.items(), found, strict=False)
    }
    return {"seed": seed, "seconds": seconds, "p_of_steps": p, "readings": readings}


def measured(cells: dict[str, Cell], lines: Path, seeds: int, recordings: Path | None) -> list[Any]:
    """Returns all lines; runs that are not in the file are done, and added to it."""
    lines.parent.mkdir(parents=True, exist_ok=True)
    found = read_rows(lines)
    known = {(line["cell"], line["seed"]) for line in found}
    todo = [(n, s) for n in cells for s in range(seeds) if (n, s) not in known]
    progress = Progress("meter coverage", len(todo), unit="run")
    for done, (name, seed) in enumerate(todo, start=1):
        kept = recordings / name.replace(" ", "_") / f"{seed}.npz" if recordings else None
        line = {"cell": name, **line_of(cells[name], seed, record(cells[name], seed, kept))}
        found.append(line)
        with lines.open("a") as file:
            file.write(json.dumps(line) + "\n")
        progress.show(done)
    return found


def table(cells: dict[str, Cell], lines: list[Any]) -> pd.DataFrame:
    rows = []
    for cell in cells:
        of_cell = [line for line in lines if line["cell"] == cell]
        for name in of_cell[0]["readings"] if of_cell else ():
            rows.append({"cell": cell, "momentum": name, **_row(of_cell, name)})
    if len(rows) > 1:
        numbers = pd.DataFrame(rows)
        runs = numbers["runs"]
        shares = {
            share: (numbers[share] * runs).sum() / runs.sum()
            for share in ("covered", "covered or rejected", "says nothing", "rejected")
        }
        rows.append({"cell": "all", "runs": runs.sum(), **shares})
    return pd.DataFrame(rows)


def _row(lines: list[Any], name: str) -> dict[str, Any]:
    runs = pd.DataFrame([_run(line["readings"][name]) for line in lines])
    of_steps = np.array([line["p_of_steps"] < REJECTED for line in lines])
    return {
        "truth": runs["truth"].mean(),
        "median": runs["estimate"].median(),
        "covered": runs["covered"].mean(),
        "width": runs["width"].median(),
        "strength": runs["strength"].median(),
        "says nothing": runs["nothing"].mean(),
        "in pieces": runs["in pieces"].mean(),
        "rejected": runs["rejected"].mean(),
        "by steps alone": of_steps.mean(),
        "covered or rejected": (runs["covered"] | runs["rejected"]).mean(),
        "seconds": np.median([line["seconds"] for line in lines]),
        "runs": len(lines),
    }


def _run(row: dict[str, Any]) -> dict[str, float]:
    """Returns the figures of a run. A model that is rejected has no set, and covers nothing."""
    reading = Reading.from_json(row)
    return {
        "truth": row["truth"],
        "estimate": np.nan if reading.estimate is None else reading.estimate,
        "strength": reading.strength,
        "width": reading.width,
        "covered": reading.covers(row["truth"]) and not reading.rejected,
        "nothing": reading.says_nothing,
        "in pieces": len(reading.pieces) > 1,
        "rejected": reading.rejected,
    }


def by_strength(lines: list[Any]) -> list[dict[str, float]]:
    """Returns a row a tenth of all runs, from the weakest to the strongest."""
    runs = pd.DataFrame([_run(line["readings"]["implicit"]) for line in lines])
    tenth = pd.qcut(runs["strength"].rank(method="first"), 10, labels=False)
    found = runs.groupby(tenth).agg({"strength": "median", "covered": "mean", "nothing": "mean"})
    return found.assign(runs=runs.groupby(tenth).size()).to_dict("records")


def main() -> None:
    parser = options(__doc__, "workdirs")
    parser.add_argument("--cells", choices=tuple(CELLS), default="cover")
    parser.add_argument("--seeds", type=int, default=100, help="runs of each cell")
    parser.add_argument("--lines", type=Path, help="file of the runs that have ended")
    parser.add_argument("--recordings", type=Path, help="folder in which records are kept")
    arguments = parser.parse_args()
    name = f"meter_coverage_{arguments.cells}"
    cells = CELLS[arguments.cells]
    lines = arguments.lines or arguments.out / f"{name}.jsonl"
    found = measured(cells, lines, arguments.seeds, arguments.recordings)
    first = {line["cell"]: line["readings"] for line in found if line["seed"] == 0}
    about = {"first": first, "by_strength": by_strength(found)}
    publish(table(cells, found), arguments.out / f"{name}.json", **about)


if __name__ == "__main__":
    main()
