"""The objective: a model as a sequence of blocks, a loss, metrics and data."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

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
from optdyn.problem.models.adapters import MODES, moments
from optdyn.problem.models.base import STATE, Blocks, Model, OwnModel
from optdyn.problem.models.quadratic import Quadratic
from optdyn.problem.models.transformer import TransformerBase

CONTENTS = {"text": "text", "image": "images", "x": "numbers"}
NO_DRAWS = "must not draw random numbers, as a loss and a metric have no key"
HIDDEN = (
    "must draw random numbers only with the key that it is given, in training; of a key of its own "
    "all updates would have the same. {0}"
)
HINTS = {  # by words of an error of a network
    "RngCount": "od.from_nnx takes a module with dropout",
    "needs PRNG": f"in evaluation nothing is drawn, which an argument tells: {', '.join(MODES)}",
    "required positional": f"it is called with its input and, if it has it, {', '.join(MODES)}",
}
OF_A_PAIR = "Of a pair (init, apply), `apply(params, x, *, key, train)` gets one"
SEED = "seed"  # of an example of a batch, int32
Shape = tuple[int, ...]
TRACED_BATCH = 7919  # examples of a batch that is only traced, a size that nothing else has


class Pixels(NamedTuple):
    """The preprocessing of images: (x - mean) / std, with x from 0 to 1."""

    mean: tuple[float, ...] = ()  # a number a channel; (): no normalization
    std: tuple[float, ...] = ()
    augment: str = ""  # of training images (`data/augment.py`)


UNCHANGED = Pixels()


class BatchSettings(Protocol):
    """The part of an experiment that determines the examples of updates."""

    @property
    def seed(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def model(self) -> Model: ...
    @property
    def data(self) -> Data: ...


class Problem(NamedTuple):
    """The objective as pure functions; `outputs` are those of the last block."""

    blocks: Blocks
    input: Callable[[Examples], jax.Array]  # batch -> input of the first block
    losses: Callable[[jax.Array, Examples], jax.Array]  # (outputs, batch) -> (B,)
    metrics: Callable[[jax.Array, Examples], dict[str, jax.Array]]  # (outputs, batch) -> (B,) each
    heads: tuple[str, ...] = ()  # blocks with an auxiliary head
    augment: str = ""

    def batch(self, examples: Examples, chosen: jax.Array) -> Examples:
        """Returns the examples of numbers (B,), or of numbers and seeds (B, 2).

        With an example's seed its image is augmented, and random numbers of blocks are drawn.
        """
        if chosen.ndim == 1:
            return {name: leaf[chosen] for name, leaf in examples.items()}
        batch, seeds = self.batch(examples, chosen[:, 0]), chosen[:, 1]
        if self.augment:
            batch["image"] = augment(self.augment, seeds, batch["image"])
        return batch | {SEED: seeds}

    def init(self, key: jax.Array, examples: Examples) -> Params:
        """Returns the parameters of all blocks and auxiliary heads, float32."""
        return self.start(key, examples)[0]

    def initial_state(self, key: jax.Array, examples: Examples) -> Params:
        """Returns the blocks' state that goes with `init`."""
        return self.start(key, examples)[1]

    def start(self, key: jax.Array, examples: Examples) -> tuple[Params, Params]:
        """Returns what `init` and `initial_state` return."""
        return base.start(self.blocks, key, self.input(examples), self.heads)

    def outputs(self, params: Params, batch: Examples) -> jax.Array:
        """Returns the outputs in training."""
        return base.apply(self.blocks, params, self.input(batch), batch.get(SEED))

    def evaluated(self, variables: Params, batch: Examples) -> jax.Array:
        """Returns the outputs in evaluation, of parameters with the model's `STATE`, if it has."""
        state = variables.get(STATE, {})
        return base.evaluate(self.blocks, variables, state, self.input(batch))

    def carrying(self, state: Params) -> "Problem":
        """Returns the problem of the model that is trained with this state, and changes it."""
        blocks = [(name, replace(block, state=state[name])) for name, block in self.blocks]
        return self._replace(blocks=tuple(blocks))

    @property
    def carries(self) -> bool:
        return self.blocks[0][1].state is not None

    def each_loss_and_state(self, params: Params, batch: Examples) -> tuple[jax.Array, Params]:
        """Returns the losses in training, and `moments` of the state after about that before."""
        if not self.carries:
            return self.each_loss(params, batch), {}
        y, after = base.train(self.blocks, params, self.input(batch), batch.get(SEED))
        before = {name: block.state for name, block in self.blocks}
        return self.losses(y, batch), moments(after, before)

    def loss_and_state(self, params: Params, batch: Examples) -> tuple[jax.Array, Params]:
        losses, after = self.each_loss_and_state(params, batch)
        return jnp.mean(losses), after

    @property
    def objective(self) -> Callable[[Params, Examples], Tree]:
        """Of a batch the loss, or where a state is carried a pair of it and the state after."""
        return self.loss_and_state if self.carries else self.loss

    def recomputed(self, params: Params, batches: Examples) -> Params:
        """Returns the model's averages for these parameters, over batches (k, n, ...)."""
        k, n, *_ = jax.tree.leaves(batches)[0].shape
        whole = {name: leaf.reshape(k * n, *leaf.shape[2:]) for name, leaf in batches.items()}
        if self.augment:
            whole["image"] = augment(self.augment, jnp.arange(k * n), whole["image"])
        x = self.input(whole)
        x = x.reshape(k, n, *x.shape[1:])
        return base.recompute(self.blocks, params, x, jnp.arange(k))

    def each_loss(self, params: Params, batch: Examples) -> jax.Array:
        return self.losses(self.outputs(params, batch), batch)

    def loss(self, params: Params, batch: Examples) -> jax.Array:
        return jnp.mean(self.each_loss(params, batch))


