"""An experiment: all that determines a run, as one frozen value, and which values go together.

A config file defines `get_config()`, which returns one. `config.json` of a run is its nested dict.
A value refuses itself when it is made; `check` goes through the joins, a row for each: a key,
whether it is wrong beside the others, and what is said of it.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as made
from typing import Any, Self

import jax
import numpy as np

from optdyn import optimizers
from optdyn.base import lookup
from optdyn.base.errors import ConfigError, Join, meant, one_of_these, refused_at, shown
from optdyn.base.fields import Value, default_of, every_field, not_one, plain
from optdyn.base.ranges import WIDTH
from optdyn.clock import service
from optdyn.clock.cluster import Cluster, Pieces
from optdyn.clock.service import DRAWN, OwnLaw, Trace
from optdyn.clock.timeline import Timeline
from optdyn.methods.asynchronous import Grouped
from optdyn.methods.method import OPTIONAL, PLAIN, Method, MethodStack, built_in, load
from optdyn.methods.setup import Setup
from optdyn.optimizers import schedules
from optdyn.optimizers.kinds import SGD
from optdyn.problem import losses, models
from optdyn.problem.models.convolution import LOWERINGS

__all__ = ["Config", "ConfigError", "check", "differences", "read", "to_json"]


@dataclass(frozen=True, kw_only=True)
class Config(Setup):
    """All that determines a run, as a value: it hashes, and can be the key of a cache.

    Values that do not go together are refused by `check`.
    """

    method: Any = made(default_factory=lambda: MethodStack.named(PLAIN))

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", MethodStack.wrap(self.method))
        super().__post_init__()
        if not isinstance(self.method, MethodStack):
            raise ConfigError(not_one("config.method", self.method, Method))
        self.method.checked()

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """The experiment of a nested dict, with defaults of what it lacks. Raises `ConfigError`."""
        return cls().with_(values)

    def _no_key(self, key: str) -> str:
        """With a hint of all keys there are, also of other models, methods and so on."""
        built_in()
        known = [*self.field_table(), *(name for name, _ in every_field(self))]
        for kind in (kind for root in Value.roots for kind in root.members.values()):
            known += [kind.key(name) for name in kind.field_table()]
        return f"config has no key {key!r}{meant(key, dict.fromkeys(known))}"

    def changed_keys(self) -> dict[str, Any]:
        """The dotted keys whose values are not the defaults, with their values."""
        found = dict[str, Any]()

        def walk(value: Value, usual: Any, key: Callable[[str], str]) -> None:
            if value.root and value.name != usual:
                found[key("name")] = value.name
            for name, each in value.field_table().items():
                now, default = getattr(value, name), default_of(each)
                if isinstance(now, Value):
                    walk(now, default.name, now.key)
                elif not isinstance(now, MethodStack) and name != "name" and now != default:
                    found[key(name)] = plain(now)

        walk(self, "", self.key)
        if self.method.name != PLAIN:
            found["method.name"] = self.method.name
        for section, one in self.method.by_section.items():
            inner = f"{section}." if len(self.method.members) > 1 else ""
            walk(one, one.name, f"method.{inner}{{}}".format)
        return found

    @property
    def methods(self) -> MethodStack:
        """The methods with their numbers."""
        return self.method

    def __str__(self) -> str:
        """One screen of what differs from the defaults."""
        changed = self.changed_keys()
        width = max(map(len, changed), default=0)
        words = {k: lookup.words(v) for k, v in changed.items() if lookup.words(str(v))}
        said = {key: shown(value) for key, value in changed.items()} | words
        lines = [f"  {key:{width}}  {text}" for key, text in said.items()]
        return "\n".join(["Config, all defaults but", *lines] if lines else ["Experiment()"])

    def timeline(self, **known: Any) -> Timeline:
        """The timeline of a run, as far as its past epochs decide it.

        `known` are the fields of `ClockInputs` besides the setup. Raises `TimelineError`.
        """
        return self.methods.timeline(self, **known)


def read(
    held: Mapping[str, object],
    file: object = "config.json",
    keys: Sequence[str] = lookup.KEYS,
) -> Config:
    """The experiment of a run that wrote `held` as its `config.json`.

    Raises `ConfigError`, also where it lacks a key, or where one of the keys names what is not to
    be run (`check_read`).
    """
    lookup.check_read(held, file, keys)
    experiment = Config.read(held)
    check_whole(held, experiment.to_dict(), file)
    return experiment


def to_json(config: Setup) -> str:
    """The resolved config, as it is written to `config.json`."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def check_whole(
    held: Mapping[str, Any], whole: Mapping[str, Any], file: object, section: str = ""
) -> None:
    """Raises `ConfigError` where the `config.json` of a run, `held`, lacks a key of `whole`.

    Another one of a union has other keys, and those of options are free.
    """
    if held.get("name", whole.get("name")) != whole.get("name"):
        return
    for key, value in whole.items():
        if key not in held:
            raise ConfigError(f"{file} has no {section}{key}")
        if isinstance(value, Mapping) and not key.endswith("options"):
            inner = held[key] if isinstance(held[key], Mapping) else {}
            check_whole(inner, value, file, f"{section}{key}.")


