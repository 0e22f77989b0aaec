"""A method: the pieces of plain SGD that a way of parallelising replaces, and its clock.

A method is a class that derives from `Gradients`, `Reads` or `Mixes`. Methods that replace
different pieces combine (`MethodStack`): `daso+dynamic_batch` is DASO whose nodes divide their
batch by speed. Pieces that no method replaces are plain SGD's. Last come the numbers that several
methods have, each with one meaning.
"""

import math
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar, cast

import jax
import numpy as np

from optdyn.base import lookup
from optdyn.base.errors import ConfigError, Join, did_you_mean, short_repr
from optdyn.base.fields import Value, field, plain, split_nested, wrong_type_line
from optdyn.base.in_memory import name_of
from optdyn.base.ranges import PART, Known
from optdyn.base.trees import Json, Plan, Tree
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import DRAWN, Trace
from optdyn.clock.timeline import Timeline
from optdyn.clock.trace import RecordedTrace, check_replay, read_trace
from optdyn.core import Gradient, NodeState, Rule, Update
from optdyn.methods.messages import (
    COMPRESSIONS,
    OF_BITS,
    WHOLE,
    Collectives,
    Compression,
    compressor,
)
from optdyn.methods.names import meant as meant_method
from optdyn.methods.setup import Setup
from optdyn.problem.models.base import Blocks
from optdyn.problem.problem import Examples, Params, Problem

if TYPE_CHECKING:
    from optdyn.clock.versions import ArrivalOrder
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
    at the end of each past epoch. `trace` is the recorded run that is replayed, if one is.
    """

    setup: Setup
    steps_per_epoch: int
    update_bytes: int
    replicas: int = 0
    epochs: Sequence[Json] = ()
    network: ModelInfo | None = None
    trace: RecordedTrace | None = None

    @property
    def model(self) -> ModelInfo:
        """The model. Raises `ConfigError` where a clock that needs it is asked for without."""
        if not self.network:
            raise ConfigError(
                "clock: this method's messages and seconds depend on the model, which "
                "Experiment.timeline() has"
            )
        return self.network


def slowed(inputs: ClockInputs, methods: "MethodStack") -> Cluster:
    """Returns the cluster, whose seconds an example are those of the methods' own gradient."""
    cluster, gradient = inputs.setup.cluster, methods.gradient
    if not (gradient and gradient.slower and inputs.network):
        return cluster
    by = gradient.slower(inputs.setup, inputs.network)
    return cluster.with_(seconds_per_example=cluster.seconds_per_example * by)


