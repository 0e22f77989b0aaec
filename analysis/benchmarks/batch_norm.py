"""Batch norm and dropout under five methods, for docs/gallery.md: what is evaluated, and with what.

    python -m analysis.benchmarks.batch_norm            the table of evaluations, 70 runs
    python -m analysis.benchmarks.batch_norm --norms    the size of a norm, 30 runs

A residual net of 19,714 parameters on 14 x 14 images, with batch norms, and a transformer of
112,448 on text, with dropout, are trained by four workers on batches of 64 and 32 examples. A norm
takes 16 examples together under every method. Of two rates that with the lower training loss of
seed 100 is taken, and seeds 0 to 4 report. So methods are not compared here, but evaluations of the
same runs:

    carried       the parameters with running averages, of momentum 0.9
    recomputed    with averages that are recomputed for them
    averaged      an average of the parameters (EMA, decay 0.99), with averages recomputed for it
    mixed         that average with the running averages of the last parameters

The second table asks what pytorch's pull request 74894 says, that batch norm does not converge with
local SGD or with accumulated gradients: of the size of a norm, of how often nodes average, and of
the running averages, which one is it? Nothing is tuned there: one rate, six cells.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

import optdyn as od
from analysis.benchmarks import record
from optdyn.methods import Method
from optdyn.problem import shared_data
from optdyn.problem.models.base import STATE
from optdyn.train import program, trainer

SEEDS, CHOOSING = range(5), range(100, 101)
WORKERS, TOGETHER = 4, 16
METHODS: Mapping[str, Method] = {
    "synchronous": od.Sync(),
    "asynchronous": od.Asynchronous(groups=WORKERS),
    "DiLoCo": od.DiLoCo(period=8),
    "DASO": od.DASO(warmup_epochs=1, cooldown_epochs=1),
    "gossip": od.Gossip(),
}


class ResNet(nn.Module):
    """(B, 14, 14, 1) -> (B, 10). A convolution is a dense layer of 3 x 3 patches."""

    widths: tuple[int, ...] = (8, 16, 32)

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        def norm(h: jax.Array) -> jax.Array:
            return nn.BatchNorm(use_running_average=not train, momentum=0.9)(h)

        def conv(h: jax.Array, width: int, stride: int = 1) -> jax.Array:
            h = h[:, ::stride, ::stride]
            padded, side = jnp.pad(h, ((0, 0), (1, 1), (1, 1), (0, 0))), h.shape[1]
            shifts = [(i, j) for i in range(3) for j in range(3)]
            patches = [padded[:, i : i + side, j : j + side] for i, j in shifts]
            return nn.Dense(width, use_bias=False)(jnp.concatenate(patches, -1))

        h = nn.relu(norm(conv(x, self.widths[0])))
        for width in self.widths:
            stride = 1 if width == h.shape[-1] else 2
            y = norm(conv(nn.relu(norm(conv(h, width, stride))), width))
            if stride == 2:
                h = nn.Dense(width, use_bias=False)(h[:, ::2, ::2])
            h = nn.relu(h + y)
        return nn.Dense(10)(h.mean((1, 2)))


class Transformer(nn.Module):
    """(B, T) tokens -> (B, T, classes)."""

    classes: int
    width: int = 64
    blocks: int = 2
    rate: float = 0.1

    @nn.compact
    def __call__(self, tokens: jax.Array, deterministic: bool) -> jax.Array:
        drop = partial(nn.Dropout(self.rate), deterministic=deterministic)
        h = nn.Embed(self.classes, self.width)(tokens)
        h = h + self.param("places", nn.initializers.normal(0.02), (tokens.shape[1], self.width))
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.blocks):
            h = h + drop(nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(h), mask=mask))
            wide = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(h)))
            h = h + drop(nn.Dense(self.width)(wide))
        return nn.Dense(self.classes)(nn.LayerNorm()(h))


def small_images() -> dict[str, dict[str, np.ndarray]]:
    """Returns MNIST5k in means of 2 x 2 pixels."""
    data = od.MNIST5k().load()

    def halved(split: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        image = split["image"].reshape(-1, 14, 2, 14, 2, 1).mean((2, 4)) / 255
        return {"image": image.astype(np.float32), "label": split["label"]}

    return {"train": halved(data.train), "test": halved(data.test)}


def base(steps: int) -> od.Experiment:
    return od.Experiment(
        model=ResNet(),
        data=small_images(),
        optimizer=od.SGD(0.1, momentum=0.9, warmup_steps=20),
        cluster=od.Cluster(nodes=WORKERS),
        evaluation=od.Evaluation(statistics="carried", average="ema", decay=0.99),
        batch_size=64,
        steps=steps,
        log_every=steps,
    ).with_({"model.norm_examples": TOGETHER, "data.train_evaluated": 1000})


def networks() -> dict[str, tuple[od.Experiment, tuple[float, float]]]:
    """Returns the two networks, with the rates that are tried."""
    text = base(300).with_(
        model=lambda classes: Transformer(classes),
        data=od.KJV(sequence_length=64, train_evaluated=500, test_evaluated=500),
        optimizer=od.AdamW(1e-3, warmup_steps=20),
        batch_size=32,
    )
    text = text.with_({"model.norm_examples": 8})
    return {"residual net": (base(500), (0.03, 0.1)), "transformer": (text, (1e-3, 3e-3))}


def accuracies(run: od.Trained) -> dict[str, float]:
    """Returns the test accuracies of a run, by what is evaluated."""
    one = run.experiment
    prepared = trainer.prepare(one.with_({"evaluation.statistics": "recomputed"}))
    test = shared_data.sample(prepared.data.test, one.data.test_evaluated)

    def accuracy(prefix: str) -> float:
        params = {k: v for k, v in run.variables[prefix].items() if k != STATE}
        return program.evaluate(prepared.program, prepared.variables(params), test)["accuracy"]

    last = run.log.iloc[-1]
    found = {"carried": last["test_accuracy"], "recomputed": accuracy("")}
    found |= {"averaged": accuracy("ema_"), "mixed": last["ema_test_accuracy"]}
    return found | {"train_loss": last["train_loss"]}


def spread(values: pd.Series) -> str:
    return f"{values.median():.4f} [{values.min():.4f}, {values.max():.4f}]"


def evaluations() -> list[dict[str, Any]]:
    rows = []
    for network, (one, rates) in networks().items():
        for name, method in METHODS.items():
            arm = one.with_(method=method)
            tried = {f"{r}": arm.with_({"optimizer.learning_rate": r}) for r in rates}
            losses = od.compare(tried, seeds=CHOOSING).table()["loss"]
            chosen = tried[losses.idxmin()]
            for run in od.compare({name: chosen}, seeds=SEEDS).runs[name]:
                about = {"network": network, "method": name, "rate": float(losses.idxmin())}
                rows.append(about | {"seed": run.experiment.seed} | accuracies(run))
                print(rows[-1], flush=True)
    return rows


def norms() -> list[dict[str, Any]]:
    """Returns accuracies by the size of a norm and by how often nodes average."""
    one, rows = base(500), []
    plain, H = {"method.name": "sync"}, {"method": od.ModelAveraging(period=8)}
    cells = {
        ("every update", 64): plain,
        ("every update", 16): plain,
        ("every update", 4): plain,
        ("every update, accumulated", 16): plain | {"parallel.accumulation": 4},
        ("every 8", 16): H,
        ("every 8", 4): H,
    }
    for (workers, size), values in cells.items():
        cell = one.with_(values | {"model.norm_examples": size})
        for run in od.compare({workers: cell}, seeds=SEEDS).runs[workers]:
            about = {"workers": workers, "norm": size, "seed": run.experiment.seed}
            rows.append(about | accuracies(run))
            print(rows[-1], flush=True)
    return rows


def main(argv: list[str] | None = None) -> None:
    options = record.options(__doc__, record.RECORDS / "batch_norm_cpu.json")
    options.add_argument("--norms", action="store_true")
    asked = options.parse_args(argv)
    cells: tuple[Callable[[], list[dict[str, Any]]], list[str]]
    cells = (norms, ["workers", "norm"]) if asked.norms else (evaluations, ["network", "method"])
    rows = pd.DataFrame(cells[0]())
    columns = ["carried", "recomputed", "averaged", "mixed", "train_loss"]
    table = rows.groupby(cells[1], sort=False)[columns].agg(spread).reset_index()
    out = asked.out.with_stem(asked.out.stem + "_norms") if asked.norms else asked.out
    record.publish(table, out, rows=rows.to_dict("records"), optax=optax.__version__)


if __name__ == "__main__":
    main()
