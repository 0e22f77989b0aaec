"""What is minimized: a model as a sequence of blocks, a loss, metrics and data."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base import lookup, seeds
from optdyn.base.errors import Check, ConfigError, short_repr
from optdyn.base.trees import Examples, Params, Tree, examples_in
from optdyn.problem import losses
from optdyn.problem.data import order
from optdyn.problem.data.arrays import DataError, Dataset
from optdyn.problem.data.augment import augment
from optdyn.problem.data.kinds import Data
from optdyn.problem.models import base
from optdyn.problem.models.base import Blocks, Model, OwnModel
from optdyn.problem.models.quadratic import Quadratic
from optdyn.problem.models.transformer import TransformerBase

CONTENTS = {"text": "text", "image": "images", "x": "numbers"}
NO_DRAWS = (
    "must not draw random numbers: no key comes with an update, so they would be the same in all "
    "(dropout is not possible; what is fixed can be drawn before)"
)
TRACED_BATCH = 7919  # examples of a batch that is only traced: a size that nothing else has


class Pixels(NamedTuple):
    """What images go through before the first block: (x - mean) / std, of x from 0 to 1."""

    mean: tuple[float, ...] = ()  # of each channel; (): x itself
    std: tuple[float, ...] = ()
    augment: str = ""  # of `data/augment.py`, of what is trained on


UNCHANGED = Pixels()


class BatchSettings(Protocol):
    """What of an experiment says which examples an update is of."""

    @property
    def seed(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def model(self) -> Model: ...
    @property
    def data(self) -> Data: ...


class Problem(NamedTuple):
    """Pure functions; `outputs` is what the last block makes of a batch."""

    blocks: Blocks
    input: Callable[[Examples], jax.Array]  # batch -> what the first block takes
    losses: Callable[[jax.Array, Examples], jax.Array]  # (outputs, batch) -> (B,)
    metrics: Callable[[jax.Array, Examples], dict[str, jax.Array]]  # likewise, by name
    heads: tuple[str, ...] = ()  # the blocks that have an auxiliary head
    augment: str = ""

    def batch(self, examples: Examples, chosen: jax.Array) -> Examples:
        """The examples that an update is trained on.

        `chosen` is their numbers, (B,); or (B, 2), with the seeds of their augmentation.
        """
        if chosen.ndim == 1:
            return {name: leaf[chosen] for name, leaf in examples.items()}
        batch = self.batch(examples, chosen[:, 0])
        return batch | {"image": augment(self.augment, chosen[:, 1], batch["image"])}

    def init(self, key: jax.Array, examples: Examples) -> Params:
        """Parameters of all blocks and auxiliary heads, float32."""
        return base.init(self.blocks, key, self.input(examples), self.heads)

    def outputs(self, params: Params, batch: Examples) -> jax.Array:
        """What the last block makes of a batch."""
        return base.apply(self.blocks, params, self.input(batch))

    def each_loss(self, params: Params, batch: Examples) -> jax.Array:
        """Loss of every example, (B,) float32."""
        return self.losses(self.outputs(params, batch), batch)

    def loss(self, params: Params, batch: Examples) -> jax.Array:
        """Mean loss of the batch, float32."""
        return jnp.mean(self.each_loss(params, batch))


def _input(pixels: Pixels, batch: Examples) -> jax.Array:
    """What the first block takes: of the one array that is no target, by its name.

    Of `text` without a target all but the last token, which is predicted only.
    """
    if "image" in batch:
        image = batch["image"]
        x = image.astype(jnp.float32) / 255 if image.dtype == jnp.uint8 else image
        return (x - jnp.array(pixels.mean)) / jnp.array(pixels.std) if pixels.mean else x
    if "text" in batch:
        tokens = batch["text"] if "label" in batch or "y" in batch else batch["text"][:, :-1]
        return tokens.astype(jnp.int32)
    return batch["x"] if "x" in batch else batch["optimum"]


def make(
    model: Model,
    classes: int,
    heads: tuple[str, ...] = (),
    pixels: Pixels = UNCHANGED,
    loss: str = "",
    metrics: Sequence[str] = (),
) -> Problem:
    """The problem of `config.model`, `.loss` and `.metrics`, with heads on the named blocks."""
    blocks, measured = base.make(model, classes), losses.metrics(metrics)
    bowl = model if isinstance(model, Quadratic) and not loss else None
    of_each = bowl.losses if bowl else losses.loss(loss)
    return Problem(blocks, partial(_input, pixels), of_each, measured, heads, pixels.augment)


def check(of: Problem, examples: Examples, classes: int = 0) -> None:
    """Traces the model, its loss and its metrics for a batch of examples like these.

    `classes` are those that the loss chooses from; 0: it does not. Raises `ConfigError`, in one
    line, at whatever does not fit or fails, before anything is run.
    """
    ConfigError.refuse(_fit_checks(of, examples, classes))


def _fit_checks(of: Problem, examples: Examples, classes: int) -> Iterator[Check]:
    """What does not fit, each traced when all before it does."""
    batch = {
        name: jax.ShapeDtypeStruct((TRACED_BATCH, *leaf.shape[1:]), leaf.dtype)
        for name, leaf in examples.items()
    }
    data = ", ".join(f"{name} {leaf.shape[1:]}" for name, leaf in examples.items())

    def traced(key: str, function: Callable[..., Tree], *args: Tree) -> tuple[Tree, Check]:
        """The shapes that it returns, and whether it draws."""
        try:
            program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        except Exception as error:
            why = lookup.describe_error(error).replace(str(TRACED_BATCH), "B")
            raise ConfigError(f"{key}: cannot be used on examples of {data} ({why})") from error
        draws = function != of.init and "random_bits" in str(program)
        return shapes, (draws, f"{key}: {NO_DRAWS}")

    def unlike(key: str, shape: jax.ShapeDtypeStruct) -> Check:
        has = str(shape.shape).replace(str(TRACED_BATCH), "B")
        line = f"{key}: must return one number an example, (B,), not {has}"
        return shape.shape != (TRACED_BATCH,), line

    params, _ = traced("config.model", of.init, jax.random.key(0), batch)
    outputs, draws = traced("config.model", of.outputs, params, batch)
    yield draws
    is_one = isinstance(outputs, jax.ShapeDtypeStruct)
    yield not is_one, "config.model: the last block must return one array"
    for many in outputs.shape[-1:]:
        said = f"config.model: has {many} outputs, and the data {classes} classes, of which none "
        yield many < classes, f"{said}may be missing"
    of_loss, draws = traced("config.loss", of.losses, outputs, batch)
    yield draws
    yield unlike("config.loss", of_loss)
    of_metrics, draws = traced("config.metrics", of.metrics, outputs, batch)
    yield draws
    yield from (unlike(f"config.metrics, {name!r}", shape) for name, shape in of_metrics.items())


def load_data(model: Model, chosen: Data, seed: int) -> Dataset:
    """The examples of `config.data`, or those of the quadratic (whose test set is noiseless).

    `seed` is what the quadratic's are drawn by.
    """
    if isinstance(model, Quadratic):
        data = model.dataset(chosen.train_examples or 1000, seed)
    else:
        data = chosen.load()
    DataError.refuse(_data_checks(model, chosen, data.train))
    return data


def _data_checks(model: Model, chosen: Data, train: Examples) -> Iterator[Check]:
    """What the model, or `config.data` besides, asks for and these examples cannot have."""
    augment = f"config.data.augment = {chosen.augment!r}: only of images, not "
    if isinstance(model, Quadratic):
        yield chosen.augment, f"{augment}of config.model.name = 'quadratic'"
        return
    held = next(name for kind, name in CONTENTS.items() if kind in train)
    expected = "text" if isinstance(model, TransformerBase) else "images"
    apart = not isinstance(model, OwnModel) and (held == "text") != (expected == "text")
    said = f"needs {expected}: config.data.name = {chosen.name!r} holds {held}"
    yield apart, f"config.model.name = {model.name!r} {said}"
    channels = train["image"].shape[-1] if "image" in train else 0
    yield chosen.augment and not channels, f"{augment}{chosen.name!r}"
    for name, values, least in (("mean", chosen.mean, -math.inf), ("std", chosen.std, 0)):
        good = len(values) == channels and all(least < value < math.inf for value in values)
        said = f"must be a finite number{' above 0' * (not least)} for each of the {channels} "
        said += f"channels of {chosen.name!r}, as `optdyn prepare` prints them"
        wrong = (chosen.mean or chosen.std) and not good
        yield wrong, f"config.data.{name} = {short_repr(values)}: {said}"


def shards(config: BatchSettings, nodes: int, data: Dataset) -> tuple[np.ndarray, ...]:
    """The numbers of each node's own examples, where nodes have some (`config.data.dirichlet`).

    By their labels, or where there are none one stretch of the training set after the other. Raises
    `ConfigError` where there are fewer examples than nodes.
    """
    alpha = config.data.dirichlet
    if not alpha:
        return ()
    labels, examples = data.train.get("label"), examples_in(data.train)
    if examples < nodes:
        raise ConfigError(
            f"config.data.dirichlet: {examples:,} examples are too few for shards of "
            f"config.cluster.nodes = {nodes:,}"
        )
    if labels is None:
        return order.contiguous(examples, nodes)
    return order.dirichlet(labels, nodes, alpha, seeds.generator(config.seed, "shards"))


def batches(
    config: BatchSettings,
    examples: int,
    start: int,
    stop: int,
    independent: bool = False,
    shards: Sequence[np.ndarray] = (),
    worker: np.ndarray | None = None,
) -> np.ndarray:
    """What updates start..stop-1 are trained on: int32 (stop - start, B) numbers of examples.

    With augmentation (stop - start, B, 2), each with its seed, as `Problem.batch` takes it. With
    `independent`, second mini-batches beside those, of the same conditional mean. With `shards`
    every node has an even part of B, from epochs over its own, one node after the other. With
    `worker` besides, (stop,) at least, all of B is of the node whose gradient an update is of.
    """
    seed, replacement = partial(seeds.number, config.seed), config.data.replacement

    def drawn(
        size: int, count: int, of: str = "", first: int = start, last: int = stop
    ) -> np.ndarray:
        first_seed, asked = seed("batches" + of), (first, last, size, count, replacement)
        if independent:
            return order.independent(seed("second" + of), first_seed, *asked)
        return order.batches(first_seed, *asked)

    if shards and worker is not None:
        chosen = np.empty((stop - start, config.batch_size), np.int32)
        for i, own in enumerate(shards):
            now, of = worker[start:stop] == i, f" of node {i}"
            first, last = (int(np.count_nonzero(worker[:end] == i)) for end in (start, stop))
            chosen[now] = own[drawn(config.batch_size, len(own), of, first, last)]
    elif shards:
        size = config.batch_size // len(shards)
        each = [own[drawn(size, len(own), f" of node {i}")] for i, own in enumerate(shards)]
        chosen = np.concatenate(each, axis=1, dtype=np.int32)
    else:
        chosen = drawn(config.batch_size, examples)
    if not config.data.augment:
        return chosen
    pixels = seed("second augmentation" if independent else "augmentation")
    return np.stack(
        [chosen, order.augmentation_seeds(pixels, start, stop, config.batch_size)], axis=-1
    )
