"""Ways of parallelising SGD, one a file, and what they are put together of."""

from optdyn.core import Event, Rule
from optdyn.methods.compose import compose, pieces
from optdyn.methods.method import (
    GROUPED,
    PLAIN,
    ClockInputs,
    Gradients,
    Method,
    Methods,
    Mixes,
    ModelInfo,
    Reads,
    arrives,
    built_in,
    is_simple,
    load,
    seen,
)

__all__ = [
    "GROUPED",
    "PLAIN",
    "ClockInputs",
    "Event",
    "Gradients",
    "Method",
    "Methods",
    "Mixes",
    "ModelInfo",
    "Reads",
    "Rule",
    "arrives",
    "built_in",
    "compose",
    "is_simple",
    "load",
    "pieces",
    "seen",
]
