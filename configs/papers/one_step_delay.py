"""A delay of one update and the optimizer: AdamW suffers, Muon does not (arXiv 2606.30634).

The paper trains language models of up to 10 billion parameters through PipeDream-2BW, whose every
gradient is one update old. Two groups that take turns (constant service) are that: arrival t brings
the gradient at version t - 1, of all parameters. Here the model has 62,000 parameters, in modern
blocks, and reads the King James Bible by characters for some hundred updates at a constant rate: a
far shorter and steeper part of training than the paper's, whose settings we do not know (we have
read the abstract). So there are two batches, as staleness costs less where noise limits the step.

Muon (`optax.contrib.muon`, momentum 0.95 in Nesterov's form) moves the matrices of the blocks, and
AdamW the embeddings, the output and the norms. Its steps are scaled to a root mean square of 0.2,
as AdamW's are (arXiv 2502.16982), so that one learning rate is for both. AdamW has beta 0.9 and
0.95; decay is 0.1 everywhere.
"""

from typing import Any

import jax
import numpy as np
import optax
from matplotlib.figure import Figure
from optax import contrib

from optdyn.config import usual
from optdyn.evidence.arms import RATE, Arm, reported, tuned
from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.intervals import ratio, shown, spread
from optdyn.evidence.study import Study
from optdyn.evidence.trial import Curve, to_loss
from optdyn.experiment import Experiment
from optdyn.setup import Cluster, Data, Model, Optimizer

DECAY, BETAS = 0.1, (0.9, 0.95)
TARGETS = (2.4, 2.1, 1.8)  # training losses in nats a character; the last is tuned for
STEPS = {"small": 1600, "full": 6400}
HARMLESS = 1.1  # times the updates: less is not suffering
BATCHES = (4, 16)
# Rungs that searches start from, without delay and with it: the best of four on a seed of its own.
STARTS = {
    ("adamw", 4): (-15, -17),
    ("adamw", 16): (-12, -16),
    ("muon", 4): (-14, -15),
    ("muon", 16): (-10, -14),
}

CLAIM = Claim(
    number=17,
    sentence="AdamW suffers under a gradient delay of one update, and Muon does not",
    source="arXiv 2606.30634, abstract",
    measured="updates to a training loss of 1.8 nats a character (and to 2.4 and 2.1) with every "
    "gradient one update old, over those without delay, at batches of 4 and 16 sequences of 64 "
    "characters of the King James Bible; a transformer of 2 modern blocks, 48 wide, 4 heads; at "
    "most 1,600 updates at a constant rate after 20 of warm-up; two groups of constant service "
    "against one; and how much the loss with delay is above 1.8 when training without is there",
    opponent="the same optimizer without delay; every optimizer, batch and delay has its own "
    "learning rate on a ladder of factors of the square root of 2, interior",
    rule="P: updates with delay over updates without, an interval over seeds. Confirmed if at both "
    "batches AdamW's P is above 1.1 and Muon's below 1.1 (whole intervals) and all settings are "
    "interior; refuted if at both AdamW's is below 1.1 or Muon's above 1.1 (whole intervals); "
    "otherwise open. (It was written after one seed at few rates, where both optimizers suffered, "
    "AdamW more)",
)


def muon(learning_rate: Any) -> optax.GradientTransformation:
    """Muon for the matrices inside the blocks, AdamW for everything else."""
    return contrib.muon(
        learning_rate,
        weight_decay=DECAY,
        adam_b1=BETAS[0],
        adam_b2=BETAS[1],
        adam_weight_decay=DECAY,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=matrices,
    )


def matrices(params: Any) -> Any:
    """What Muon moves: matrices but for those of the vocabulary, of `tokens` and `output`."""

    def chosen(path: Any, leaf: Any) -> Any:
        of = jax.tree_util.keystr(path)
        inside = leaf.ndim == 2 and "tokens" not in of and "output" not in of
        return contrib.MuonDimensionNumbers() if inside else None

    return jax.tree_util.tree_map_with_path(chosen, params)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"name": "adamw", "options": {"b1": BETAS[0], "b2": BETAS[1], "weight_decay": DECAY}},
    "muon": {"name": "optdyn.configs.papers.one_step_delay:muon", "options": {}},
}


def rates(i: int) -> float:
    """Powers of the square root of 2."""
    return 2.0 ** (i / 2)


def config(optimizer: str, batch_size: int, delay: int, scale: str = "small") -> Experiment:
    return usual().with_(
        {"strategy.name": "asynchronous", "strategy.groups": 1 + delay},
        steps=STEPS[scale],
        batch_size=batch_size,
        model=Model("modern_transformer", blocks=2, width=48),
        data=Data("kjv", sequence_length=64, train_evaluated=128, test_evaluated=64),
        optimizer=Optimizer(**OPTIMIZERS[optimizer], warmup_steps=20),
        cluster=Cluster(nodes=1 + delay, service="constant"),
    )