def _input(pixels: Pixels, batch: Examples) -> jax.Array:
    """Returns the input of the first block; `text` without a target lacks its last token."""
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
    norm_examples: int = 0,
) -> Problem:
    """Returns the problem of a model, a loss and metrics, with heads on the named blocks."""
    function = model.losses if isinstance(model, Quadratic) and not loss else losses.loss(loss)
    blocks, measures = base.make(model, classes, norm_examples), losses.metrics(metrics)
    return Problem(blocks, partial(_input, pixels), function, measures, heads, pixels.augment)


class Traits(NamedTuple):
    """What a model has besides parameters."""

    state: bool = False
    draws: bool = False  # random numbers in training
    head_state: bool = False  # of the last block, of which there are auxiliary heads


def check(problem: Problem, examples: Examples, classes: int = 0) -> Traits:
    """Returns the traits of the model, traced on such examples.

    Raises `ConfigError` if the model, loss or metrics do not fit. `classes` is the number that the
    loss chooses from, or 0.
    """
    data = ", ".join(f"{name} {leaf.shape[1:]}" for name, leaf in examples.items())
    batch = {
        name: jax.ShapeDtypeStruct((TRACED_BATCH, *leaf.shape[1:]), leaf.dtype)
        for name, leaf in examples.items()
    }

    def trace(key: str, function: Callable[..., Tree], *args: Tree) -> tuple[Tree, list[Shape]]:
        """Returns the shapes of the results, and of the keys that are drawn with."""
        try:
            program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        except Exception as error:
            why = lookup.describe_error(error).replace(str(TRACED_BATCH), "B")
            why += "".join(f"; {hint}" for word, hint in HINTS.items() if word in why)
            raise ConfigError(f"{key}: cannot be used on examples of {data} ({why})") from error
        return shapes, _draws(program.jaxpr)

    (params, state), _ = trace("config.model", problem.start, jax.random.key(0), batch)
    outputs, keys = trace("config.model", problem.outputs, params, batch)
    head_state = problem.heads and jax.tree.leaves(state[problem.blocks[-1][0]])
    traits = Traits(bool(jax.tree.leaves(state)), bool(keys), bool(head_state))
    ConfigError.refuse(_fit_checks(problem, batch, classes, trace, outputs))
    if traits.draws:
        hidden = keys != _keys_by_seed(problem, params, batch)
        ConfigError.refuse([(hidden, f"config.model: {HIDDEN.format(OF_A_PAIR)}")])
    if traits != Traits():
        variables = params | {STATE: state}
        _, keys = trace("config.model, in evaluation", problem.evaluated, variables, batch)
        line = f"config.model: {HIDDEN.format('In evaluation it must draw none')}"
        ConfigError.refuse([(bool(keys), line)])
    return traits


