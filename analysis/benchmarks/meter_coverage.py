"""The coverage of the momentum meter's intervals: `python -m analysis.benchmarks.meter_coverage`.

One fit a run: how many 95 % intervals have theory's momentum, how wide they are, and how often the
J test rejects at 5 %. The `--cells`:

    small      an MLP on 4,000 MNIST images, 1,000 updates of 64
    widths     more runs of two of these, for the deviation of the estimates
    real       LeNet-5 and a residual network on Fashion-MNIST, a transformer on text
    windows    parts of 1,200 updates, each fitted by itself
    weak       synchronous runs of a smaller MLP, where theory says 0
    laws       laws of service that are not one term of momentum, with lags of steps and gradients
    races      the same of races of real workers (extra `ray`)

In the last two the truth is the equivalent momentum E tau / (1 + E tau), which is 1 - 1/g unless a
bound makes groups wait. Runs that have ended are in a file of lines and are not done again.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import optdyn as od
from analysis.benchmarks.record import options, publish
from configs import images
from optdyn.base.files import read_rows
from optdyn.momentum import order_of_arrivals
from optdyn.momentum.moments import NORMAL, REJECTED, NotIdentified, fit
from optdyn.problem import shared_data
from optdyn.problem.data import order
from optdyn.race.race import race
from optdyn.report import raced
from optdyn.train import single
from optdyn.train.single import Recording
from optdyn.train.workdir import SKETCHES

PARTS = {"all": (0, 1), "middle third": (1 / 3, 2 / 3), "last third": (2 / 3, 1)}
SHORT = {
    "all": (0.0, 1.0),
    **{f"updates {a} to {a + 200}": (a / 1200, (a + 200) / 1200) for a in (0, 400, 1000)},
    "updates 0 to 400": (0.0, 1 / 3),
    "updates 400 to 800": (1 / 3, 2 / 3),
}


def small() -> Iterator[dict[str, Any]]:
    yield from ({"groups": g, "seeds": 100} for g in (1, 4, 16))
    for momentum, rate in ((0.3, 0.05), (0.6, 0.05), (0.9, 0.02)):
        yield {"groups": 1, "momentum": momentum, "rate": rate, "seeds": 100}
    for g, momentum, rate in ((4, 0.5, 0.05), (16, 0.5, 0.02), (4, -0.3, 0.05), (16, -0.3, 0.05)):
        for lags in (1, 2):
            yield {"groups": g, "momentum": momentum, "rate": rate, "lags": lags, "seeds": 32}
    yield {"groups": 4, "service": "constant", "seeds": 32}
    for g in (4, 16):
        for part in PARTS:
            yield {"groups": g, "optimizer": "adam", "rate": 1e-3, "part": part, "seeds": 32}


def widths() -> Iterator[dict[str, Any]]:
    yield from ({"groups": g, "seeds": 300} for g in (4, 16))


def real() -> Iterator[dict[str, Any]]:
    for model, rate in (("lenet", 0.05), ("resnet", 0.05), ("transformer", 0.1)):
        for optimizer, tuned_rate in (("sgd", rate), ("adam", 1e-3)):
            for g in (4, 16):
                for part in PARTS:
                    cell = {"model": model, "optimizer": optimizer, "rate": tuned_rate, "groups": g}
                    yield {**cell, "part": part, "seeds": 4}


def windows() -> Iterator[dict[str, Any]]:
    for replacement in (False, True):
        for part in SHORT:
            cell = {"groups": 6, "rate": 0.02, "batch": 48, "steps": 1200}
            yield {**cell, "replacement": replacement, "part": part, "seeds": 40}


def weak() -> Iterator[dict[str, Any]]:
    yield {"groups": 1, "hidden": (32,), "seeds": 40}


def laws() -> Iterator[dict[str, Any]]:
    """Yields cells with K = `lags` past steps and M = `gradient_lags` past gradients."""
    yield {"groups": 4, "seeds": 100}  # exponential: the model is right
    yield {"groups": 2, "service": "constant", "lags": 0, "gradient_lags": 1, "seeds": 100}
    yield {"groups": 4, "service": "constant", "lags": 0, "gradient_lags": 3, "seeds": 100}
    for law in ("gamma", "lognormal"):
        for variation in (0.5, 0.7):
            for gradient_lags in (1, 2):
                cell = {"groups": 4, "service": law, "variation": variation, "lags": 1}
                yield {**cell, "gradient_lags": gradient_lags, "seeds": 100}
    for gradient_lags in (1, 2):
        cell = {"groups": 4, "service": "exponential", "bound": 4, "lags": 1}
        yield {**cell, "gradient_lags": gradient_lags, "seeds": 100}


def races() -> Iterator[dict[str, Any]]:
    for g in (2, 4):
        for lags, gradient_lags in ((1, 0), (1, 1), (0, g - 1)):
            cell = {"race": True, "groups": g, "lags": lags, "gradient_lags": gradient_lags}
            yield {**cell, "seeds": 30}


CELLS = {
    "small": small,
    "widths": widths,
    "real": real,
    "windows": windows,
    "weak": weak,
    "laws": laws,
    "races": races,
}


def config_of(cell: dict[str, Any], seed: int) -> od.Experiment:
    name, groups, rate = cell.get("model", "mlp"), cell["groups"], cell.get("rate", 0.05)
    steps = cell.get("steps", {"mlp": 1000, "lenet": 900}.get(name, 600))
    if name in ("lenet", "resnet"):
        config = images.get_config("fashion_mnist")
    elif name == "mlp":
        hidden = cell.get("hidden", (64, 64))
        config = od.Experiment(model=od.MLP(hidden=hidden), data=od.MNIST5k(train_examples=4000))
    else:
        model = od.Transformer(blocks=2, width=64)
        config = od.Experiment(model=model, data=od.KJV(sequence_length=64))
    if name == "resnet":
        config = config.with_(model=od.ResNet(blocks=3, channels=(8, 16, 32)))
    law = od.Law.named(cell.get("service", "exponential"))
    if "variation" in cell:
        law = law.with_(variation=cell["variation"])
    many = od.Asynchronous(groups=groups, staleness_bound=cell.get("bound", -1))
    sgd = od.SGD(learning_rate=rate, momentum=cell.get("momentum", 0.0))
    return config.with_(
        data=config.data.with_(replacement=cell.get("replacement", False)),
        optimizer=od.Adam(learning_rate=rate) if cell.get("optimizer") == "adam" else sgd,
        method=many if groups > 1 else od.Sync(),
        cluster=od.Cluster(nodes=groups, service=law),
        batch_size=cell.get("batch", 32 if name == "transformer" else 64),
        steps=steps,
        log_every=steps,
        checkpoint_every=0,
        seed=seed,
    )


class RecordedRun(NamedTuple):
    """A run's records, the groups that arrived (T,), and the equivalent momentum of a race."""

    recording: Recording
    worker: np.ndarray
    momentum: float | None = None