@dataclass(frozen=True)
class Method(Value, section="method", union=True):
    """A way of parallelising SGD: a frozen dataclass whose fields are its numbers.

    It derives from `Gradients`, `Reads` or `Mixes`, by the piece of plain SGD that it replaces, or
    from several of them; `sync` replaces none. A field on which the update rule depends is
    `static`, so that another value makes another program. The clock alone sees the others.
    """

    pieces: ClassVar[tuple[str, ...]] = ()  # of MEANING, that it replaces
    laws: ClassVar[tuple[str, ...]] = DRAWN  # of config.cluster.service, that its clock knows
    cluster: ClassVar[tuple[str, ...]] = ()  # of OPTIONAL, likewise
    info: ClassVar[tuple[str, ...]] = ()  # what its updates say of themselves, for the log to sum

    def __new__(cls, *args: Any, **given: Any) -> Self:
        if args:
            raise ConfigError(f"{cls.__name__}: its fields are given by name")
        return super().__new__(cls, **given)

    @property
    def name(self) -> str:
        """What it is called in a config; of one's own class MODULE:NAME."""
        return self.tag or name_of(type(self))

    def __add__(self, other: "Method | MethodStack") -> "MethodStack":
        """Both joined, `DiLoCo(period=8) + Local()`."""
        return MethodStack.wrap(self) + other

    def clock(self, inputs: ClockInputs, methods: "MethodStack") -> Timeline:
        """The timeline of an experiment, where this method is the outermost of `methods`.

        Raises `TimelineError` where there is none.
        """
        raise NotImplementedError

    def with_recorded(self, line: Timeline, trace: RecordedTrace, setup: Setup) -> Timeline:
        """The timeline of a replay, of whose nodes all are there, with what its trace alone knows.

        Raises `TimelineError`.
        """
        return line

    def joins(self, setup: Setup, methods: "MethodStack") -> Iterator[Join]:
        """What of the rest of the experiment the method cannot run with, a row for each."""
        yield from ()

    def report(self, setup: Setup, network: ModelInfo) -> Mapping[str, object]:
        """What `summary.json` says of the method, by key."""
        return {}

    def timeline_depends_on_log(self, setup: Setup) -> bool:
        """Whether the log of past epochs decides the timeline of the next."""
        return False

    def extra_metrics(self, problem: Problem) -> Callable[..., dict[str, jax.Array]] | None:
        """What log points measure besides: `(params, train, test) -> {name: scalar}`, or None."""

    def static_part(self) -> Self:
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
    reduces_itself: ClassVar[bool] = False  # over the devices of `data`: parts may be uneven
    staged: ClassVar[bool] = False  # the cluster's nodes are stages, none has all parameters
    # Optional, with their arguments:
    # (problem) -> {block: number of its server}, if blocks have servers of their own
    servers: ClassVar[Callable[..., Mapping[str, int]] | None] = None
    # (inputs, draws) -> each device's seconds, plan
    work: ClassVar[Callable[..., tuple[np.ndarray, Plan]] | None] = None
    # (setup, network) -> its seconds over those of plain SGD's
    slower: ClassVar[Callable[..., float] | None] = None
    # (problem, optimizer, nodes, devices) -> on real devices, if not like all others
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
    """A method that says at which parameters a gradient is taken.

    Its groups race on real workers (`race`) if it has `order` and `message`. A group is given what
    the state is `at` the slot that it reads, and the server's step takes its message in place of
    the batch.
    """

    pieces: ClassVar[tuple[str, ...]] = ("read",)
    single: ClassVar[bool] = True  # an update is of one gradient, of the whole batch
    barrier: ClassVar[bool] = True  # the workers wait for one another at every update
    workers: ClassVar[bool] = False  # every group has parameters of its own (`workers.py`)
    gathers: ClassVar[bool] = False  # not every arrival is an update
    # (setup, methods, timeline) -> who reads when, written into the timeline
    order: ClassVar[Callable[..., "ArrivalOrder"] | None] = None
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

    def mix(self, inner: Rule[NodeState], collectives: Collectives) -> Rule:
        """The rule of all nodes, around `inner`, the rule of a node by itself.

        It asks the other nodes by the `collectives`, whatever the nodes are made of.
        """
        raise NotImplementedError

    def sends(self, params: Params) -> Sends | None:
        """What a node sends after every update; None: it sends at other times."""
        return None

    def joined(self, other: "Mixes") -> "Mixes | None":
        """Both methods as one; None if they do not go together."""
        return None

    def why_no_overlap(self) -> str:
        """Why `config.parallel.api=overlap` cannot carry its exchange; '' if it can."""
        return "exchanges otherwise than by sums"


M = TypeVar("M", bound=Method)
PLAIN, GROUPED = "sync", "asynchronous"  # the limit of all methods; groups that arrive alone
PACKAGE = "optdyn.methods"
KEY = "config.method.name"


