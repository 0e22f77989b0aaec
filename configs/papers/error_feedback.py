"""Errors that fade against an outer momentum, of sparse messages (SparseLoCo, arXiv 2508.15706).

    kept       e <- e + D, s = top-k(e), e <- e - s, theta <- theta - a mean s
    faded      the same, with e <- beta e + D                         SparseLoCo
    momentum   as kept, with Nesterov's momentum of the s             DiLoCo with top-k messages

If what is sent were the share k of all numbers, drawn at random, a difference D that is j meetings
old would be in a message with the part k (beta (1 - k))^j: a momentum of beta (1 - k). The largest
numbers are not drawn at random. So `reading` fits the momentum m to what a run did, by the method
of `dynamics/moments.py`, with meetings in place of updates and, as its gradients, the mean D:

    theta_{t+1} - theta_t = m (theta_t - theta_{t-1}) - c D_t + noise
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from optdyn.basics.trees import Params
from optdyn.config import usual
from optdyn.configs.race import PROBLEMS
from optdyn.dynamics.moments import fit
from optdyn.evidence.arms import (
    MOMENTUM,
    OUTER,
    STEP,
    Arm,
    at,
    momenta,
    not_negative,
    rates,
    reported,
    rung,
    tuned,
)
from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.intervals import drawn_again, ratio, shown
from optdyn.evidence.study import Study
from optdyn.evidence.trial import timeline_of, to_loss
from optdyn.experiment import Experiment
from optdyn.grid import Point
from optdyn.setup import Cluster
from optdyn.training import driver, trainer

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}
NODES, PERIOD, TARGET = 8, 8, 0.1
SHARES = (0.01, 0.03, 0.1)
HALF = 0.5  # of the momentum's gain
DECAY, OUTER_RATE = "strategy.error_decay", "strategy.outer_learning_rate"
MEETINGS = 200  # of a reading
KINDS: Mapping[str, Point] = {
    "kept": {"strategy.name": "sparseloco", DECAY: 1.0},
    "faded": {"strategy.name": "sparseloco"},
    "momentum": {"strategy.name": "diloco", "strategy.compression": "top_k"},
}

CLAIM = Claim(
    number=23,
    sentence="Errors that fade do for sparse messages what an outer momentum does",
    source="SparseLoCo, arXiv 2508.15706: error feedback in place of DiLoCo's momentum",
    measured="updates to a training loss of 0.1 of an MLP 784-32-10 on 4,000 MNIST images, 8 nodes "
    "that meet every 8 updates, a batch of 64 in all; messages of 1, 3 and 10 % of the numbers, "
    "each a float32. Beside the verdict: the momentum that is fitted to meetings of a run",
    opponent="DiLoCo with the same messages, whose errors are kept whole; and SparseLoCo whose "
    "errors are kept whole. Every arm has its own learning rate, momentum and outer rate, and its "
    "own outer momentum or decay, tuned together by one procedure until interior",
    rule="The part of the momentum's gain that fading has: log(kept / faded) over log(kept / "
    "momentum), of medians over the seeds that report, 20, both sums over the three shares, with a "
    "95 % interval from seeds drawn again in all alike. Confirmed if the interval is above 0.5, "
    "refuted if it is below 0.5, open otherwise; open, too, where momentum has no gain in a draw",
)


def config_of(kind: str, share: float) -> Experiment:
    cluster = Cluster(nodes=NODES, service="lognormal", variation=0.3)
    config = usual().with_(cluster=cluster).with_({**PROBLEMS["mlp"].config, **KINDS[kind]})
    keys = {"strategy.compression_share": share, "strategy.period": PERIOD, "probes.mean": True}
    return config.with_(keys)


def arm_of(kind: str, share: float) -> Arm:
    ladders = {STEP: rates, MOMENTUM: momenta, OUTER_RATE: rates}
    start = {STEP: 0, MOMENTUM: rung(momenta, 0.6), OUTER_RATE: 0}
    if kind != "kept":
        key = DECAY if kind == "faded" else OUTER
        ladders[key], start[key] = not_negative, rung(momenta, 0.9 if kind == "faded" else 0.6)
    return Arm(config_of(kind, share), ladders, start)


def measure(study: Study) -> dict[str, Any]:
    every = [(kind, share) for share in SHARES for kind in KINDS]

    def run(key: tuple[str, float]) -> dict[str, Any]:
        arm = arm_of(*key)
        best = tuned(study, arm, TARGET)
        curves = reported(study, arm, best.point, TARGET)
        found = {"kind": key[0], "share": key[1], "point": best.point, "range": best.range}
        found |= {"interior": best.interior, "updates": [to_loss(c, TARGET) for c in curves]}
        if key[0] != "momentum":
            found["read"] = [reading(at(arm.config, best.point, s)) for s in study.report[:4]]
        return found

    return {"rows": study.map(run, every)}


def reading(config: Experiment) -> float:
    """The momentum m that is fitted to the first meetings of a run of `sparseloco`."""
    period, (rate, decay) = config.strategy.keys["period"], of_errors(config)
    config = config.with_(steps=period * MEETINGS)
    run = trainer.prepare(config, timeline_of=timeline_of)
    stops = range(period, config.steps + 1, period)
    theta, errors = [flat(run.params)], [np.zeros_like(flat(run.params))]
    for chunk in driver.drive(run, driver.initial(run), 0, stops):
        chunk.make()
        if chunk.step in stops and chunk.n:
            state = jax.device_get(chunk.state).state
            theta.append(flat(_of_node(state.outer[0][0], 0)))
            errors.append(flat(jax.tree.map(lambda leaf: leaf.mean(axis=0), state.errors[0][0])))
    return fit([moves(np.array(theta), np.array(errors), rate, decay)]).momentum


def of_errors(config: Experiment) -> tuple[float, float]:
    """a and beta."""
    keys = config.strategy.keys
    return keys["outer_learning_rate"], keys["error_decay"]


def moves(
    theta: np.ndarray, errors: np.ndarray, rate: float, decay: float
) -> tuple[np.ndarray, np.ndarray]:
    """Of (T + 1, n) parameters and mean errors after meetings: the T steps, and the T mean D."""
    steps = np.diff(theta, axis=0)
    return steps, errors[1:] - decay * errors[:-1] - steps / rate


def flat(params: Params) -> np.ndarray:
    """(n,) float64."""
    return np.concatenate([np.asarray(x, float).ravel() for x in jax.tree.leaves(params)])


def _of_node(tree: Params, node: int) -> Params:
    return jax.tree.map(lambda leaf: leaf[node], tree)


def times(result: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """(shares, seeds) updates, by kind."""
    rows = result["rows"]
    return {
        kind: np.array([row["updates"] for row in rows if row["kind"] == kind]) for kind in KINDS
    }


def part(result: Mapping[str, Any]) -> tuple[float, float, float]:
    """Of the momentum's gain the part that fading has, and its interval."""
    of = times(result)

    def figure(seeds: np.ndarray) -> float:
        logs = {kind: np.log(np.median(of[kind][:, seeds], axis=1)).sum() for kind in KINDS}
        gain = logs["kept"] - logs["momentum"]
        return float((logs["kept"] - logs["faded"]) / gain) if gain > 0 else np.nan

    return drawn_again(figure, of["kept"].shape[1])


