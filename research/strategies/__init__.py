"""Ways of parallelising SGD, one a file, and what they are put together of."""

from research.strategies.base import Event, Strategy
from research.strategies.compose import compose
from research.strategies.method import (
    GROUPED,
    PLAIN,
    Chosen,
    Method,
    Network,
    Setting,
    arrives,
    built_in,
    chosen,
    devices_of,
    follows,
    groups_of,
    is_simple,
    load,
    of_config,
    owns,
    refused,
    timeline_of,
)

__all__ = [
    "GROUPED",
    "PLAIN",
    "Chosen",
    "Event",
    "Method",
    "Network",
    "Setting",
    "Strategy",
    "arrives",
    "built_in",
    "chosen",
    "compose",
    "devices_of",
    "follows",
    "groups_of",
    "is_simple",
    "load",
    "of_config",
    "owns",
    "refused",
    "timeline_of",
]