def differences(
    one: Mapping[str, object], other: Mapping[str, object], prefix: str = ""
) -> list[str]:
    """Dotted names of the keys in which two plain configs differ."""
    names = []
    for key in sorted(one.keys() | other.keys()):
        a, b = one.get(key), other.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            names += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(prefix + key)
    return names


def check(config: Config) -> None:
    """Raises `ConfigError` at the first value that cannot run, though it is in its range."""
    refuse_first(config, _names(config))
    with refused_at("config.model", ValueError):
        models.make(config.model, classes=2)
    losses.loss(config.loss)
    losses.metrics(config.metrics)
    for joins in (_cluster, _pieces, _parallel, _replicas, _shards, _probes, _optimizer):
        refuse_first(config, joins(config))


def check_cluster(config: Config) -> None:
    """The same of the cluster, and of what the methods make of it."""
    refuse_first(config, _cluster(config))


def refuse_first(config: Config, joins: Iterable[Join]) -> None:
    """Raises `ConfigError` at the first of the joins that is wrong."""
    for join in joins:
        if join.wrong:
            value = _at(config, join.key)
            where = f"config.{join.key}" + f" = {shown(value)}" * (value is not None)
            if isinstance(value, str) and lookup.is_own(value):
                where = lookup.setting(f"config.{join.key}", value)
            raise ConfigError(f"{where}: {join.said}")


def _at(config: Config, key: str) -> Any:
    """The value of a dotted key; None of one that there is not."""
    section, _, rest = key.partition(".")
    if section == "method" and rest != "name":
        part, _, name = rest.rpartition(".")
        every = [config.method.by_section[part]] if part else config.method.members
        return next((getattr(one, name) for one in every if name in one.field_table()), None)
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part, None)
    return value


def _names(config: Config) -> Iterator[Join]:
    """Names that stand for something, and values whose range another module knows."""
    lowerings = ("", *LOWERINGS)
    good = {*str(config.model.lowering).split(",")} <= {*lowerings}
    said = f"must be of {lowerings}, or with a command of optdyn 'measured'"
    yield Join("model.lowering", not good, said)
    workers = config.cluster.worker_count
    said = f"makes {workers:,} workers with config.cluster.devices_per_node; {WIDTH:,} is the most"
    yield Join("cluster.nodes", workers > WIDTH, said)
    named = {
        "loss": ([config.loss] if config.loss else [], losses.LOSSES),
        "metrics": (config.metrics, losses.METRICS),
        "optimizer.schedule": ([config.optimizer.schedule], schedules.SCHEDULES),
    }
    for key, (names, known) in named.items():
        for name in (name for name in names if not lookup.is_own(name) and name not in known):
            said = f"must be one of {', '.join(known)}, or {lookup.OWN}{meant(name, known)}"
            yield Join(key, True, said)