def measure(study: Study) -> dict[str, Any]:
    cells = [(*arm, delay) for arm in STARTS for delay in (0, 1)]

    def run(cell: tuple[str, int, int]) -> tuple[dict[str, Any], list[Curve]]:
        optimizer, batch_size, delay = cell
        start = {RATE: STARTS[optimizer, batch_size][delay]}
        arm = Arm(config(*cell, study.scale), {RATE: rates}, start)
        found = tuned(study, arm, TARGETS[-1])
        curves = reported(study, arm, found.point, TARGETS[-1])
        updates = {str(loss): [to_loss(curve, loss) for curve in curves] for loss in TARGETS}
        return {"tuned": found._asdict(), "updates": updates}, curves

    found = dict(zip(cells, study.map(run, cells), strict=True))
    rows = [
        {"optimizer": optimizer, "batch_size": batch}
        | compared(found[optimizer, batch, 0][0], *found[optimizer, batch, 1])
        for optimizer, batch in STARTS
    ]
    return {"rows": rows, "double": {str(batch): _double(rows, batch) for batch in BATCHES}}


def compared(before: dict[str, Any], after: dict[str, Any], curves: list[Curve]) -> dict[str, Any]:
    """An optimizer without and with delay, and the curves with it."""
    arrived = before["updates"][str(TARGETS[-1])]
    return {
        "tuned": [before["tuned"], after["tuned"]],
        "interior": before["tuned"]["interior"] and after["tuned"]["interior"],
        "updates": [before["updates"], after["updates"]],
        "penalty": {k: ratio(after["updates"][k], before["updates"][k]) for k in before["updates"]},
        "gap": [at_update(c, n) - TARGETS[-1] for c, n in zip(curves, arrived, strict=True)],
    }


def at_update(curve: Curve, update: float) -> float:
    """The training loss at an update, falling exponentially between two log points."""
    return float(np.exp(np.interp(update, curve.updates, np.log(curve.losses))))


def _double(rows: list[dict[str, Any]], batch: int) -> Any:
    """AdamW's penalty over Muon's, seed by seed: (median, least, most)."""
    last = str(TARGETS[-1])
    prompt, late = (
        {
            row["optimizer"]: np.array(row["updates"][delay][last])
            for row in rows
            if row["batch_size"] == batch
        }
        for delay in (0, 1)
    )
    own = {optimizer: late[optimizer] / prompt[optimizer] for optimizer in OPTIMIZERS}
    return spread(own["adamw"] / own["muon"])


def verdict(result: dict[str, Any]) -> Verdict:
    rows, last = result["rows"], str(TARGETS[-1])
    of = {(row["optimizer"], row["batch_size"]): row["penalty"][last] for row in rows}
    differ = [of["adamw", b][1] > HARMLESS > of["muon", b][2] for b in BATCHES]
    fails = [of["adamw", b][2] < HARMLESS or of["muon", b][1] > HARMLESS for b in BATCHES]
    interior = all(row["interior"] for row in rows)
    word = "open"
    if all(differ) and interior:
        word = "confirmed"
    if all(fails):
        word = "refuted"
    names = {"adamw": "AdamW", "muon": "Muon"}
    parts = []
    for batch in BATCHES:
        each = " and ".join(
            f"{names[row['optimizer']]} {shown(row['penalty'][last])} times its updates, its loss "
            f"{np.median(row['gap']):.2f} higher"
            for row in rows
            if row["batch_size"] == batch
        )
        double = "{:.2f} ({:.2f} to {:.2f})".format(*result["double"][str(batch)])
        parts.append(f"batch {batch}: {each}; AdamW's over Muon's {double} by seed")
    settings = "all" if interior else "not all"
    return Verdict(word, f"with delay, {'; '.join(parts)}; {settings} settings interior")


def picture(result: dict[str, Any], figure: Figure) -> None:
    every = figure.subplots(1, len(BATCHES), sharey=True)
    for axes, batch in zip(every, BATCHES, strict=True):
        rows = [row for row in result["rows"] if row["batch_size"] == batch]
        for shift, row in zip((-0.02, 0.02), rows, strict=True):
            value, low, high = np.array([row["penalty"][str(loss)] for loss in TARGETS], float).T
            high = np.where(np.isfinite(high), high, 2 * value)
            places = np.array(TARGETS) + shift
            error = [value - low, high - value]
            axes.errorbar(places, value, error, marker="o", capsize=3, label=row["optimizer"])
        axes.axhline(1, color="#666666", lw=0.8)
        axes.axhline(HARMLESS, color="#666666", lw=0.8, ls=":")
        axes.set(title=f"batch {batch}", xlabel="training loss")
        axes.invert_xaxis()
    every[0].set_ylabel("updates with delay over without")
    every[0].legend()
