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
1803.05407). A mean of states is that of their union: of variances it is E v + E (x - E x)^2.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import DTypeLike

from optdyn.base.trees import Array, Params, Tree

Init = Callable[[jax.Array, jax.Array], tuple[Tree, Tree]]
Apply = Callable[..., tuple[jax.Array, Tree]]

TRAINS = ("train", "training", "is_training", "update_stats")  # arguments that are True in training
SOWN = ("intermediates", "perturbations", "losses", "metrics")  # collections of what is looked at
RESTS = ("deterministic", "use_running_average", "inference")  # arguments that are False then
MODES = (*TRAINS, *RESTS)
LIKE_MODES = re.compile("(?<![a-z])(train|training|eval|evaluation|test|inference)(?![a-z])")
VARIANCE = re.compile("(?<![a-z])var(iance)?(?![a-z])")


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
    state: Tree | None = None  # what it is trained with, where that is carried along

    def init(self, key: jax.Array, x: jax.Array) -> dict[str, Params]:
        return {"params": self.adapter.init(key, x)[0]}

    def apply(
        self, variables: Mapping[str, Params], x: jax.Array, seeds: Array | None = None
    ) -> jax.Array:
        """Returns the outputs in training."""
        return self.train(variables["params"], x, seeds)[0]

    def train(self, params: Params, x: jax.Array, seeds: Array | None) -> tuple[jax.Array, Tree]:
        """Returns the outputs in training, and the state after, a mean over parts.

        Without a state it is blank, so that outputs must not depend on it. Without `seeds`, (B,)
        int32, they are 0 to B - 1.
        """
        state = self.blank(x) if self.state is None else self.state
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
        return y.reshape(-1, *y.shape[2:]), mean_of_rows(states)

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
        return y, mean_of_rows(states)

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


def mean_of_rows(states: Tree) -> Tree:
    """Returns the mean of several owners' or batches' states, leaves (n, ...)."""
    center = jax.tree.map(lambda leaf: leaf.mean(axis=0), states)
    means = jax.tree.map(lambda leaf: leaf.mean(axis=0), moments(states, center))
    return from_moments(means, center, jax.tree.map(lambda leaf: leaf[0], states))


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


def moments(state: Tree, center: Tree) -> Tree:
    """Returns the state with E (x - c)^2 in place of variances, all float32, so that it has means.

    The numbers c are the means in `center`, a state that is the same for all. The nearer it is to
    theirs, the less is rounded. A leaf of floats whose path has the word `var` or `variance` is the
    variance of the one whose path has `mean` in its place.
    """

    def square(variance: jax.Array, mean: jax.Array, c: jax.Array) -> jax.Array:
        return variance + (mean - c) ** 2

    found = _with_variances(square, state, center, state)
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), found)


def from_moments(found: Tree, center: Tree, like: Tree) -> Tree:
    """Returns the state, in the types of `like`, of a mean of `moments` about a center."""

    def typed(leaf: jax.Array, like: jax.Array) -> jax.Array:
        whole = jnp.issubdtype(like.dtype, jnp.integer)
        return (jnp.round(leaf) if whole else leaf).astype(like.dtype)

    def variance(square: jax.Array, mean: jax.Array, c: jax.Array) -> jax.Array:
        return jnp.maximum(square - (mean - c) ** 2, 0)  # below 0 by rounding only

    return jax.tree.map(typed, _with_variances(variance, found, center, like), like)


def _with_variances(
    change: Callable[..., jax.Array], state: Tree, center: Tree, like: Tree
) -> Tree:
    """Returns the state with `change(variance, mean, c)` in place of each variance."""
    means, centers = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
        for tree in (state, center)
    )

    def changed(path: Tree, leaf: jax.Array, like: jax.Array) -> jax.Array:
        if jnp.issubdtype(like.dtype, jnp.floating):
            name = jax.tree_util.keystr(path)
            for word in VARIANCE.finditer(name):
                mean = f"{name[: word.start()]}mean{name[word.end() :]}"
                if mean in means:
                    return change(leaf, means[mean], centers[mean])
        return leaf

    return jax.tree_util.tree_map_with_path(changed, state, like)


def mode_of(function: Callable[..., Any], train: bool) -> dict[str, Any]:
    """Returns the argument of a network that says whether it is trained; {} if it has none."""
    known = inspect.signature(function).parameters
    for name in known:
        if LIKE_MODES.search(name) and name not in MODES:
            line = f"what tells training from evaluation is one of {', '.join(MODES)}, not {name}"
            raise TypeError(line)
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