def record(cell: dict[str, Any], config: od.Experiment) -> RecordedRun:
    steps = config.steps
    if not cell.get("race"):
        line = config.timeline(steps_per_epoch=1, update_bytes=0)
        return RecordedRun(single.record(config), line.worker)
    from optdyn.race.on_ray import ray_workers  # an extra, which the other cells do without

    windows = {"probes.momentum": True, "probes.window": steps, "probes.every": steps}
    one = config.with_({**windows, "cluster.service.name": "race"})
    with TemporaryDirectory(prefix="optdyn-race-") as folder:
        workdir = Path(folder, "race")
        race(one, workdir, partial(ray_workers, gpus=0.0, servers=1, address=""))
        sketches = np.load(workdir / SKETCHES).swapaxes(0, 1)
        found = raced.load(workdir)
    late = found.staleness.mean()
    return RecordedRun(
        Recording(*sketches, np.zeros(steps)), found.worker, float(late / (1 + late))
    )


def truth(cell: dict[str, Any]) -> list[float]:
    """Returns phi_1, ..., of the fitted model: of the whole update, or of the raw steps.

    With lags of gradients it is only the equivalent momentum; a race has another.
    """
    implicit, explicit = 1 - 1 / cell["groups"], cell.get("momentum", 0.0)
    if "bound" in cell:
        line = config_of(cell, 0).timeline(steps_per_epoch=1, update_bytes=0)
        late = float(line.staleness.mean())
        return [late / (1 + late)]
    if "gradient_lags" in cell:
        return [implicit]
    if cell.get("lags", 1) == 2:
        return [implicit + explicit, -implicit * explicit]
    return [explicit if cell["groups"] == 1 else implicit]


