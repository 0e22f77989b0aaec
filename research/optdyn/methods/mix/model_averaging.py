"""Model averaging, also called local SGD: nodes train by themselves and average what they have.

    x_i <- 1/P sum_j x_j        every H updates, of P nodes

This is the rule of `outer.py` with the weights 0 and 1, and nodes wait for it. H = 1 is synchronous
SGD, but not with Adam. Post-local SGD (Lin et al., arXiv 1808.07217) has H = 1 in its first T_0
updates. Streaming (Douillard et al., arXiv 2501.18512) does the same with fragments of the
parameters, which take turns, and with what was sent tau updates before:

    x_i <- (1 - a) 1/P sum_j x_j(t - tau) + a x_i
    x_i <- 1/P sum_j x_j(t - tau) + (x_i - x_i(t - tau))      where merges correct, as in CO2
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import optax
from jax import lax

from optdyn import optimizers
from optdyn.base.errors import Join
from optdyn.base.fields import field
from optdyn.clock.base import Meeting, Timeline
from optdyn.core import Rule
from optdyn.methods.method import ClockInputs, Methods, Mixes
from optdyn.methods.mix import averaging_clock, nodes
from optdyn.methods.mix.messages import Messages
from optdyn.methods.mix.outer import INNER_STATES, outer
from optdyn.methods.mix.quantized import WHOLE
from optdyn.methods.setup import Setup
from optdyn.methods.shared_fields import FRACTION, Compressed, Fragmented, Periodic

MERGINGS = ("mix", "correct")
# Of the cluster's keys (`method.OPTIONAL`), those that the clock knows of nodes that never leave.
ALWAYS_THERE = ("overlap", "speeds", "latencies", "bandwidths", "regions", "diurnal")


@dataclass(frozen=True)
class ModelAveraging(Mixes, Periodic, Fragmented, Compressed, name="model_averaging"):
    synchronous_updates: int = field(
        0,
        "T_0, the first updates, with an average after each.",
        at_least=0,
    )
    mixing: float = field(
        0.0,
        "a, the part that nodes keep of their own parameters.",
        **FRACTION,
        static=True,
    )
    merging: str = field(
        "mix",
        "What nodes make of what arrives and their own, 'mix', or "
        "'correct', which keeps all that they did since the sending.",
        one_of=MERGINGS,
        static=True,
    )
    inner_state: str = field(
        "kept",
        "What a node's optimizer is where it receives, 'kept', 'averaged' or 'reset'.",
        one_of=INNER_STATES,
        static=True,
    )

    cluster: ClassVar[tuple[str, ...]] = (*ALWAYS_THERE, "presence")
    info = ("sent_bytes",)
    over_graphs: ClassVar[bool] = True  # its mean may be one of neighbours
    # Fields that the outer optimizer is given at every update, with the values that are the mean.
    mean: ClassVar[Mapping[str, float]] = {}

    @property
    def cycle(self) -> int:
        return self.period

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = f"from 1 to config.method.period = {self.period}"
        self.require("fragments", 1 <= self.fragments <= self.period, wanted)
        turn = self.period // self.fragments
        wanted = f"from 0 to {turn - 1}, less than config.method.period // config.method."
        self.require("delay", 0 <= self.delay < turn, wanted + "fragments")
        mixes = self.merging == "mix" or not self.mixing
        self.require("mixing", mixes, "0 with config.method.merging = 'correct'")
        apart = "fragments" if self.fragments > 1 else "delay" if self.delay else ""
        wanted = f"'kept' with config.method.{apart} = {getattr(self, apart, None)}, as the state"
        wanted += " of an optimizer is of all parameters and of now"
        self.require("inner_state", self.inner_state == "kept" or not apart, wanted)

    def mix(self, inner: Rule, senders: str | None = None) -> Rule:
        """The rule with the mean, or with the `outer` optimizer."""
        a = self.mixing
        return outer(
            inner,
            lambda waited: (a * lax.axis_size("node"), 1 - a),
            self.outer(),
            Messages(compression=self.compressed(), senders=senders),
            fragments=self.fragments,
            inner_state=self.state_where_met,
            corrects=self.merging == "correct",
        )

    @property
    def state_where_met(self) -> str:
        """What becomes of a node's optimizer state where it receives: of `outer.INNER_STATES`."""
        return self.inner_state

    def states(self, meeting: Meeting) -> np.ndarray | None:
        """(steps, 2) whether first and second moments are averaged; None: at every meeting."""
        return None

    def outer(self) -> optax.GradientTransformation | None:
        """The optimizer of the outer step; None is the mean."""
        return None

    def clock(self, setting: ClockInputs, methods: Methods) -> Timeline:
        """When nodes meet (`averaging_clock.py`); the first, synchronous updates take the mean."""
        return self.with_numbers(averaging_clock.clock(self, setting, methods))

    def with_numbers(self, line: Timeline) -> Timeline:
        """The timeline with the numbers of the outer optimizer, which are its every update's."""
        first = np.arange(len(line.seconds)) < self.synchronous_updates
        numbers = {
            name: np.where(first, value, getattr(self, name)).astype(np.float32)
            for name, value in self.mean.items()
        }
        return line._replace(choice=line.choice._replace(outer=numbers)) if numbers else line

    def joins(self, setup: Setup, methods: Methods) -> Iterator[Join]:
        yield from nodes.joins(setup, methods)
        averages = self.state_where_met == "averaged"
        said = (
            "must be another where nodes average their optimizers' states, as the mean of several "
        )
        bases = averages and optimizers.has_bases(setup.optimizer.name)
        yield Join("optimizer.name", bases, f"{said}bases is none")
        if not setup.cluster.presence:
            return
        changed = {
            "method.delay": self.delay,
            "method.mixing": self.mixing,
            "method.compression": self.compression,
            "method.merging": self.merging == "correct",
            "method.compression_bits": self.compression_bits != WHOLE,
            "method.fragments": self.fragments > 1,
            "method.inner_state": averages,
            "parallel.api": setup.parallel.api == "overlap",
        }
        for key, wrong in changed.items():
            said = (
                "must be as it is by default with config.cluster.presence, where nodes meet whole "
            )
            yield Join(key, wrong, f"{said}and at once, those that are there")

    def why_no_overlap(self) -> str:
        """What takes more of the nodes than one sum of messages."""
        if self.compression:
            return f"compresses its messages (config.method.compression = {self.compression!r})"
        if self.compression_bits != WHOLE:
            return f"sends numbers of config.method.compression_bits = {self.compression_bits}"
        if self.merging == "correct":
            return "keeps what nodes did meanwhile (config.method.merging = 'correct')"
        if self.state_where_met == "averaged":
            return "averages its optimizers' states too (config.method.inner_state = 'averaged')"
        return ""