@cache
def built_in() -> tuple[str, ...]:
    """The names of the built-in methods, plain SGD's first."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        import_module(f"{PACKAGE}.{module.name}")
    here = [name for name, one in Method.members.items() if one.__module__.startswith(PACKAGE)]
    return (PLAIN, *sorted({*here} - {PLAIN}))


def load(name: str) -> type[Method]:
    """The method called `name`: a built-in one, or MODULE:NAME of the user's own file.

    Raises `ConfigError` if there is none.
    """
    if name in built_in():
        return Method.members[name]  # type: ignore[return-value]
    found = lookup.find(KEY, name, dict.fromkeys(built_in()), meant_method)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(
            f"config.method.name = {name!r}: must be a Method of optdyn.methods, and is "
            f"{short_repr(found)}"
        )
    return found


def _in_section(section: str, text: object) -> str:
    """The text, which names the keys of one of several methods by its section."""
    where = f"config.method.{section}"
    return re.sub(r"config\.method\b(?!\.name\b|\.\w+\.\w)", where, str(text))


@dataclass(frozen=True)
class MethodStack:
    """The methods of an experiment, joined by '+' in their name."""

    name: str
    members: tuple[Method, ...]

    @classmethod
    def wrap(cls, given: Any) -> Any:
        """One method as methods; others as they are."""
        return cls(given.name, (given,)) if isinstance(given, Method) else given

    @classmethod
    def named(cls, name: str) -> "MethodStack":
        """The methods joined by '+' in `name`, with their defaults.

        Raises `ConfigError` for an unknown name, or if they do not go together.
        """
        return cls(name, tuple(load(part)() for part in name.split("+"))).checked()

    def __add__(self, other: "Method | MethodStack") -> "MethodStack":
        more = MethodStack.wrap(other)
        if not isinstance(more, MethodStack):
            raise ConfigError(wrong_type_line("method", other, Method))
        return MethodStack(f"{self.name}+{more.name}", (*self.members, *more.members)).checked()

    def checked(self) -> Self:
        """The same. Raises `ConfigError` if they do not go together."""
        where, taken = f"{KEY} = {self.name!r}", dict[str, str]()
        for part, method in zip(self.name.split("+"), self.members, strict=True):
            for piece in method.pieces:
                if piece in taken and not (piece == "mix" and self.mix):
                    said = f"{taken[piece]} and {part} both say {MEANING[piece]}"
                    raise ConfigError(f"{where}: {said}, of which there is one")
                taken[piece] = part
        gradient, read, mix = (taken.get(piece) for piece in MEANING)
        if self.reduces_itself and self.grouped:
            said = f"{gradient} divides the work of workers that wait for one another"
            raise ConfigError(f"{where}: {said}, and those of {read} do not")
        if self.gradient and self.gradient.staged and self.mix:
            said = f"{gradient} cuts one model over the nodes"
            raise ConfigError(f"{where}: {said}, and those of {mix} have a model each")
        return self

    def joins(self, setup: Setup) -> Iterator[Join]:
        """What of the rest of the experiment the methods cannot run with, a row for each."""
        for section, method in self.by_section.items():
            for join in method.joins(setup, self):
                if len(self.members) == 1:
                    yield join
                    continue
                key = _in_section(section, f"config.{join.key}").removeprefix("config.")
                yield join._replace(key=key, message=_in_section(section, join.message))
        if self.outermost not in self.members:
            yield from self.outermost.joins(setup, self)

    @property
    def sections(self) -> tuple[str, ...]:
        """Returns what the keys of each method begin with, where there are several."""
        return tuple(part.rpartition(":")[2] for part in self.name.split("+"))

    def to_dict(self) -> Json:
        """The section of a config: the keys of one method, or of each a section."""
        keys = [{k: plain(getattr(one, k)) for k in one.field_table()} for one in self.members]
        inner = keys[0] if len(keys) == 1 else dict(zip(self.sections, keys, strict=True))
        return {"name": self.name, **inner}

    def changed(self, changes: Mapping[str, Any]) -> "MethodStack":
        """A copy with other values of some keys; another `name` is other methods.

        Raises `ConfigError` for a key that there is not.
        """
        whole, inner = split_nested(changes)
        name = whole.pop("name", self.name)
        if not isinstance(name, str):
            raise ConfigError(
                f"{KEY} = {short_repr(name)}: must be a name, or several joined by '+'"
            )
        name = str(name)  # of a `Text`
        its = self if name == self.name else MethodStack.named(name)
        if len(its.members) == 1:
            return MethodStack(name, (cast(Method, its.members[0].changed(whole | inner)),))
        for key in list(whole):
            if key in its.sections and isinstance(whole[key], Mapping):
                inner[key] = whole.pop(key) | inner.get(key, {})
        for key in (*whole, *inner):
            if key not in its.sections or key in whole:
                theirs = [f"config.method.{s}.{key}" for s in its.having(key)]
                known = [f"{s}.{k}" for s, m in its.by_section.items() for k in m.field_table()]
                hint = f"; say {' or '.join(theirs)}" if theirs else did_you_mean(key, known)
                raise ConfigError(f"config.method.{key}: {name!r} has no such key{hint}")
        every: list[Any] = []
        for section, method in its.by_section.items():
            try:
                every.append(method.changed(inner.get(section, {})))
            except ConfigError as error:
                raise ConfigError(_in_section(section, error)) from error
        return MethodStack(name, tuple(every))

    @property
    def by_section(self) -> dict[str, Method]:
        """The methods by their `sections`."""
        return dict(zip(self.sections, self.members, strict=True))

    def having(self, key: str) -> list[str]:
        """The sections of the methods that have a key."""
        return [section for section, one in self.by_section.items() if key in one.field_table()]

    def with_keys(self, values: Mapping[str, Any]) -> "MethodStack":
        """A copy with these values in the methods that have such keys; others are left out."""
        changes = {
            f"{section}.{key}" if len(self.members) > 1 else key: value
            for key, value in values.items()
            for section in self.having(key)
        }
        return self.changed(changes)

    def key(self, name: str) -> str:
        """The key of a config, dotted, that a field of one of the methods is."""
        joined = len(self.members) > 1 and self.having(name)
        return f"method.{self.having(name)[0]}.{name}" if joined else f"method.{name}"

    @property
    def gradient(self) -> Gradients | None:
        """The method that says how a gradient is taken, if one does."""
        return next((m for m in self.members if isinstance(m, Gradients)), None)

    @property
    def read(self) -> Reads | None:
        """The method that says at which parameters a gradient is taken, if one does."""
        return next((m for m in self.members if isinstance(m, Reads)), None)

    @property
    def mix(self) -> Mixes | None:
        """The method that says what nodes exchange, or two of them as one, if any does."""
        mixes = [m for m in self.members if isinstance(m, Mixes)]
        if len(mixes) == 2:
            one, other = mixes
            return one.joined(other) or other.joined(one)
        return mixes[0] if len(mixes) == 1 else None

    @property
    def outermost(self) -> Method:
        """The method whose clock counts."""
        return self.mix or self.read or self.gradient or self.members[0]

    @property
    def plain(self) -> bool:
        """Whether every piece is plain SGD's."""
        return not any(method.pieces for method in self.members)

    @property
    def reduces_itself(self) -> bool:
        """Whether the gradient reduces itself over devices."""
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
    def grouped(self) -> bool:
        """Whether groups arrive by themselves; else all workers wait for one another."""
        return bool(self.read and not self.read.barrier)

    @property
    def groups(self) -> int:
        """The number of groups that arrive by themselves; 1 if all wait for one another."""
        return self.get("groups", 1) if self.grouped else 1

    @property
    def stages(self) -> bool:
        """Whether the cluster's nodes are stages, over which the blocks are spread."""
        own = self.read in (None, self.gradient) and not self.mix
        return bool(self.gradient and self.gradient.layout and own)

    @property
    def inside(self) -> "MethodStack":
        """The methods of a node by itself: all that do not mix."""
        return MethodStack(self.name, tuple(m for m in self.members if not isinstance(m, Mixes)))

    @property
    def static_part(self) -> "MethodStack":
        """The methods as a program sees them (`Method.static_part`)."""
        return MethodStack(self.name, tuple(method.static_part() for method in self.members))

    def of(self, kind: type[M]) -> M:
        """The method of that type. Raises `LookupError` if there is none."""
        for method in self.members:
            if isinstance(method, kind):
                return method
        raise LookupError(f"{self.name} has no {kind.__name__}")

    def get(self, key: str, usual: Any) -> Any:
        """The value of the field `key` in the first method that has it, else `usual`."""
        found = (getattr(method, key) for method in self.members if hasattr(method, key))
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

    def timeline_depends_on_log(self, setup: Setup) -> bool:
        """Whether the log decides the timeline, so that a run cannot have it beforehand."""
        return any(method.timeline_depends_on_log(setup) for method in self.members)

    def timeline(self, setup: Setup, **known: Any) -> Timeline:
        """The timeline of a run, as far as its past epochs decide it.

        `known` are the fields of `ClockInputs` besides the setup. Raises `TimelineError`.
        """
        clock = self.outermost.clock
        if not isinstance(setup.cluster.service, Trace):
            return clock(ClockInputs(setup, **known), self)
        # For what is asked for besides: seconds, and who is there, are the file's.
        replay = setup.with_({"cluster.service.name": "constant", "cluster.presence": 0.0})
        trace = read_trace(
            setup.cluster.service.path, setup.steps * max(known.get("replicas", 0), 1)
        )
        line = clock(ClockInputs(replay, trace=trace, **known), self)
        return check_replay(trace, self.outermost.with_recorded(line, trace, setup))


