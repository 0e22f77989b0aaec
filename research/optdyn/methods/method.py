"""A method: the pieces of plain SGD that a way of parallelising replaces, and its clock.

A method derives from `Gradients`, `Reads` or `Mixes`. Methods that replace different pieces combine
(`MethodStack`): `daso+dynamic_batch` is DASO whose nodes divide their batch by speed.
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
from optdyn.base.errors import ConfigError, Join, did_you_mean, one_of_these, short_repr
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
    FULL_BITS,
    QUANTIZABLE,
    Collectives,
    Compression,
    bfloat16,
    powersgd,
    quantized,
    quantizer,
    sign,
    top_k,
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

# Keys of the cluster that a clock knows only if its method lists them, with words for each.
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


Servers = Mapping[str, int] | None  # the number of each block's server; None: one server


class ModelInfo(NamedTuple):
    """The model, for clocks whose seconds depend on it."""

    problem: Problem
    params: Params
    examples: Examples  # at least one


class ClockInputs(NamedTuple):
    """All that a clock may know; it never sees losses of the running epoch."""

    setup: Setup
    steps_per_epoch: int
    update_bytes: int  # size of the parameters
    replicas: int = 0  # 0: one run
    epochs: Sequence[Json] = ()  # the log line at the end of each past epoch
    model_info: ModelInfo | None = None
    trace: RecordedTrace | None = None  # the recorded run that is replayed

    @property
    def model(self) -> ModelInfo:
        """Returns the model. Raises `ConfigError` where there is none."""
        if not self.model_info:
            raise ConfigError(
                "clock: this method's messages and seconds depend on the model, which "
                "Experiment.timeline() has"
            )
        return self.model_info


def slowed(inputs: ClockInputs, methods: "MethodStack") -> Cluster:
    """Returns the cluster with the seconds per example of the gradient method, if there is one."""
    cluster, gradient = inputs.setup.cluster, methods.gradient
    if not (gradient and gradient.relative_cost and inputs.model_info):
        return cluster
    ratio = gradient.relative_cost(inputs.setup, inputs.model_info)
    return cluster.with_(seconds_per_example=cluster.seconds_per_example * ratio)


@dataclass(frozen=True)
class Method(Value, section="method", union=True):
    """A way of parallelising SGD: a frozen dataclass whose fields are its numbers.

    A field on which the update rule depends is `static`, so that another value makes another
    program. The clock alone sees the others.
    """

    pieces: ClassVar[tuple[str, ...]] = ()  # keys of MEANING: the pieces that it replaces
    laws: ClassVar[tuple[str, ...]] = DRAWN  # names of config.cluster.service that its clock knows
    cluster: ClassVar[tuple[str, ...]] = ()  # keys of OPTIONAL that its clock knows
    info: ClassVar[tuple[str, ...]] = ()  # values that its step returns and the log sums

    def __new__(cls, *args: Any, **values: Any) -> Self:
        if args:
            raise ConfigError(f"{cls.__name__}: its fields are given by name")
        return super().__new__(cls, **values)

    @property
    def name(self) -> str:
        """The method's name in a config; MODULE:NAME for a class of the user's."""
        return self.tag or name_of(type(self))

    def __add__(self, other: "Method | MethodStack") -> "MethodStack":
        """Joins both, `DiLoCo(period=8) + Local()`."""
        return MethodStack.wrap(self) + other

    def clock(self, inputs: ClockInputs, methods: "MethodStack") -> Timeline:
        """Returns the timeline if this method is the outermost. Raises `TimelineError`."""
        raise NotImplementedError

    def with_recorded(self, line: Timeline, trace: RecordedTrace, setup: Setup) -> Timeline:
        """Returns the timeline of a replay, with what the clock cannot know and the trace says.

        `line` is the clock at the recorded seconds, with nobody away. Raises `TimelineError`.
        """
        return line

    def joins(self, setup: Setup, methods: "MethodStack") -> Iterator[Join]:
        """Yields a row for each value of the experiment that the method cannot run with."""
        yield from ()

    def report(self, setup: Setup, model_info: ModelInfo) -> Mapping[str, object]:
        """Returns what `summary.json` says of the method, by key."""
        return {}

    def timeline_depends_on_log(self, setup: Setup) -> bool:
        """Returns whether the log of past epochs decides the timeline of the next."""
        return False

    def extra_metrics(self, problem: Problem) -> Callable[..., dict[str, jax.Array]] | None:
        """Returns `(params, train, test) -> {name: scalar}`, measured at log points, or None."""

    def static_part(self) -> Self:
        """Returns the method as a program sees it: fields that are not `static` are None."""
        method = object.__new__(type(self))
        for entry in fields(self):
            value = getattr(self, entry.name) if entry.metadata.get("static", True) else None
            object.__setattr__(method, entry.name, value)
        return method


@dataclass(frozen=True)
class Gradients(Method):
    """A method that says how a gradient is taken."""

    pieces: ClassVar[tuple[str, ...]] = ("gradient",)
    reduces_itself: ClassVar[bool] = False  # over the axis `data`: devices' parts may be uneven
    staged: ClassVar[bool] = False  # the cluster's nodes are stages of one model
    # Methods that a subclass may have; None where it has not. `Any` is self.
    # Returns the number of the server that keeps each block.
    servers: ClassVar[Callable[[Any, Problem], Mapping[str, int]] | None] = None
    # (steps, nodes, devices) draws of unit mean -> seconds of each device, and the plan
    work: ClassVar[Callable[[Any, ClockInputs, np.ndarray], tuple[np.ndarray, Plan]] | None] = None
    # Returns the seconds of a gradient over those of plain SGD's.
    relative_cost: ClassVar[Callable[[Any, Setup, ModelInfo], float] | None] = None
    # (problem, optimizer, nodes, devices) -> its layout over real devices
    layout: ClassVar[Callable[..., "Layout"] | None] = None
    # Returns a worker's part of the gradient by itself, to be timed.
    worker_part: ClassVar[Callable[[Any, Problem], Callable[..., Tree]] | None] = None

    def gradient(self, problem: Problem) -> Gradient:
        """Returns `(params, event, batch) -> loss, grads`, means over one device's part."""
        raise NotImplementedError

    def heads(self, blocks: Blocks) -> Sequence[str]:
        """Returns the names of the blocks that need an auxiliary head."""
        return ()

    def parts(self, stages: int) -> int:
        """Returns into how many micro-batches a device's batch is cut on so many stages."""
        return 1