def verdict(result: Mapping[str, Any]) -> Verdict:
    found, of = part(result), times(result)
    _, low, high = found
    word = "confirmed" if low > HALF else "refuted" if high < HALF else "open"
    each = "; ".join(
        f"{share:.0%}: kept {shown(ratio(of['kept'][i], of['momentum'][i]))}, faded "
        f"{shown(ratio(of['faded'][i], of['momentum'][i]))}"
        for i, share in enumerate(SHARES)
    )
    rows = result["rows"]
    read = "; ".join(
        f"{row['share']:.0%} {row['kind']}: {np.median(row['read']):.2g}"
        + (f" at beta {row['point'][DECAY]:.3g}" if DECAY in row["point"] else "")
        for row in rows
        if "read" in row
    )
    interior = sum(row["interior"] for row in rows)
    return Verdict(
        word,
        f"fading has {shown(found)} of the momentum's gain; over the updates with momentum, "
        f"{each}; momentum read, {read} ({interior} of {len(rows)} "
        f"interior, n = {of['kept'].shape[1]})",
    )


def picture(result: Mapping[str, Any], figure: Figure) -> None:
    figure.set_size_inches(9, 2.6)
    panels = figure.subplots(1, len(SHARES), sharex=True, sharey=True)
    colours = dict(zip(KINDS, ("#555555", "#0072B2", "#D55E00"), strict=True))
    for axes, share in zip(panels, SHARES, strict=True):
        rows: Sequence[Mapping[str, Any]] = [r for r in result["rows"] if r["share"] == share]
        for y, row in enumerate(reversed(rows)):
            axes.plot(row["updates"], [y] * len(row["updates"]), "|", color=colours[row["kind"]])
            axes.plot(float(np.median(row["updates"])), y, "o", color=colours[row["kind"]], ms=4)
        axes.set(title=f"{share:.0%} sent", xlabel="updates")
    panels[0].set_yticks(range(len(KINDS)), list(KINDS)[::-1])
