"""Networks of any library as blocks: what they are trained with, and what they are evaluated with.

    params, state = init(key, x)
    y, state      = apply(params, state, x, key, train)

The state is all that is neither a parameter nor a random number, {} if there is none: running
averages of batch norms, vectors of spectral norms, codebooks. In training a block takes its batch
in parts of `examples`, which are normalized together and share a key; the key is by the seed of a
part's first example (`Problem.batch`) and by the block's number, and by nothing else. So neither
the version of the parameters, nor the arrival, nor the layout on devices changes a dropout mask.

A norm over the batch does not read its running averages in training. They are `recomputed` for the
parameters that are evaluated, from k training batches of `examples` each, as in SWA (arXiv
1803.05407): E x and E x^2 are means over the batches, so that a variance is E x^2 - (E x)^2.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from optdyn.base.trees import Array, Params, Tree

Init = Callable[[jax.Array, jax.Array], tuple[Tree, Tree]]
Apply = Callable[..., tuple[jax.Array, Tree]]

TRAINS = ("train", "training", "is_training", "update_stats")  # arguments that are True in training
RESTS = ("deterministic", "use_running_average", "inference")  # arguments that are False then


@dataclass(frozen=True, eq=False)
class Adapter:
    """A network of some library, or a block of one, as pure functions.

    `apply` gets a key of `jax.random.key` in training, and None in evaluation, which must return
    its state as it was. `restore(params, state)` returns what the library itself uses.
    """

    init: Init
    apply: Apply
    restore: Callable[[Tree, Tree], Any]
    debiased: bool = False  # its averages have no trace of the zeros that they start from


@dataclass(frozen=True, eq=False)
class Block:
    """An adapter as a block of a model, with the interface of a flax module where it is trained."""

    adapter: Adapter
    number: int  # of the block in its model
    examples: int = 0  # normalized together, and with one key; 0: all of a batch
    dtype: DTypeLike = jnp.float32  # of the computation; parameters and state are float32
    remat: bool = False  # keep only the input, and compute the rest again in the backward pass

    def init(self, key: jax.Array, x: jax.Array) -> dict[str, Params]:
        return {"params": self.adapter.init(key, x)[0]}

    def init_with_output(self, key: jax.Array, x: jax.Array) -> tuple[jax.Array, dict[str, Params]]:
        variables = self.init(key, x)
        return self.apply(variables, x), variables

    def apply(
        self, variables: Mapping[str, Params], x: jax.Array, seeds: Array | None = None
    ) -> jax.Array:
        """Returns the outputs in training, of a state that they do not depend on."""
        return self.train(variables["params"], self.blank(x), x, seeds)[0]

    def train(
        self, params: Params, state: Tree, x: jax.Array, seeds: Array | None
    ) -> tuple[jax.Array, Tree]:
        """Returns the outputs in training, and the state after, a mean over parts.

        Without `seeds`, (B,) int32, they are 0 to B - 1.
        """
        seeds = jnp.arange(len(x)) if seeds is None else seeds
        size = self.examples if self.examples and len(x) % self.examples == 0 else len(x)

        def one(params: Params, x: jax.Array, seed: Array) -> tuple[jax.Array, Tree]:
            return self._apply(params, state, x, self.key(seed), True)

        if self.remat:
            one = jax.checkpoint(one)
        if size == len(x):
            return one(params, x, seeds[0])
        rows = x.reshape(-1, size, *x.shape[1:])
        y, states = jax.vmap(one, (None, 0, 0))(params, rows, seeds[::size])
        return y.reshape(-1, *y.shape[2:]), _mean(states)

    def evaluate(self, params: Params, state: Tree, x: jax.Array) -> jax.Array:
        return self._apply(params, state, x, None, False)[0]

    def recompute(self, params: Params, x: jax.Array, seeds: Array) -> tuple[jax.Array, Tree]:
        """Returns outputs in training, and the averages over batches, (k, n, ...) of k parts."""

        def one(state: Tree, x: jax.Array, seed: Array) -> tuple[jax.Array, Tree]:
            return self._apply(params, state, x, self.key(seed), True)

        def step(state: Tree, batch: tuple[jax.Array, Array]) -> tuple[Tree, jax.Array]:
            y, state = one(state, *batch)
            return state, y

        def of_batch(x: jax.Array, seed: Array) -> tuple[jax.Array, Tree]:
            """Returns what iterating on the batch converges to: s* = a s* + (1 - a) b is b."""
            y, first = one(blank, x, seed)
            _, second = one(first, x, seed)
            return y, jax.tree.map(_limit, blank, first, second)

        blank = self.blank(x[0])
        if self.adapter.debiased:
            state, y = jax.lax.scan(step, blank, (x, seeds))
            return y, state
        y, states = jax.vmap(of_batch)(x, seeds)
        return y, _mean(states)

    def key(self, seed: Array) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(0), seed), self.number)

    def blank(self, x: jax.Array) -> Tree:
        """Returns a state of zeros."""
        shapes = _state_shapes(self.adapter, (1, *x.shape[1:]), x.dtype)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def _apply(
        self, params: Params, state: Tree, x: jax.Array, key: jax.Array | None, train: bool
    ) -> tuple[jax.Array, Tree]:
        if self.dtype == jnp.float32:
            return self.adapter.apply(params, state, x, key, train)
        params, x = jax.tree.map(partial(_cast, self.dtype), (params, x))
        y, after = self.adapter.apply(params, state, x, key, train)
        return y, jax.tree.map(lambda new, old: new.astype(old.dtype), after, state)


def _mean(states: Tree) -> Tree:
    """Returns the mean of rows of states."""
    means = jax.tree.map(lambda leaf: leaf.mean(axis=0), moments(states))
    return from_moments(means, jax.tree.map(lambda leaf: leaf[0], states))


@lru_cache(maxsize=256)
def _state_shapes(adapter: Adapter, shape: tuple[int, ...], dtype: DTypeLike) -> Tree:
    key, x = jax.random.key(0), jax.ShapeDtypeStruct(shape, dtype)
    return jax.eval_shape(adapter.init, key, x)[1]


def _cast(dtype: DTypeLike, leaf: Array) -> Array:
    return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def _limit(zero: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns b of s1 = (1 - a) b and s2 = (1 - a^2) b, or s1 where it is no average."""
    if not jnp.issubdtype(zero.dtype, jnp.floating):
        return first
    a = second / jnp.where(first == 0, 1, first) - 1
    return jnp.where((first == 0) | (a >= 1), first, first / jnp.where(a >= 1, 1, 1 - a))


