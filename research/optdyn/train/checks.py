"""Whether a configuration can run: every value by itself, and the values that must go together."""

import math

import jax
import numpy as np

from optdyn import optimizers, setup
from optdyn.base import lookup
from optdyn.base.errors import (
    ConfigError,
    meant,
    one_of,
    refuse,
    refused_at,
    require,
    require_known,
    shown,
)
from optdyn.base.trees import Params, head
from optdyn.clock import service
from optdyn.experiment import Experiment
from optdyn.methods import Methods, built_in, chosen, keys_of, load
from optdyn.methods.method import OPTIONAL
from optdyn.methods.read.groups import Grouped
from optdyn.optimizers import schedules
from optdyn.problem import losses, models
from optdyn.problem.data import Data, tokenizers
from optdyn.problem.models.convolution import LOWERINGS
from optdyn.setup import Cluster, Pieces
from optdyn.train import memory_checks, program

EXAMPLES = 8  # on which a model is tried


def check(config: Experiment) -> None:
    """Raises `ConfigError` at the first value that cannot run, though it is in its range.

    First what a value means by itself, then what must go together, whether it can fit into this
    machine's memory, and whether the user's own code is what it asks for.
    """
    _check_values(config)
    _check_names(config)
    _check_model(config)
    check_cluster(config)
    _check_pieces(config)
    _check_parallel(config)
    _check_replicas(config)
    _check_shards(config)
    _check_probes(config)
    _check_optimizer(config)
    memory_checks.of_config(config)
    lookup.check(config)


def _check_values(config: Experiment) -> None:
    """The values of single keys whose range is not that of their field alone."""
    names = ("", *LOWERINGS)
    wanted = f"of {names}, or with a command of optdyn 'measured'"
    require(config, "model.lowering", lambda v: {*str(v).split(",")} <= {*names}, wanted)
    require(config, "data.tokenizer", tokenizers.is_known, tokenizers.WANTED)
    workers = config.cluster.worker_count
    many = f"config.cluster.nodes x config.cluster.devices_per_node = {workers:,} workers: must be "
    refuse((workers > setup.WIDTH, f"{many}at most {setup.WIDTH:,}"))


def _check_names(config: Experiment) -> None:
    """Raises `ConfigError` at a name that is neither known nor of the user's own file."""
    chosen = {
        "model.name": ((config.model.name,), models.MODELS),
        "loss": (filter(None, (config.loss,)), losses.LOSSES),
        "metrics": (config.metrics, losses.METRICS),
        "optimizer.schedule": ((config.optimizer.schedule,), schedules.SCHEDULES),
    }
    for key, (names, known) in chosen.items():
        for name in names:
            if not lookup.is_own(name):
                lookup.find(f"config.{key}", name, dict.fromkeys(known))


def _check_model(config: Experiment) -> None:
    with refused_at("config.model", ValueError):
        models.make(config.model, classes=2)
    losses.loss(config.loss)
    losses.metrics(config.metrics)


def check_cluster(config: Experiment) -> None:
    """The cluster, and what the methods make of it."""
    cluster, methods = config.cluster, config.methods
    workers = cluster.worker_count
    _check_unread(config, methods)
    named_own = zip(methods.name.split("+"), methods.every, strict=True)
    own_keys = {key for name, m in named_own if ":" in name for key in keys_of(type(m))}
    for key in config.method.options:
        require_known(
            key, own_keys, f"config.method.options.{key}: {methods.name!r} has no such key"
        )
    require(
        config,
        "cluster.speeds",
        lambda v: len(v) in (0, workers) and all(0 < speed < math.inf for speed in v),
        f"{workers} positive numbers, one a worker, or ()",
    )
    laws = (*methods.outermost.laws, "trace")  # what has been recorded can be replayed
    wanted = f"one of {', '.join(map(repr, laws))} of config.method.name = {methods.name!r}"
    wanted += meant(cluster.service, laws)
    own_law = lookup.is_own(cluster.service) and set(service.DRAWN) <= set(laws)
    require(config, "cluster.service", lambda v: own_law or v in laws, wanted)
    service.check(cluster)
    no_file = cluster.service == "trace" and not cluster.trace
    refuse((no_file, "config.cluster.trace is empty: service='trace' needs a CSV file"))
    heeded = {key for method in (methods.outermost, *methods.every) for key in method.cluster}
    plain = Cluster()
    changed = [key for key in OPTIONAL if getattr(cluster, key) != getattr(plain, key)]
    for key in (key for key in changed if key not in heeded):
        those = [n for n in built_in() if key in load(n).cluster]
        raise ConfigError(
            f"config.cluster.{key}: {methods.name!r} does not know of {OPTIONAL[key]}, only "
            f"config.method.name = {' and '.join(map(repr, those))}"
        )
    for method in dict.fromkeys((*methods.every, methods.outermost)):
        method.check(config, methods)


