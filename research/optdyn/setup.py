"""The setup of an experiment: all but its method. What is trained, on what, and for how long.

Each part is a value (`fields.py`), whose fields are the keys of a config: `config.cluster.nodes` is
`Setup.cluster.nodes`. Seconds are simulated, sizes are bytes. A field that takes a name takes
one of the package, or one of your own: MODULE:NAME, or path/to/file.py:NAME.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import Field, InitVar, dataclass, fields
from dataclasses import field as made
from typing import Any, Self

from optdyn.base.calls import checked
from optdyn.base.errors import ConfigError, require_known, shown
from optdyn.base.fields import OPTIONS, Options, Value, default_of, field, like, plain

BLOCKS = 1000  # of a model, which is traced block by block
WIDTH = 2**20  # of a layer, or of a set of workers
PIXELS = 4096  # a side
SHORTEST = 54  # updates of a window of the momentum meter
APIS = ("jit", "shard_map", "pmap", "overlap")  # of real devices


def _numbers(value: Any) -> bool:
    return all(isinstance(entry, (int, float)) for entry in value)


def _widths(value: Any) -> bool:
    return len(value) <= BLOCKS and all(1 <= width <= WIDTH for width in value)


def _counts(value: Any) -> bool:
    return all(type(entry) is int and 1 <= entry <= BLOCKS for entry in value)


def _ordered(value: Any) -> bool:
    return len(value) == 2 and 0 <= value[0] <= value[1]


def _momenta(value: Any) -> bool:
    return _numbers(value) and all(-1 < m < 1 for m in value)


def _finite(value: Any) -> bool:
    return bool(0 <= value < math.inf)


def _positive(value: Any) -> bool:
    return bool(0 < value < math.inf)


Known = dict[str, Any]  # arguments of `field`
WIDTHS: Known = {
    "wanted": f"at most {BLOCKS:,} widths from 1 to {WIDTH:,}",
    "holds": _widths,
}
A_CHANNEL: Known = {"wanted": "numbers, one a channel, or ()", "holds": _numbers}
A_WORKER: Known = {"wanted": "numbers, one a worker, or ()", "holds": _numbers}
LEAST_AND_MOST: Known = {
    "wanted": "two numbers from 0 up, the least and the most",
    "holds": _ordered,
}
FINITE: Known = {"wanted": "finite and at least 0", "holds": _finite}
POSITIVE: Known = {"wanted": "finite and more than 0", "holds": _positive}
PART: Known = {"wanted": "above 0 and at most 1", "holds": lambda v: 0 < v <= 1}
WIDE: Known = {"at_least": 1, "at_most": WIDTH}


@dataclass(frozen=True)
class Model(Value, section="model"):
    """The model, a sequence of blocks (`models/`). A field applies to the models that it names."""

    name: Any = field("mlp", "Model, of problem/models/ or your own.")
    options: Options = field(OPTIONS, "Arguments of a model of your own.")
    hidden: tuple[int, ...] = field(
        (256, 256), "mlp: widths of its hidden layers; cnn: widths of its dense layers.", **WIDTHS
    )
    channels: tuple[int, ...] = field(
        (6, 16),
        "cnn: channels of its convolutions; resnet: channels of each stage's blocks.",
        **WIDTHS,
    )
    blocks: int = field(
        8, "resmlp, resnet, transformers: residual blocks.", at_least=1, at_most=BLOCKS
    )
    width: int = field(256, "resmlp, transformers: width of the residual stream.", **WIDE)
    attention_heads: int = field(4, "transformers: attention heads of a block.", **WIDE)
    norm: str = field(
        "group", "resnet: its normalization, 'group' or 'batch'.", one_of=("group", "batch")
    )
    stages: tuple[int, ...] = field(
        (),
        "resnet: blocks of each stage, as (3, 4, 6, 3); (): model.blocks evenly.",
        wanted=f"whole numbers from 1 to {BLOCKS:,}, or ()",
        holds=_counts,
    )
    stem: str = field(
        "half",
        "resnet: 3 x 3 at 'half' or the 'whole' size, or ImageNet's at a 'quarter'.",
        one_of=("half", "whole", "quarter"),
    )
    bottleneck: bool = field(False, "resnet: blocks of 1 x 1, 3 x 3 and 1 x 1 convolutions.")
    dtype: str = field(
        "float32", "Type of the computation; parameters stay float32.",
        one_of=("float32", "bfloat16"),
    )  # fmt: skip
    remat: bool = field(
        False,
        "Whether blocks keep only their inputs, and the backward pass computes the rest again.",
    )
    lowering: str = field(
        "",
        "How convolutions are computed, or a list 'gemm,fft' in their order; '': as the backend "
        "does; 'measured': the fastest here.",
    )
    dimension: int = field(16, "quadratic: its dimension.", **WIDE)
    condition: float = field(
        10.0, "quadratic: largest over smallest curvature; the largest is 1.", at_least=1
    )
    noise: float = field(0.0, "quadratic: standard deviation of an example's optimum.", at_least=0)
    spread: float = field(
        0.0, "quadratic: standard deviation of an example's curvatures, over their mean.",
        at_least=0, at_most=10,
    )  # fmt: skip


@dataclass(frozen=True)
class Data(Value, section="data"):
    """The data set (`data/`)."""

    name: Any = field(
        "mnist5k",
        "Data set: 'kjv', 'stdlib', 'packages' (text), 'tfds:NAME' (prepared), 'folder:PATH' "
        "(images or arrays), 'text:PATH', or your own.",
    )
    options: Options = field(OPTIONS, "Arguments of data of your own.")
    dir: str = field(
        "", "Where prepared data lies; '': OPTDYN_DATA_DIR, or where tensorflow-datasets has it."
    )
    train_examples: int = field(
        0, "Images, or sequences of text, that are trained on; 0: all.", at_least=0
    )
    train_evaluated: int = field(
        5000,
        "Most examples that the log's train_loss is the mean over; 0: all. daso heeds it.",
        at_least=0,
    )
    test_evaluated: int = field(
        0, "Most examples that the log's test figures are the mean over; 0: all.", at_least=0
    )
    replacement: bool = field(False, "Whether batches are drawn independently, as theory assumes.")
    dirichlet: float = field(
        0.0,
        "Concentration of the labels' proportions in the shard of each node, or of each group; 0: "
        "all draw from one set.",
        at_least=0,
    )
    image_size: int = field(
        0, "Pixels a side that images are cut and scaled to; 0: as they are.",
        at_least=0, at_most=PIXELS,
    )  # fmt: skip
    mean: tuple[float, ...] = field(
        (), "Mean of pixels (0 to 1), a number a channel, which is subtracted.", **A_CHANNEL
    )
    std: tuple[float, ...] = field(
        (),
        "Standard deviation of pixels, a number a channel, by which they are divided.",
        **A_CHANNEL,
    )
    augment: str = field(
        "",
        "What is done to training images at random: 'crop', 'flip', 'crop_flip'.",
        one_of=("", "crop", "flip", "crop_flip"),
    )
    streaming: bool = field(False, "Whether examples are brought to devices as they are needed.")
    tokenizer: str = field("character", "Tokenizer of text: 'character', 'byte' or 'bpe:N'.")
    sequence_length: int = field(
        128, "Tokens of text that are predicted in an example.", at_least=1
    )


@dataclass(frozen=True)
class Optimizer(Value, section="optimizer"):
    """The optimizer of all parameters (`optimizers/`)."""

    name: Any = field("sgd", "Optimizer of optax, 'contrib.NAME', 'closed_loop', or your own.")
    learning_rate: float = field(0.1, "Learning rate, where schedules begin or peak.", at_least=0)
    momentum: float = field(
        0.0, "Explicit momentum, may be negative; closed_loop: the total aimed at.",
        above=-1, below=1,
    )  # fmt: skip
    schedule: Any = field("constant", "Schedule of the rate, of optimizers/ or your own.")
    schedule_options: Options = field(
        OPTIONS, "Arguments of the schedule; of 'piecewise': boundaries, scales."
    )
    warmup_steps: int = field(0, "Updates over which the rate rises from 0.", at_least=0)
    decay_steps: int = field(
        0, "Updates over which the schedule decays the rate; 0: to the end.", at_least=0
    )
    decay_rate: float = field(0.1, "Factor of the schedule's decay.", above=0)
    options: Options = field(OPTIONS, "Further arguments of the optimizer.")
    chain: tuple[str, ...] = field(
        (),
        "Transforms that gradients go through before the optimizer: of "
        "optimizers/staleness.py, of optax, or your own.",
    )
    chain_options: Options = field(
        OPTIONS, "Arguments of the chain's transforms, each takes its own."
    )


@dataclass(frozen=True)
class Pieces(Value, section="cluster.pieces"):
    """Measured seconds of the pieces of an update, for the whole `batch_size`.

    They replace `seconds_per_example` and the network in `sync` and `asynchronous`
    (`clock/server.py`).
    """

    conv_compute: float = field(
        0.0, "Convolutions on one worker; a group's k workers divide it. 0: no pieces.", at_least=0
    )
    conv_network: float = field(
        0.0, "The exchange of convolutions with one worker; k take k times it.", at_least=0
    )
    fc: float = field(0.0, "The dense part: on one server if method.fresh names it.", at_least=0)
    fc_network: float = field(
        0.0, "Its exchange with its server, if method.fresh is ().", at_least=0
    )


@checked
@dataclass(frozen=True)
class Law:
    """A law of the times that workers take: its name, or your own function, and its numbers.

    `fields` are the fields of `Cluster` that it sets, such as `variation`.
    """

    name: Any
    fields: Mapping[str, Any] = made(default_factory=dict)


@dataclass(frozen=True)
class Cluster(Value, section="cluster"):
    """The workers, how fast they are, and the network between them (`clock/`).

    `workers` may be given in place of `nodes`: it is `nodes * devices_per_node`. A `service` that
    is a `Law` also sets the fields of that law. Raises `ConfigError` for a value out of its range.
    """

    nodes: int = field(
        1, "Nodes; local, stale_pipeline: stages that the blocks are spread over.", **WIDE
    )
    devices_per_node: int = field(1, "Devices of a node, each a worker.", **WIDE)
    speeds: tuple[float, ...] = field((), "Relative speed of each worker; (): all 1.", **A_WORKER)
    split: str = field(
        "equal",
        "How a group divides its batch: 'equal', or 'proportional' to speeds.",
        one_of=("equal", "proportional"),
    )
    service: Any = field("exponential", "Law of the times that workers take, or your own.")
    service_options: Options = field(OPTIONS, "Arguments of a law of your own.")
    variation: float = field(
        1.0, "lognormal, gamma: standard deviation of the times over their mean.", at_least=0
    )
    trace: str = field(
        "", "trace: CSV file with columns worker, seconds; real runs write trace.csv."
    )
    seconds_per_example: float = field(
        1e-3, "Mean seconds of an example on a worker of speed 1.", above=0
    )
    collective: str = field(
        "ring",
        "How workers, nodes or devices add up messages: 'ring', 'tree', 'server'.",
        one_of=("ring", "tree", "server"),
    )
    latency: float = field(0.0, "Seconds a message.", at_least=0)
    bandwidth: float = field(0.0, "Bytes a second; 0: transfers take no time.", at_least=0)
    latencies: tuple[Any, ...] = field(
        (), "Seconds a message from the row's node to the column's; (): cluster.latency."
    )
    bandwidths: tuple[Any, ...] = field(
        (), "Bytes a second from the row's node to the column's; (): cluster.bandwidth."
    )
    regions: int = field(
        0,
        "Regions of the earth that nodes are spread over, for latencies beside those above; 0: "
        "none.",
        at_least=0,
        at_most=BLOCKS,
    )
    bandwidth_variation: float = field(
        0.0, "Of regions' links: standard deviation of the bandwidth over its mean.", at_least=0
    )
    diurnal: float = field(
        0.0,
        "Amplitude of the daily load, which makes nodes slower by the hour of their longitude.",
        at_least=0,
        below=1,
    )
    day: float = field(86_400.0, "Seconds of a day.", above=0)
    presence: float = field(
        0.0, "Mean seconds until a node leaves, exponential; 0: never.", at_least=0
    )
    absence: float = field(0.0, "Mean seconds until a node that left is back.", at_least=0)
    server_bandwidth: float = field(
        0.0,
        "asynchronous: bytes a second of the one link of the server that all queue for; 0: no "
        "limit.",
        at_least=0,
    )
    overlap: float = field(
        0.0, "Last fraction of the computing that an exchange may run behind.",
        wanted="between 0 and 1", holds=lambda v: 0 <= v <= 1,
    )  # fmt: skip
    pieces: Pieces = made(default_factory=Pieces)
    local_latency: float = field(0.0, "Seconds a message inside a node.", at_least=0)
    local_bandwidth: float = field(
        0.0, "Bytes a second inside a node; 0: transfers take no time.", at_least=0
    )
    disturbances: tuple[Any, ...] = field(
        (), "dynamic_batch: (worker, first epoch, last, slowdown), ..."
    )
    disturbance_probability: float = field(
        0.0, "dynamic_batch: probability that a worker begins to be delayed, at each epoch.",
        wanted="between 0 and 1", holds=lambda v: 0 <= v <= 1,
    )  # fmt: skip
    disturbance_seconds: tuple[float, ...] = field(
        (5.0, 10.0), "dynamic_batch: least and most seconds of a delay, an epoch.", **LEAST_AND_MOST
    )
    disturbance_epochs: tuple[int, ...] = field(
        (4, 20), "dynamic_batch: least and most epochs that a delay lasts.", **LEAST_AND_MOST
    )
    workers: InitVar[int | None] = None

    def __post_init__(self, workers: int | None) -> None:
        if isinstance(self.service, Law):
            law, known = self.service, [each.name for each in fields(self)]
            for name, value in {"service": law.name, **law.fields}.items():
                require_known(name, known, f"Cluster has no field {name!r}")
                object.__setattr__(self, name, value)
        super().__post_init__()
        if workers is not None:
            workers = like(workers, 0)  # also of NumPy
            if type(workers) is not int or workers < 1 or workers % self.devices_per_node:
                raise ConfigError(
                    f"Cluster.workers = {shown(workers)}: must be a multiple of devices_per_node = "
                    f"{self.devices_per_node}, at least 1"
                )
            if self.nodes not in (1, workers // self.devices_per_node):
                raise ConfigError(
                    f"Cluster.workers = {workers}: must be nodes * devices_per_node = "
                    f"{self.worker_count}, or leave nodes out"
                )
            object.__setattr__(self, "nodes", workers // self.devices_per_node)
            super().__post_init__()  # of these nodes

    @property
    def worker_count(self) -> int:
        """N, the workers of all nodes: `nodes * devices_per_node`."""
        return self.nodes * self.devices_per_node

    @checked
    def with_(self, **changes: Any) -> Self:
        """A copy with other values of some fields. Raises `ConfigError`."""
        whole = {"nodes": 1} if changes.get("workers") else {}
        return super().with_(**whole | changes)


@dataclass(frozen=True)
class Parallel(Value, section="parallel"):
    """How a run is laid over real devices (`devices/`)."""

    api: str = field(
        "",
        "'jit', 'shard_map', 'pmap', 'overlap': on real devices; '': all on one, simulated.",
        one_of=("", *APIS),
    )
    devices: int = field(0, "sync: number of devices; 0: all.", at_least=0)
    accumulation: int = field(
        1, "Parts of a device's batch, which are computed one after the other.", at_least=1
    )
    shard_optimizer: bool = field(
        False, "sync with jit: whether the optimizer's state is split over the devices."
    )
    shard_snapshots: bool = field(
        False, "jit: whether versions of the parameters are split over the devices."
    )


@dataclass(frozen=True)
class Probes(Value, section="probes"):
    """What is measured while a run trains."""

    momentum: bool = field(
        False, "Whether the implicit momentum is measured, in windows, with its interval."
    )
    window: int = field(
        200,
        "Updates of a window of the momentum meter, each of which takes a second mini-batch.",
        wanted=f"at least {SHORTEST} updates",
        holds=lambda v: v >= SHORTEST,
    )
    every: int = field(400, "Updates from the start of a window to that of the next.", at_least=1)
    steer: bool = field(
        False,
        "sgd: whether momentum is the total aimed at, less the implicit momentum that is read.",
    )
    noise_scale: bool = field(
        False, "Whether log points have the gradients' noise scale, arXiv 1812.06162."
    )
    sharpness: bool = field(
        False, "Whether log points have the largest eigenvalue of the loss's Hessian."
    )
    similarity: bool = field(
        False, "Whether log points have the cosine of the gradients of nodes that drifted apart."
    )
    mean: bool = field(
        False, "Whether log points have the training loss of the mean of those nodes."
    )


@dataclass(frozen=True)
class Replicas(Value, section="replicas"):
    """Many replicas, whose trajectories are recorded, in place of one run."""

    count: int = field(0, "Replicas that are recorded; 0: one run instead.", at_least=0)
    block: int = field(
        1, "Replicas batched together; 1 is the fastest for networks on CPUs.", at_least=1
    )
    subspace: int = field(
        1024, "Dimension of the random subspace that trajectories are projected on.", at_least=1
    )
    matching: tuple[float, ...] = field(
        (), "Explicit momenta of synchronous runs to be compared with.",
        wanted="numbers between -1 and 1, or ()", holds=_momenta,
    )  # fmt: skip


@dataclass(frozen=True)
class Tune(Value, section="tune"):
    """What `optdyn tune` tries, and for how many simulated seconds."""

    mode: str = field(
        "predictive",
        "'predictive', 'omnivore', the authors', or 'ladders', of any method.",
        one_of=("predictive", "omnivore", "ladders"),
    )
    target: float = field(
        0.1, "Training loss at which training ends.",
        wanted="a finite number", holds=math.isfinite,
    )  # fmt: skip
    seconds: float = field(3600.0, "Most seconds of training.", **POSITIVE)
    probe_seconds: float = field(1.0, "omnivore: seconds of a probe of the cold start.", **POSITIVE)
    probe_share: float = field(0.03, "Share of an epoch that a later probe for it takes.", **PART)
    epoch_seconds: float = field(
        30.0, "Seconds of the first epoch; predictive: each next is twice as long.", **POSITIVE
    )
    momenta: tuple[float, ...] = field(
        (0.0, 0.3, 0.6, 0.9), "omnivore: explicit momenta that are tried.",
        wanted="one number or more between -1 and 1",
        holds=lambda v: len(v) > 0 and all(-1 < m < 1 for m in v),
    )  # fmt: skip
    learning_rates: tuple[float, ...] = field(
        (0.1, 0.01, 0.001, 0.0001), "omnivore: learning rates of one group; more: / 10.",
        wanted="one finite number or more above 0",
        holds=lambda v: len(v) > 0 and all(map(_positive, v)),
    )  # fmt: skip
    seeds: int = field(1, "omnivore: initializations tried.", at_least=1)


@dataclass(frozen=True)
class Plan(Value, section="plan"):
    """What `optdyn plan` chooses from (arXiv 1709.06622)."""

    memory: int = field(2**28, "Bytes of a device.", wanted="bytes, more than 0", holds=_positive)
    batches: tuple[int, ...] = field(
        (), "Mini-batches to choose from; (): batch_size to the largest.",
        wanted="mini-batches of at least 1", holds=lambda v: all(b >= 1 for b in v),
    )  # fmt: skip
    rounds: int = field(7, "Rounds of timing.", at_least=2)
    efficiency: float = field(0.9, "Efficiency that the number of devices must keep.", **PART)
    devices: int = field(64, "Most devices.", at_least=1)
    noise_scale: float = field(
        0.0, "Noise scale of gradients, examples; 0: the worst of all is reckoned with.",
        wanted="at least 0; infinite is one", holds=lambda v: v >= 0,
    )  # fmt: skip


@dataclass(frozen=True)
class Run(Value):
    """The fields of a run that belong to no other part: seed, updates, batch, logging, loss."""

    note: str = field("", "What the run is for, in words; stands on top of its report.")
    code: str = field(
        "",
        "Checksums of your own files, filled in by a run; 'any': a run goes on with edited files.",
    )
    seed: int = field(0, "Seed of everything that is drawn.", at_least=0)
    steps: int = field(1000, "Updates of the run.", at_least=1)
    batch_size: int = field(
        64, "Examples an update, divided among the workers that make it.", at_least=1
    )
    log_every: int = field(50, "Updates between log points.", at_least=1)
    checkpoint_every: int = field(
        500, "Updates between checkpoints, at log points; 0: only at the end.", at_least=0
    )
    init_from: str = field(
        "", "Workdir of a run with whose latest parameters this one begins; '': they are drawn."
    )
    loss: Any = field(
        "",
        "Loss of an example, (outputs, batch) -> (B,): of problem/losses.py or your own; "
        "'': by the data's target, label, y or the next token of text.",
    )
    metrics: tuple[str, ...] = field(
        (), "Metrics, test_NAME in the log; (): the accuracy of labels and tokens.",
        wanted="names, or ()", holds=lambda v: all(isinstance(name, str) for name in v),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Setup(Run):
    """An experiment without its method, which is given one (`experiment.py`).

    Every field is of its kind and in its range.
    """

    model: Model = made(default_factory=Model)
    data: Data = made(default_factory=Data)
    optimizer: Optimizer = made(default_factory=Optimizer)
    cluster: Cluster = made(default_factory=Cluster)
    parallel: Parallel = made(default_factory=Parallel)
    probes: Probes = made(default_factory=Probes)
    replicas: Replicas = made(default_factory=Replicas)
    tune: Tune = made(default_factory=Tune)
    plan: Plan = made(default_factory=Plan)

    def to_dict(self) -> dict[str, Any]:
        """The nested dict of a config."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}

    def with_(self, changes: Mapping[str, Any] = OPTIONS, /, **more: Any) -> Self:
        """A copy with other values of some keys: `with_({"cluster.nodes": 4}, steps=10)`.

        Raises `ConfigError` for an unknown key or a value out of its range.
        """
        changed: Self = _changed(self, {**changes, **more})
        return changed


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return plain(value)