def moments(state: Tree) -> Tree:
    """Returns the state with E x^2 in place of variances, all float32, so that it has means.

    A leaf whose name has `var` is the variance of the one whose name has `mean` in its place.
    """
    found = _with_centers(state, lambda variance, mean: variance + mean**2)
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), found)


def from_moments(found: Tree, like: Tree) -> Tree:
    """Returns the state, in the types of `like`, of a mean of `moments`."""

    def typed(leaf: jax.Array, like: jax.Array) -> jax.Array:
        whole = jnp.issubdtype(like.dtype, jnp.integer)
        return (jnp.round(leaf) if whole else leaf).astype(like.dtype)

    def variance(square: jax.Array, mean: jax.Array) -> jax.Array:
        return jnp.maximum(square - mean**2, 0)  # below 0 by rounding only

    return jax.tree.map(typed, _with_centers(found, variance), like)


def _with_centers(state: Tree, change: Callable[[jax.Array, jax.Array], jax.Array]) -> Tree:
    """Returns the state with `change(variance, mean)` in place of each variance."""
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(state)}

    def changed(path: Tree, leaf: jax.Array) -> jax.Array:
        *parents, last = (jax.tree_util.keystr((key,)) for key in path)
        center = leaves.get("".join([*parents, last.replace("var", "mean")]))
        return leaf if "var" not in last or center is None else change(leaf, center)

    return jax.tree_util.tree_map_with_path(changed, state)


def mode_of(function: Callable[..., Any], train: bool) -> dict[str, Any]:
    """Returns the argument of a network that says whether it is trained; {} if it has none."""
    known = inspect.signature(function).parameters
    found = {name: train for name in TRAINS if name in known}
    return found | {name: not train for name in RESTS if name in known}


def linen(module: nn.Module) -> Adapter:
    """Returns the adapter of a flax.linen module; its state are all collections but `params`."""
    mode = partial(mode_of, type(module).__call__)

    def init(key: jax.Array, x: jax.Array) -> tuple[Tree, Tree]:
        rngs = {"params": key, "dropout": jax.random.fold_in(key, 1)}
        variables = dict(module.init(rngs, x, **mode(False)))
        return variables.pop("params", {}), {k: v for k, v in variables.items() if k not in SOWN}

    def apply(
        params: Tree, state: Tree, x: jax.Array, key: jax.Array | None, train: bool
    ) -> tuple[jax.Array, Tree]:
        rngs = None if key is None else {"dropout": key, "params": jax.random.fold_in(key, 1)}
        variables, more = {"params": params, **state}, mode(train)
        y: Any
        y, after = module.apply(variables, x, rngs=rngs, mutable=list(state), **more)
        return y, dict(after) if train else state

    return Adapter(init, apply, lambda params, state: {"params": params, **state})


SOWN = ("intermediates", "perturbations", "losses", "metrics")  # collections of what is looked at


def pair(init: Callable[..., Any], apply: Callable[..., Any]) -> Adapter:
    """Returns the adapter of two functions, by the names of the arguments of the second.

    init(key, x) -> params                  or params, state       if `apply` has a `state`
    apply(params, x) -> y                   its `key` is None in evaluation, `train` a bool
    apply(params, state, x) -> y, state
    """
    known = inspect.signature(apply).parameters
    has_state = "state" in known

    def start(key: jax.Array, x: jax.Array) -> tuple[Tree, Tree]:
        return init(key, x) if has_state else (init(key, x), {})

    def call(
        params: Tree, state: Tree, x: jax.Array, key: jax.Array | None, train: bool
    ) -> tuple[jax.Array, Tree]:
        more = mode_of(apply, train) | ({"key": key} if "key" in known else {})
        if not has_state:
            return apply(params, x, **more), state
        y, after = apply(params, state, x, **more)
        return y, after if train else state

    return Adapter(start, call, lambda params, state: (params, state) if has_state else params)
