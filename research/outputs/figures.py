"""What a run writes into `summary.json` and the lines of `metrics.jsonl`, by the kinds of it."""

from collections.abc import Mapping, Sequence

from optdyn.errors import shown

NUMBER = (int, float)
# Of figures that others compute with, where they are; null is of any.
KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("epoch", "train_loss", "learning_rate", "momentum"), NUMBER),
    **dict.fromkeys(("simulated_seconds", "simulated_seconds_per_step", "wall_seconds"), NUMBER),
    **dict.fromkeys(("staleness_mean", "test_loss", "test_accuracy"), NUMBER),
    **{"step": NUMBER, "steps": int, "status": str, "versions": dict, "device": dict},
    "staleness_histogram": list,
    "dropped_arrivals": int,
}


def unlike(row: Mapping[str, object]) -> str:
    """The first figure of another kind than is written, in words; '' if there is none."""
    for key, value in row.items():
        kind = KINDS.get(key, object)
        large = isinstance(value, int) and abs(value) >= 2**63
        odd = isinstance(value, bool) and key in KINDS
        if large or odd or not (value is None or isinstance(value, kind)):
            return f"{key} = {shown(value)} is not what a run writes there"
    return ""


def missing(row: Mapping[str, object], keys: Sequence[str]) -> str:
    """The first of the keys that has no value, in words; '' if all have one."""
    return next((f"{key} is missing" for key in keys if row.get(key) is None), "")
