"""Modern decoder transformers of 10, 50 and 124 million parameters: `--config=gpt:10m`.

           blocks  width  heads  tokens  vocabulary    parameters
    10m         8    256      4     256    bpe:7168     9,999,616
    50m        12    512      8     512   bpe:12000    50,100,224
    124m       12    768     12    1024   bpe:25600   124,276,992

The data are the sources of the installed packages, 170 MB of text, which `optdyn prepare packages`
writes once. Byte pairs need `pip install 'optdyn[bpe]'`; 229 MB of sources are encoded in about
200 s of a core and 2.3 GB the first time. `gpt:124m,synthetic` has synthetic tokens instead, for
measurements.

10m computes in float32, which is faster on a CPU. `--config.parallel.accumulation=8` divides
batches into eight parts if they do not fit. None of these was trained to its end here: that takes
an accelerator.
"""

from typing import NamedTuple

import optdyn as od
from optdyn.base.errors import config_variant


class Size(NamedTuple):
    blocks: int
    width: int
    attention_heads: int
    tokens: int
    vocabulary: int
    batch_size: int
    learning_rate: float
    dtype: str = "bfloat16"
    remat: bool = False


SIZES = {
    "10m": Size(8, 256, 4, 256, 7168, 64, 1e-3, "float32"),
    "50m": Size(12, 512, 8, 512, 12_000, 64, 6e-4),
    "124m": Size(12, 768, 12, 1024, 25_600, 32, 6e-4, remat=True),
}


def get_config(variant: str = "10m") -> od.Experiment:
    name, _, data = variant.partition(",")
    size = config_variant(SIZES, name)
    return od.Experiment(
        model=od.ModernTransformer(
            blocks=size.blocks,
            width=size.width,
            attention_heads=size.attention_heads,
            dtype=size.dtype,
            remat=size.remat,
        ),
        data=config_variant(DATA, data)(size),
        optimizer=od.AdamW(size.learning_rate, schedule="cosine", warmup_steps=200),
        batch_size=size.batch_size,
        steps=10_000,
        log_every=100,
        checkpoint_every=1000,
    )


def sources(size: Size) -> od.Data:
    return od.Packages(
        tokenizer=f"bpe:{size.vocabulary}",
        sequence_length=size.tokens,
        train_evaluated=64,
        test_evaluated=64,
    )


def synthetic(size: Size) -> od.Data:
    return od.OwnData(
        "optdyn.problem.data.synthetic:tokens",
        {"vocabulary": size.vocabulary, "length": size.tokens, "examples": 2000},
        train_evaluated=64,
        test_evaluated=64,
    )


DATA = {"": sources, "synthetic": synthetic}