@dataclass(frozen=True)
class Reads(Method):
    """A method that says at which parameters a gradient is taken.

    Its groups race on real workers (`race`) if it has `order` and `message`. A worker is sent
    `state.read_slot(slot)`, and the server's step takes the worker's message in place of the batch.
    """

    pieces: ClassVar[tuple[str, ...]] = ("read",)
    single: ClassVar[bool] = True  # an update is one gradient, of the whole batch
    barrier: ClassVar[bool] = True  # the workers wait for one another at every update
    has_worker_params: ClassVar[bool] = False  # each group has its parameters (`workers.py`)
    gathers: ClassVar[bool] = False  # some arrivals only add to a later update
    # Methods that a subclass may have; None where it has not. `Any` is self.
    # Returns what writes the order of a race's arrivals into the timeline.
    order: ClassVar[Callable[[Any, Setup, "MethodStack", Timeline], "ArrivalOrder"] | None] = None
    # Returns (what the worker was sent, hyper, batch of (B,) numbers, (n, B) numbers) -> message.
    message: ClassVar[Callable[[Any, Gradient, Update], Callable[..., Tree]] | None] = None

    def read(self, gradient: Gradient, update: Update, slots: int, servers: Servers) -> Rule:
        """Returns the rule over a table of `slots` versions."""
        raise NotImplementedError


