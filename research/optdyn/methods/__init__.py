"""Ways of parallelising SGD, one a file, and what they are put together of."""

from optdyn.core import Event, Rule
from optdyn.methods.chosen import (
    GROUPED,
    PLAIN,
    Chosen,
    arrives,
    built_in,
    chosen,
    defaults,
    is_shared,
    is_simple,
    keys_of,
    load,
    owns,
    seen,
)
from optdyn.methods.compose import compose, pieces
from optdyn.methods.method import ClockInputs, Gradients, Method, Methods, Mixes, ModelInfo, Reads

__all__ = [
    "GROUPED",
    "PLAIN",
    "Chosen",
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
    "chosen",
    "compose",
    "defaults",
    "is_shared",
    "is_simple",
    "keys_of",
    "load",
    "owns",
    "pieces",
    "seen",
]
