"""An experiment: all that determines a run, as one frozen value, and which values go together.

A config file defines `get_config()`, which returns one. `config.json` of a run is its nested dict.
A value refuses itself when it is made; `check` goes through the joins of values.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from optdyn import optimizers
from optdyn.base import lookup
from optdyn.base.errors import ConfigError, Join, did_you_mean, one_of_these, short_repr
from optdyn.base.fields import Value, all_fields, default_of, plain, wrong_type_line
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

    method: Any = field(default_factory=lambda: MethodStack.named(PLAIN))

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", MethodStack.wrap(self.method))
        super().__post_init__()
        if not isinstance(self.method, MethodStack):
            raise ConfigError(wrong_type_line("config.method", self.method, Method))
        self.method.checked()

    def _no_key(self, key: str) -> str:
        built_in()
        known = [*self.field_table(), *(name for name, _ in all_fields(self))]
        for kind in (kind for root in Value.roots for kind in root.members.values()):
            known += [kind.key(name) for name in kind.field_table()]
        return f"config has no key {key!r}{did_you_mean(key, dict.fromkeys(known))}"

    def changed_keys(self) -> dict[str, Any]:
        """Returns the dotted keys whose values are not the defaults, with their values."""
        changed = dict[str, Any]()

        def walk(value: Value, default_name: Any, key: Callable[[str], str]) -> None:
            if value.root and value.name != default_name:
                changed[key("name")] = value.name
            for name, spec in value.field_table().items():
                now, default = getattr(value, name), default_of(spec)
                if isinstance(now, Value):
                    walk(now, default.name, now.key)
                elif not isinstance(now, MethodStack) and name != "name" and now != default:
                    changed[key(name)] = plain(now)

        walk(self, "", self.key)
        if self.method.name != PLAIN:
            changed["method.name"] = self.method.name
        for section, method in self.method.by_section.items():
            inner = f"{section}." if len(self.method.members) > 1 else ""
            walk(method, method.name, f"method.{inner}{{}}".format)
        return changed

    @property
    def methods(self) -> MethodStack:
        return self.method

    def __str__(self) -> str:
        """Returns one screen of what differs from the defaults."""
        changed = self.changed_keys()
        width = max(map(len, changed), default=0)
        texts = {k: lookup.kind_in_memory(str(v)) or short_repr(v) for k, v in changed.items()}
        lines = [f"  {key:{width}}  {text}" for key, text in texts.items()]
        return "\n".join(["Config, all defaults but", *lines] if lines else ["Experiment()"])

    def timeline(self, **known: Any) -> Timeline:
        """Returns the timeline of a run, as far as the log of past epochs decides it.

        `known` are the fields of `ClockInputs` besides the setup. Raises `TimelineError`.
        """
        return self.methods.timeline(self, **known)


def read(
    values: Mapping[str, object],
    file: object = "config.json",
    keys: Sequence[str] = lookup.KEYS,
) -> Config:
    """Returns the experiment of a run whose `config.json` has these values.

    Raises `ConfigError`, also where a key is missing, or where one of the `keys` names code that
    a file may not run (`lookup.check_names_in_file`).
    """
    lookup.check_names_in_file(values, file, keys)
    experiment = Config().with_(values)
    check_whole(values, experiment.to_dict(), file)
    return experiment


def to_json(config: Setup) -> str:
    """Returns the resolved config as the text of `config.json`."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


def check_whole(
    values: Mapping[str, Any], whole: Mapping[str, Any], file: object, section: str = ""
) -> None:
    """Raises `ConfigError` where the values of a run's `config.json` lack a key of `whole`.

    Sections of unlike `name` have unlike keys and are not compared, nor are keys of options.
    """
    if values.get("name", whole.get("name")) != whole.get("name"):
        return
    for key, value in whole.items():
        if key not in values:
            raise ConfigError(f"{file} has no {section}{key}")
        if isinstance(value, Mapping) and not key.endswith("options"):
            inner = values[key] if isinstance(values[key], Mapping) else {}
            check_whole(inner, value, file, f"{section}{key}.")


def differences(
    one: Mapping[str, object], other: Mapping[str, object], prefix: str = ""
) -> list[str]:
    """Returns the dotted keys in which two nested dicts differ."""
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
    with ConfigError.at("config.model", ValueError):
        models.make(config.model, classes=2)
    losses.loss(config.loss)
    losses.metrics(config.metrics)
    for joins in (
        cluster_joins,
        _pieces,
        _parallel,
        _replicas,
        _shards,
        _probes,
        _average,
        _optimizer,
    ):
        refuse_first(config, joins(config))


