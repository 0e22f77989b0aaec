"""The keys of a config that its run reads: the others may differ and mean nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from optdyn.methods import seen
from optdyn.methods.method import OPTIONAL
from optdyn.report.tables import Point

# How a run is written down, and what other commands read.
NEVER = ("note", "log_every", "checkpoint_every", "tune.", "plan.")
# Keys that count only where another has one of some values.
ONLY = {
    "probes.window": ("probes.momentum", (True,)),
    "probes.every": ("probes.momentum", (True,)),
    "optimizer.decay_rate": ("optimizer.schedule", ("exponential",)),
}


def heeds(config: Mapping[str, Any], key: str) -> bool:
    """Whether the run of this config (dotted keys) would be another with another value.

    Of methods whose code is not run here, every key may count.
    """
    if key.startswith(NEVER) or (key in ONLY and config.get(ONLY[key][0]) not in ONLY[key][1]):
        return False
    if key.startswith("replicas."):
        return bool(config.get("replicas.count"))
    section, _, rest = key.partition(".")
    name = config.get("method.name", "")
    first = rest.partition(".")[0]
    if section == "cluster":
        known = "disturbances" if rest.startswith("disturbance") else first
        return known not in OPTIONAL or known in _of_clock(name)
    return True


def relevant(points: Sequence[Point]) -> list[Point]:
    """The points without the keys of their configs that their runs do not read."""
    return [
        point._replace(config={k: v for k, v in point.config.items() if heeds(point.config, k)})
        for point in points
    ]


def _of_clock(name: str) -> set[str]:
    """The optional keys of the cluster that methods of that name know; all, if they are unknown."""
    if (methods := seen(name)) is None:
        return set(OPTIONAL)
    return {key for method in (methods.outermost, *methods.members) for key in method.cluster}