def seen(name: str) -> MethodStack | None:
    """The methods of a run that is read here; None if a file of theirs is not, or not run yet."""
    own = [part for part in str(name).split("+") if lookup.is_user_name(part)]
    if not all(lookup.was_found(KEY, part) or lookup.is_on_command_line(KEY, part) for part in own):
        return None
    try:
        return MethodStack.named(name) if own else _built(name)
    except ConfigError:
        return None


_built = lru_cache(maxsize=256)(MethodStack.named)  # built-in methods stay what they are


ABOVE_0: Known = {"expected": "above 0", "is_valid": lambda v: 0 < v < math.inf}
FRACTION: Known = {"expected": "from 0 to 1", "is_valid": lambda v: 0 <= v <= 1}


@dataclass(frozen=True)
class MergedServer(Method):
    fresh: tuple[str, ...] = field(
        (), "Blocks of a merged server, which groups read fresh.", static=True
    )


@dataclass(frozen=True)
class Periodic(Method):
    period: int = field(
        8,
        "H, updates from one exchange to the next: of nodes that meet, of a worker, or of the "
        "fastest worker.",
        at_least=1,
    )


@dataclass(frozen=True)
class Fragmented(Method):
    fragments: int = field(1, "Fragments of the parameters, which take turns.", static=True)
    delay: int = field(0, "tau, updates from the sending of a fragment to its receipt.")


