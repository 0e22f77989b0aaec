"""Does lowering a whole batch into one matrix product make convolutions 5.5 times as fast on a CPU?

Omnivore lowers all B images of a batch at once (b_p = B), where the systems of its time lowered one
image at a time (b_p = 1). Both are the same program here but for b_p, and beside them is XLA's own
convolution, which a user has without asking. A layer is timed with its result and both gradients, a
network in a whole update. All run in turn, on one core and on all.
"""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from optdyn.evidence.claim import Claim, Verdict
from optdyn.evidence.clock import Setting, in_turn, repeated
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.study import Study, cores
from optdyn.problem.models.convolution import convolve, max_pool

CLAIM = Claim(
    number=6,
    sentence="Lowering the whole batch at once is at least 5.5 times as fast on CPUs.",
    source="Omnivore (arXiv 1606.04487), section 3 and abstract",
    measured=(
        "seconds of convolutions with both gradients (AlexNet's, one of its two groups, and a "
        "layer of Caffe's network for CIFAR) and of whole updates of a network of three "
        "convolutions, float32, batches to 256, on one core of this machine and on all"
    ),
    opponent="the same lowering one image at a time (b_p = 1); beside it XLA's own convolution",
    rule=(
        "b_p = 1 over b_p = B at the largest batch, of every layer and the network on one core and "
        "on all: confirmed if the median is at least 5.5 in more than half of these, refuted if "
        "the 95 % interval over rounds is below 2 in all, else open"
    ),
)
# Size, channels, window, features, stride; all are padded to their size but for the first.
LAYERS = {
    "AlexNet conv1": (227, 3, 11, 48, 4),
    "AlexNet conv2": (27, 48, 5, 128, 1),
    "AlexNet conv3": (13, 256, 3, 192, 1),
    "AlexNet conv4": (13, 192, 3, 192, 1),
    "AlexNet conv5": (13, 192, 3, 128, 1),
    "CIFAR conv2": (16, 32, 5, 32, 1),
}
NETWORK = "network"  # Caffe's small one for CIFAR, in a whole update of SGD
SCALES: dict[str, Any] = {
    "small": {"layers": ("AlexNet conv5", "CIFAR conv2"), "batches": (16, 256), "rounds": 5},
    "full": {"layers": tuple(LAYERS), "batches": (16, 64, 256), "rounds": 9},
}
WAYS = ("whole", "one", "xla")  # b_p = B, b_p = 1, XLA's own
GAIN, NONE = 5.5, 2.0


def measure(study: Study) -> dict[str, Any]:
    scale = SCALES[study.scale]
    return study.remember(f"lowering {study.scale}", timed, scale)


def timed(scale: dict[str, Any]) -> dict[str, Any]:
    """Seconds by layer or network, cores, batch and way, (rounds,) each."""
    every = [
        (name, n, batch, way)
        for name in (*scale["layers"], NETWORK)
        for n in sorted({1, cores()})
        for batch in scale["batches"]
        for way in WAYS
    ]
    settings = [Setting(n, seconds, (name, batch, way)) for name, n, batch, way in every]
    found = in_turn([settings] * scale["rounds"])
    rows = [
        {"name": name, "cores": n, "batch": batch, "way": way, "seconds": taken}
        for (name, n, batch, way), taken in zip(every, found.seconds, strict=True)
    ]
    return {"rows": rows, "load": found.load}


def seconds(name: str, batch: int, way: str) -> float:
    """The seconds of a layer's result with both gradients, or of the network's update."""
    call, arguments = _program(name, batch, way)
    return repeated(lambda n: [call(*arguments) for _ in range(n)][-1])


@cache
def _program(name: str, batch: int, way: str) -> tuple[Any, tuple[Any, ...]]:
    ways: dict[str, dict[str, Any]] = {
        "whole": {"lowering": "gemm"},
        "one": {"lowering": "gemm", "lowering_batch": 1},
        "xla": {"lowering": "xla"},
    }
    how = ways[way]
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape, scale=np.prod(shape[:-1]) ** -0.5), jnp.float32)

    if name == NETWORK:
        params = [drawn(5, 5, i, o) for i, o in ((3, 32), (32, 32), (32, 64))] + [drawn(1024, 10)]
        images, labels = drawn(batch, 32, 32, 3), jnp.arange(batch) % 10
        return jax.jit(partial(_update, how)), (params, images, labels)
    size, channels, window, features, stride = LAYERS[name]
    convolved = partial(
        convolve, strides=(stride, stride), padding="VALID" if stride > 1 else "SAME", **how
    )

    def gradients(x: jax.Array, kernel: jax.Array) -> Any:
        y, back = jax.vjp(convolved, x, kernel)
        return back(y)

    x, kernel = drawn(batch, size, size, channels), drawn(window, window, channels, features)
    return jax.jit(gradients), (x, kernel)


def _update(how: Any, params: list[jax.Array], images: jax.Array, labels: jax.Array) -> Any:
    """Parameters after a step of SGD."""

    def loss(params: list[jax.Array]) -> jax.Array:
        x = images
        for kernel in params[:-1]:
            x = max_pool(jax.nn.relu(convolve(x, kernel, padding="SAME", **how)))
        logits = x.reshape(len(x), -1) @ params[-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return jax.tree.map(lambda p, g: p - 0.01 * g, params, jax.grad(loss)(params))


def gains(result: dict[str, Any], over: str, batch: int) -> dict[str, tuple[float, float, float]]:
    """The seconds of `over` over those of the whole batch, by case, with an interval."""
    rows = [row for row in result["rows"] if row["batch"] == batch]
    by = {(row["name"], row["cores"], row["way"]): row["seconds"] for row in rows}
    return {
        f"{name}, {n} core{'s' * (n > 1)}": ratio(by[name, n, over], by[name, n, "whole"])
        for name, n, way in by
        if way == "whole"
    }


def verdict(result: dict[str, Any]) -> Verdict:
    batch = max(row["batch"] for row in result["rows"])
    found = gains(result, "one", batch)
    word = "open"
    if sum(middle >= GAIN for middle, _, _ in found.values()) > len(found) / 2:
        word = "confirmed"
    elif all(high < NONE for _, _, high in found.values()):
        word = "refuted"
    said = ", ".join(f"{case} {shown(its)}" for case, its in found.items())
    own = [middle for middle, _, _ in gains(result, "xla", batch).values()]
    return Verdict(
        word,
        f"one image at a time takes these times as long as the whole batch of {batch}: {said}; "
        f"XLA's own convolution takes {min(own):.2g} to {max(own):.2g} times as long",
    )


def picture(result: dict[str, Any], figure: Figure) -> None:
    axes = figure.subplots()
    batches = sorted({row["batch"] for row in result["rows"]})
    cases = list(gains(result, "one", batches[0]))
    for k, case in enumerate(cases):
        values = [gains(result, "one", batch)[case] for batch in batches]
        middle, low, high = np.array(values).T
        axes.errorbar(batches, middle, (middle - low, high - middle), label=case, color=f"C{k}")
    axes.axhline(GAIN, color="black", linestyle="--")
    axes.axhline(1, color="gray", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("mini-batch")
    axes.set_ylabel("one image at a time, over whole batch")
    axes.legend(fontsize=6)