def refuse_first(config: Config, joins: Iterable[Join]) -> None:
    """Raises `ConfigError` at the first of the joins that is wrong."""
    for key, wrong, expected in joins:
        if wrong:
            value = _at(config, key)
            where = f"config.{key}" + f" = {short_repr(value)}" * (value is not None)
            if isinstance(value, str) and lookup.is_user_name(value):
                where = lookup.key_value(f"config.{key}", value)
            raise ConfigError(f"{where}: {expected}")


def _at(config: Config, key: str) -> Any:
    section, _, rest = key.partition(".")
    if section == "method" and rest != "name":
        part, _, name = rest.rpartition(".")
        methods = [config.method.by_section[part]] if part else config.method.members
        return next((getattr(m, name) for m in methods if name in m.field_table()), None)
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part, None)
    return value


def _names(config: Config) -> Iterator[Join]:
    lowerings = ("", *LOWERINGS)
    unknown = not {*str(config.model.lowering).split(",")} <= {*lowerings}
    expected = f"must be from {lowerings}; a command of optdyn also takes 'measured'"
    yield Join("model.lowering", unknown, expected)
    workers = config.cluster.worker_count
    devices = config.cluster.devices_per_node
    expected = f"must be at most {WIDTH // devices:,} with config.cluster.devices_per_node = "
    expected += f"{devices}, which makes {workers:,} workers"
    yield Join("cluster.nodes", workers > WIDTH, expected)
    named = {
        "loss": ([config.loss] if config.loss else [], losses.LOSSES),
        "metrics": (config.metrics, losses.METRICS),
        "optimizer.schedule": ([config.optimizer.schedule], schedules.SCHEDULES),
    }
    for key, (names, known) in named.items():
        for name in (name for name in names if not lookup.is_user_name(name) and name not in known):
            expected = f"must be one of {', '.join(known)}, or {lookup.USER_NAMES}"
            yield Join(key, True, expected + did_you_mean(name, known))


def cluster_joins(config: Config) -> Iterator[Join]:
    """Yields the joins of the cluster with the methods."""
    cluster, methods, name = config.cluster, config.methods, config.methods.name
    blocks = [block for block, _ in models.make(config.model, classes=2)]
    fresh, key = methods.get("fresh", ()), methods.key("fresh")
    yield Join(key, not set(fresh) <= set(blocks), f"must be of the blocks {', '.join(blocks)}")
    merges = hasattr(methods.read, "fresh") or not isinstance(methods.read, Grouped)
    expected = f"must be (), as config.method.name = {name!r} merges no block"
    yield Join(key, fresh and not merges, expected)
    workers = cluster.worker_count
    good = len(cluster.speeds) in (0, workers)
    good = good and all(0 < speed < math.inf for speed in cluster.speeds)
    expected = f"must be {workers} positive numbers, one a worker, or ()"
    yield Join("cluster.speeds", not good, expected)
    laws, law = (*methods.outermost.laws, "trace"), cluster.service  # what is recorded is replayed
    is_drawn = isinstance(law, OwnLaw) and set(DRAWN) <= set(laws)
    if not is_drawn and law.name not in laws:
        expected = f"must be one of {', '.join(map(repr, laws))} with config.method.name = {name!r}"
        yield Join("cluster.service.name", True, f"{expected}{did_you_mean(str(law.name), laws)}")
    service.check_law(law)
    no_file = isinstance(law, Trace) and not law.path
    yield Join("cluster.service.path", no_file, "must be a CSV file, which a trace is read from")
    heeded = {key for method in (methods.outermost, *methods.members) for key in method.cluster}
    defaults = Cluster()
    for key in (key for key in OPTIONAL if getattr(cluster, key) != getattr(defaults, key)):
        names = [repr(n) for n in built_in() if key in load(n).cluster]
        expected = (
            f"needs config.method.name one of {', '.join(names)}; {name!r} does not simulate "
        )
        yield Join(f"cluster.{key}", key not in heeded, expected + OPTIONAL[key])
    yield from methods.joins(config)


def _pieces(config: Config) -> Iterator[Join]:
    cluster, law = config.cluster, config.cluster.service
    if cluster.pieces == Pieces():
        return
    expected = "must be False with config.cluster.pieces, which overlap by themselves"
    yield Join("cluster.overlap", cluster.overlap, expected)
    missing = not cluster.pieces.conv_compute
    yield Join("cluster.pieces.conv_compute", missing, "must be above 0 with the other pieces")
    expected = "must be () with config.cluster.pieces, whose workers are alike"
    yield Join("cluster.speeds", cluster.speeds, expected)
    expected = f"must be {one_of_these(law.name, DRAWN)} with config.cluster.pieces"
    yield Join("cluster.service.name", not law.is_drawn, expected)


