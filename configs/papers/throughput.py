"""Is a device nothing but its throughput? Omnivore's abstract takes it for a black box.

A device here is one core or all cores of this machine, computing in float32 or in bfloat16. Its
throughput is that of one large matrix product; training is the trainer's own program of an update.
If speed is proportional to throughput, examples a second over floating-point operations a second is
the same number on every device, whatever the model. All are timed in turn, so that a busy machine
slows both.
"""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from optdyn.config import usual
from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.clock import Setting, in_turn, repeated
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.study import Study, cores
from optdyn.problem.models.convolution import default_lowering
from optdyn.setup import Optimizer
from optdyn.training.program import CHUNK
from optdyn.tuning import layers, plans

CLAIM = Claim(
    number=13,
    sentence="Training speed is proportional to a device's throughput, whatever the device.",
    source="Omnivore (arXiv 1606.04487), abstract",
    measured=(
        "examples/s of real training on this machine over FLOP/s of a 1024 x 1024 matrix product, "
        "on one core and on all, in float32 and in bfloat16; MLP 784-256-256-10, LeNet-5 (batch "
        "64) and a transformer of 2 blocks of width 64 (batch 16, 64 characters)"
    ),
    opponent=(
        "proportionality itself: the device with the most examples a FLOP over the one with the "
        "fewest, 1 if the claim holds; every device runs the same program, the default lowering"
    ),
    rule=(
        "confirmed if that factor is at most 1.2 for every model (the high end of its 95 % "
        "interval over rounds), refuted if it is above 1.5 for any (the low end), else open"
    ),
)
SIZE = 1024
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"batch_size": 64, "model.name": "mlp", "model.hidden": (256, 256)},
    "cnn": {"batch_size": 64, "model.name": "cnn", "model.hidden": (120, 84)},
    "transformer": {
        "batch_size": 16,
        "model.name": "transformer",
        "model.blocks": 2,
        "model.width": 64,
        "data.name": "kjv",
        "data.sequence_length": 64,
        "data.train_examples": 2000,
    },
}
DTYPES = ("float32", "bfloat16")
ROUNDS = {"small": 7, "full": 25}
ALIKE, UNLIKE = 1.2, 1.5


def measure(study: Study) -> dict[str, Any]:
    return study.remember(f"throughput {study.scale}", timed, ROUNDS[study.scale])


def timed(rounds: int) -> dict[str, Any]:
    """Seconds of a matrix product and of an update on every device, (rounds,) each."""
    counts = sorted({1, cores()})
    devices = [(n, dtype) for n in counts for dtype in DTYPES]
    every = [(n, what, dtype) for n, dtype in devices for what in ("product", *MODELS)]
    settings = [
        Setting(n, product, (dtype,)) if what == "product" else Setting(n, update, (what, dtype))
        for n, what, dtype in every
    ]
    found = in_turn([settings] * rounds)
    names = [f"{what}, {n} core{'s' * (n > 1)}, {dtype}" for n, what, dtype in every]
    return {
        "devices": [f"{n} core{'s' * (n > 1)}, {dtype}" for n, dtype in devices],
        "seconds": dict(zip(names, found.seconds, strict=True)),
        "load": found.load,
    }


def product(dtype: str) -> float:
    """Seconds of one matrix product, 2 SIZE^3 operations."""
    loop, x = _products(dtype)
    return repeated(lambda n: loop(x, n))


@cache
def _products(dtype: str) -> tuple[Any, jax.Array]:
    x = jax.random.normal(jax.random.key(0), (SIZE, SIZE)).astype(dtype)

    @jax.jit
    def loop(x: jax.Array, n: int) -> jax.Array:
        # Each depends on the one before, or one only would be made; the scale keeps it finite.
        return jax.lax.fori_loop(0, n, lambda _, y: (y @ x) / jnp.asarray(SIZE**0.5, x.dtype), x)

    return loop, x


def update(model: str, dtype: str) -> float:
    """Seconds of one update by the trainer's own program."""
    loop = _trained(model, dtype)
    return repeated(lambda n: [loop(min(n - i, CHUNK)) for i in range(0, n, CHUNK)])


@cache
def _trained(model: str, dtype: str) -> Any:
    optimizer = Optimizer(learning_rate=0.01, momentum=0.9)
    config = usual().with_({**MODELS[model], "model.dtype": dtype}, optimizer=optimizer)
    run = plans.prepare(config)
    every = layers.convolutions(run)
    choice = layers.own(default_lowering(), every)
    return layers.updates(run, every)(config.batch_size, choice).loop.run


def quotients(result: dict[str, Any], model: str) -> dict[str, list[float]]:
    """The seconds of a product over those of an update by device, (rounds,), in proportion to
    examples a FLOP."""
    taken = result["seconds"]
    return {
        device: (
            np.array(taken[f"product, {device}"]) / np.array(taken[f"{model}, {device}"])
        ).tolist()
        for device in result["devices"]
    }


def factor(by_device: dict[str, list[float]]) -> tuple[str, str, tuple[float, float, float]]:
    """The device with the most examples a FLOP, the one with the fewest, and the ratio of both."""
    ordered = sorted(by_device, key=lambda name: float(np.median(by_device[name])))
    least, most = ordered[0], ordered[-1]
    return most, least, ratio(by_device[most], by_device[least])


def verdict(result: dict[str, Any]) -> Verdict:
    found = {model: factor(quotients(result, model)) for model in MODELS}
    factors = [its for _, _, its in found.values()]
    word = "open"
    if all(high <= ALIKE for _, _, high in factors):
        word = "confirmed"
    elif any(low > UNLIKE for _, low, _ in factors):
        word = "refuted"
    said = "; ".join(
        f"{model}: {shown(its)} ({most} over {least})"
        for model, (most, least, its) in found.items()
    )
    alike = [
        shown(factor({d: q for d, q in quotients(result, m).items() if "float32" in d})[2])
        for m in MODELS
    ]
    return Verdict(
        word,
        f"examples a FLOP differ between devices by a factor of {said}; "
        f"between one core and all of them in float32 by {', '.join(alike)}",
    )


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    devices = result["devices"]
    for model in MODELS:
        each = quotients(result, model)
        values = np.array([np.median(each[device]) for device in devices])
        axes.plot(range(len(devices)), values / values[0], "o-", label=model)
    axes.axhspan(1 / ALIKE, ALIKE, alpha=0.15, color="gray")
    axes.set_xticks(range(len(devices)), [d.replace(", ", "\n") for d in devices])
    axes.set_yscale("log")
    axes.set_ylabel("examples a FLOP, over one core's")
    axes.legend()