def _cluster(config: Config) -> Iterator[Join]:
    """The cluster, and what the methods make of it."""
    cluster, methods, name = config.cluster, config.methods, config.methods.name
    blocks = [block for block, _ in models.make(config.model, classes=2)]
    fresh, key = methods.get("fresh", ()), methods.key("fresh")
    yield Join(key, not set(fresh) <= set(blocks), f"must be of the blocks {', '.join(blocks)}")
    merges = hasattr(methods.read, "fresh") or not isinstance(methods.read, Grouped)
    yield Join(key, fresh and not merges, f"no block is merged of {name!r}")
    workers = cluster.worker_count
    good = len(cluster.speeds) in (0, workers)
    good = good and all(0 < speed < math.inf for speed in cluster.speeds)
    said = f"must be {workers} positive numbers, one a worker, or ()"
    yield Join("cluster.speeds", not good, said)
    laws, law = (*methods.outermost.laws, "trace"), cluster.service  # what is recorded is replayed
    drawn = isinstance(law, OwnLaw) and set(DRAWN) <= set(laws)
    if not drawn and law.name not in laws:
        said = f"must be one of {', '.join(map(repr, laws))} of config.method.name = {name!r}"
        yield Join("cluster.service.name", True, f"{said}{meant(str(law.name), laws)}")
    service.check(law)
    no_file = isinstance(law, Trace) and not law.path
    yield Join("cluster.service.path", no_file, "is empty: a trace needs a CSV file")
    heeded = {key for method in (methods.outermost, *methods.members) for key in method.cluster}
    plain = Cluster()
    changed = [key for key in OPTIONAL if getattr(cluster, key) != getattr(plain, key)]
    for key in changed:
        those = [n for n in built_in() if key in load(n).cluster]
        said = f"{name!r} does not know of {OPTIONAL[key]}, only config.method.name = "
        said += " and ".join(map(repr, those))
        yield Join(f"cluster.{key}", key not in heeded, said)
    yield from methods.joins(config)


def _pieces(config: Config) -> Iterator[Join]:
    cluster, law = config.cluster, config.cluster.service
    if cluster.pieces == Pieces():
        return
    said = "not of config.cluster.pieces, which have their own"
    yield Join("cluster.overlap", cluster.overlap, said)
    none = not cluster.pieces.conv_compute
    yield Join("cluster.pieces.conv_compute", none, "must be more than 0 beside them")
    said = "with config.cluster.pieces all workers are equal"
    yield Join("cluster.speeds", cluster.speeds, said)
    said = f"must be {one_of_these(law.name, DRAWN)} with config.cluster.pieces"
    yield Join("cluster.service.name", not law.is_drawn, said)


def _parallel(config: Config) -> Iterator[Join]:
    real, methods = config.parallel, config.methods
    why = methods.refused(config) if real.api else ""
    yield Join("parallel.api", why, f"config.method.name = {methods.name!r} {why}")
    said = "those of other methods are the cluster's"
    yield Join("parallel.devices", real.devices and not methods.plain, said)
    said = f"{methods.name!r} takes gradients in a way of its own"
    yield Join("parallel.accumulation", real.accumulation > 1 and methods.gradient, said)
    apart = real.api != "jit" or methods.mix
    said = "only of config.parallel.api = 'jit' and nodes that hold the same parameters"
    yield Join("parallel.shard_optimizer", real.shard_optimizer and apart, said)
    untabled = apart or not isinstance(methods.read, Grouped)
    said = "only of config.parallel.api = 'jit' and one table of versions, as "
    said += "config.method.name = 'asynchronous' has"
    yield Join("parallel.shard_snapshots", real.shard_snapshots and untabled, said)
    nodes, devices = methods.devices(config)
    parts = real.accumulation
    if methods.mix:
        parts *= nodes * devices
    elif real.api and not methods.reduces_itself:  # which gives them uneven parts
        parts *= devices
    said = f"must be a multiple of {parts} (devices that share it x config.parallel.accumulation)"
    yield Join("batch_size", config.batch_size % parts, said)


def _shards(config: Config) -> Iterator[Join]:
    """Shards of the data, of nodes or of groups that arrive by themselves."""
    methods, nodes, law = config.methods, config.cluster.nodes, config.cluster.service.name
    if not config.data.dirichlet:
        return
    key = "data.dirichlet"
    if methods.grouped and not methods.mix:
        said = f"each group has a node's shard, so config.method.groups = {methods.groups} must be "
        said += f"config.cluster.nodes = {nodes}"
        yield Join(key, methods.groups != nodes, said)
        several = methods.gradient or methods.get("arrivals", 1) > 1
        said = "a group has a shard where a gradient is of one group, not with config.method.name "
        yield Join(key, several, f"{said}= {methods.name!r}")
        said = "of groups whose times are drawn, not config.cluster.service.name = "
        yield Join(key, law in ("race", "geometric"), f"{said}{law!r}")
        yield Join(key, config.probes.momentum, "config.probes.momentum must be False, of groups")
        return
    said = "nodes have shards of their own where they wait for one another or arrive by "
    said += f"themselves, not with config.method.name = {methods.name!r}"
    yield Join(key, not methods.mix and not methods.plain, said)
    said = f"must be a multiple of config.cluster.nodes = {nodes}, each of which draws from a "
    said += "shard of its own (config.data.dirichlet)"
    yield Join("batch_size", config.batch_size % nodes, said)


