"""What a way of parallelising SGD puts in place of plain SGD's pieces, and what it asks for.

A method is a file with a `METHOD`. Methods that replace different pieces combine:
`daso+dynamic_batch` is DASO whose nodes divide their batch by speed. Pieces that no method
replaces are plain SGD's.
"""

import dataclasses
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from optdyn import named
from optdyn.experiment import Cluster, Experiment
from optdyn.fields import OPTIONS, Value, field, plain
from optdyn.problem import Examples, Params, Problem
from optdyn.strategies.base import Gradient, Strategy
from optdyn.timeline.base import Timeline
from optdyn.timeline.trace import Held, checked, read
from optdyn.timeline.versions import Order
from optdyn.values import ConfigError

PLAIN, GROUPED = "sync", "asynchronous"  # the limit of all methods; groups that arrive alone
PACKAGE = "optdyn.strategies"
PIECES = ("gradient", "read", "mix")
Keys = Mapping[str, Any]  # of config.strategy

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


class Network(NamedTuple):
    """What is trained, where a clock asks what an update of it costs."""

    problem: Problem
    params: Params
    examples: Examples  # one at least


class Setting(NamedTuple):
    """What a clock may know."""

    config: Experiment
    steps_per_epoch: int
    update_bytes: int
    replicas: int = 0
    epochs: Sequence[Mapping[str, Any]] = ()  # the log at the end of each past one
    network: Network | None = None
    held: Held | None = None  # a recorded run that is replayed: whose arrivals these are


def slowed(setting: Setting, methods: "Chosen") -> Cluster:
    """The cluster, where a gradient takes as long as the methods' own does."""
    cluster = setting.config.cluster
    if not (methods.gradient and methods.gradient.slower and setting.network):
        return cluster
    by = methods.gradient.slower(setting.config, setting.network)
    return cluster.with_(seconds_per_example=cluster.seconds_per_example * by)


class Racing(NamedTuple):
    """How the groups of a method race (`research/racing`).

    A group is given what the state is `at` the slot that it reads, and the server's step takes its
    message in place of the batch.
    """

    order: Callable[[Experiment, Timeline], Order]  # who reads when, written into the timeline
    # (gradient, update) -> (given, hyper, batch, numbers of its batches, (n, B)) -> message, where
    # `batch` makes one of (B,)
    work: Callable[..., Callable[..., Any]]


def nothing(*_: Any) -> Any:
    """What a method says that has nothing to say."""
    return ()


class Method(NamedTuple):
    """A way of parallelising SGD. Of the pieces it has one; the reference, `sync`, has none.

    `gradient(problem, keys) -> Gradient`, `read(gradient, update, keys, slots, servers) ->
    Strategy` and `mix(strategy, keys, senders) -> Strategy`; `keys` are those `compiled` of all
    methods that are chosen, `senders` the axis of a node's real devices that share what it sends.
    """

    keys: Keys = MappingProxyType({})  # of config.strategy, with their defaults
    compiled: tuple[str, ...] = ()  # those that the program depends on, not only the clock
    gradient: Callable[[Problem, Keys], Gradient] | None = None
    read: Callable[..., Strategy] | None = None
    mix: Callable[[Strategy, Keys, str | None], Strategy] | None = None
    # What the gradient is like.
    sums: bool = False  # itself, over the devices of `data`, whose parts of the batch may be uneven
    servers: Callable[[Problem], Mapping[str, int]] | None = None  # of each block, if by themselves
    staged: bool = False  # the cluster's nodes are its stages, and none has all parameters
    heads: Callable[[Any, Keys], Sequence[str]] = nothing  # blocks that need an auxiliary head
    # What it asks of the cluster.
    clock: Callable[["Setting", "Chosen"], Timeline] | None = None
    work: Callable[..., Any] | None = None  # (setting, draws) -> each device's seconds, choice
    slower: Callable[[Experiment, Network], float] | None = None  # a gradient, over plain SGD's
    laws: tuple[str, ...] = ()  # of config.cluster.service
    cluster: tuple[str, ...] = ()  # of OPTIONAL
    single: bool = True  # whether an update is of one gradient, of the whole batch
    barrier: bool = True  # whether the workers wait for one another at every update
    workers: bool = False  # whether every group has parameters of its own (`workers.py`)
    follows: Callable[[Experiment], bool] = lambda config: False  # the log decides its timeline
    # What it says of itself.
    values: Callable[[Experiment], None] = nothing  # of its keys; raises `ConfigError`
    check: Callable[[Experiment, "Chosen"], None] = nothing  # where it is chosen; likewise
    report: Callable[[Experiment, Network], Keys] = lambda config, network: {}  # in the summary
    info: tuple[str, ...] = ()  # what its updates say of themselves, which the log sums up
    probe: Callable[[Problem, Keys], Any] = lambda problem, keys: None  # (params, train, test)
    layout: Callable[..., Any] | None = None  # on real devices, if not like all others
    # Why the exchange of its nodes cannot leave the compiled loop; "" if it can.
    kept_inside: Callable[[Keys], str] = lambda keys: "exchanges otherwise than by sums"
    timed: Callable[[Problem, Keys], Any] | None = None  # a worker's part alone, to be timed
    race: Racing | None = None  # if its groups can be workers that race