def _check_unread(config: Experiment, methods: Methods) -> None:
    """Raises `ConfigError` at a key of methods that is set and that the run's own do not read."""
    keys, blocks = config.method.keys, [n for n, _ in models.make(config.model, classes=2)]
    fresh, merges = keys["fresh"], hasattr(methods.read, "fresh")
    refuse(
        (
            not set(fresh) <= set(blocks),
            f"config.method.fresh = {shown(fresh)}: must be of the blocks {', '.join(blocks)}",
        ),
        (
            fresh and isinstance(methods.read, Grouped) and not merges,
            f"config.method.fresh: no block is merged of {methods.name!r}",
        ),
        (
            keys["snapshots"] and methods.get("snapshots", None) is None,
            f"config.method.snapshots = {keys['snapshots']!r}: config.method.name = "
            f"{methods.name!r} keeps no table of versions; it must be ''",
        ),
        (
            keys["staleness_bound"] >= 0 and methods.get("staleness_bound", None) is None,
            "config.method.staleness_bound: only of config.method.name = 'asynchronous'",
        ),
    )


def _check_pieces(config: Experiment) -> None:
    cluster, pieces = config.cluster, config.cluster.pieces != Pieces()
    if not pieces:
        return
    refuse(
        (
            cluster.overlap,
            "config.cluster.overlap: not of config.cluster.pieces, which have their own",
        ),
        (
            not cluster.pieces.conv_compute,
            "config.cluster.pieces.conv_compute = 0: must be more than 0 beside them",
        ),
        (
            cluster.speeds,
            "config.cluster.speeds: with config.cluster.pieces all workers are equal",
        ),
    )
    if not service.is_drawn(cluster.service):
        one_of("config.cluster.service", cluster.service, service.DRAWN)


def _check_parallel(config: Experiment) -> None:
    real, methods = config.parallel, config.methods
    why = config.methods.refused(config) if real.api else ""
    tabled = isinstance(methods.read, Grouped)
    refuse(
        (
            why,
            f"config.parallel.api = {real.api!r}: config.method.name = {methods.name!r} {why}",
        ),
        (
            real.devices and not methods.plain,
            "config.parallel.devices: those of other methods are the cluster's",
        ),
        (
            real.accumulation > 1 and methods.gradient,
            f"config.parallel.accumulation: {methods.name!r} takes gradients in a way of its own",
        ),
        (
            real.shard_optimizer and (real.api != "jit" or methods.mix),
            "config.parallel.shard_optimizer: only of config.parallel.api = 'jit' and nodes that "
            "hold the same parameters",
        ),
        (
            real.shard_snapshots and (real.api != "jit" or methods.mix or not tabled),
            "config.parallel.shard_snapshots: only of config.parallel.api = 'jit' and one table "
            "of versions, as config.method.name = 'asynchronous' has",
        ),
    )
    nodes, devices = methods.devices(config)
    parts = real.accumulation
    if methods.mix:
        parts *= nodes * devices
    elif real.api and not methods.reduces_itself:  # which gives them uneven parts
        parts *= devices
    wanted = f"a multiple of {parts} (devices that share it x config.parallel.accumulation)"
    config.require("batch_size", config.batch_size % parts == 0, wanted)


