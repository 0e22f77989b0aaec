"""What a run says at its end: how it ended, the figures that count, and what to do next.

All figures are in the workdir's `summary.json`.
"""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from optdyn.base.arguments import called
from optdyn.base.progress import number
from optdyn.momentum.moments import REJECTED

FIGURES = {"train_loss": "training loss", "test_loss": "test loss"}  # others by their names
CLOCKS = {"reality": "real seconds"}  # of what commands read; of others they are simulated


def lines(summary: Mapping[str, Any], workdir: Path, then: str = "report") -> Iterator[str]:
    """The three lines; `then` is the command that reads such a workdir."""
    seconds = CLOCKS.get(then, "simulated seconds")
    yield f"{summary['status']}: {', '.join(_done(summary, seconds)) or 'no update'}"
    stopped = summary["status"] == "interrupted"
    if figures := list(_figures(summary)):
        yield "at the last log point: " * stopped + ", ".join(figures)
    if stopped:
        yield f"{workdir}: the same command goes on"
    else:
        yield f"next: {called(then)} --workdir={shlex.quote(str(workdir))}"


def _done(summary: Mapping[str, Any], clock: str) -> Iterator[str]:
    if replicas := summary.get("replicas"):
        yield f"{replicas:,} replicas of {summary['step']:,} updates"
        return
    if "step" in summary:
        of = f" of {summary['steps']:,}" * (summary["step"] != summary["steps"])
        yield f"{summary['step']:,}{of} updates"
    if seconds := summary.get("simulated_seconds"):
        yield f"{number(seconds)} {clock}"


def _figures(summary: Mapping[str, Any]) -> Iterator[str]:
    """Losses and metrics of the last finite log point, and what a meter read."""
    found = {k: v for k, v in summary.items() if k in FIGURES or k.startswith("test_")}
    for key, value in found.items():
        if isinstance(value, (int, float)):
            yield f"{FIGURES.get(key, key.replace('_', ' '))} {value:.4g}"
    if summary.get("worse"):
        yield "far above the first"
    momentum = summary.get("implicit_momentum")
    if momentum is not None:
        low, high, p = (summary[f"implicit_momentum_{end}"] for end in ("low", "high", "p"))
        wrong = f"; but no one term of momentum, p = {p:.1g}" * (p < REJECTED)
        yield f"implicit momentum {momentum:.3g} ({low:.3g} to {high:.3g}{wrong})"
