"""Which distance predicts what staleness costs? `python -m tests.benchmarks.tree_distance`

Held beside measured updates of records, without training anything, are the largest distance R in
the tree of updates (`research/dynamics/tree_distance.py`, arXiv 2505.09218), its mean, and 1 / a*,
the project's own (`research/tuning/prediction.py`). Each has one constant c, fitted on all cells of
a set by the least median factor that prediction and measurement differ by.

*Penalties*: claims 15 (10 cells), and 28 and 33 (52), P_SE of g groups over one. Birch SGD's bound
over the one without distance, at a squared gradient norm eps = |G|^2 with B_noise = tr(Sigma) /
|G|^2, is the first of

    P = 1 + c R / (1 + 2 B_noise / B)
    P = 1 + c (mean distance) / (1 + B_noise / B)
    P = 1 + c lambda alpha_max / (a* (1 + B_noise / B))

*Gradients*: claims 21 and 55, 45 cells (9 methods, 5 laws), gradients of E = 8 examples to the
loss, K of an update:

    N = c (1 + R + 2 B_noise / E)
    N = c (1 + mean distance + B_noise / E)
    N = c (K + kappa lambda alpha_max / a* + B_noise / E)

with kappa as it is, and B_noise, lambda and alpha_max of claim 15's perceptron. R and the mean are
those of the seeds' own arrivals in as many updates as were measured, in the median; a* of 100
replicas of 40 rounds. Told are the median factor with an interval from seeds drawn again, the
constant fitted anew each time, and Spearman's correlation. Decided before it was looked at: one
*predicts better* than another if the interval of the ratio of their median factors is below 1. The
largest factor, and what a constant alone does, were added after a first run.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

from optdyn.basics.files import read_json
from optdyn.basics.trees import Json
from optdyn.configs.papers import interior_groups, waiting, waiting_more
from optdyn.configs.papers import when_asynchrony_pays as pays
from optdyn.dynamics.stability import limit
from optdyn.dynamics.tree_distance import distances
from optdyn.evidence.intervals import drawn_again
from optdyn.evidence.race import infinite
from optdyn.experiment import Experiment
from optdyn.timeline.base import Arrival, Timeline, chosen
from optdyn.tuning.prediction import KAPPA, REPLICAS, ROUNDS, stability
from tests.benchmarks.record import publish

RECORDS = Path(__file__).parent / "records"
NAMES = ("none", "R", "mean distance", "1 / a*")  # none: a constant alone
CONSTANTS = np.geomspace(1e-4, 1e4, 1601)  # that are tried, 1.2 % apart
DRAWS = 1000


class Cell(NamedTuple):
    """What was measured, (seeds,), and by each of NAMES what c is multiplied by."""

    taken: np.ndarray
    alone: np.ndarray  # what it is over; ones of gradients
    terms: tuple[float, float, float, float]


def claim(record: str, name: str) -> Json:
    """Of a record, with its misses infinite again."""
    found: Json = infinite(read_json(RECORDS / f"papers_{record}.json")["claims"][name])
    return found


def drawn(config: Experiment, steps: int, seed: int) -> Timeline:
    return config.with_(seed=seed, steps=steps).timeline(steps_per_epoch=steps, update_bytes=0)


def until(
    config: Experiment, seconds: np.ndarray, seeds: Sequence[int]
) -> tuple[list[Timeline], np.ndarray]:
    """Every seed's arrivals in so many seconds, and the updates in them, between two."""
    lines, updates = [], []
    for end, seed in zip(seconds, seeds, strict=True):
        line = drawn(config, steps := 400, seed)
        while np.isfinite(end) and line.seconds[-1] < end:
            line = drawn(config, steps := 2 * steps, seed)
        at = np.concatenate([[0.0], line.seconds])
        updates.append(np.interp(end, at, np.arange(len(at))) if np.isfinite(end) else np.inf)
        lines.append(line)
    return lines, np.array(updates)


def far(lines: Sequence[Timeline], updates: np.ndarray) -> tuple[float, float]:
    """Medians over seeds of the largest and of the mean distance in so many updates of theirs."""
    found = []
    for line, count in zip(lines, updates, strict=True):
        if np.isfinite(count):
            each = distances(line.staleness[: max(round(count), 1)])
            found.append((each.max(), each.mean()))
    largest, mean = np.median(found, axis=0)
    return float(largest), float(mean)


def penalties(result: Json, seeds: Sequence[int]) -> Iterator[Cell]:
    """Claims 15 and 28."""
    alone = {(row["model"], row["batch"]): row["updates"] for row in result["synchronous"]}
    for row in result["cells"]:
        cell = pays.Cell(row["model"], row["batch"], row["groups"], row["law"])
        updates = np.array(row["updates"])
        longest = updates[np.isfinite(updates)].max()
        lines = [drawn(pays.config_of(cell), round(longest) + 1, seed) for seed in seeds]
        largest, mean = far(lines, updates)
        of = result["measured"][cell.model]
        noise = of["noise_scale"] / cell.batch
        own = of["sharpness"] * of["step"] / (row["limit"] * (1 + noise))
        terms = 1.0, largest / (1 + 2 * noise), mean / (1 + noise), own
        yield Cell(updates, np.array(alone[cell.model, cell.batch]), terms)


def by_groups(result: Json, seeds: Sequence[int], network: Json) -> Iterator[Cell]:
    """Claim 33, whose seconds are divided by those of an update."""
    for row in result["rows"]:
        noise, updates = network["noise_scale"] / row["batch"], dict[int, np.ndarray]()
        for g in interior_groups.GROUPS:
            config = interior_groups.config_of(row["cluster"], row["batch"], g)
            lines, updates[g] = until(config, np.array(row["seconds"][str(g)]), seeds)
            if g > 1:
                largest, mean = far(lines, updates[g])
                own = network["sharpness"] * network["step"] / (stability(config, g) * (1 + noise))
                terms = 1.0, largest / (1 + 2 * noise), mean / (1 + noise), own
                yield Cell(updates[g], updates[1], terms)