def check_parts(config: Experiment, data: Data, params: Params) -> None:
    """Raises `ConfigError` where parts of a batch have another mean gradient than the whole.

    That is where the loss of an example depends on the others of its batch, and the batch is taken
    in parts in which a simulation on one device does not take it.
    """
    real, methods = config.parallel, config.methods
    nodes, devices = methods.devices(config)
    if methods.gradient and methods.stages:
        devices *= methods.gradient.parts(nodes)
    apart = real.api in ("shard_map", "pmap") and not methods.mix and devices > 1
    keys = {
        "parallel.accumulation": (real.accumulation > 1, "1"),
        "method.name": (methods.reduces_itself, "another, as its workers go by micro-batches"),
        "parallel.api": (apart, "''" if methods.stages else "'' or 'jit'"),
    }
    chosen = next((key for key, (divides, _) in keys.items() if divides), "")
    if chosen and program.mixes(config, data.classes, params, head(data.train, EXAMPLES)):
        wanted = f"{keys[chosen][1]}: with this model the loss of an example depends on the others "
        wanted += "of its batch (as with a norm over the batch), and so on how that is divided"
        require(config, chosen, lambda _: False, wanted)


def _check_replicas(config: Experiment) -> None:
    """Replicas are of one small objective on one device, recorded whole."""
    methods, data = config.methods, config.data
    if not config.replicas.count:
        return
    refuse(
        (data.augment, "config.data.augment: replicas are of one objective, held in memory"),
        (data.streaming, "config.data.streaming: replicas are of one objective, held in memory"),
        (
            config.parallel.api or not methods.simple,
            "config.replicas.count: replicas are recorded of methods of one device "
            f"({', '.join(_simple())}), with config.parallel.api = ''",
        ),
        (data.dirichlet, "config.data.dirichlet: replicas are of one objective, without shards"),
        (
            config.probes.momentum,
            "config.probes.momentum: replicas are recorded whole, without windows",
        ),
    )


def _check_shards(config: Experiment) -> None:
    methods, nodes = config.methods, config.cluster.nodes
    if not config.data.dirichlet:
        return
    if methods.read and not methods.read.barrier and not methods.mix:
        _check_shards_of_groups(config)
        return
    if not methods.mix and not methods.plain:
        raise ConfigError(
            "config.data.dirichlet: nodes have shards of their own where they wait for one another "
            f"or arrive by themselves, not with config.method.name = {methods.name!r}"
        )
    wanted = f"a multiple of config.cluster.nodes = {nodes}, each of which draws from a shard of "
    wanted += "its own (config.data.dirichlet)"
    config.require("batch_size", config.batch_size % nodes == 0, wanted)


def _check_shards_of_groups(config: Experiment) -> None:
    """Groups that arrive by themselves are nodes then, and each has all of a batch."""
    methods, wanted = config.methods, "config.data.dirichlet:"
    refuse(
        (
            methods.groups != config.cluster.nodes,
            f"{wanted} each group has a node's shard, so config.method.groups = {methods.groups} "
            f"must be config.cluster.nodes = {config.cluster.nodes}",
        ),
        (
            methods.gradient or methods.get("arrivals", 1) > 1,
            f"{wanted} a group has a shard where a gradient is of one group, not with "
            f"config.method.name = {methods.name!r}",
        ),
        (
            config.cluster.service in ("race", "geometric"),
            f"{wanted} of groups whose times are drawn, not config.cluster.service = "
            f"{config.cluster.service!r}",
        ),
        (config.probes.momentum, f"{wanted} config.probes.momentum must be False, of groups"),
    )