class NodeMessage(NamedTuple):
    """A node's message after an update."""

    bytes: float
    gathered: bool  # it goes to all other nodes; else messages are added up on their way


@dataclass(frozen=True)
class Mixes(Method):
    """A method that says what nodes exchange, each of which has parameters."""

    pieces: ClassVar[tuple[str, ...]] = ("mix",)

    @property
    def cycle(self) -> int:
        """Updates after which the meetings of nodes repeat."""
        return 1

    def mix(self, inner: Rule[NodeState], collectives: Collectives) -> Rule:
        """Returns the rule of a node that exchanges by `collectives`, around its `inner` rule."""
        raise NotImplementedError

    def update_message(self, params: Params) -> NodeMessage | None:
        """Returns what a node sends after every update; None: it sends at other times."""
        return None

    def combined_with(self, other: "Mixes") -> "Mixes | None":
        """Returns both methods as one; None if they do not go together."""
        return None

    def why_no_overlap(self) -> str:
        """Returns why `config.parallel.api=overlap` cannot do its exchange; '' if it can."""
        return "exchanges otherwise than by sums"

    def joins(self, setup: Setup, methods: "MethodStack") -> Iterator[Join]:
        cluster, devices = setup.cluster, setup.cluster.worker_count
        yield Join(
            "batch_size",
            setup.batch_size % devices,
            f"must be a multiple of the cluster's {devices} devices (config.cluster.nodes x "
            "config.cluster.devices_per_node)",
        )
        for key in ("regions", "diurnal", "presence"):
            reason = (
                f"excludes config.method.name = {methods.name!r}, whose nodes have groups inside"
            )
            yield Join(f"cluster.{key}", methods.read and getattr(cluster, key), reason)
        linked = cluster.regions and (cluster.latencies or cluster.bandwidths)
        yield Join("cluster.regions", linked, "excludes cluster.latencies and cluster.bandwidths")
        reason = "must be 0 where nodes exchange, as there is no server"
        yield Join("cluster.server_bandwidth", cluster.server_bandwidth, reason)


M = TypeVar("M", bound=Method)
PLAIN, GROUPED = "sync", "asynchronous"
PACKAGE = "optdyn.methods"
KEY = "config.method.name"


