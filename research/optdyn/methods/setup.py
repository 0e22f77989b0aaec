"""All of an experiment but its method: what is trained, on what, and for how long.

`config.cluster.nodes` is `Setup.cluster.nodes`. A field that takes a name takes one of the package,
or one of yours: MODULE:NAME, or path/to/file.py:NAME.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Self, cast

from optdyn.base.errors import ConfigError
from optdyn.base.fields import OPTIONS, Value, field
from optdyn.base.ranges import PART, POSITIVE, positive
from optdyn.clock.cluster import Cluster
from optdyn.optimizers.kinds import SGD, Optimizer
from optdyn.problem.data.kinds import Data, MNIST5k
from optdyn.problem.models import MLP, Model

SHORTEST = 54  # updates of a window of the momentum meter
APIS = ("jit", "shard_map", "pmap", "overlap")  # of real devices


@dataclass(frozen=True)
class Parallel(Value, section="parallel"):
    """How a run is laid over real devices (`devices/`)."""

    api: str = field(
        "",
        "'jit', 'shard_map', 'pmap', 'overlap': on real devices; '': all on one, simulated.",
        one_of=("", *APIS),
    )
    devices: int = field(0, "Number of devices; 0: all.", at_least=0)
    accumulation: int = field(
        1, "Parts of a device's batch, computed one after the other.", at_least=1
    )
    shard_optimizer: bool = field(
        False, "sync with jit: whether the optimizer's state is split over the devices."
    )
    shard_snapshots: bool = field(
        False, "jit: whether versions of the parameters are split over the devices."
    )


@dataclass(frozen=True)
class Probes(Value, section="probes"):
    """Measurements while a run trains."""

    momentum: bool = field(
        False, "Whether the implicit momentum is read off windows of the updates."
    )
    window: int = field(
        200,
        "Updates of a window of the momentum meter, each of which takes a second mini-batch.",
        expected=f"at least {SHORTEST} updates",
        is_valid=lambda v: v >= SHORTEST,
    )
    every: int = field(400, "Updates from the start of a window to that of the next.", at_least=1)
    steer: bool = field(
        False,
        "sgd: whether momentum is a total, less the implicit momentum that is measured.",
    )
    noise_scale: bool = field(
        False, "Whether log points have the gradients' noise scale, arXiv 1812.06162."
    )
    sharpness: bool = field(
        False, "Whether log points have the largest eigenvalue of the loss's Hessian."
    )
    similarity: bool = field(
        False, "Whether log points have the cosine of the gradients of nodes that differ."
    )
    mean: bool = field(False, "Whether log points have the training loss of the nodes' mean.")


@dataclass(frozen=True)
class Evaluation(Value, section="evaluation"):
    """The parameters and the state that a model is evaluated with, at log points and at the end."""

    statistics: str = field(
        "recomputed",
        "Averages of batch norms: 'recomputed' for the parameters that are evaluated; 'carried' "
        "along, as the mean of nodes where these meet; or 'local', carried by each node alone.",
        one_of=("recomputed", "carried", "local"),
    )
    batches: int = field(
        16, "recomputed: training batches that averages of batch norms are over.",
        at_least=1, at_most=10_000,
    )  # fmt: skip
    average: str = field(
        "",
        "Average of the parameters over updates, evaluated beside them: '' for none; 'ema', "
        "exponential; or 'lawa', of the last ones.",
        one_of=("", "ema", "lawa"),
    )
    decay: float = field(
        0.99, "ema: share of the average that stays at an update.",
        expected="above 0 and below 1", is_valid=lambda v: 0 < v < 1,
    )  # fmt: skip
    last: int = field(
        100, "lawa: updates that the average is over; each keeps a copy of the parameters.",
        at_least=1,
    )  # fmt: skip


@dataclass(frozen=True)
class Replicas(Value, section="replicas"):
    """Replicas whose trajectories are recorded, in place of one run."""

    count: int = field(0, "Replicas that are recorded; 0: one run instead.", at_least=0)
    block: int = field(
        1, "Replicas batched together; 1 is the fastest for networks on CPUs.", at_least=1
    )
    subspace: int = field(
        1024, "Dimension of the random subspace that trajectories are projected on.", at_least=1
    )


@dataclass(frozen=True)
class Tune(Value, section="tune"):
    """Choices and budget of `optdyn tune`, in simulated seconds."""

    mode: str = field(
        "predictive",
        "'predictive'; 'omnivore', the authors'; or 'ladders', for any method.",
        one_of=("predictive", "omnivore", "ladders"),
    )
    target: float = field(
        0.1, "Training loss at which training ends.",
        expected="a finite number", is_valid=math.isfinite,
    )  # fmt: skip
    seconds: float = field(3600.0, "Most seconds of training.", **POSITIVE)
    probe_seconds: float = field(1.0, "omnivore: seconds of a probe of the cold start.", **POSITIVE)
    probe_share: float = field(0.03, "Share of an epoch that a later probe for it takes.", **PART)
    epoch_seconds: float = field(
        30.0, "Seconds of the first epoch; predictive: each next is twice as long.", **POSITIVE
    )
    momenta: tuple[float, ...] = field(
        (0.0, 0.3, 0.6, 0.9), "omnivore: explicit momenta that are tried.",
        expected="one number or more between -1 and 1",
        is_valid=lambda v: len(v) > 0 and all(-1 < m < 1 for m in v),
    )  # fmt: skip
    learning_rates: tuple[float, ...] = field(
        (0.1, 0.01, 0.001, 0.0001), "omnivore: learning rates of one group; more: / 10.",
        expected="one finite number or more above 0",
        is_valid=lambda v: len(v) > 0 and all(map(positive, v)),
    )  # fmt: skip
    seeds: int = field(1, "omnivore: initializations tried.", at_least=1)


@dataclass(frozen=True)
class Plan(Value, section="plan"):
    """Choices of `optdyn plan` (arXiv 1709.06622)."""

    memory: int = field(
        2**28,
        "Bytes of a device.",
        expected="bytes, more than 0",
        is_valid=positive,
        largest=2**63 - 1,
    )
    batches: tuple[int, ...] = field(
        (), "Mini-batches to choose from; (): batch_size to the largest.",
        expected="mini-batches of at least 1", is_valid=lambda v: all(b >= 1 for b in v),
    )  # fmt: skip
    rounds: int = field(7, "Rounds of timing.", at_least=2)
    efficiency: float = field(0.9, "Least efficiency at the chosen number of devices.", **PART)
    devices: int = field(64, "Most devices.", at_least=1)
    noise_scale: float = field(
        0.0, "Noise scale of gradients, examples; 0: the worst case.",
        expected="at least 0; infinite is one", is_valid=lambda v: v >= 0, largest=math.inf,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Setup(Value):
    """An experiment without its method (`experiment.Config` has one)."""

    note: str = field("", "Purpose of the run in words, shown on top of its report.")
    code: str = field(
        "",
        "Checksums of your files, filled in by a run; 'any': a run resumes with edited files.",
    )
    seed: int = field(0, "Seed of all random numbers.", at_least=0, largest=2**32 - 1)
    steps: int = field(1000, "Updates of the run.", at_least=1)
    batch_size: int = field(64, "Examples per update, divided among its workers.", at_least=1)
    log_every: int = field(50, "Updates between log points.", at_least=1)
    checkpoint_every: int = field(
        500, "Updates between checkpoints, at log points; 0: only at the end.", at_least=0
    )
    init_from: str = field(
        "", "Workdir of a run whose latest parameters this one starts from; '': drawn ones."
    )
    loss: Any = field(
        "",
        "Loss of each example, (outputs, batch) -> (B,): of problem/losses.py or yours; "
        "'': by the data's target, label, y or the next token of text.",
    )
    metrics: tuple[str, ...] = field(
        (), "Metrics, test_NAME in the log; (): the accuracy of labels and tokens.",
        expected="names, or ()", is_valid=lambda v: all(isinstance(name, str) for name in v),
    )  # fmt: skip
    model: Model = dataclass_field(default_factory=MLP)
    data: Data = dataclass_field(default_factory=MNIST5k)
    optimizer: Optimizer = dataclass_field(default_factory=SGD)
    cluster: Cluster = dataclass_field(default_factory=Cluster)
    parallel: Parallel = dataclass_field(default_factory=Parallel)
    probes: Probes = dataclass_field(default_factory=Probes)
    evaluation: Evaluation = dataclass_field(default_factory=Evaluation)
    replicas: Replicas = dataclass_field(default_factory=Replicas)
    tune: Tune = dataclass_field(default_factory=Tune)
    plan: Plan = dataclass_field(default_factory=Plan)

    def with_(self, changes: Mapping[str, Any] = OPTIONS, /, **more: Any) -> Self:
        """Returns a copy with other values of some keys: `with_({"cluster.nodes": 4}, steps=10)`.

        Raises `ConfigError` for an unknown key or a value out of its range.
        """
        for key, value in changes.items():
            if key.startswith("base."):  # a key of a grid
                inner = key.removeprefix("base.")
                self.with_({inner: value})
                raise ConfigError(f"config has no key {key!r}; that of a run has {inner!r}")
        return cast(Self, self.changed({**changes, **more}))