def _draws(jaxpr: Any) -> list[Shape]:
    """Returns the shapes of the keys with which a program draws random numbers, in order."""
    found = list[Shape]()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "random_bits":
            found.append(equation.invars[0].aval.shape)
        for value in jax.tree.leaves(equation.params, is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            found += _draws(inner) if hasattr(inner, "eqns") else []
    return found


def _keys_by_seed(problem: Problem, params: Params, batch: Examples) -> list[Shape]:
    """Returns the shapes of the keys that differ for other seeds of the examples."""

    def outputs(params: Params, batch: Examples, seeds: jax.Array) -> jax.Array:
        return problem.outputs(params, batch | {SEED: seeds})

    seeds = jax.ShapeDtypeStruct((2, TRACED_BATCH), jnp.int32)
    two = jax.make_jaxpr(jax.vmap(outputs, (None, None, 0)))(params, batch, seeds)
    return [shape[1:] for shape in _draws(two.jaxpr) if shape[:1] == (2,)]


def _fit_checks(
    problem: Problem,
    batch: Examples,
    classes: int,
    trace: Callable[..., tuple[Tree, list[Shape]]],
    outputs: Tree,
) -> Iterator[Check]:
    """Yields checks, each traced after those before it have passed."""

    def one_a_example(key: str, shape: jax.ShapeDtypeStruct) -> Check:
        found = str(shape.shape).replace(str(TRACED_BATCH), "B")
        line = f"{key}: must return one number an example, (B,), not {found}"
        return shape.shape != (TRACED_BATCH,), line

    is_array = isinstance(outputs, jax.ShapeDtypeStruct)
    yield not is_array, "config.model: the last block must return one array"
    for count in outputs.shape[-1:]:
        line = f"config.model: has {count} outputs, and the data {classes} classes, of which none "
        yield count < classes, f"{line}may be missing"
    loss, keys = trace("config.loss", problem.losses, outputs, batch)
    yield bool(keys), f"config.loss: {NO_DRAWS}"
    yield one_a_example("config.loss", loss)
    metrics, keys = trace("config.metrics", problem.metrics, outputs, batch)
    yield bool(keys), f"config.metrics: {NO_DRAWS}"
    for name, shape in metrics.items():
        yield one_a_example(f"config.metrics, {name!r}", shape)


def load_data(model: Model, chosen: Data, seed: int) -> Dataset:
    """Returns the data set, or that of the quadratic, which `seed` draws, with a noiseless test."""
    if isinstance(model, Quadratic):
        data = model.dataset(chosen.train_examples or 1000, seed)
    else:
        data = chosen.load()
    DataError.refuse(_data_checks(model, chosen, data.train))
    return data


def _data_checks(model: Model, chosen: Data, train: Examples) -> Iterator[Check]:
    augment = f"config.data.augment = {chosen.augment!r}: only of images, not "
    if isinstance(model, Quadratic):
        yield chosen.augment, f"{augment}of config.model.name = 'quadratic'"
        return
    contents = next(name for kind, name in CONTENTS.items() if kind in train)
    expected = "text" if isinstance(model, TransformerBase) else "images"
    mismatch = not isinstance(model, OwnModel) and (contents == "text") != (expected == "text")
    need = f"needs {expected}: config.data.name = {chosen.name!r} holds {contents}"
    yield mismatch, f"config.model.name = {model.name!r} {need}"
    channels = train["image"].shape[-1] if "image" in train else 0
    yield chosen.augment and not channels, f"{augment}{chosen.name!r}"
    for name, values, least in (("mean", chosen.mean, -math.inf), ("std", chosen.std, 0)):
        good = len(values) == channels and all(least < value < math.inf for value in values)
        line = f"config.data.{name} = {short_repr(values)}: must be a finite number"
        line += f"{' above 0' * (not least)} for each of the {channels} channels of "
        line += f"{chosen.name!r}, as `optdyn prepare` prints them"
        yield (chosen.mean or chosen.std) and not good, line


def shards(config: BatchSettings, nodes: int, data: Dataset) -> tuple[np.ndarray, ...]:
    """Returns the examples of each node with `config.data.dirichlet`; () without it.

    Without labels they are consecutive. Raises `ConfigError` for fewer examples than nodes.
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
    draws: bool = False,
) -> np.ndarray:
    """Returns the examples of updates start..stop-1, int32 (stop - start, B).

    With augmentation, and if the model `draws`, it is (stop - start, B, 2), as in `Problem.batch`.
    `independent` returns second mini-batches of the same conditional mean. With `shards` nodes have
    equal parts of B, in order, from epochs over their shards; with `worker` besides, the node of
    each update, (stop,) or longer, all of B is from that node's shard.
    """
    seed, replacement = partial(seeds.number, config.seed), config.data.replacement

    def draw(
        size: int, count: int, suffix: str = "", first: int = start, last: int = stop
    ) -> np.ndarray:
        order_seed, sizes = seed("batches" + suffix), (first, last, size, count, replacement)
        if independent:
            return order.independent(seed("second" + suffix), order_seed, *sizes)
        return order.batches(order_seed, *sizes)

    if shards and worker is not None:
        chosen = np.empty((stop - start, config.batch_size), np.int32)
        for i, shard in enumerate(shards):
            first, last = (int(np.count_nonzero(worker[:end] == i)) for end in (start, stop))
            places = draw(config.batch_size, len(shard), f" of node {i}", first, last)
            chosen[worker[start:stop] == i] = shard[places]
    elif shards:
        size = config.batch_size // len(shards)
        parts = [s[draw(size, len(s), f" of node {i}")] for i, s in enumerate(shards)]
        chosen = np.concatenate(parts, axis=1, dtype=np.int32)
    else:
        chosen = draw(config.batch_size, examples)
    if not (config.data.augment or draws):
        return chosen
    pixels = seed("second augmentation" if independent else "augmentation")
    return np.stack(
        [chosen, order.augmentation_seeds(pixels, start, stop, config.batch_size)], axis=-1
    )