@dataclass(frozen=True)
class Compressed(Method):
    compression: str = field(
        "",
        "Of messages, 'bfloat16', 'top_k', 'sign', 'powersgd'; of gossip and asynchronous the "
        "second and the third.",
        one_of=COMPRESSIONS,
        static=True,
    )
    compression_share: float = field(
        0.01, "top_k: share of an array's numbers that are sent.", **PART, static=True
    )
    compression_rank: int = field(
        2, "powersgd: r, columns of the two factors of a matrix.", at_least=1, static=True
    )
    compression_bits: int = field(
        WHOLE,
        "compression: b, bits of a number that is sent, also of those of top_k; 32: as they are.",
        expected="from 2 to 8, or 32",
        is_valid=lambda v: 2 <= v <= 8 or v == WHOLE,
        static=True,
    )
    compression_block: int = field(
        128, "compression_bits: numbers that have a scale of their own.", at_least=1, static=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = f"{WHOLE} with config.method.compression = {self.compression!r}"
        whole = self.compression_bits == WHOLE or self.compression in OF_BITS
        self.require("compression_bits", whole, expected)

    def compressed(self) -> Compression | None:
        """What messages go through."""
        return compressor(
            self.compression,
            self.compression_share,
            self.compression_rank,
            self.compression_bits,
            self.compression_block,
        )


@dataclass(frozen=True)
class OuterRate(Method):
    outer_learning_rate: float = field(0.7, "Learning rate of the outer step.", **ABOVE_0)


@dataclass(frozen=True)
class OuterMomentum(OuterRate):
    outer_momentum: float = field(0.9, "Momentum of the outer step.", at_least=0, below=1)


@dataclass(frozen=True)
class OnGraph(Method):
    graph: str = field(
        "ring",
        "Who exchanges with whom, 'ring' or 'complete'; the first two "
        "also 'exponential', 'one_peer', 'random', gossip 'push'.",
    )


@dataclass(frozen=True)
class MicroBatches(Method):
    micro_batches: int = field(
        4,
        "local, backprop on several nodes, or stale_pipeline, 2bw: parts of a batch in turn.",
        at_least=1,
        static=True,
    )