def _parallel(config: Config) -> Iterator[Join]:
    real, methods = config.parallel, config.methods
    why = methods.why_not_on_devices(config) if real.api else ""
    yield Join("parallel.api", why, f"config.method.name = {methods.name!r} {why}")
    expected = f"must be 0: {methods.name!r} has as many devices as the cluster has"
    yield Join("parallel.devices", real.devices and not methods.plain, expected)
    expected = f"must be 1: {methods.name!r} computes its gradients by other parts"
    yield Join("parallel.accumulation", real.accumulation > 1 and methods.gradient, expected)
    unlike = real.api != "jit" or methods.mix
    expected = "needs config.parallel.api = 'jit' and nodes with the same parameters"
    yield Join("parallel.shard_optimizer", real.shard_optimizer and unlike, expected)
    untabled = unlike or not isinstance(methods.read, Grouped)
    expected = "needs config.parallel.api = 'jit' and one table of versions, as "
    expected += "config.method.name = 'asynchronous' has"
    yield Join("parallel.shard_snapshots", real.shard_snapshots and untabled, expected)
    nodes, devices = methods.devices(config)
    parts = real.accumulation
    if methods.mix:
        parts *= nodes * devices
    elif real.api and not methods.reduces_itself:  # which gives them uneven parts
        parts *= devices
    expected = f"must be a multiple of {parts} (devices that share a batch x "
    expected += "config.parallel.accumulation)"
    yield Join("batch_size", config.batch_size % parts, expected)


def _shards(config: Config) -> Iterator[Join]:
    methods, nodes, law = config.methods, config.cluster.nodes, config.cluster.service.name
    if not config.data.dirichlet:
        return
    key = "data.dirichlet"
    if methods.grouped and not methods.mix:
        expected = f"needs config.method.groups = {methods.groups} to be config.cluster.nodes = "
        expected += f"{nodes}: a group has the shard of a node"
        yield Join(key, methods.groups != nodes, expected)
        several = methods.gradient or methods.get("arrivals", 1) > 1
        expected = "needs updates by the gradient of one group, not config.method.name = "
        yield Join(key, several, f"{expected}{methods.name!r}")
        expected = "needs service times that are drawn, not config.cluster.service.name = "
        yield Join(key, law in ("race", "geometric"), f"{expected}{law!r}")
        expected = "excludes config.probes.momentum where groups arrive independently"
        yield Join(key, config.probes.momentum, expected)
        return
    expected = "needs nodes that wait for one another or arrive independently, not "
    expected += f"config.method.name = {methods.name!r}"
    yield Join(key, not methods.mix and not methods.plain, expected)
    expected = f"must be a multiple of config.cluster.nodes = {nodes} with config.data.dirichlet"
    yield Join("batch_size", config.batch_size % nodes, expected)


def _replicas(config: Config) -> Iterator[Join]:
    methods, data = config.methods, config.data
    if not config.replicas.count:
        return
    expected = "excludes config.replicas.count, whose objective is held in memory"
    yield Join("data.augment", data.augment, expected)
    yield Join("data.streaming", data.streaming, expected)
    expected = f"needs config.method.name one of {', '.join(map(repr, _simple()))} and "
    expected += "config.parallel.api = ''"
    yield Join("replicas.count", config.parallel.api or not methods.simple, expected)
    expected = "excludes config.replicas.count, whose objective has no shards"
    yield Join("data.dirichlet", data.dirichlet, expected)
    expected = "excludes config.replicas.count, as replicas are recorded without windows"
    yield Join("probes.momentum", config.probes.momentum, expected)
    expected = "must be True with config.replicas.count, as a batch of an epoch makes up for those "
    expected += "before it, and the recorded gradient of all examples does not"
    yield Join("data.replacement", not data.replacement, expected)
    expected = "needs config.optimizer.name = 'sgd' without options or a chain, as raw steps are "
    expected += "told from what replicas move by"
    yield Join("replicas.count", not optimizers.is_heavy_ball(config.optimizer), expected)


def _probes(config: Config) -> Iterator[Join]:
    probes, methods = config.probes, config.methods
    for key in ("similarity", "mean"):
        expected = "needs nodes with parameters of their own, not config.method.name = "
        expected += repr(methods.name)
        yield Join(f"probes.{key}", getattr(probes, key) and not methods.mix, expected)
    heavy_ball = isinstance(config.optimizer, SGD)
    expected = "needs config.probes.momentum and config.optimizer.name = 'sgd'"
    yield Join("probes.steer", probes.steer and not (probes.momentum and heavy_ball), expected)
    if not probes.momentum:
        return
    expected = f"must be at most config.probes.every = {probes.every}"
    yield Join("probes.window", probes.window > probes.every, expected)
    staged = methods.stages and config.parallel.api == "shard_map"
    expected = "excludes blocks on several devices; config.parallel.api = '' trains the same on one"
    yield Join("probes.momentum", staged, expected)