def _replicas(config: Config) -> Iterator[Join]:
    """Replicas are of one small objective on one device, recorded whole."""
    methods, data = config.methods, config.data
    if not config.replicas.count:
        return
    memory = "replicas are of one objective, held in memory"
    yield Join("data.augment", data.augment, memory)
    yield Join("data.streaming", data.streaming, memory)
    said = f"replicas are recorded of methods of one device ({', '.join(_simple())}), with "
    said += "config.parallel.api = ''"
    yield Join("replicas.count", config.parallel.api or not methods.simple, said)
    yield Join("data.dirichlet", data.dirichlet, "replicas are of one objective, without shards")
    said = "replicas are recorded whole, without windows"
    yield Join("probes.momentum", config.probes.momentum, said)


def _probes(config: Config) -> Iterator[Join]:
    probes, methods = config.probes, config.methods
    for key in ("similarity", "mean"):
        said = "of nodes with parameters of their own, which config.method.name = "
        said += f"{methods.name!r} has none of"
        yield Join(f"probes.{key}", getattr(probes, key) and not methods.mix, said)
    heavy = isinstance(config.optimizer, SGD)
    said = "needs config.probes.momentum and config.optimizer.name = 'sgd'"
    yield Join("probes.steer", probes.steer and not (probes.momentum and heavy), said)
    if not probes.momentum:
        return
    said = "needs the learning rate, which a transformation of optax does not tell; name the "
    said += "optimizer (optdyn.SGD, optdyn.Optax), with its chain"
    yield Join("probes.momentum", optimizers.is_fixed(config.optimizer.name), said)
    said = f"at most config.probes.every = {probes.every}"
    yield Join("probes.window", probes.window > probes.every, said)
    staged = methods.stages and config.parallel.api == "shard_map"
    said = "not with blocks on devices of their own; config.parallel.api = '' trains the same on "
    yield Join("probes.momentum", staged, f"{said}one")


def _optimizer(config: Config) -> Iterator[Join]:
    """The optimizer, its arguments, its schedule and the transforms before it."""
    chosen, name = config.optimizer, config.optimizer.name
    taken, made_by = optimizers.arguments(name), optimizers.words(name)
    if "learning_rate" not in taken and lookup.is_own(name):
        said = "must be a function with an argument 'learning_rate' that returns an optax "
        yield Join("optimizer.name", True, f"{said}transformation")
    if "learning_rate" not in taken:
        said = f"optax has no such optimizer{meant(str(name), optimizers.known())}"
        yield Join("optimizer.name", True, said)
    untaken = chosen.momentum and not optimizers.takes_momentum(name)
    said = f"{made_by} has no momentum; set its own arguments in config.optimizer.options"
    yield Join("optimizer.momentum", untaken, said)
    for key in chosen.options:
        said = f"{made_by} has no such argument{meant(key, taken)}"
        yield Join(f"optimizer.options.{key}", key not in taken, said)
        twice = key in ("learning_rate", "momentum")
        yield Join(f"optimizer.options.{key}", twice, f"set config.optimizer.{key} instead")
    texts = all(isinstance(one, str) for one in chosen.chain)
    said = "must be of texts, names of transforms as ('delay_compensation',), or ()"
    yield Join("optimizer.chain", not texts, said)
    options = [given for _, given in optimizers.chain(config)]
    for key in chosen.chain_options:
        takers = sum(key in given for given in options)
        said = f"taken by {takers} of config.optimizer.chain = {chosen.chain}, must be by one"
        yield Join(f"optimizer.chain_options.{key}", takers != 1, said)
    if optimizers.follows_delays(name) and not config.methods.simple:
        said = f"must be one of {', '.join(map(repr, _simple()))} with config.optimizer.name = "
        said += f"{name!r}, which is told the delay of an update's one gradient"
        yield Join("method.name", True, said)
    plain = isinstance(chosen, SGD) and not chosen.options and not chosen.chain
    said = "compares with plain momentum SGD, so it needs config.optimizer.name = 'sgd' without "
    said += "options or a chain"
    yield Join("replicas.matching", config.replicas.matching and not plain, said)
    if not lookup.objects(config, lookup.OPTIMIZER):  # which may be for the model's alone
        some = {"x": jax.ShapeDtypeStruct((1,), np.float32)}
        optimizers.check(config, config.methods.groups, some)
    schedules.schedule(chosen, 1)


def _simple() -> list[str]:
    """Returns the built-in methods that are `MethodStack.simple`."""
    return [name for name in built_in() if MethodStack.named(name).simple]
