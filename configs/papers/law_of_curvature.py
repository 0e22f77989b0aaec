"""One law of delay by rate, curvature and noise? Claim 22 again, with another x.

A delay of d updates costs P = T_d / T_0 times the updates. Claim 22 asked for P = (1 + c x)^p with
x = d / T_0, the same c and p for all optimizers, and was refuted. Here

    x = d r / (1 + B / b)         r = u' H u / |g' u|         B = tr(Sigma) / |g|^2

u = x_{t+1} - x_t is all that the optimizer did at an update: its rate, momentum, bases and decay. g
and H are the gradient and the Hessian of the loss of all training examples at x_t, b is the batch,
and Sigma the covariance of one example's gradient (arXiv 1812.06162), B in examples.

r is rate times curvature. A quadratic changes by g' u + u' H u / 2, so steps of r = 2 gain nothing.
Plain SGD without noise has r = alpha h along an eigenvector of curvature h, and with a momentum mu,
where gradients change slowly, alpha h / (1 - mu). Of a noisy gradient the part 1 / (1 + B / b), in
squares, is the gradient, which is out of date after a delay; noise is as good as it was.

r and B are those of training without delay, before updates that are evenly spread up to T_0: the
medians over these, and then over the seeds.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from optdyn.analysis import figures
from optdyn.configs.papers import law_of_delay
from optdyn.configs.papers.law_of_delay import (
    BATCHES,
    BOUND,
    DELAYS,
    DRAWS,
    OPTIMIZERS,
    TARGET,
    arm_of,
    fitted,
    left_out,
    times,
)
from optdyn.evidence.arms import at, momenta, point, reported, rung
from optdyn.evidence.claim import Claim, Verdict, below
from optdyn.evidence.intervals import drawn_again, shown
from optdyn.evidence.study import Study
from optdyn.evidence.trial import timeline_of, to_loss
from optdyn.experiment import Experiment
from optdyn.grid import Point
from optdyn.problem import shared_data
from optdyn.problem.problem import Examples, Params, Problem
from optdyn.training import trainer
from optdyn.training.driver import drive, initial
from optdyn.training.probes import hessian_times, moments
from optdyn.training.program import Program
from optdyn.tuning.prediction import SMALL

LONG, SEEDS = True, law_of_delay.SEEDS
POINTS = 12  # updates that are measured, in the middle of as many equal parts of T_0
CURVED, RATES, SHARE = "d r / (1 + B / b)", "d r", "d / T_0"  # what x may be

# What claim 22 chose, by batch and delay: log2 of the rate (of SGD's long-run step), and momentum.
CHOSEN: Mapping[str, Mapping[int, tuple[tuple[int, float], ...]]] = {
    "SGD": {
        16: ((-1, 0.8), (-1, 0.8), (-2, -0.3), (-4, 0.6), (-5, -0.8)),
        128: ((2, 0.8), (-1, 0.8), (-2, -0.3), (-4, -0.3), (-5, -0.9)),
    },
    "AdamW": {
        16: ((-6, 0.8), (-6, 0.9), (-7, 0.8), (-9, 0.3), (-10, 0.3)),
        128: ((-5, 0.8), (-6, 0.6), (-7, 0.0), (-9, 0.3), (-10, 0.0)),
    },
    "Lion": {
        16: ((-8, 0.6), (-8, 0.3), (-8, 0.6), (-9, 0.3), (-10, 0.3)),
        128: ((-5, 0.8), (-6, 0.8), (-7, 0.9), (-9, 0.6), (-10, 0.6)),
    },
    "Muon": {
        16: ((-5, 0.8), (-5, 0.8), (-5, 0.6), (-7, 0.6), (-8, 0.9)),
        128: ((-3, 0.6), (-4, 0.6), (-5, 0.6), (-7, 0.8), (-8, 0.8)),
    },
    "SOAP": {
        16: ((-6, 0.95), (-6, 0.95), (-6, 0.0), (-7, 0.3), (-8, 0.6)),
        128: ((-4, 0.9), (-5, 0.8), (-6, 0.0), (-8, 0.6), (-8, 0.6)),
    },
}

CLAIM = Claim(
    number=59,
    sentence="One law by rate, curvature and noise says what a delay costs, whatever the optimizer:"
    " (1 + c x)^p with x = d r / (1 + B / b)",
    source="ours; claim 22, whose x was d / T_0",
    measured="updates to a training loss of 0.25 of an MLP 196-32-10 on 4,000 MNIST images of 14 x "
    "14, batches of 16 and 128, delays of 1, 4, 16, 32 updates over none, a constant rate: SGD "
    "with momentum, AdamW, Lion, Muon (whose biases have AdamW), SOAP, at the settings that claim "
    "22 chose, on new seeds; r = u' H u / |g' u| and B = tr(Sigma) / |g|^2 without delay, of all "
    "training examples, in the median of 12 updates evenly spread up to T_0",
    opponent="the law that is fitted to four optimizers predicts the fifth. Beside it the same "
    "with x = d / T_0, and with x = d r, without the noise scale",
    rule="c and p of least squares in log P over the four others, both batches and all delays. The "
    "factor exp |log (predicted / measured)| of medians over the seeds that report, 20, in the "
    "median over 5 optimizers, 2 batches and 4 delays, with a 95 % interval from seeds drawn again "
    "in all alike, penalties, r and B: confirmed if the interval is below 1.25, refuted if it is "
    "above, open otherwise",
)


def setting_of(optimizer: str, batch_size: int, delay: int) -> Point:
    """What claim 22 chose."""
    power, momentum = CHOSEN[optimizer][batch_size][DELAYS.index(delay)]
    return point(arm_of(optimizer, batch_size, delay), (power, rung(momenta, momentum)))


def measure(study: Study) -> dict[str, Any]:
    every = [(o, b, d) for o in OPTIMIZERS for b in BATCHES for d in DELAYS]

    def run(cell: tuple[str, int, int]) -> dict[str, Any]:
        setting = setting_of(*cell)
        curves = reported(study, arm_of(*cell), setting, TARGET)
        found = dict(zip(("optimizer", "batch_size", "delay"), cell, strict=True))
        found |= {"fed": False, "point": setting}
        return found | {"updates": [to_loss(curve, TARGET) for curve in curves]}

    rows = study.map(run, every)
    return {"rows": rows, "steps": [_steps(study, row) for row in rows if row["delay"] == 0]}


def _steps(study: Study, row: Mapping[str, Any]) -> dict[str, Any]:
    """r and B of every seed that reports, of an optimizer and a batch without delay."""
    optimizer, batch, setting = row["optimizer"], row["batch_size"], row["point"]
    config = arm_of(optimizer, batch, 0).config
    until = round(min(np.median(row["updates"]), config.steps))
    found: dict[str, Any] = {"optimizer": optimizer, "batch_size": batch, "until": until}
    each = [
        study.remember(
            f"steps of {optimizer} {batch} {setting} {until} {POINTS} {seed}",
            along,
            at(config, setting, seed),
            until,
        )
        for seed in study.report
    ]
    found["r"] = [rate_times_curvature(run) for run in each]
    return found | {"noise": [noise_scale(run) for run in each]}


def along(config: Experiment, until: int) -> dict[str, list[float]]:
    """What `step_of` finds at POINTS updates of a run, in the middle of equal parts of so many."""
    run = trainer.prepare(config, timeline_of=timeline_of)
    chosen = [(2 * k + 1) * until // (2 * POINTS) for k in range(POINTS)]
    stops = sorted({stop for t in chosen for stop in (t, t + 1)})
    every = dict[int, Params]()
    for chunk in drive(run, initial(run), 0, stops):
        chunk.make()
        if chunk.step in stops:
            every[chunk.step] = jax.tree.map(jnp.copy, chunk.state.params)  # the state is donated
    examples = shared_data.put(run.data, run.program.layout.put_examples, config).train
    found = [_at(run.program)(every[t], every[t + 1], examples) for t in chosen]
    return {name: [float(each[name]) for each in found] for name in found[0]}


@lru_cache(maxsize=4)
def _at(program: Program) -> Callable[[Params, Params, Examples], dict[str, jax.Array]]:
    problem = program.problem

    @jax.jit
    def of(before: Params, after: Params, examples: Examples) -> dict[str, jax.Array]:
        noise = moments(problem, SMALL, before, examples)
        own = step_of(problem, before, jax.tree.map(jnp.subtract, after, before), examples)
        return {**own, "square": noise.square, "trace": noise.trace}

    return of


def step_of(problem: Problem, x: Params, u: Params, examples: Examples) -> dict[str, jax.Array]:
    """-g' u, what the step u from x gains to first order, and u' H u, of which it loses a half."""
    gain = -optax.tree.vdot(jax.grad(problem.loss)(x, examples), u)
    return {"gain": gain, "bend": optax.tree.vdot(u, hessian_times(problem, x, examples, u))}


def rate_times_curvature(found: Mapping[str, list[float]]) -> float:
    """r of a run, the median over its points."""
    return float(np.median(np.array(found["bend"]) / np.abs(found["gain"])))


def noise_scale(found: Mapping[str, list[float]]) -> float:
    """B of a run, the median over its points; a |g|^2 that comes out below 0 is all noise."""
    pairs = zip(found["trace"], found["square"], strict=True)
    return float(np.median([t / s if s > 0 else np.inf for t, s in pairs]))


def of_steps(result: Mapping[str, Any], seeds: Any) -> tuple[np.ndarray, np.ndarray]:
    """r and B, (optimizers, batches) each, medians over these of the seeds."""
    shape = (len(OPTIMIZERS), len(BATCHES), -1)
    r, b = (np.array([s[name] for s in result["steps"]]).reshape(shape) for name in ("r", "noise"))
    return np.median(r[..., seeds], axis=-1), np.median(b[..., seeds], axis=-1)


def cells(result: Mapping[str, Any], seeds: Any, by: str) -> tuple[np.ndarray, np.ndarray]:
    """x and P, (optimizers, batches, delays > 0) each, of medians over these of the seeds."""
    medians = np.median(times(result)[..., seeds], axis=-1)
    r, b = of_steps(result, seeds)
    of = {CURVED: r / (1 + b / np.array(BATCHES)), RATES: r, SHARE: 1 / medians[..., 0]}
    return of[by][..., None] * np.array(DELAYS[1:]), medians[..., 1:] / medians[..., :1]


def is_whole(x: np.ndarray, penalty: np.ndarray) -> bool:
    """Whether there is a law to be fitted: all reached the loss, and no r is below 0."""
    return bool(np.isfinite(penalty).all() and np.isfinite(x).all() and (x >= 0).all())


def _drawn(
    result: Mapping[str, Any], by: str, figure: Callable[[np.ndarray, np.ndarray], float]
) -> tuple[float, float, float]:
    """A figure of x and P with its interval; infinite where there is no law to be fitted."""

    def of(seeds: np.ndarray) -> float:
        x, penalty = cells(result, seeds, by)
        return figure(x, penalty) if is_whole(x, penalty) else np.inf

    return drawn_again(of, times(result).shape[-1], DRAWS)


def error(result: Mapping[str, Any], by: str = CURVED) -> tuple[float, float, float]:
    """The factor in the median, and its interval."""
    return _drawn(result, by, lambda x, penalty: float(np.median(left_out(x, penalty))))


def agreement(x: np.ndarray, penalty: np.ndarray) -> float:
    """Spearman's rank correlation of x and P, over all cells."""
    return float(spearmanr(x.ravel(), penalty.ravel()).statistic)