def _average(config: Config) -> Iterator[Join]:
    if config.evaluation.average:
        expected = "must be '' with config.probes.mean, which is of the last parameters"
        yield Join("evaluation.average", config.probes.mean, expected)
        yield from _kept(config, "evaluation.average", "''")
        expected = "must be '' in a race; a replay of it may have an average"
        yield Join("evaluation.average", config.cluster.service.name == "race", expected)


def _kept(config: Config, key: str, default: str) -> Iterator[Join]:
    """Yields the layouts whose states nothing can be kept beside."""
    real, methods = config.parallel, config.methods
    excluded = {
        "method.snapshots = 'host'": methods.get("snapshots", "") == "host",
        "parallel.api = 'overlap'": real.api == "overlap",
        "parallel.shard_optimizer": real.shard_optimizer,
        "parallel.shard_snapshots": real.shard_snapshots,
        "replicas.count": config.replicas.count,
        "parallel.api = 'shard_map', where blocks are on several devices": (
            methods.stages and real.api == "shard_map"
        ),
    }
    for name, wrong in excluded.items():
        yield Join(key, wrong, f"must be {default} with config.{name}")


def state_joins(config: Config, state: bool, draws: bool, head_state: bool) -> Iterator[Join]:
    """Yields the joins of a model with a `state` besides parameters, or that `draws` numbers.

    Of `head_state` auxiliary heads have none.
    """
    key, methods = "evaluation.statistics", config.methods
    if state and config.evaluation.statistics != "recomputed":
        yield from _kept(config, key, "'recomputed'")
        expected = "must be '' with a state that is carried, which is no parameter of another run; "
        expected += "config.evaluation.statistics = 'recomputed' makes it anew"
        yield Join("init_from", config.init_from, expected)
        expected = "must be 'recomputed' in a race, whose workers do not know the newest state"
        yield Join(key, config.cluster.service.name == "race", expected)
        expected = f"must be a model whose last block has no state with {key} = "
        expected += f"{config.evaluation.statistics!r}, as auxiliary heads have that block's layers"
        yield Join("model.name", head_state, expected)
    if not (state or draws):
        return
    what = "batch norms or another state" if state else "dropout"
    expected = f"must be 0, as the objective of a model with {what} depends on its batches"
    yield Join("replicas.count", config.replicas.count, expected)
    expected = f"must be False, as it is not defined for a model with {what}"
    for probe in ("noise_scale", "sharpness", "similarity", "mean"):
        yield Join(f"probes.{probe}", getattr(config.probes, probe), expected)
    yield Join(methods.key("probes"), methods.get("probes", False), expected)


def _optimizer(config: Config) -> Iterator[Join]:
    optimizer, name = config.optimizer, config.optimizer.name
    parameters, called = optimizers.arguments(name), optimizers.words(name)
    if "learning_rate" not in parameters and lookup.is_user_name(name):
        expected = "must be a function with an argument 'learning_rate' that returns an optax "
        yield Join("optimizer.name", True, f"{expected}transformation")
    if "learning_rate" not in parameters:
        expected = f"must be an optimizer of optax{did_you_mean(str(name), optimizers.known())}"
        yield Join("optimizer.name", True, expected)
    ignored = optimizer.momentum and not optimizers.takes_momentum(name)
    expected = f"must be 0: {called} has no momentum; config.optimizer.options has its arguments"
    yield Join("optimizer.momentum", ignored, expected)
    for key in optimizer.options:
        expected = f"must be an argument of {called}{did_you_mean(key, parameters)}"
        yield Join(f"optimizer.options.{key}", key not in parameters, expected)
        twice = key in ("learning_rate", "momentum")
        yield Join(f"optimizer.options.{key}", twice, f"must be set as config.optimizer.{key}")
    texts = all(isinstance(transform, str) for transform in optimizer.chain)
    expected = "must be names of transforms, as ('delay_compensation',), or ()"
    yield Join("optimizer.chain", not texts, expected)
    arguments = [options for _, options in optimizers.chain(config)]
    for key in optimizer.chain_options:
        takers = sum(key in options for options in arguments)
        expected = f"must be an argument of one transform, and is of {takers} of "
        expected += f"config.optimizer.chain = {optimizer.chain}"
        yield Join(f"optimizer.chain_options.{key}", takers != 1, expected)
    if optimizers.follows_delays(name) and not config.methods.simple:
        expected = f"must be one of {', '.join(map(repr, _simple()))} with config.optimizer.name = "
        expected += f"{name!r}, which takes one delay an update"
        yield Join("method.name", True, expected)
    if not lookup.user_objects(config, lookup.OPTIMIZER):  # which may be for the model's alone
        some = {"x": jax.ShapeDtypeStruct((1,), np.float32)}
        optimizers.check(config, config.methods.groups, some)
    schedules.schedule(optimizer, 1)


def _simple() -> list[str]:
    return [name for name in built_in() if MethodStack.named(name).simple]