@cache
def built_in() -> tuple[str, ...]:
    """Returns the names of the built-in methods, plain SGD's first."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        import_module(f"{PACKAGE}.{module.name}")
    names = {name for name, kind in Method.members.items() if kind.__module__.startswith(PACKAGE)}
    return (PLAIN, *sorted(names - {PLAIN}))


def load(name: str) -> type[Method]:
    """Returns a built-in method, or that of MODULE:NAME. Raises `ConfigError` if there is none."""
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
    """Returns the text with the keys of one of several methods named by its section."""
    where = f"config.method.{section}"
    return re.sub(r"config\.method\b(?!\.name\b|\.\w+\.\w)", where, str(text))


@dataclass(frozen=True)
class MethodStack:
    """The methods of an experiment, joined by '+' in their name."""

    name: str
    members: tuple[Method, ...]

    @classmethod
    def wrap(cls, value: Any) -> Any:
        """Returns a stack of one method; values other than a method as they are."""
        return cls(value.name, (value,)) if isinstance(value, Method) else value

    @classmethod
    def named(cls, name: str) -> "MethodStack":
        """Returns the methods joined by '+' in `name`, as by default. Raises `ConfigError`."""
        return cls(name, tuple(load(part)() for part in name.split("+"))).checked()

    def __add__(self, other: "Method | MethodStack") -> "MethodStack":
        more = MethodStack.wrap(other)
        if not isinstance(more, MethodStack):
            raise ConfigError(wrong_type_line("method", other, Method))
        return MethodStack(f"{self.name}+{more.name}", (*self.members, *more.members)).checked()

    def checked(self) -> Self:
        """Returns the stack itself. Raises `ConfigError` if its methods do not go together."""
        where, names = f"{KEY} = {self.name!r}", dict[str, str]()
        for part, method in zip(self.name.split("+"), self.members, strict=True):
            for piece in method.pieces:
                if piece in names and not (piece == "mix" and self.mix):
                    both = f"{names[piece]} and {part} both say {MEANING[piece]}"
                    raise ConfigError(f"{where}: {both}; keep one of them")
                names[piece] = part
        gradient, read, mix = (names.get(piece) for piece in MEANING)
        if self.reduces_itself and self.grouped:
            raise ConfigError(
                f"{where}: {gradient} divides the work of workers that wait for one another, and "
                f"those of {read} do not"
            )
        if self.gradient and self.gradient.staged and self.mix:
            raise ConfigError(
                f"{where}: {gradient} cuts one model over the nodes, and those of {mix} have a "
                "model each"
            )
        return self

    def joins(self, setup: Setup) -> Iterator[Join]:
        """Yields a row for each value of the experiment that the methods cannot run with."""
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
        """The section below `config.method` of each method, where there are several."""
        return tuple(part.rpartition(":")[2] for part in self.name.split("+"))

    def to_dict(self) -> Json:
        """Returns `config.method`: the keys of one method, or a section for each of several."""
        keys = [{k: plain(getattr(one, k)) for k in one.field_table()} for one in self.members]
        inner = keys[0] if len(keys) == 1 else dict(zip(self.sections, keys, strict=True))
        return {"name": self.name, **inner}

    def changed(self, changes: Mapping[str, Any]) -> "MethodStack":
        """Returns a copy with other values of keys, `name` among them. Raises `ConfigError`."""
        whole, inner = split_nested(changes)
        name = whole.pop("name", self.name)
        if not isinstance(name, str):
            raise ConfigError(
                f"{KEY} = {short_repr(name)}: must be a name, or several joined by '+'"
            )
        name = str(name)  # of a `Text`
        stack = self if name == self.name else MethodStack.named(name)
        if len(stack.members) == 1:
            return MethodStack(name, (cast(Method, stack.members[0].changed(whole | inner)),))
        for key in list(whole):
            if key in stack.sections and isinstance(whole[key], Mapping):
                inner[key] = whole.pop(key) | inner.get(key, {})
        for key in (*whole, *inner):
            if key not in stack.sections or key in whole:
                meanings = [f"config.method.{s}.{key}" for s in stack.sections_with(key)]
                known = [f"{s}.{k}" for s, m in stack.by_section.items() for k in m.field_table()]
                hint = f"; say {' or '.join(meanings)}" if meanings else did_you_mean(key, known)
                raise ConfigError(f"config.method.{key}: {name!r} has no such key{hint}")
        members: list[Any] = []
        for section, method in stack.by_section.items():
            try:
                members.append(method.changed(inner.get(section, {})))
            except ConfigError as error:
                raise ConfigError(_in_section(section, error)) from error
        return MethodStack(name, tuple(members))

    @property
    def by_section(self) -> dict[str, Method]:
        return dict(zip(self.sections, self.members, strict=True))

    def sections_with(self, key: str) -> list[str]:
        return [section for section, one in self.by_section.items() if key in one.field_table()]

    def with_keys(self, values: Mapping[str, Any]) -> "MethodStack":
        """Returns a copy with these values in the methods that have such keys, and in no other."""
        changes = {
            f"{section}.{key}" if len(self.members) > 1 else key: value
            for key, value in values.items()
            for section in self.sections_with(key)
        }
        return self.changed(changes)

    def key(self, name: str) -> str:
        """Returns the dotted key in a config of a field of one of the methods."""
        sections = self.sections_with(name) if len(self.members) > 1 else ()
        return f"method.{sections[0]}.{name}" if sections else f"method.{name}"

    @property
    def gradient(self) -> Gradients | None:
        return next((m for m in self.members if isinstance(m, Gradients)), None)

    @property
    def read(self) -> Reads | None:
        return next((m for m in self.members if isinstance(m, Reads)), None)

    @property
    def mix(self) -> Mixes | None:
        """The method that says what nodes exchange, two of them combined, or None."""
        mixes = [m for m in self.members if isinstance(m, Mixes)]
        if len(mixes) == 2:
            one, other = mixes
            return one.combined_with(other) or other.combined_with(one)
        return mixes[0] if len(mixes) == 1 else None

    @property
    def outermost(self) -> Method:
        """The method whose clock is the experiment's."""
        return self.mix or self.read or self.gradient or self.members[0]

    @property
    def plain(self) -> bool:
        """True if no method replaces a piece of plain SGD."""
        return not any(method.pieces for method in self.members)

    @property
    def reduces_itself(self) -> bool:
        return bool(self.gradient and self.gradient.reduces_itself)

    @property
    def by_block(self) -> bool:
        """True if blocks learn by themselves, each on a server."""
        return bool(self.gradient and self.gradient.servers)

    def servers(self, problem: Problem) -> Servers:
        """Returns the number of each block's server, if blocks learn by themselves; else None."""
        servers = self.gradient and self.gradient.servers
        return servers(problem) if servers else None

    @property
    def simple(self) -> bool:
        """True if an update is one gradient of the whole batch, at one set of parameters."""
        other = self.read and (self.read.has_worker_params or not self.read.single)
        return not self.mix and not self.gradient and not other

    @property
    def shared(self) -> bool:
        """True if every arrival updates one set of parameters, of which groups read versions."""
        return not (self.read and (self.read.has_worker_params or self.read.gathers))

    @property
    def grouped(self) -> bool:
        """True if groups arrive by themselves; else all workers wait for one another."""
        return bool(self.read and not self.read.barrier)

    @property
    def groups(self) -> int:
        """The number of groups that arrive by themselves; 1 if all wait for one another."""
        return self.get("groups", 1) if self.grouped else 1

    @property
    def stages(self) -> bool:
        """True if the cluster's nodes are stages, over which the blocks are spread."""
        by_itself = self.read in (None, self.gradient) and not self.mix
        return bool(self.gradient and self.gradient.layout and by_itself)

    @property
    def inside(self) -> "MethodStack":
        """The methods of a node by itself: all that do not mix."""
        return MethodStack(self.name, tuple(m for m in self.members if not isinstance(m, Mixes)))

    @property
    def static_part(self) -> "MethodStack":
        return MethodStack(self.name, tuple(method.static_part() for method in self.members))

    def of(self, kind: type[M]) -> M:
        """Returns the method of that type. Raises `LookupError` if there is none."""
        for method in self.members:
            if isinstance(method, kind):
                return method
        raise LookupError(f"{self.name} has no {kind.__name__}")

    def get(self, key: str, default: Any) -> Any:
        """Returns the field `key` of the first method that has it, else `default`."""
        found = (getattr(method, key) for method in self.members if hasattr(method, key))
        return next(found, default)

    def devices(self, setup: Setup) -> tuple[int, int]:
        """Returns how many nodes have parameters, and how many devices share a node's batch."""
        cluster = setup.cluster
        if self.plain:  # the cluster is only its clock
            return 1, setup.parallel.devices or jax.device_count()
        nodes = cluster.nodes if self.mix or self.stages else 1
        workers = cluster.worker_count
        return nodes, max(workers // nodes // self.groups, 1)

    def why_not_on_devices(self, setup: Setup) -> str:
        """Returns why `config.parallel.api` cannot run the methods; '' if it can."""
        api, (nodes, devices) = setup.parallel.api, self.devices(setup)
        if api == "jit" and self.reduces_itself:
            return "gives each worker a loop of another length, which 'jit' has not"
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
        return any(method.timeline_depends_on_log(setup) for method in self.members)

    def timeline(self, setup: Setup, **known: Any) -> Timeline:
        """Returns a run's timeline; `known` are fields of `ClockInputs`. Raises `TimelineError`."""
        clock = self.outermost.clock
        if not isinstance(setup.cluster.service, Trace):
            return clock(ClockInputs(setup, **known), self)
        # The seconds, and who is there, are replaced by those of the file.
        replay = setup.with_({"cluster.service.name": "constant", "cluster.presence": 0.0})
        trace = read_trace(
            setup.cluster.service.path, setup.steps * max(known.get("replicas", 0), 1)
        )
        line = clock(ClockInputs(replay, trace=trace, **known), self)
        return check_replay(trace, self.outermost.with_recorded(line, trace, setup))


def known_stack(name: str) -> MethodStack | None:
    """Returns the methods of a run that a report reads; None if a file of theirs is not loaded."""
    files = [part for part in str(name).split("+") if lookup.is_user_name(part)]
    if not all(
        lookup.was_found(KEY, part) or lookup.is_on_command_line(KEY, part) for part in files
    ):
        return None
    try:
        return MethodStack.named(name) if files else _built_in_stack(name)
    except ConfigError:
        return None


_built_in_stack = lru_cache(maxsize=256)(MethodStack.named)  # built-in methods do not change


ABOVE_0: Known = {"expected": "above 0", "is_valid": lambda v: 0 < v < math.inf}
FRACTION: Known = {"expected": "from 0 to 1", "is_valid": lambda v: 0 <= v <= 1}


@dataclass(frozen=True)
class MergedServer(Method):
    fresh: tuple[str, ...] = field(
        (), "Blocks that a merged server computes, so that groups read them fresh.", static=True
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
        "Message compression, 'bfloat16', 'top_k', 'sign' or 'powersgd'. "
        "gossip, asynchronous: 'top_k' or 'sign' only.",
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
        FULL_BITS,
        "b, bits of a number in a message, also with top_k; 32: uncompressed.",
        expected="from 2 to 8, or 32",
        is_valid=lambda v: 2 <= v <= 8 or v == FULL_BITS,
        static=True,
    )
    compression_block: int = field(
        128, "compression_bits: numbers that share a scale.", at_least=1, static=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = f"{FULL_BITS} with config.method.compression = {self.compression!r}"
        whole = self.compression_bits == FULL_BITS or self.compression in QUANTIZABLE
        self.require("compression_bits", whole, expected)

    def compressor(self) -> Compression | None:
        numbers = quantizer(self.compression_bits, self.compression_block)
        match self.compression:
            case "bfloat16":
                return bfloat16()
            case "top_k":
                return top_k(self.compression_share, numbers)
            case "sign":
                return sign()
            case "powersgd":
                return powersgd(self.compression_rank)
        return None if self.compression_bits == FULL_BITS else quantized(numbers)

    def compression_join(self, *known: str) -> Join:
        """Returns the row of a method that knows these compressions only."""
        reason = f"of {self.name} must be {one_of_these(self.compression, known)}"
        return Join("method.compression", self.compression not in known, reason)


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
        "Graph of who exchanges with whom: 'ring' or 'complete'; "
        "gossip, gasloc: also 'exponential', 'one_peer', 'random'; gossip: 'push'.",
    )

    def graph_join(self, *known: str) -> Join:
        """Returns the row of a method that knows these graphs only."""
        reason = f"must be {one_of_these(self.graph, known)}"
        return Join("method.graph", self.graph not in known, reason)


@dataclass(frozen=True)
class MicroBatches(Method):
    micro_batches: int = field(
        4,
        "local, backprop on several nodes, or stale_pipeline, 2bw: parts of a batch in turn.",
        at_least=1,
        static=True,
    )
