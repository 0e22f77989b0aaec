"""What a run writes into `summary.json` and the lines of `metrics.jsonl`, by the kinds of it."""

from collections.abc import Mapping
from typing import Any

from research.values import shown

NUMBER = (int, float)
KINDS: Mapping[str, Any] = {  # of figures that others compute with, where they are; null is of any
    **{"step": NUMBER, "train_loss": NUMBER, "simulated_seconds": NUMBER, "wall_seconds": NUMBER},
    **{"status": str, "steps": int, "simulated_seconds_per_step": NUMBER, "staleness_mean": NUMBER},
    **{"versions": dict, "device": dict, "staleness_histogram": list, "test_accuracy": NUMBER},
}


def unlike(row: Mapping[str, Any]) -> str:
    """The first figure of another kind than is written, in words; '' if there is none."""
    for key, kind in KINDS.items():
        value = row.get(key)
        if not (value is None or isinstance(value, kind)) or isinstance(value, bool):
            return f"{key} = {shown(value)} is not what a run writes there"
    return ""
