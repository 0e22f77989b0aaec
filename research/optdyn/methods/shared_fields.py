"""Numbers that several methods have, each with one meaning."""

import math
from dataclasses import dataclass

from optdyn.base.fields import field
from optdyn.base.ranges import PART, Known
from optdyn.methods.method import Method
from optdyn.methods.mix import compression
from optdyn.methods.mix.messages import Compression
from optdyn.methods.mix.quantized import WHOLE

ABOVE_0: Known = {"wanted": "above 0", "holds": lambda v: 0 < v < math.inf}
FRACTION: Known = {"wanted": "from 0 to 1", "holds": lambda v: 0 <= v <= 1}


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
    fragments: int = field(
        1,
        "Fragments of the parameters, which take turns.",
        static=True,
    )
    delay: int = field(
        0,
        "tau, updates from the sending of a fragment to its receipt.",
    )


@dataclass(frozen=True)
class Compressed(Method):
    compression: str = field(
        "",
        "Of messages, 'bfloat16', 'top_k', 'sign', 'powersgd'; of gossip and asynchronous the "
        "second and the third.",
        one_of=compression.NAMES,
        static=True,
    )
    compression_share: float = field(
        0.01,
        "top_k: share of an array's numbers that are sent.",
        **PART,
        static=True,
    )
    compression_rank: int = field(
        2, "powersgd: r, columns of the two factors of a matrix.", at_least=1, static=True
    )
    compression_bits: int = field(
        WHOLE,
        "compression: b, bits of a number that is sent, also of those of top_k; 32: as they are.",
        wanted="from 2 to 8, or 32",
        holds=lambda v: 2 <= v <= 8 or v == WHOLE,
        static=True,
    )
    compression_block: int = field(
        128, "compression_bits: numbers that have a scale of their own.", at_least=1, static=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = f"{WHOLE} with config.method.compression = {self.compression!r}"
        whole = self.compression_bits == WHOLE or self.compression in compression.OF_BITS
        self.require("compression_bits", whole, wanted)

    def compressed(self) -> Compression | None:
        """What messages go through."""
        return compression.make(
            self.compression,
            self.compression_share,
            self.compression_rank,
            self.compression_bits,
            self.compression_block,
        )


@dataclass(frozen=True)
class OuterRate(Method):
    outer_learning_rate: float = field(
        0.7,
        "Learning rate of the outer step.",
        **ABOVE_0,
    )


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