def _changed(value: Any, changes: Mapping[str, Any], prefix: str = "config") -> Any:
    own, inner = dict[str, Any](), dict[str, dict[str, Any]]()
    for key, new in changes.items():
        name, _, rest = key.partition(".")
        if rest:
            inner.setdefault(name, {})[rest] = new
        else:
            own[name] = new
    if isinstance(value, Mapping):  # options, whose keys are free
        return {**value, **own}
    if not isinstance(value, Value):
        return value.with_(changes)
    keys = [each.name for each in fields(value)]
    for name in (*own, *inner):
        require_known(name, keys, f"{prefix} has no key {name!r}")
    for name, of in inner.items():
        part = own.get(name, getattr(value, name))
        own[name] = _changed(part, of, f"{prefix}.{name}")
    return Value.with_(value, **own)


PARTS: Mapping[str, type[Value]] = {
    "model": Model,
    "data": Data,
    "optimizer": Optimizer,
    "cluster": Cluster,
    "parallel": Parallel,
    "probes": Probes,
    "replicas": Replicas,
    "tune": Tune,
    "plan": Plan,
}
# In the order in which they are listed; `method` has the keys of all methods.
SECTIONS = (Run, Model, Data, Optimizer, Cluster, Pieces, Parallel, Probes, Replicas, Tune, Plan)


def every_key() -> Iterator[tuple[str, "Field[Any]"]]:
    """The dotted name and the field of every key of a config, except those of methods."""
    for part in SECTIONS:
        for each in fields(part):
            if "about" in each.metadata:
                yield part.key(each.name), each


def defaults() -> dict[str, Any]:
    """The default of every key by its dotted name, except those of methods."""
    return {name: default_of(each) for name, each in every_key()}
