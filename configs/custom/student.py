"""A network with batch norms and dropout under five methods, and back in its own module.

    python configs/custom/student.py

The first part is a training script as its author has it: flax, optax, arrays. `main` is what
optdyn adds: which method, from which the table of accuracies and the trained variables come.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import optdyn as od


class Net(nn.Module):
    """(B, 14, 14, 1) -> (B, 10)."""

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        for width in (16, 32):
            x = nn.Conv(width, (3, 3), strides=2, use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = nn.relu(nn.Dense(64)(x.reshape(len(x), -1)))
        x = nn.Dropout(0.25, deterministic=not train)(x)
        return nn.Dense(10)(x)


def images() -> dict[str, dict[str, np.ndarray]]:
    """Returns 4,000 digits to train on and 1,000 to test, 14 x 14 means of 2 x 2 pixels."""
    whole = od.MNIST5k().load()

    def smaller(split: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        pixels = split["image"].reshape(-1, 14, 2, 14, 2, 1).mean(axis=(2, 4))
        return {"image": (pixels / 255).astype(np.float32), "label": split["label"]}

    return {"train": smaller(whole.train), "test": smaller(whole.test)}


def optimizer(steps: int) -> optax.GradientTransformation:
    rate = optax.warmup_cosine_decay_schedule(0.0, 0.003, steps // 10, steps)

    def is_decayed(params):  # neither biases nor norms
        return jax.tree.map(lambda leaf: leaf.ndim > 1, params)

    adamw = optax.adamw(rate, weight_decay=0.01, mask=is_decayed)
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def smoothed(logits: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """Returns the cross-entropy of each example with smoothed labels, (B,)."""
    targets = optax.smooth_labels(jax.nn.one_hot(batch["label"], 10), 0.1)
    return optax.softmax_cross_entropy(logits, targets)


def accuracy(variables, split: dict[str, np.ndarray]) -> float:
    logits = Net().apply(variables, split["image"], train=False)
    return float(jnp.mean(logits.argmax(axis=-1) == split["label"]))


def main(steps: int = 400, seeds: int = 5, names: tuple[str, ...] = ()) -> od.Comparison:
    """All methods have her learning rate; a verdict needs the best of each."""
    data = images()
    base = od.Experiment(
        model=Net(),
        data=data,
        loss=smoothed,
        optimizer=optimizer(steps),
        cluster=od.Cluster(nodes=4),
        evaluation=od.Evaluation(average="ema", decay=0.98),
        batch_size=64,
        steps=steps,
        log_every=steps // 2,
    ).with_({"model.norm_examples": 16})  # a norm takes 16 examples under every method
    methods = {
        "sync": od.Sync(),
        "asynchronous": od.Asynchronous(groups=4),
        "DiLoCo": od.DiLoCo(period=10),
        "DASO": od.DASO(warmup_epochs=1, cooldown_epochs=1),
        "gossip": od.Gossip(),
    }
    arms = {name: base.with_(method=methods[name]) for name in names or methods}
    runs = od.compare(arms, seeds=range(seeds))
    for name in ("test_accuracy", "ema_test_accuracy"):
        print(f"{name}\n{runs.metric(name).round(3).to_string()}\n")

    run = runs["DiLoCo"][0]
    for average, name in ((False, "test_accuracy"), (True, "ema_test_accuracy")):
        found = accuracy(run.restore(average=average), data["test"])
        print(f"{name} of DiLoCo, seed 0: {run.log[name].iloc[-1]:.3f}; in Net: {found:.3f}")
    return runs


if __name__ == "__main__":
    main()
