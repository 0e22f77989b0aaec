"""A method: the pieces of plain SGD that a way of parallelising replaces, and its clock.

A method is a file with a class `METHOD`. Methods that replace different pieces combine:
`daso+dynamic_batch` is DASO whose nodes divide their batch by speed. Pieces that no method
replaces are plain SGD's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import jax
import numpy as np

from optdyn.base.errors import ConfigError
from optdyn.base.fields import Value
from optdyn.base.trees import Choice, Json, Tree
from optdyn.clock.base import Timeline
from optdyn.clock.service import DRAWN
from optdyn.clock.trace import Held, checked, read
from optdyn.core import Gradient, Rule, Update
from optdyn.problem.models.base import Blocks
from optdyn.problem.problem import Examples, Params, Problem
from optdyn.setup import Cluster, Setup

if TYPE_CHECKING:
    from optdyn.clock.versions import Order
    from optdyn.devices.layout import Layout

MEANING = {
    "gradient": "how a gradient is taken",
    "read": "which parameters it is taken at",
    "mix": "what nodes exchange",
}

# Keys of the cluster that not all clocks know, and what they are.
OPTIONAL = {
    "pieces": "seconds of the pieces of an update",
    "split": "shares in proportion to speeds",
    "overlap": "an exchange behind the computing",
    "latencies": "links of nodes",
    "bandwidths": "links of nodes",
    "speeds": "workers of unlike speed",
    "regions": "nodes in regions of the earth",
    "diurnal": "a load by the hour",
    "presence": "absences",
    "server_bandwidth": "a server's link",
    "disturbances": "slowdowns by epoch",
    "disturbance_probability": "slowdowns by chance",
}


class ModelInfo(NamedTuple):
    """The model, its parameters and some examples, for clocks that ask what an update costs."""

    problem: Problem
    params: Params
    examples: Examples  # one at least


class ClockInputs(NamedTuple):
    """All that a clock may know.

    `update_bytes` is the size of the parameters. `replicas` is 0 for one run. `epochs` has the log
    at the end of each past epoch. `held` is the recorded run that is replayed, if one is.
    """

    setup: Setup
    steps_per_epoch: int
    update_bytes: int
    replicas: int = 0
    epochs: Sequence[Json] = ()
    network: ModelInfo | None = None
    held: Held | None = None

    @property
    def model(self) -> ModelInfo:
        """The network. Raises `ConfigError` where a clock that needs it is asked for without."""
        if not self.network:
            raise ConfigError(
                "clock: this method's messages and seconds depend on the model, which "
                "Experiment.timeline() has"
            )
        return self.network


def slowed(setting: ClockInputs, methods: "Methods") -> Cluster:
    """The cluster, whose seconds an example are those of the methods' own gradient."""
    cluster = setting.setup.cluster
    if not (methods.gradient and methods.gradient.slower and setting.network):
        return cluster
    by = methods.gradient.slower(setting.setup, setting.network)
    return cluster.with_(seconds_per_example=cluster.seconds_per_example * by)


@dataclass(frozen=True)
class Method(Value, section="method"):
    """A way of parallelising SGD: a frozen dataclass whose fields are its numbers.

    It derives from `Gradients`, `Reads` or `Mixes`, by the piece of plain SGD that it replaces, or
    from several of them; `sync` replaces none. A field on which the update rule depends is
    `static`, so that another value makes another program. The clock alone sees the others.
    """

    pieces: ClassVar[tuple[str, ...]] = ()  # of MEANING, that it replaces
    laws: ClassVar[tuple[str, ...]] = DRAWN  # of config.cluster.service, that its clock knows
    cluster: ClassVar[tuple[str, ...]] = ()  # of OPTIONAL, likewise
    info: ClassVar[tuple[str, ...]] = ()  # what its updates say of themselves, for the log to sum

    def clock(self, setting: ClockInputs, methods: "Methods") -> Timeline:
        """The timeline of an experiment, where this method is the outermost of `methods`.

        Raises `TimelineError` where there is none.
        """
        raise NotImplementedError

    def check(self, setup: Setup, methods: "Methods") -> None:
        """Raises `ConfigError` if the method cannot run with the rest of the experiment."""

    def report(self, setup: Setup, network: ModelInfo) -> Mapping[str, object]:
        """What `summary.json` says of the method, by key."""
        return {}

    def follows(self, setup: Setup) -> bool:
        """Whether the log of past epochs decides the timeline of the next."""
        return False

    def probe(self, problem: Problem) -> Callable[..., dict[str, jax.Array]] | None:
        """What log points measure besides: `(params, train, test) -> {name: scalar}`, or None."""

    def compiled(self) -> Self:
        """The method as a program sees it: fields that are not `static` are None."""
        made = object.__new__(type(self))
        for each in fields(self):
            value = getattr(self, each.name) if each.metadata.get("static", True) else None
            object.__setattr__(made, each.name, value)
        return made


