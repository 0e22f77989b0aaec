"""Modern decoder transformers of 10, 50 and 124 million parameters: `--config=gpt:10m`.

           blocks  width  heads  tokens  vocabulary    parameters
    10m         8    256      4     256    bpe:7168     9,999,616
    50m        12    512      8     512   bpe:12000    50,100,224
    124m       12    768     12    1024   bpe:25600   124,276,992

They learn the sources of the installed packages, 170 MB of text, which `optdyn prepare packages`
writes once (`problem/data/prepare.py`). Byte pairs are `pip install 'optdyn[bpe]'`: 229
MB of sources are 74 million tokens of 7,168, made in about 200 s of a core and 2.3 GB the first
time, and there in 6 s from then on. `gpt:124m,synthetic` draws its tokens instead, to measure with.

The 10m computes in float32, as is quicker on a CPU, the others in bfloat16; the 124m keeps the
inputs of its blocks only (`config.model.remat`). AdamW at 1e-3, 6e-4 and 6e-4, warmed up in 200
updates, decays by half a cosine. Batches are of 64, 64 and 32 sequences;
`--config.parallel.accumulation=8` takes them in eight parts where they do not fit. None of these
was trained to its end here: that takes an accelerator.
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
    """SIZE or SIZE,synthetic. Raises `ConfigError` if there is no such size or data set."""
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


def drawn(size: Size) -> od.Data:
    return od.OwnData(
        "optdyn.problem.data.synthetic:tokens",
        {"vocabulary": size.vocabulary, "length": size.tokens, "examples": 2000},
        train_evaluated=64,
        test_evaluated=64,
    )


DATA = {"": sources, "synthetic": drawn}