def fit_line(cell: dict[str, Any], config: od.Experiment, run: RecordedRun) -> dict[str, Any]:
    """Returns a line: coefficients, standard errors and p-values, or why there are none."""
    recording = run.recording
    lags, updates = cell.get("lags", 1), len(recording.losses)
    late = cell.get("gradient_lags", 0)
    start, stop = (round(x * updates) for x in (PARTS | SHORT)[cell.get("part", "all")])
    examples = len(next(iter(shared_data.load(config).train.values())))
    moved = recording.displacements if cell.get("momentum") else recording.raw_steps
    replacement = bool(config.data.replacement)
    past = max(lags, 1 + late)
    heed = order.distance_to_epoch(start, stop, config.batch_size, examples, past, replacement)
    try:
        fitted = fit(
            [(moved[start:stop], recording.gradients[start:stop])], lags, late, heed=[heed]
        )
    except NotIdentified as error:
        return {"refused": str(error)}
    ages = order_of_arrivals.ages(run.worker[start:stop], cell["groups"], late)
    found = {"p": fitted.p, "arrivals": order_of_arrivals.chance([ages]) if lags else 1.0}
    if late:
        return {"phi": [fitted.momentum], "error": [fitted.momentum_error], **found}
    return {"phi": fitted.phi.tolist(), "error": fitted.phi_error.tolist(), **found}


def measure(cells: list[dict[str, Any]], lines: Path, seeds: int) -> list[dict[str, Any]]:
    """Returns all lines; runs that are not in the file are done, once for all their fits."""
    lines.parent.mkdir(parents=True, exist_ok=True)
    found = read_rows(lines)
    known = {(json.dumps(line["cell"], sort_keys=True), line["seed"]) for line in found}
    recent: tuple[str, Any] = ("", None)
    for seed in range(seeds):
        for cell in cells:
            if seed >= cell["seeds"] or (json.dumps(cell, sort_keys=True), seed) in known:
                continue
            config = config_of(cell, seed)
            if recent[0] != config.to_json_best_effort():
                recent = config.to_json_best_effort(), record(cell, config)
            line = fit_line(cell, config, recent[1])
            found.append({"cell": cell, "seed": seed, **line, "truth": recent[1].momentum})
            with lines.open("a") as file:
                file.write(json.dumps(found[-1]) + "\n")
    return found


def table(cells: list[dict[str, Any]], lines: list[dict[str, Any]]) -> pd.DataFrame:
    table_rows = []
    for cell in cells:
        lines_of_cell = [line for line in lines if line["cell"] == cell]
        identified = [line for line in lines_of_cell if "phi" in line]
        for k, theory in enumerate(truth(cell)):
            if not identified:
                table_rows.append(
                    {**cell, "theory": theory, "runs": 0, "refused": len(lines_of_cell)}
                )
                continue
            true = np.array([line.get("truth") or theory for line in identified])
            phi, error = (
                np.array([line[name][k] for line in identified]) for name in ("phi", "error")
            )
            covers = abs(phi - true) < NORMAL * error
            # As `train/meter.py` tells it: a model is not believed if one of both tests rejects.
            p = [2 * min(line["p"], line.get("arrivals", 1.0)) for line in identified]
            believed = np.array(p) >= REJECTED
            table_rows.append(
                {
                    **{name: value for name, value in cell.items() if name != "seeds"},
                    "coefficient": k + 1,
                    "theory": true.mean(),
                    "mean": phi.mean(),
                    "sd": phi.std(),
                    "half-width": NORMAL * np.median(error),
                    "covers": covers.mean(),
                    "J rejects": np.mean([line["p"] < 0.05 for line in identified]),
                    "believed": believed.sum(),
                    "covers if believed": covers[believed].mean() if believed.any() else np.nan,
                    "runs": len(identified),
                    "refused": len(lines_of_cell) - len(identified),
                }
            )
    return pd.DataFrame(table_rows)


def main() -> None:
    parser = options(__doc__, "workdirs")
    parser.add_argument("--cells", choices=tuple(CELLS), default="small")
    parser.add_argument("--seeds", type=int, default=100, help="runs of each cell, at most")
    parser.add_argument("--lines", type=Path, help="file of the runs that have ended")
    arguments = parser.parse_args()
    name = f"meter_coverage_{arguments.cells}"
    cells = list(CELLS[arguments.cells]())
    lines = arguments.lines or arguments.out / f"{name}.jsonl"
    found = measure(cells, lines, arguments.seeds)
    publish(table(cells, found), arguments.out / f"{name}.json")


if __name__ == "__main__":
    main()