@dataclass(frozen=True)
class Gradients(Method):
    """A method that says how a gradient is taken."""

    pieces: ClassVar[tuple[str, ...]] = ("gradient",)
    # The gradient reduces itself over the devices of `data`: parts of the batch may be uneven.
    reduces_itself: ClassVar[bool] = False
    # The cluster's nodes are its stages, and none has all parameters.
    staged: ClassVar[bool] = False
    # Optional pieces:
    # (problem) -> {block: number of its server}, if by themselves
    servers: ClassVar[Callable[..., Mapping[str, int]] | None] = None
    # (setting, draws) -> each device's seconds, choice
    work: ClassVar[Callable[..., tuple[np.ndarray, Choice]] | None] = None
    # (setup, network) -> its seconds over those of plain SGD's
    slower: ClassVar[Callable[..., float] | None] = None
    # on real devices, if not like all others
    layout: ClassVar[Callable[..., "Layout"] | None] = None
    # (problem) -> a worker's part alone, to be timed
    timed: ClassVar[Callable[..., Callable[..., Tree]] | None] = None

    def gradient(self, problem: Problem) -> Gradient:
        """`(params, event, batch) -> loss, grads`, the mean over one device's part of the batch."""
        raise NotImplementedError

    def heads(self, blocks: Blocks) -> Sequence[str]:
        """Names of the blocks that need an auxiliary head."""
        return ()

    def parts(self, stages: int) -> int:
        """Parts of a device's batch that go through so many stages one after the other."""
        return 1


@dataclass(frozen=True)
class Reads(Method):
    """A method that says at which parameters a gradient is taken."""

    pieces: ClassVar[tuple[str, ...]] = ("read",)
    single: ClassVar[bool] = True  # an update is of one gradient, of the whole batch
    barrier: ClassVar[bool] = True  # the workers wait for one another at every update
    workers: ClassVar[bool] = False  # every group has parameters of its own (`workers.py`)
    gathers: ClassVar[bool] = False  # not every arrival is an update
    # How its groups race on real workers (`race`), if they can. A group is given what
    # the state is `at` the slot that it reads, and the server's step takes its message in place of
    # the batch.
    # (setup, methods, timeline) -> who reads when, written into the timeline
    order: ClassVar[Callable[..., "Order"] | None] = None
    # (gradient, update) -> (given, hyper, batch, numbers of its batches, (n, B)) -> message, where
    # `batch` makes one of (B,)
    message: ClassVar[Callable[..., Callable[..., Tree]] | None] = None

    def read(
        self, gradient: Gradient, update: Update, slots: int, servers: Mapping[str, int] | None
    ) -> Rule:
        """The rule over a table of `slots` versions. `servers` numbers each block's own, if any."""
        raise NotImplementedError


class Sends(NamedTuple):
    """A node's message."""

    bytes: float
    gathered: bool  # it goes to all others as it is; else they are added up on their way


@dataclass(frozen=True)
class Mixes(Method):
    """A method that says what nodes with parameters of their own exchange."""

    pieces: ClassVar[tuple[str, ...]] = ("mix",)

    @property
    def cycle(self) -> int:
        """Updates after which the meetings of nodes repeat."""
        return 1

    def mix(self, inner: Rule, senders: str | None) -> Rule:
        """The rule of all nodes, around `inner`, the rule of a node by itself.

        `senders` is the axis of a node's real devices, which share what it sends; None in a
        simulation.
        """
        raise NotImplementedError

    def sends(self, params: Params) -> "Sends | None":
        """What a node sends after every update; None: it sends at other times."""
        return None

    def joined(self, other: "Mixes") -> "Mixes | None":
        """Both methods as one; None if they do not go together."""
        return None

    def why_no_overlap(self) -> str:
        """Why `config.parallel.api=overlap` cannot carry its exchange; '' if it can."""
        return "exchanges otherwise than by sums"


def as_one(one: Mixes, other: Mixes) -> Mixes | None:
    """Two methods that mix, as one that does both; None if they do not go together."""
    return one.joined(other) or other.joined(one)


M = TypeVar("M", bound=Method)