class Chosen(NamedTuple):
    """The methods of a config, by what they replace."""

    name: str
    every: tuple[Method, ...]
    gradient: Method | None = None
    read: Method | None = None
    mix: Method | None = None

    @property
    def outermost(self) -> Method:
        """The one whose clock it is."""
        return self.mix or self.read or self.gradient or load(PLAIN)

    @property
    def sums(self) -> bool:
        return bool(self.gradient and self.gradient.sums)

    @property
    def simple(self) -> bool:
        """Whether an update is one gradient of the whole batch, of the one set of parameters."""
        own = self.read and (self.read.workers or not self.read.single)
        return not self.mix and not self.gradient and not own

    @property
    def shared(self) -> bool:
        """Whether groups share parameters, of which they read versions."""
        return not (self.read and self.read.workers)

    @property
    def stages(self) -> bool:
        """Whether the cluster's nodes are stages that blocks are spread over."""
        own = self.read in (None, self.gradient) and not self.mix
        return bool(self.gradient and self.gradient.layout and own)

    def keys(self, strategy: Any) -> dict[str, Any]:
        """Those of config.strategy that its program depends on."""
        return {
            key: plain(strategy.options.get(key, method.keys[key]))
            if own
            else getattr(strategy, key)
            for method in self.every
            for own in [method in self.own]
            for key in method.compiled
        }

    @property
    def own(self) -> tuple[Method, ...]:
        """Those of the user's own files, whose keys are in config.strategy.options."""
        names = self.name.split("+")
        return tuple(m for name, m in zip(names, self.every, strict=True) if ":" in name)


@cache
def _methods() -> Mapping[str, Method]:
    """Those of the files beside this one, plain SGD's first."""
    beside = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    files = {name: import_module(f"{PACKAGE}.{name}") for name in (PLAIN, *beside)}
    return {name: file.METHOD for name, file in files.items() if hasattr(file, "METHOD")}


def built_in() -> tuple[str, ...]:
    """Names of the files beside this one that have a `METHOD`, plain SGD's first."""
    return tuple(_methods())


def defaults() -> dict[str, Any]:
    """The default of every key of config.strategy, dotted."""
    values: dict[str, Any] = {"strategy.name": PLAIN, "strategy.options": OPTIONS}
    for method in _methods().values():
        values |= {f"strategy.{key}": value for key, value in method.keys.items()}
    return values


@cache
def _kind() -> type[Value]:
    named = {key.partition(".")[2]: value for key, value in defaults().items()}
    of = [(name, Any, field(usual, "")) for name, usual in named.items()]
    return dataclasses.make_dataclass("Strategy", of, bases=(_Strategy,), frozen=True)


class _Strategy(Value, section="strategy"):
    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (dict(vars(self)),)


def _again(keys: dict[str, Any]) -> Value:
    return value(**keys)


def value(**keys: Any) -> Value:
    """`config.strategy`, with defaults for the keys that are not given. Raises `ConfigError`."""
    return _kind()(**keys)


def load(name: str) -> Method:
    """The method called `name`: a built-in one, or MODULE:METHOD of a file of the user's own."""
    found = named.find("config.strategy.name", name, _methods())
    if not isinstance(found, Method):
        raise ConfigError(
            f"config.strategy.name = {name!r}: must be a Method of optdyn.strategies, and is "
            f"{named.shown(found)}"
        )
    return found


