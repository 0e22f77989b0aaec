"""Ways of parallelising SGD, a family a file, and what they are put together of."""

from optdyn.core import Event, Rule
from optdyn.methods.compose import compose, pieces
from optdyn.methods.method import (
    GROUPED,
    PLAIN,
    ClockInputs,
    Gradients,
    Method,
    MethodStack,
    Mixes,
    ModelInfo,
    Reads,
    built_in,
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
    "MethodStack",
    "Mixes",
    "ModelInfo",
    "Reads",
    "Rule",
    "built_in",
    "compose",
    "load",
    "pieces",
    "seen",
]
