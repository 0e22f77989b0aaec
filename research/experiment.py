"""An experiment: a setup, and the method that trains it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from optdyn.setup import PARTS, Cluster, Pieces, Setup
from optdyn.strategies.chosen import Chosen
from optdyn.strategies.method import Methods
from optdyn.timeline.base import Timeline


@dataclass(frozen=True, kw_only=True)
class Experiment(Setup):
    """All that determines a run, as a value: it hashes, and can be the key of a cache.

    `checks.check` refuses fields that do not go together. `strategy` has the keys of all methods.
    """

    strategy: Chosen

    @classmethod
    def of(cls, values: Mapping[str, Any], strategy: Callable[..., Any]) -> Self:
        """From the nested dict of a config, which must have all keys. Raises `ConfigError`."""
        parts: dict[str, Callable[..., Any]] = {"strategy": strategy, **PARTS}
        own = {key: value for key, value in values.items() if key not in parts}
        for name, part in parts.items():
            of = dict(values[name])
            if part is Cluster:
                of["pieces"] = Pieces(**of["pieces"])
            own[name] = part(**of)
        return cls(**own)

    @property
    def methods(self) -> Methods:
        """The methods with their numbers. Raises `ConfigError`."""
        return self.strategy.methods

    def timeline(self, **known: Any) -> Timeline:
        """The timeline of a run, as far as its past epochs decide it.

        `known` are the fields of `Setting` besides the setup. Raises `TimelineError`.
        """
        return self.methods.timeline(self, **known)
