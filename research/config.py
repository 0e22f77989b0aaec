"""The configuration of a run: every key with its default (`checks/` says which values can run).

A config file defines `get_config()`, starts from `default()` and changes what it means to change;
the result is locked, so a misspelt key is an error and not a silent default.
"""

import json
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from optdyn import strategies
from optdyn.values import ConfigError

__all__ = ["ConfigError", "as_begun", "default", "differences", "to_json", "with_new_keys"]


def default() -> ConfigDict:
    """All keys. Times in seconds, sizes in bytes, `batch_size` in examples an update."""
    config = ConfigDict()
    config.note = ""  # what the run is for, in words: on top of its report
    config.code = ""  # checksums of your own files, filled in by a run; 'any': go on with others
    config.seed = 0
    config.steps = 1000
    config.batch_size = 64  # examples an update, divided among the workers that make it
    config.log_every = 50  # updates between log points
    config.checkpoint_every = 500  # updates between checkpoints, at log points; 0: only at the end
    config.init_from = ""  # workdir of a run whose latest parameters are x_0; '': drawn
    # (outputs, batch) -> a number an example: of research/losses.py, or MODULE:FUNCTION.
    config.loss = ""  # '': by the data's target, label, y or the next token of text
    config.metrics = ()  # names, test_NAME in the log; (): the accuracy of labels and tokens

    config.model = ConfigDict()
    config.model.name = "mlp"  # of research/models/, or MODULE:FUNCTION
    config.model.options = ConfigDict()  # arguments of a function of your own
    config.model.hidden = (256, 256)  # mlp: widths; cnn: widths of its dense layers
    config.model.channels = (6, 16)  # cnn: of its convolutions; resnet: of the blocks of each stage
    config.model.blocks = 8  # resmlp, resnet, both transformers: residual blocks
    config.model.width = 256  # resmlp, both transformers: of what the blocks add to
    config.model.attention_heads = 4  # transformer, modern_transformer
    config.model.norm = "group"  # resnet: 'group' or 'batch'
    config.model.stages = ()  # resnet: blocks of each stage, as (3, 4, 6, 3); (): `blocks` evenly
    config.model.stem = "half"  # resnet: 3 x 3 at 'half' or the 'whole' size; 'quarter': ImageNet's
    config.model.bottleneck = False  # resnet: blocks of 1 x 1, 3 x 3 and 1 x 1
    config.model.dtype = "float32"  # of the computation; parameters stay float32
    config.model.remat = False  # True: blocks keep their inputs only, and compute the rest again
    # Of convolutions, or a list 'gemm,fft' in order; '': the backend's; 'measured': here
    config.model.lowering = ""
    config.model.dimension = 16  # quadratic
    config.model.condition = 10.0  # quadratic: largest over smallest curvature, largest = 1
    config.model.noise = 0.0  # quadratic: standard deviation of an example's optimum
    config.model.spread = 0.0  # quadratic: of an example's curvatures, over their mean

    config.data = ConfigDict()
    config.data.name = "mnist5k"  # 'kjv', 'stdlib' (text), 'packages' (text) and 'tfds:NAME'
    # (both prepared), your own: 'folder:PATH' (images, arrays), 'text:PATH', MODULE:FUNCTION
    config.data.options = ConfigDict()  # arguments of a function of your own
    config.data.dir = ""  # where prepared data lies; '': OPTDYN_DATA_DIR or the default of tfds
    config.data.train_examples = 0  # images, or sequences of text; 0: all
    config.data.train_evaluated = 5000  # examples that the log's train_loss is of, at most; 0: all
    config.data.test_evaluated = 0  # and its test figures; 0: all
    config.data.replacement = False  # True: batches drawn independently, as theory assumes
    # Each node draws from a shard of its own, with labels in proportions drawn from a Dirichlet
    config.data.dirichlet = 0.0  # of this concentration; 0: all from one set
    config.data.image_size = 0  # pixels a side that images are cut and scaled to; 0: as they are
    config.data.mean = ()  # of pixels from 0 to 1, a number a channel: taken off
    config.data.std = ()  # and standard deviation: divided by
    config.data.augment = ""  # images trained on: 'crop', 'flip', 'crop_flip', at random
    config.data.streaming = False  # True: examples are brought to the devices as they are needed
    config.data.tokenizer = "character"  # of text: 'character', 'byte' or 'bpe:N'
    config.data.sequence_length = 128  # of text: tokens predicted an example

    config.optimizer = ConfigDict()
    # Any of optax, 'contrib.NAME', 'closed_loop' (research/optimizers/), or MODULE:FUNCTION.
    config.optimizer.name = "sgd"
    config.optimizer.learning_rate = 0.1
    config.optimizer.momentum = 0.0  # explicit, may be negative; closed_loop: the total aimed at
    config.optimizer.schedule = "constant"  # of research/optimizers/, or MODULE:FUNCTION
    config.optimizer.schedule_options = ConfigDict()  # of it, or 'piecewise': boundaries, scales
    config.optimizer.warmup_steps = 0
    config.optimizer.decay_steps = 0  # 0: to the end
    config.optimizer.decay_rate = 0.1
    config.optimizer.options = ConfigDict()  # further arguments of the optimizer
    # Transforms: of research/optimizers/staleness.py, of optax, or MODULE:FUNCTION.
    config.optimizer.chain = ()  # names of those that gradients go through before the optimizer
    config.optimizer.chain_options = ConfigDict()  # their arguments, each takes its own

    config.strategy = ConfigDict()
    # Methods of research/strategies/, joined by '+', or MODULE:NAME; their files have their keys.
    config.strategy.name = strategies.PLAIN
    for method in map(strategies.load, strategies.built_in()):
        config.strategy.update(method.keys)
    config.strategy.options = ConfigDict()  # of a method of your own, MODULE:NAME

    config.cluster = ConfigDict()
    config.cluster.nodes = 1  # local: stages that the blocks are spread over
    config.cluster.devices_per_node = 1
    config.cluster.speeds = ()  # relative speed of each worker; (): all 1
    config.cluster.split = "equal"  # of a group's batch, or 'proportional' to its workers' speeds
    config.cluster.service = "exponential"  # law of times, or MODULE:FUNCTION
    config.cluster.service_options = ConfigDict()  # arguments of a function of your own
    config.cluster.variation = 1.0  # lognormal, gamma: standard deviation over mean
    config.cluster.trace = ""  # trace: CSV file, columns worker,seconds; real runs write trace.csv
    config.cluster.seconds_per_example = 1e-3  # on a worker of speed 1
    # How all workers, nodes or devices add up: 'ring', 'tree', 'server'; 'drawn': as before 2026-12
    config.cluster.collective = "ring"
    config.cluster.latency = 0.0  # seconds a message
    config.cluster.bandwidth = 0.0  # bytes a second; 0: transfers take no time
    config.cluster.latencies = ()  # seconds from the row's node to the column's; (): as above
    config.cluster.bandwidths = ()  # bytes a second, likewise
    # Nodes all over the earth (research/timeline/regions.py)
    config.cluster.regions = (
        0  # that nodes are spread over, for latencies beside those above; 0: off
    )
    config.cluster.bandwidth_variation = 0.0  # of regions' links: standard deviation over mean
    config.cluster.diurnal = 0.0  # amplitude of the load by the hour, which makes nodes slower
    config.cluster.day = 86_400.0  # seconds of a day
    config.cluster.presence = 0.0  # mean seconds until a node leaves, exponential; 0: never
    config.cluster.absence = 0.0  # mean seconds until it is back
    # asynchronous: bytes a second of the one link of the server that all queue for; 0: no limit
    config.cluster.server_bandwidth = 0.0
    config.cluster.overlap = 0.0  # last fraction of the computing that an exchange may run behind
    # sync, asynchronous: seconds of a whole batch_size in place of the three above; 0: not so
    config.cluster.pieces = ConfigDict()
    config.cluster.pieces.conv_compute = 0.0  # convolutions, on one worker; a group's k divide it
    config.cluster.pieces.conv_network = 0.0  # their exchange with one worker; k take k times it
    config.cluster.pieces.fc = 0.0  # dense part: on one server if strategy.fresh names it
    config.cluster.pieces.fc_network = 0.0  # its exchange with its server, if strategy.fresh is ()
    config.cluster.local_latency = 0.0  # daso: seconds a message inside a node
    config.cluster.local_bandwidth = 0.0  # daso: bytes a second inside a node; 0: as above
    config.cluster.disturbances = ()  # dynamic_batch: (worker, first epoch, last, slowdown), ...
    config.cluster.disturbance_probability = 0.0  # dynamic_batch: of a delay, a worker and epoch
    config.cluster.disturbance_seconds = (5.0, 10.0)  # least and most of such a delay, an epoch
    config.cluster.disturbance_epochs = (4, 20)  # least and most epochs that it lasts

    config.parallel = ConfigDict()
    # 'jit', 'shard_map', 'pmap', 'overlap': real devices; '': one, others simulated
    config.parallel.api = ""
    config.parallel.devices = 0  # sync: how many; 0: all
    config.parallel.accumulation = 1  # parts of a device's batch, one after the other
    config.parallel.shard_optimizer = False  # sync, jit: optimizer state split over the devices
    config.parallel.shard_snapshots = False  # jit: versions of the parameters, likewise

    config.probes = ConfigDict()  # what is measured beside training
    config.probes.momentum = False  # the implicit one, in windows of updates, with its interval
    config.probes.window = 200  # updates of a window, each of which takes a second mini-batch
    config.probes.every = 400  # updates from the start of a window to that of the next
    config.probes.steer = False  # sgd: momentum is the total aimed at, less what is implicit
    config.probes.noise_scale = False  # of gradients, at log points: arXiv 1812.06162
    config.probes.sharpness = False  # largest eigenvalue of the loss's Hessian, at log points
    config.probes.similarity = False  # cosine of the gradients of nodes that drifted apart
    config.probes.mean = False  # training loss of the mean of those nodes, at log points

    config.replicas = ConfigDict()
    config.replicas.count = 0  # > 0: record trajectories of this many replicas instead of one run
    config.replicas.block = 1  # replicas batched together; 1 is the fastest for networks on CPUs
    config.replicas.subspace = 1024  # random subspace that trajectories are projected on
    config.replicas.matching = ()  # explicit momenta of synchronous runs to be compared with
    config.tune = ConfigDict()  # launch.tune; seconds are simulated
    config.tune.mode = "predictive"  # or 'omnivore', the authors' own
    config.tune.target = 0.1  # training loss at which training ends
    config.tune.seconds = 3600.0  # of training, at most
    config.tune.probe_seconds = 1.0  # omnivore, baselines: of a probe of the cold start
    config.tune.probe_share = 0.03  # of a later probe, of the epoch it is for
    config.tune.epoch_seconds = 30.0  # of the first epoch; predictive: of the next twice that, ...
    config.tune.momenta = (0.0, 0.3, 0.6, 0.9)  # explicit ones that are tried
    config.tune.learning_rates = (0.1, 0.01, 0.001, 0.0001)  # omnivore, of one group; more: / 10
    config.tune.seeds = 1  # omnivore: initializations tried
    config.tune.baselines = ()  # 'synchronous', 'asynchronous', 'random', 'tpe': run beside it

    config.plan = ConfigDict()  # launch.plan
    config.plan.memory = 2**28  # bytes of a device
    config.plan.batches = ()  # mini-batches to choose from; (): batch_size to the largest
    config.plan.rounds = 7  # of timing
    config.plan.efficiency = 0.9  # that many devices are to keep
    config.plan.devices = 64  # at most
    config.plan.overhead = 0.0  # seconds an update; 0: the exchange of parameters over the cluster
    config.plan.server_bandwidth = 0.0  # bytes a second of a parameter server; 0: the cluster's
    config.plan.updates = ()  # to train: low, median, high (90 %); (): of plan.runs, or steps
    config.plan.runs = ""  # workdir of runs with several seeds: their updates to plan.loss count
    config.plan.loss = 0.0  # training loss
    config.plan.noise_scale = 0.0  # examples, of gradients; 0: of runs at several mini-batches

    config.lock()
    for options in (  # whose keys are those of what is chosen
        config.model.options,
        config.data.options,
        config.optimizer.options,
        config.optimizer.chain_options,
        config.optimizer.schedule_options,
        config.strategy.options,
        config.cluster.service_options,
    ):
        options.unlock()
    return config