def _check_probes(config: Experiment) -> None:
    probes, methods = config.probes, config.methods
    refuse(
        (
            (probes.similarity or probes.mean) and not methods.mix,
            f"config.probes.{'similarity' if probes.similarity else 'mean'}: of nodes with "
            "parameters of their own, which "
            f"config.method.name = {methods.name!r} has none of",
        ),
        (
            probes.steer and (not probes.momentum or config.optimizer.name != "sgd"),
            "config.probes.steer: needs config.probes.momentum and config.optimizer.name = 'sgd'",
        ),
        (
            probes.momentum and optimizers.is_fixed(config.optimizer.name),
            "config.probes.momentum: needs the learning rate, which a transformation of optax does "
            "not tell; name the optimizer (optdyn.sgd, optdyn.optimizer), with its chain",
        ),
        (
            probes.momentum and probes.window > probes.every,
            f"config.probes.window = {probes.window}: at most config.probes.every = {probes.every}",
        ),
        (
            probes.momentum and methods.stages and config.parallel.api == "shard_map",
            "config.probes.momentum: not with blocks on devices of their own; "
            "config.parallel.api = '' trains the same on one",
        ),
    )


def _check_optimizer(config: Experiment) -> None:
    name = config.optimizer.name
    taken, made_by = optimizers.arguments(name), optimizers.words(name)
    if "learning_rate" not in taken:
        own = "must be a function with an argument 'learning_rate' that returns an optax "
        own += "transformation"
        ours = f"optax has no such optimizer{meant(name, optimizers.known())}"
        where = lookup.setting("config.optimizer.name", name)
        raise ConfigError(f"{where}: {own if lookup.is_own(name) else ours}")
    refuse(
        (
            config.optimizer.momentum and not optimizers.takes_momentum(name),
            f"config.optimizer.momentum = {config.optimizer.momentum}: {made_by} has no "
            "momentum; set its own arguments in config.optimizer.options",
        )
    )
    for key in config.optimizer.options:
        where = f"config.optimizer.options.{key}:"
        require_known(key, taken, f"{where} {made_by} has no such argument")
        set_already = key in ("learning_rate", "momentum")
        refuse((set_already, f"{where} set config.optimizer.{key} instead"))
    _check_chain(config)
    if optimizers.follows_delays(name):
        wanted = f"one of {', '.join(map(repr, _simple()))} with config.optimizer.name = {name!r}, "
        wanted += "which is told the delay of an update's one gradient"
        require(config, "method.name", lambda v: chosen(v).simple, wanted)
    more = config.optimizer.options or config.optimizer.chain
    refuse(
        (
            config.replicas.matching and (name != "sgd" or more),
            "config.replicas.matching: compares with plain momentum SGD, so it needs "
            "config.optimizer.name = 'sgd' without options or a chain",
        )
    )
    if not lookup.objects(config, lookup.OPTIMIZER):  # which may be for the model's alone
        some = {"x": jax.ShapeDtypeStruct((1,), np.float32)}
        optimizers.check(config, config.methods.groups, some)
    optimizer = config.optimizer
    of = optimizer.learning_rate, 1, optimizer.decay_rate, optimizer.schedule_options
    schedules.schedule(optimizer.schedule, *of)


def _simple() -> list[str]:
    """The built-in methods whose update is one gradient of the whole batch (`Methods.simple`)."""
    return [name for name in built_in() if chosen(name).simple]


def _check_chain(config: Experiment) -> None:
    """The transforms that gradients go through before the optimizer, and their options."""
    texts = "of texts, names of transforms as ('delay_compensation',), or ()"
    require(config, "optimizer.chain", lambda v: all(isinstance(n, str) for n in v), texts)
    every = [options for _, options in optimizers.chain(config)]
    for key in config.optimizer.chain_options:
        takers = sum(key in options for options in every)
        said = f"config.optimizer.chain_options.{key}: taken by {takers} of config.optimizer."
        refuse((takers != 1, f"{said}chain = {tuple(config.optimizer.chain)}, must be by one"))
