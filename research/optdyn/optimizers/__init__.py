"""Optimizers of optax, of this package or of the user, with traced hyperparameters.

Hyperparameters are arguments of `update` (`Event.hyper`): schedules, momentum and other numbers are
data, and changing them recompiles nothing.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from optdyn.base import lookup
from optdyn.base.errors import ConfigError, one_line, refuse
from optdyn.base.fields import OPTIONS, Options, plain
from optdyn.base.lookup import Key
from optdyn.base.trees import Array, Hyper, Params, Tree
from optdyn.optimizers import closed_loop, soap, staleness
from optdyn.optimizers.kinds import Optimizer

Make = Callable[..., optax.GradientTransformation]

BUILT_IN: Mapping[str, Make] = {"closed_loop": closed_loop.closed_loop, "soap": soap.soap}
AFTER = ("error_feedback",)  # transforms of the optimizer's steps; others transform gradients
TRANSFORMS: Mapping[str, Make] = {
    make.__name__: make
    for make in (staleness.delay_compensation, staleness.staleness_rate, staleness.error_feedback)
}
CONTRIB = "contrib."  # before the name of one of optax.contrib
KEY = "config.optimizer.name"
Chain = tuple[tuple[str, Options], ...]  # names of transforms, each with its arguments


class HasOptimizer(Protocol):
    @property
    def optimizer(self) -> Optimizer: ...


def known() -> dict[str, Make]:
    """Returns all optimizers by name: functions with an argument `learning_rate`."""
    modules = {"": optax, CONTRIB: contrib}
    found = {before + n: getattr(m, n) for before, m in modules.items() for n in dir(m)}
    return {
        name: make
        for name, make in {**found, **BUILT_IN}.items()
        if not inspect.isclass(make) and "learning_rate" in _parameters(make)
        if not name.removeprefix(CONTRIB).startswith(("_", "scale_by_"))
    }


def maker(name: str) -> Make | None:
    """Returns the function that makes the optimizer, or None. Raises `ConfigError`."""
    if lookup.is_user_name(name):
        return lookup.find(KEY, name, {})
    module: Any = contrib if name.startswith(CONTRIB) else optax
    return BUILT_IN.get(name, getattr(module, name.removeprefix(CONTRIB), None))


def arguments(name: str) -> tuple[str, ...]:
    """Returns the names of the optimizer's arguments; () if there is no such optimizer."""
    return _parameters(maker(name))


def _parameters(function: object) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(cast(Make, function)).parameters)
    except (TypeError, ValueError):  # not callable, or only an alias of a type
        return ()


def words(name: str) -> str:
    """Returns the optimizer's name as messages show it."""
    if lookup.is_user_name(name) or name in BUILT_IN:
        return lookup.kind_in_memory(name) or name
    return f"optax.{name}"


def takes_momentum(name: str) -> bool:
    return "momentum" in arguments(name)


def is_fixed(name: str) -> bool:
    """Returns whether the optimizer's learning rate is fixed, and so no argument."""
    return bool(getattr(maker(name), "fixed", False))


def is_heavy_ball(optimizer: Optimizer) -> bool:
    """Returns whether it is v <- g + mu v, x <- x - alpha v, with one mu and nothing before it."""
    return optimizer.name == "sgd" and not (optimizer.options or optimizer.chain)


def follows_delays(name: str) -> bool:
    """Returns whether the optimizer takes the delay of an update's one gradient."""
    return name == "closed_loop"


def has_bases(name: str) -> bool:
    """Returns whether the optimizer keeps bases, whose mean over nodes is no basis."""
    return name == "soap"


def transform(name: str) -> Make:
    """Returns a function of TRANSFORMS, of optax or the user's. Raises `ConfigError`."""
    if not lookup.is_user_name(name) and name not in TRANSFORMS:
        of_optax = getattr(optax, name, None)
        if inspect.isfunction(of_optax) and not name.startswith("_"):
            return of_optax
    return lookup.find("config.optimizer.chain", name, TRANSFORMS)


def options(setup: HasOptimizer, groups: int) -> Options:
    """Returns the optimizer's fixed arguments, with the mean delay g - 1 if it takes delays."""
    arguments = setup.optimizer.arguments
    if not follows_delays(setup.optimizer.name):
        return arguments
    return Options({"staleness": groups - 1} | arguments)


def chain(setup: HasOptimizer) -> Chain:
    """Returns the names in `config.optimizer.chain`, each with the `chain_options` it takes."""
    values = setup.optimizer.chain_options
    parameters = {name: _parameters(transform(name)) for name in setup.optimizer.chain}
    return tuple(
        (name, Options({key: value for key, value in values.items() if key in parameters[name]}))
        for name in setup.optimizer.chain
    )


