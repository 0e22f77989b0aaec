"""Ways of parallelising SGD, one a file, and what they are put together of."""

from research.strategies.base import Event, Strategy
from research.strategies.compose import compose
from research.strategies.method import (
    BUILT_IN,
    PLAIN,
    Chosen,
    Method,
    Network,
    Setting,
    chosen,
    devices_of,
    follows,
    groups_of,
    load,
    of_config,
    refused,
    timeline_of,
)

__all__ = [
    "BUILT_IN",
    "PLAIN",
    "Chosen",
    "Event",
    "Method",
    "Network",
    "Setting",
    "Strategy",
    "chosen",
    "compose",
    "devices_of",
    "follows",
    "groups_of",
    "load",
    "of_config",
    "refused",
    "timeline_of",
]