def gradients(seeds: dict[str, Sequence[int]], of: Json) -> Iterator[Cell]:
    """Claims 21 and 55; rates that fall with the delay are left out, as no distance sees them."""
    noise = of["noise_scale"] / waiting.EXAMPLES
    for name, module in (("waiting", waiting), ("waiting_more", waiting_more)):
        for law, rows in claim("decided", name)["result"]["laws"].items():
            for row in rows:
                if row["arm"] == "rate by delay":
                    continue
                config = module.arm_of(law, row["arm"]).config
                k = config.batch_size // waiting.EXAMPLES
                lines, updates = until(config, np.array(row["seconds"]), seeds[name])
                largest, mean = far(lines, updates)
                late = 0.0 if waiting.waits(row["arm"]) else 1 / stable(config)
                own = k + KAPPA * of["sharpness"] * of["step"] * late + noise
                terms = 1.0, 1 + largest + 2 * noise, 1 + mean + noise, own
                yield Cell(updates * k, np.ones(len(updates)), terms)


def stable(config: Experiment) -> float:
    """a* of seeds in place of replicas, which Ringmaster has none of."""
    lines = [drawn(config, ROUNDS * waiting.WORKERS, seed) for seed in range(REPLICAS // 2)]
    choices = [chosen(line, Arrival) for line in lines]
    worker = np.stack([line.worker for line in lines])
    late = np.stack([line.staleness for line in lines])
    read, write = (np.stack([getattr(each, of) for each in choices]) for of in ("read", "write"))
    choice = Arrival(worker, read, write)
    return limit(lines[0]._replace(worker=worker, staleness=late, choice=choice))


def factors(logs: np.ndarray, cells: Sequence[Cell], seeds: np.ndarray) -> np.ndarray:
    """(predictors, 2): of every one the median factor at its best constant, and the constant.

    `logs` are its predictions for every constant, (predictors, constants, cells).
    """
    with np.errstate(invalid="ignore", divide="ignore"):  # where a median is of misses
        measured = np.log(
            [np.median(cell.taken[seeds]) / np.median(cell.alone[seeds]) for cell in cells]
        )
    off = np.nan_to_num(np.abs(logs - measured), nan=np.inf)
    medians = np.median(off, axis=2)
    best = medians.argmin(axis=1)
    return np.stack([np.exp(medians[np.arange(len(best)), best]), CONSTANTS[best]], axis=1)


def judged(cells: Sequence[Cell], over_one: bool, draws: int = DRAWS) -> list[dict[str, Any]]:
    """A row a predictor; `over` is its median factor over that of 1 / a*."""
    count = len(cells[0].taken)
    measured = [np.median(cell.taken) / np.median(cell.alone) for cell in cells]
    terms = np.transpose([cell.terms for cell in cells])
    logs = np.log(float(over_one) + CONSTANTS[:, None] * terms[:, None])
    best = [int(np.argmin(np.median(abs(of - np.log(measured)), axis=1))) for of in logs]
    again = cache(lambda seeds: factors(logs, cells, np.array(seeds)))

    def told(figure: Callable[[np.ndarray], float]) -> tuple[float, float, float]:
        return drawn_again(lambda seeds: figure(again(tuple(seeds))), count, draws)

    rows = []
    for i, name in enumerate(NAMES):
        rows.append(
            {
                "distance": name,
                "factor": told(lambda found, i=i: found[i, 0]),  # type: ignore[misc]
                "constant": told(lambda found, i=i: found[i, 1]),  # type: ignore[misc]
                "over": told(lambda found, i=i: found[i, 0] / found[-1, 0]),  # type: ignore[misc]
                "largest": float(np.exp(np.abs(logs[i, best[i]] - np.log(measured)).max())),
                "spearman": spearman(terms[i], measured),
            }
        )
    return rows


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """The correlation of ranks; 0 of a constant."""
    return float(scipy.stats.spearmanr(one, other).statistic) if np.ptp(one) else 0.0


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What is told of every set, and its cells."""
    first, second = claim("small", "when_asynchrony_pays"), claim("decided", "predicted_penalty")
    third, network = claim("decided", "predicted_groups"), first["result"]["measured"]["mlp"]
    seeds = {
        name: claim("decided", name)["seeds"]["report"] for name in ("waiting", "waiting_more")
    }
    sets = {
        "penalties, claim 15": list(penalties(first["result"], first["seeds"]["report"])),
        "penalties, claims 28 and 33": [
            *penalties(second["result"], second["seeds"]["report"]),
            *by_groups(third["result"], third["seeds"]["report"], network),
        ],
        "gradients, claims 21 and 55": list(gradients(seeds, network)),
    }
    told, every = [], []
    for name, cells in sets.items():
        start = {"cells": name, "of": len(cells), "seeds": len(cells[0].taken)}
        told += [{**start, **row} for row in judged(cells, name.startswith("penalties"))]
        for cell in cells:
            middle = float(np.median(cell.taken) / np.median(cell.alone))
            every.append(
                {"cells": name, "measured": middle, **dict(zip(NAMES, cell.terms, strict=True))}
            )
    return told, every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=RECORDS / "tree_distance.json")
    asked = parser.parse_args()
    told, every = measure()
    publish(pd.DataFrame(told), asked.out, cells=every)


if __name__ == "__main__":
    main()