def optimizer(
    name: str,
    hyper_names: tuple[str, ...],
    options: Mapping[str, object] = OPTIONS,
    chain: Sequence[tuple[str, Mapping[str, object]]] = (),
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer called `name`; its `update(grads, state, params, **hyper)` is traced.

    `hyper_names` are the arguments of each update, `options` those fixed at compile time. Gradients
    first go through the transforms of the `chain`, names with options; the optimizer's steps go
    through those in `AFTER`.
    """
    make, fixed = cast(Make, maker(name)), plain(options)
    before, after = (
        [transform(n)(**plain(arguments)) for n, arguments in chain if (n in AFTER) == is_after]
        for is_after in (False, True)
    )

    def chained(hyper: Hyper | dict[str, float]) -> optax.GradientTransformationExtraArgs:
        one = optax.with_extra_args_support(make(**hyper, **fixed))
        return optax.chain(*before, one, *after) if before or after else one

    def init(params: Params) -> optax.OptState:
        return _unshared(chained(dict.fromkeys(hyper_names, 0.0)).init(params), params)

    def update(
        grads: Params,
        state: optax.OptState,
        params: Params | None = None,
        *,
        staleness: Tree = None,
        read_params: Params | None = None,
        **hyper: Array,
    ) -> Tree:
        more = {"staleness": staleness, "read_params": read_params}
        return chained(hyper).update(grads, state, params, **more)

    return optax.GradientTransformationExtraArgs(init, update)


def _unshared(state: Tree, params: Params) -> Tree:
    """Copies arrays that are in the state twice or are parameters, as all are donated."""
    seen = {id(leaf) for leaf in jax.tree.leaves(params)}

    def copied(leaf: Array) -> Array:
        array = jnp.copy(leaf) if isinstance(leaf, jax.Array) and id(leaf) in seen else leaf
        seen.add(id(leaf))
        return array

    return jax.tree.map(copied, state)


def logged(state: Tree) -> dict[str, float]:
    """Returns the figures of a rule's state for the log: mu and mu_T of a closed loop's update."""
    states = jax.tree.leaves(getattr(state, "opt_state", None), is_leaf=_is_loop)
    loop = next(filter(_is_loop, states), None)  # after a chain of others, or alone
    if loop is None:
        return {}
    return {"explicit_momentum": float(loop.explicit), "total_momentum": float(loop.total)}


def _is_loop(state: Tree) -> bool:
    return isinstance(state, closed_loop.ClosedLoopState)


def check(setup: HasOptimizer, groups: int, params: Params) -> None:
    """Traces an update of the setup's optimizer. Raises `ConfigError` if it cannot be used."""
    leaves, structure = jax.tree.flatten(params)
    shapes = tuple((x.shape, x.dtype) for x in leaves)
    objects = lookup.user_objects(setup, lookup.OPTIMIZER)
    _checked(setup.optimizer.name, options(setup, groups), chain(setup), objects, structure, shapes)


@lru_cache(maxsize=64)
def _checked(
    name: str,
    options: Options,
    chain: Chain,
    objects: Key,
    structure: jax.tree_util.PyTreeDef,
    leaves: Sequence[tuple[tuple[int, ...], np.dtype]],
) -> None:
    names = (lookup.kind_in_memory(other) or other for other, _ in reversed(chain))
    refused = f"config.optimizer: {' after '.join((words(name), *names))} cannot be used"
    number = jax.ShapeDtypeStruct((), jnp.float32)
    hyper = {key: number for key in ("learning_rate", "momentum") if key in arguments(name)}
    params = structure.unflatten([jax.ShapeDtypeStruct(*leaf) for leaf in leaves])

    def updated(params: Params, hyper: Hyper) -> tuple[Tree, Tree]:
        transformation = optimizer(name, tuple(hyper), options, chain)
        before = transformation.init(params)
        more = {"staleness": jnp.int32(0), "read_params": params}
        updates, after = transformation.update(params, before, params, **hyper, **more)
        return (params, before), (updates, after)

    try:
        before, after = jax.eval_shape(updated, params, hyper)
    except Exception as error:
        makers = [maker(name), *(transform(other) for other, _ in chain)]
        why = lookup.describe_error(error, *makers) if objects else one_line(error, 300)
        raise ConfigError(f"{refused} ({why})") from error

    def shapes(tree: Tree) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(path): (leaf.shape, leaf.dtype) for path, leaf in leaves}

    empty = any(0 in leaf.shape for leaf in jax.tree.leaves(before))
    why = "its state has arrays without a number, which checkpoints cannot hold"
    other = f"{refused} (an update changes the structure, the shapes or the types of its"
    refuse(
        (empty, f"{refused} ({why})"),
        (shapes(before[0]) != shapes(after[0]), f"{other} parameters)"),
        (shapes(before[1]) != shapes(after[1]), f"{other} state)"),
    )
