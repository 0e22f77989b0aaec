"""Numbers that several methods have, each with one meaning."""

import math
from dataclasses import dataclass

from optdyn.experiment import Known
from optdyn.fields import field
from optdyn.strategies.method import Method

ABOVE_0: Known = {"wanted": "above 0", "holds": lambda v: 0 < v < math.inf}
FRACTION: Known = {"wanted": "from 0 to 1", "holds": lambda v: 0 <= v <= 1}


@dataclass(frozen=True)
class MergedServer(Method):
    fresh: tuple[str, ...] = field(
        (), "asynchronous, sync: blocks of a merged server, which groups read fresh.", static=True
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
    fragments: int = field(
        1,
        "model_averaging, diloco, slowmo, decoupled: fragments of the parameters, which take "
        "turns.",
        static=True,
    )
    delay: int = field(
        0,
        "model_averaging, diloco, slowmo, decoupled: tau, updates from the sending of a fragment "
        "to its receipt.",
    )


@dataclass(frozen=True)
class OuterRate(Method):
    outer_learning_rate: float = field(
        0.7, "diloco, async_local_sgd, sparseloco: learning rate of the outer step.", **ABOVE_0
    )


@dataclass(frozen=True)
class OuterMomentum(OuterRate):
    outer_momentum: float = field(
        0.9, "diloco, async_local_sgd: momentum of the outer step.", at_least=0, below=1
    )


@dataclass(frozen=True)
class OnGraph(Method):
    graph: str = field(
        "ring",
        "gossip, ad_psgd: who exchanges with whom, 'ring' or 'complete'; gossip also "
        "'exponential', 'one_peer', 'random', 'push'.",
    )


@dataclass(frozen=True)
class MicroBatches(Method):
    micro_batches: int = field(
        4,
        "local, backprop on several nodes, or stale_pipeline, 2bw: parts of a batch in turn.",
        at_least=1,
        static=True,
    )
