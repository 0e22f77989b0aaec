"""The keys of a config that its run reads: the others may differ and mean nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from optdyn.methods.method import OPTIONAL, known_stack
from optdyn.report.tables import Point

# How a run is written down, and keys that other commands read.
NEVER = ("note", "log_every", "checkpoint_every", "tune.", "plan.")
# Keys that count only where another has one of some values.
CONDITIONS = {
    "probes.window": ("probes.momentum", (True,)),
    "probes.every": ("probes.momentum", (True,)),
    "optimizer.decay_rate": ("optimizer.schedule", ("exponential",)),
}


def affects_run(config: Mapping[str, Any], key: str) -> bool:
    """Returns whether another value of the dotted key may make another run."""
    if key.startswith(NEVER):
        return False
    if key in CONDITIONS:
        other, values = CONDITIONS[key]
        return config.get(other) in values
    if key.startswith("replicas."):
        return bool(config.get("replicas.count"))
    section, _, rest = key.partition(".")
    option = "disturbances" if rest.startswith("disturbance") else rest.partition(".")[0]
    if section != "cluster" or option not in OPTIONAL:
        return True
    methods = known_stack(config.get("method.name", ""))
    return methods is None or any(
        option in method.cluster for method in (methods.outermost, *methods.members)
    )


def with_relevant_keys(points: Sequence[Point]) -> list[Point]:
    """Returns the points without the config keys that their runs do not read."""
    return [
        point._replace(
            config={k: v for k, v in point.config.items() if affects_run(point.config, k)}
        )
        for point in points
    ]