def pair(init: Callable[..., Any], apply: Callable[..., Any]) -> Adapter:
    """Returns the adapter of two functions, by the names of the arguments of the second.

        init(key, x) -> params                  or params, state       if `apply` has a `state`
        apply(params, x) -> y                   or y, state, of apply(params, state, x)

    `apply` may also take a `key`, which is None in evaluation, and `train`, a bool.
    """
    two = _Pair(init, apply)
    return Adapter(two.start, two.call, two.restore)


@dataclass(frozen=True)
class _Pair:
    """Functions of a pair; its methods are pickled with it, where the functions can be."""

    init: Callable[..., Any]
    apply: Callable[..., Any]

    @property
    def known(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.apply).parameters

    def start(self, key: jax.Array, x: jax.Array) -> tuple[Tree, Tree]:
        return self.init(key, x) if "state" in self.known else (self.init(key, x), {})

    def call(
        self, params: Tree, state: Tree, x: jax.Array, key: jax.Array | None, train: bool
    ) -> tuple[jax.Array, Tree]:
        more = mode_of(self.apply, train) | ({"key": key} if "key" in self.known else {})
        if "state" not in self.known:
            return self.apply(params, x, **more), state
        y, after = self.apply(params, state, x, **more)
        return y, after if train else state

    def restore(self, params: Tree, state: Tree) -> Any:
        return (params, state) if "state" in self.known else params


def nnx(make: Callable[[Any], Any]) -> Adapter:
    """Returns the adapter of the flax.nnx module that `make(rngs)` returns.

    Its state are all variables but parameters and random streams. In training the stream number i,
    in the order of names, has the key `fold_in(key, i)` and the count 0. Arrays that are in no
    variable are constants, those of `make(nnx.Rngs(0))`.
    """
    from flax import nnx

    others = nnx.Any(nnx.Param, nnx.RngState, nnx.Intermediate)
    carried = nnx.All(nnx.Variable, nnx.Not(others))

    def split(module: Any) -> tuple[Any, ...]:
        kinds = (nnx.Param, carried, nnx.RngKey, nnx.RngCount, ...)
        graph, *states = nnx.split(module, *kinds)
        return graph, *map(nnx.to_pure_dict, states)

    @cache
    def example() -> tuple[Any, ...]:
        with jax.ensure_compile_time_eval():  # `apply` may be traced
            graph, params, state, *rest = split(make(nnx.Rngs(0)))
        return graph, *jax.eval_shape(lambda: (params, state)), *rest

    def build(params: Tree, state: Tree, key: jax.Array | None, train: bool) -> Any:
        graph, params_like, state_like, keys, counts, constants = example()
        keys = keys if key is None else _streams(key, keys)
        counts = jax.tree.map(jnp.zeros_like, counts)
        trees = like(params_like, params), like(state_like, state), keys, counts, constants
        module = nnx.merge(graph, *trees)
        module.train() if train else module.eval()
        return module

    def init(key: jax.Array, x: jax.Array) -> tuple[Tree, Tree]:
        _, params, state, *_ = split(make(nnx.Rngs(key)))
        return by_name(params), by_name(state)

    def apply(
        params: Tree, state: Tree, x: jax.Array, key: jax.Array | None, train: bool
    ) -> tuple[jax.Array, Tree]:
        module = build(params, state, key, train)
        rngs = None if key is None else nnx.Rngs(key)
        has_rngs = "rngs" in inspect.signature(module).parameters
        y = module(x, **mode_of(module, train), **({"rngs": rngs} if has_rngs else {}))
        return y, by_name(nnx.to_pure_dict(nnx.state(module, carried))) if train else state

    return Adapter(init, apply, lambda params, state: build(params, state, None, False))


def _streams(key: jax.Array, keys: Tree) -> Tree:
    """Returns another key, or array of keys, in the place of each of `keys`."""
    leaves, structure = jax.tree.flatten(keys)
    new = [jax.random.fold_in(key, number) for number in range(len(leaves))]
    return jax.tree.unflatten(
        structure,
        [jax.random.split(k, x.shape) if x.shape else k for k, x in zip(new, leaves, strict=True)],
    )