def to_json(config: ConfigDict) -> str:
    """The resolved config, as it is written to `config.json`."""
    return json.dumps(config.to_dict(), indent=2, sort_keys=True) + "\n"


# What runs had before there was the key, where that is not its default.
BEFORE = {"cluster.collective": "drawn"}


def with_new_keys(held: Mapping[str, Any]) -> dict[str, Any]:
    """A config that was written before some keys were there: they have what runs had then."""

    def merged(given: Any, usual: Any) -> Any:
        if not (isinstance(given, Mapping) and isinstance(usual, Mapping)):
            return given
        return {**usual, **{key: merged(v, usual.get(key)) for key, v in given.items()}}

    usual = json.loads(to_json(default()))
    for key, value in BEFORE.items():
        section, _, name = key.partition(".")
        usual[section][name] = value
    return merged(held, usual)


def as_begun(config: ConfigDict, held: Mapping[str, Any]) -> ConfigDict:
    """The config of a run that was begun as `held` says, before some keys were there."""
    usual, begun = default(), config.copy_and_resolve_references()
    for key, value in BEFORE.items():
        section, _, name = key.partition(".")
        is_older = isinstance(held.get(section), Mapping) and name not in held[section]
        if is_older and begun[section][name] == usual[section][name]:
            begun[section][name] = value
    return begun


def differences(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the keys in which two plain configs differ."""
    names = []
    for key in sorted(one.keys() | other.keys()):
        a, b = one.get(key), other.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            names += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(prefix + key)
    return names