def chosen(name: str) -> Chosen:
    """The methods joined by '+' in `name`. Raises `ConfigError` if they do not go together."""
    names = str(name).split("+")
    every = tuple(load(part) for part in names)
    taken: dict[str, str] = {}
    for part, method in zip(names, every, strict=True):
        for piece in PIECES:
            if getattr(method, piece) is None:
                continue
            if piece in taken:
                raise ConfigError(
                    f"config.strategy.name = {name!r}: {taken[piece]} and {part} both say "
                    f"{MEANING[piece]}, of which there is one"
                )
            taken[piece] = part
    of = dict(zip(names, every, strict=True))
    found = Chosen(name, every, **{piece: of[part] for piece, part in taken.items()})
    if found.gradient and found.gradient.sums and found.read and not found.read.barrier:
        raise ConfigError(
            f"config.strategy.name = {name!r}: {taken['gradient']} divides the work of workers "
            f"that wait for one another, and those of {taken['read']} do not"
        )
    if found.gradient and found.gradient.staged and found.mix:
        raise ConfigError(
            f"config.strategy.name = {name!r}: {taken['gradient']} cuts one model over the nodes, "
            f"and those of {taken['mix']} have a model each"
        )
    return found


MEANING = {
    "gradient": "how a gradient is taken",
    "read": "which parameters it is taken at",
    "mix": "what nodes exchange",
}


def of_config(config: Experiment) -> Chosen:
    """The methods of `config.strategy`."""
    return chosen(config.strategy.name)


def groups_of(config: Experiment) -> int:
    """Groups that arrive by themselves: one where everybody waits for everybody."""
    return config.strategy.groups if arrives(config.strategy.name) else 1


def arrives(name: str) -> bool:
    """Whether methods of that name have groups that arrive by themselves."""
    methods = _seen(name)
    return bool(methods and methods.read and not methods.read.barrier)


def is_shared(name: str) -> bool:
    """Whether groups of methods of that name share parameters, of which they read versions."""
    methods = _seen(name)
    return bool(methods and methods.shared)


def is_simple(name: str) -> bool:
    """Whether an update of these methods is one gradient of the whole batch."""
    methods = _seen(name)
    return bool(methods and methods.simple)


def owns(name: str, key: str) -> bool:
    """Whether a key of config.strategy says something of methods of that name."""
    methods = _seen(name)
    return bool(methods and any(key in method.keys for method in methods.every))


def _seen(name: str) -> Chosen | None:
    """The methods of a run that is read here, if all their files are here too."""
    try:
        return chosen(name)
    except ConfigError:
        return None


def devices_of(config: Experiment) -> tuple[int, int]:
    """Nodes with parameters of their own, and devices that share a node's batch (or a group's)."""
    cluster, methods = config.cluster, of_config(config)
    if not (methods.gradient or methods.read or methods.mix):  # the cluster is only its clock
        return 1, config.parallel.devices or jax.device_count()
    nodes = cluster.nodes if methods.mix or methods.stages else 1
    workers = cluster.nodes * cluster.devices_per_node
    return nodes, max(workers // nodes // groups_of(config), 1)


def refused(config: Experiment) -> str:
    """Why `config.parallel.api` cannot carry the methods of a config; '' if it can."""
    api, methods = config.parallel.api, of_config(config)
    nodes, devices = devices_of(config)
    if api == "jit" and methods.sums:
        return "gives every worker a loop of its own length, which 'jit' has not"
    if api != "shard_map" and methods.stages and nodes > 1:
        return "runs unlike programs on its stages, which only 'shard_map' can"
    if api == "overlap":
        if not methods.mix:
            return "has no nodes that train by themselves while they exchange"
        if why := methods.mix.kept_inside(methods.keys(config.strategy)):
            return f"{why}, which cannot leave the compiled loop; 'shard_map' keeps it there"
    if api == "pmap" and methods.mix and devices > 1:
        return "is laid over nodes and their devices, and 'pmap' has one axis only"
    return ""


def follows(config: Experiment) -> bool:
    """Whether the log decides the timeline, so that it is not there before the run."""
    return any(method.follows(config) for method in of_config(config).every)


def timeline_of(config: Experiment, **known: Any) -> Timeline:
    """The timeline of a run, as far as its epochs so far decide it; `known` are of `Setting`."""
    methods = of_config(config)
    clock = methods.outermost.clock
    assert clock
    if config.cluster.service != "trace":
        return clock(Setting(config, **known), methods)
    # For what is asked for besides: seconds are the file's.
    replay = config.with_({"cluster.service": "constant"})
    held = read(config.cluster.trace, config.steps * max(known.get("replicas", 0), 1))
    return checked(held, clock(Setting(replay, held=held, **known), methods))
