"""Losses and metrics: `(outputs, batch) -> (B,)`, float32, by name or the user's.

`outputs` are those of the last block: logits of a `label`, (B, classes), or of the next token,
(B, T, classes), or numbers of the shape of the target `y`, (B, ..., D).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps

import jax
import jax.numpy as jnp
import optax

from optdyn.base import lookup
from optdyn.base.errors import ConfigError

ExampleLoss = Callable[[jax.Array, Mapping[str, jax.Array]], jax.Array]
Batch = Mapping[str, jax.Array]


def cross_entropy(outputs: jax.Array, batch: Batch) -> jax.Array:
    """Cross-entropy of the outputs' softmax with `label`, nats."""
    return optax.softmax_cross_entropy_with_integer_labels(_logits(outputs, batch), batch["label"])


def next_token(outputs: jax.Array, batch: Batch) -> jax.Array:
    """Cross-entropy with the next token of `text`, the mean over a sequence, nats a token."""
    tokens = _next_tokens(batch)
    logits = outputs.astype(jnp.float32)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, tokens), -1)


def squared_error(outputs: jax.Array, batch: Batch) -> jax.Array:
    """|outputs - y|^2 / 2, summed over an example's numbers."""
    return _sum_over_example(optax.l2_loss(*_outputs_and_target(outputs, batch)))


def huber(outputs: jax.Array, batch: Batch) -> jax.Array:
    """Squared error up to a distance of 1 from `y` and linear beyond, summed likewise."""
    return _sum_over_example(optax.huber_loss(*_outputs_and_target(outputs, batch)))


def label_smoothing(outputs: jax.Array, batch: Batch) -> jax.Array:
    """Cross-entropy with 0.9 of `label` and 0.1 spread evenly over all classes."""
    logits, labels = _logits(outputs, batch), batch["label"]
    smooth = optax.losses.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), 0.1)
    return optax.softmax_cross_entropy(logits, smooth)


def accuracy(outputs: jax.Array, batch: Batch) -> jax.Array:
    """1 where the largest output is that of `label`; of text, the share of next tokens."""
    expected = batch["label"] if "label" in batch else _next_tokens(batch)
    right = (outputs.argmax(-1) == expected).astype(jnp.float32)
    return right if "label" in batch else jnp.mean(right, -1)


def absolute_error(outputs: jax.Array, batch: Batch) -> jax.Array:
    """|outputs - y|, the mean over an example's numbers."""
    found, y = _outputs_and_target(outputs, batch)
    return jnp.mean(jnp.abs(found - y).reshape(len(y), -1), -1)


LOSSES: Mapping[str, ExampleLoss] = {
    function.__name__: function
    for function in (cross_entropy, label_smoothing, next_token, squared_error, huber)
}
METRICS: Mapping[str, ExampleLoss] = {
    "accuracy": accuracy,
    "absolute_error": absolute_error,
    **LOSSES,
}


def loss(name: str) -> ExampleLoss:
    """Returns the loss of that name; '' is the default for the data. Raises `ConfigError`."""
    return _find("config.loss", name, LOSSES) if name else default_loss


def default_loss(outputs: jax.Array, batch: Batch) -> jax.Array:
    """The default loss: cross-entropy with `label`, squared error to `y`, or next tokens."""
    if "label" in batch:
        return cross_entropy(outputs, batch)
    return squared_error(outputs, batch) if "y" in batch else next_token(outputs, batch)


def has_class_outputs(name: str, batch: Mapping[str, object]) -> bool:
    """Returns whether the loss of that name needs an output a class for such a batch."""
    if not name:  # as in `default_loss`
        return "label" in batch or ("text" in batch and "y" not in batch)
    return name in ("cross_entropy", "label_smoothing", "next_token")


def metrics(names: Sequence[str]) -> Callable[[jax.Array, Batch], dict[str, jax.Array]]:
    """Returns a function of outputs and batch that returns the named metrics.

    Without names it is the accuracy of logits of labels or tokens. Raises `ConfigError`.
    """
    chosen: dict[str, ExampleLoss] = {}
    for name in names:
        metric, short = _find("config.metrics", name, METRICS), str(name).rpartition(":")[2]
        if short != name and getattr(metric, "__name__", "").isidentifier():
            short = metric.__name__
        if short in chosen or short == "loss":
            raise ConfigError(
                f"config.metrics = {tuple(names)!r}: the log has another test_{short}; each needs "
                "a name of its own"
            )
        chosen[short] = metric

    def measure(outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        if "label" in batch:
            is_logits = outputs.ndim == 2
        else:
            is_logits = "text" in batch and "y" not in batch and outputs.ndim == 3
        default = {"accuracy": accuracy} if is_logits else {}
        return {name: metric(outputs, batch) for name, metric in (chosen or default).items()}

    return measure


def _find(key: str, name: str, known: Mapping[str, ExampleLoss]) -> ExampleLoss:
    """Returns the function of that name; the user's returns any type, converted to float32."""
    function = lookup.find(key, name, known)
    if not callable(function):
        raise ConfigError(
            f"{lookup.key_value(key, name)}: must be a function (outputs, batch) -> (B,)"
        )
    if ":" not in name:
        return function

    @wraps(function)
    def as_float32(outputs: jax.Array, batch: Batch) -> jax.Array:
        return jnp.asarray(function(outputs, batch), jnp.float32)

    return as_float32


def _array(batch: Batch, name: str) -> jax.Array:
    if name not in batch:
        raise ValueError(f"needs {name!r}, and the data have {', '.join(batch)}")
    return batch[name]


def _logits(outputs: jax.Array, batch: Batch) -> jax.Array:
    shape = jnp.shape(_array(batch, "label"))
    if outputs.ndim != 2 or outputs.shape[:1] != shape:
        raise ValueError(f"needs logits (B, classes), and the outputs are {outputs.shape}")
    return outputs.astype(jnp.float32)


def _next_tokens(batch: Batch) -> jax.Array:
    return _array(batch, "text")[:, 1:].astype(jnp.int32)


def _outputs_and_target(outputs: jax.Array, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Returns outputs and target, which must have one shape, so that nothing is broadcast."""
    y = _array(batch, "y")
    if outputs.shape != y.shape:
        raise ValueError(f"needs outputs like y, {y.shape}, and they are {outputs.shape}")
    return outputs.astype(jnp.float32), y


def _sum_over_example(errors: jax.Array) -> jax.Array:
    return jnp.sum(errors.reshape(len(errors), -1), -1)
