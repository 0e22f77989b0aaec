"""Whether a delay of one update costs AdamW more than Muon: claim 17, as an estimate.

Model, data and tuning are those of `one_step_delay.py`, whose rule has a bound for each of them.
"""

from typing import Any

from optdyn.configs.papers.one_step_delay import BATCHES, OPTIMIZERS, TARGETS, measure, picture
from optdyn.evidence.claim import Claim, Verdict, above
from optdyn.evidence.intervals import mean_ratio, shown

__all__ = ["CLAIM", "LONG", "SEEDS", "measure", "picture", "verdict"]

LONG, SEEDS = True, {"small": (4, 20), "full": (4, 20)}

CLAIM = Claim(
    number=38,
    sentence="A delay of one update costs AdamW more than Muon",
    source="arXiv 2606.30634; claim 17, which other seeds left open",
    measured="updates to a training loss of 1.8 with every gradient one update old over those "
    "without delay, at batches of 4 and 16 sequences of 64 characters of the King James Bible; a "
    "transformer of 2 modern blocks, 48 wide",
    opponent="the same optimizer without delay; every optimizer, batch and delay has its own "
    "learning rate, interior",
    rule="Of AdamW's ratio of median updates, with delay over without, over Muon's, in the "
    "geometric mean over both batches, with a 95 % interval from the seeds that report, 20, drawn "
    "again in all alike: confirmed if the interval is above 1, refuted if it is below, open "
    "otherwise",
)


def verdict(result: dict[str, Any]) -> Verdict:
    last = str(TARGETS[-1])
    of = {
        (row["optimizer"], row["batch_size"]): [each[last] for each in row["updates"]]
        for row in result["rows"]
    }
    cells = [(of["adamw", batch], of["muon", batch]) for batch in BATCHES]
    # (A1 / A0) / (M1 / M0) over both batches: the square of the mean over A1 / A0 and M0 / M1.
    above_, under = [], []
    for (adamw, adamw_late), (muon, muon_late) in cells:
        above_ += [adamw_late, muon]
        under += [adamw, muon_late]
    found = tuple(x**2 for x in mean_ratio(above_, under))
    each = "; ".join(
        f"{name} "
        + ", ".join(shown(mean_ratio([of[name, b][1]], [of[name, b][0]])) for b in BATCHES)
        for name in OPTIMIZERS
    )
    interior = sum(row["interior"] for row in result["rows"])
    return Verdict(
        above(found, 1.0),
        f"{shown(found)} times Muon's cost; at batches of {' and '.join(map(str, BATCHES))} "
        f"{each} ({interior} of {len(result['rows'])} interior, n = {len(under[0])})",
    )