def equinox(make: Callable[[jax.Array], Any]) -> Adapter:
    """Returns the adapter of the Equinox module of one example that `make(key)` returns.

    It is mapped over the axis 'batch', which is the `axis_name` of its norms over the batch. Its
    call gets `key`, one an example, and `state` where it has such arguments. `make` may also return
    (module, state). Arrays that are no floats are constants, those of `make(jax.random.key(0))`.
    """
    import equinox as eqx

    def split(key: jax.Array) -> tuple[Any, Any, Any]:
        """Returns parameters, constants and the state."""
        network = make(key)
        if not isinstance(network, tuple):
            network = eqx.nn.make_with_state(lambda module: module)(network)
        module, state = network
        return *eqx.partition(module, eqx.is_inexact_array), state

    @cache
    def example() -> tuple[Any, Any, Any]:
        with jax.ensure_compile_time_eval():  # `apply` may be traced
            params, *rest = split(jax.random.key(0))
        return eqx.filter_eval_shape(lambda: params), *rest

    def listed(state: Any) -> Params:  # typed, as types of Python's numbers would change
        leaves = enumerate(jax.tree.leaves(state))
        return {str(number): leaf.astype(leaf.dtype) for number, leaf in leaves}

    def build(params: Tree, state: Tree, train: bool) -> tuple[Any, Any]:
        params_like, constants, state_like = example()
        leaves = [state[str(number)] for number in range(len(state))]
        carried = jax.tree.unflatten(jax.tree.structure(state_like), leaves)
        module = eqx.combine(like(params_like, params), constants)
        return eqx.nn.inference_mode(module, not train), carried

    def init(key: jax.Array, x: jax.Array) -> tuple[Tree, Tree]:
        params, _, state = split(key)
        return by_name(params), listed(state)

    def apply(
        params: Tree, state: Tree, x: jax.Array, key: jax.Array | None, train: bool
    ) -> tuple[jax.Array, Tree]:
        module, carried = build(params, state, train)
        known = inspect.signature(module).parameters
        more = mode_of(module, train) | ({"state": carried} if state else {})

        def one(x: jax.Array, key: jax.Array | None) -> tuple[jax.Array, Tree]:
            found = module(x, **more, **({"key": key} if "key" in known else {}))
            return (found[0], listed(found[1])) if state else (found, {})

        keys = None if key is None else jax.random.split(key, len(x))
        over = (0, None if key is None else 0)
        y, after = jax.vmap(one, in_axes=over, out_axes=(0, None), axis_name="batch")(x, keys)
        return y, after if train else state

    def restore(params: Tree, state: Tree) -> Any:
        module, carried = build(params, state, False)
        return (module, carried) if state else module

    return Adapter(init, apply, restore, debiased=True)


def haiku(transformed: Any) -> Adapter:
    """Returns the adapter of what `hk.transform` or `hk.transform_with_state` returns.

    Whether it is trained is told by an argument of the transformed function that is one of `TRAINS`
    and `RESTS` by its name, not in `**kwargs`. It is initialized as in training, as Haiku's norms
    must be.
    """
    has_state = type(transformed).__name__ == "TransformedWithState"
    mode = partial(mode_of, transformed.apply)  # whose signature has the function's arguments
    has_key = "rng" in inspect.signature(transformed.apply).parameters

    def init(key: jax.Array, x: jax.Array) -> tuple[Tree, Tree]:
        variables = transformed.init(key, x, **mode(True))
        return variables if has_state else (variables, {})

    def apply(
        params: Tree, state: Tree, x: jax.Array, key: jax.Array | None, train: bool
    ) -> tuple[jax.Array, Tree]:
        arguments = (key, x) if has_key else (x,)
        if not has_state:
            return transformed.apply(params, *arguments, **mode(train)), state
        y, after = transformed.apply(params, state, *arguments, **mode(train))
        return y, after if train else state

    def restore(params: Tree, state: Tree) -> Any:
        return (params, state) if has_state else params

    return Adapter(init, apply, restore, debiased=True)


def by_name(tree: Tree) -> Params:
    """Returns the leaves of a tree in nested dicts, by the names of fields, keys and indices."""
    return unflatten_dict({_names(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)})


def like(tree: Tree, named: Params) -> Tree:
    """Returns a tree with the structure of `tree` and the leaves of `named = by_name(it)`."""
    leaves = flatten_dict(named)
    return jax.tree.map_with_path(lambda path, _: leaves[_names(path)], tree)


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((part,), simple=True) for part in path)