def at_one_delay(x: np.ndarray, penalty: np.ndarray) -> float:
    """The same over the cells of one delay, in the mean over delays: d alone explains none of it.

    There it says whether x knows which optimizers and batches suffer.
    """
    delays = range(x.shape[-1])
    return float(np.mean([agreement(x[..., k], penalty[..., k]) for k in delays]))


def verdict(result: Mapping[str, Any]) -> Verdict:
    x, penalty = cells(result, slice(None), CURVED)
    if not is_whole(x, penalty):
        return Verdict("open", "arms missed the loss in the median of seeds, or have an r below 0")
    r, b = of_steps(result, slice(None))
    found, alone, older = (error(result, by) for by in (CURVED, RATES, SHARE))
    worst = left_out(x, penalty).max(axis=(1, 2))
    each = ", ".join(f"{o} {w:.2f}" for o, w in zip(OPTIMIZERS, worst, strict=True))
    ranks, held = (
        f"{shown(_drawn(result, CURVED, of))} (d / T_0: {shown(_drawn(result, SHARE, of))})"
        for of in (agreement, at_one_delay)
    )
    told = "; ".join(
        f"{o} " + ", ".join(f"{r[i, j]:.2g} and {b[i, j]:.3g}" for j in range(len(BATCHES)))
        for i, o in enumerate(OPTIMIZERS)
    )
    return Verdict(
        below(found, BOUND),
        f"predicted within {shown(found)} in the median (with d / T_0 {shown(older)}, without the "
        f"noise scale {shown(alone)}), at worst {each}; ranks of penalties agree with those of x "
        f"by {ranks}, at one delay by {held}; r and B at batches of {BATCHES[0]} and {BATCHES[1]}: "
        f"{told} (n = {times(result).shape[-1]})",
    )


def picture(result: Mapping[str, Any], figure: Figure) -> None:
    x, penalty = cells(result, slice(None), CURVED)
    axes = figure.subplots()
    for i, (optimizer, colour) in enumerate(zip(OPTIMIZERS, figures.OKABE_ITO, strict=False)):
        for j, marker in enumerate("os"):
            label = "" if j else optimizer
            axes.plot(x[i, j], penalty[i, j], marker, color=colour, ms=5, label=label)
    if is_whole(x, penalty):
        line = np.geomspace(x.min(), x.max(), 100)
        axes.plot(line, np.exp(fitted(x, penalty)(line)), color=figures.GREY, lw=1, label="one law")
    axes.set(xscale="log", yscale="log", xlabel="delay x rate x curvature / (1 + noise)")
    axes.set_ylabel("updates over those without delay")
    axes.legend(fontsize=8)
    axes.set_title(f"batches of {BATCHES[0]} (circles) and {BATCHES[1]} (squares)", fontsize=9)
