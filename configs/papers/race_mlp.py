"""The race on an MLP: all ways against tuned synchronous SGD (`configs/race.py`)."""

from typing import Any

from optdyn.configs import race
from optdyn.evidence.race import measure as raced
from optdyn.evidence.race import picture, verdict
from optdyn.evidence.study import Study

__all__ = ["CLAIM", "LONG", "measure", "picture", "verdict"]

CLAIM = race.claim(18, "mlp")
LONG = True


def measure(study: Study) -> dict[str, Any]:
    return raced(study, race.race("mlp"))