class Methods(NamedTuple):
    """The methods of an experiment."""

    name: str
    every: tuple[Method, ...]

    @property
    def gradient(self) -> Gradients | None:
        """The method that says how a gradient is taken, if one does."""
        return next((m for m in self.every if isinstance(m, Gradients)), None)

    @property
    def read(self) -> Reads | None:
        """The method that says at which parameters a gradient is taken, if one does."""
        return next((m for m in self.every if isinstance(m, Reads)), None)

    @property
    def mix(self) -> Mixes | None:
        """The method that says what nodes exchange, or two of them as one, if any does."""
        mixes = [m for m in self.every if isinstance(m, Mixes)]
        return as_one(*mixes) if len(mixes) == 2 else next(iter(mixes), None)

    @property
    def outermost(self) -> Method:
        """The method whose clock counts."""
        return self.mix or self.read or self.gradient or self.every[0]

    @property
    def plain(self) -> bool:
        """Whether every piece is plain SGD's."""
        return not any(method.pieces for method in self.every)

    @property
    def reduces_itself(self) -> bool:
        """Whether the gradient reduces itself over devices (`Gradients.reduces_itself`)."""
        return bool(self.gradient and self.gradient.reduces_itself)

    @property
    def by_block(self) -> bool:
        """Whether blocks learn by themselves, each with a server of its own."""
        return bool(self.gradient and self.gradient.servers)

    def servers(self, problem: Problem) -> Mapping[str, int] | None:
        """The number of each block's server, if blocks learn by themselves; else None."""
        of = self.gradient and self.gradient.servers
        return of(problem) if of else None

    @property
    def simple(self) -> bool:
        """Whether an update is one gradient of the whole batch, at one set of parameters."""
        own = self.read and (self.read.workers or not self.read.single)
        return not self.mix and not self.gradient and not own

    @property
    def shared(self) -> bool:
        """Whether every arrival updates one set of parameters, of which groups read versions."""
        return not (self.read and (self.read.workers or self.read.gathers))

    @property
    def groups(self) -> int:
        """The number of groups that arrive by themselves; 1 if all wait for one another."""
        return self.get("groups", 1) if self.read and not self.read.barrier else 1

    @property
    def stages(self) -> bool:
        """Whether the cluster's nodes are stages, over which the blocks are spread."""
        own = self.read in (None, self.gradient) and not self.mix
        return bool(self.gradient and self.gradient.layout and own)

    @property
    def inside(self) -> "Methods":
        """The methods of a node by itself: all that do not mix."""
        return Methods(self.name, tuple(m for m in self.every if not isinstance(m, Mixes)))

    @property
    def compiled(self) -> "Methods":
        """The methods as a program sees them (`Method.compiled`)."""
        return Methods(self.name, tuple(method.compiled() for method in self.every))

    def of(self, kind: type[M]) -> M:
        """The method of that type. Raises `LookupError` if there is none."""
        for method in self.every:
            if isinstance(method, kind):
                return method
        raise LookupError(f"{self.name} has no {kind.__name__}")

    def get(self, key: str, usual: Any) -> Any:
        """The value of the field `key` in the first method that has it, else `usual`."""
        found = (getattr(method, key) for method in self.every if hasattr(method, key))
        return next(found, usual)

    def devices(self, setup: Setup) -> tuple[int, int]:
        """(nodes with parameters of their own, devices that share the batch of a node or group)."""
        cluster = setup.cluster
        if self.plain:  # the cluster is only its clock
            return 1, setup.parallel.devices or jax.device_count()
        nodes = cluster.nodes if self.mix or self.stages else 1
        workers = cluster.worker_count
        return nodes, max(workers // nodes // self.groups, 1)

    def refused(self, setup: Setup) -> str:
        """Why `config.parallel.api` cannot carry the methods; '' if it can."""
        api, (nodes, devices) = setup.parallel.api, self.devices(setup)
        if api == "jit" and self.reduces_itself:
            return "gives every worker a loop of its own length, which 'jit' has not"
        if api != "shard_map" and self.stages and nodes > 1:
            return "runs unlike programs on its stages, which only 'shard_map' can"
        if api == "overlap":
            if not self.mix:
                return "has no nodes that train by themselves while they exchange"
            if why := self.mix.why_no_overlap():
                return f"{why}, which cannot leave the compiled loop; 'shard_map' keeps it there"
        if api == "pmap" and self.mix and devices > 1:
            return "is laid over nodes and their devices, and 'pmap' has one axis only"
        return ""

    def follows(self, setup: Setup) -> bool:
        """Whether the log decides the timeline, so that a run cannot have it beforehand."""
        return any(method.follows(setup) for method in self.every)

    def timeline(self, setup: Setup, **known: Any) -> Timeline:
        """The timeline of a run, as far as its past epochs decide it.

        `known` are the fields of `ClockInputs` besides the setup. Raises `TimelineError`.
        """
        clock = self.outermost.clock
        if setup.cluster.service != "trace":
            return clock(ClockInputs(setup, **known), self)
        # For what is asked for besides: seconds are the file's.
        replay = setup.with_({"cluster.service": "constant"})
        held = read(setup.cluster.trace, setup.steps * max(known.get("replicas", 0), 1))
        return checked(held, clock(ClockInputs(replay, held=held, **known), self))
