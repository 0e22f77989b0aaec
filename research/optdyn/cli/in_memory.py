"""Names for what is given to an experiment itself, and not by a name: a function, a module, arrays.

A config holds names. A function that can be imported has one; of anything else this module keeps
the thing, as long as the process lives, so that `optdyn.cli.in_memory:NAME` finds it. A NAME is of
its kind and counted, `a_function_1`; what is in the thing is told by its hash (`lookup.digest`).
"""

import copy
import itertools
import pickle
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import numpy as np
import optax

from optdyn.base.errors import ConfigError
from optdyn.base.lookup import Is, digest, shown, words
from optdyn.setup import Data, Model, Optimizer

OPTAX = "an optax transformation"
_names = dict[tuple[Hashable, ...], str]()
_arrays = dict[str, Any]()  # arrays that were given, by their digest


class Name(str):
    """A name of what is kept here. A pickle of it has the thing too, which the name is worth."""

    def __reduce__(self) -> Any:
        name = self.rpartition(":")[2]
        try:
            thing = pickle.dumps(globals()[name])
        except Exception as error:  # of any kind: pickle's, or of the user's class
            why = f"cannot be pickled ({shown(error)}); name it instead, as 'my_file.py:NAME'"
            raise ConfigError(f"{words(self)} of an experiment: {why}") from error
        return _unpickled, (thing, name)

    def __deepcopy__(self, _: Any) -> "Name":
        return self


def _unpickled(pickled: bytes, name: str) -> str:
    """The name of a thing of another process: that of there, if here it is free or the same."""
    thing = pickle.loads(pickled)
    here = globals().setdefault(name, thing)
    if here is thing or digest(here) == digest(thing):
        return Name(f"{__name__}:{name}")
    return name_of(thing, name.rpartition("_")[0])


def name_of(thing: object, kind: str = "", *of: object) -> str:
    """`MODULE:NAME`, by which `lookup.find` finds this very thing; of a text the text itself.

    `kind` is what lines call it (`lookup.words`), by default its type; `of` the objects that it was
    made of, if it is made anew each time.
    """
    if isinstance(thing, str):
        return thing
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if name and getattr(sys.modules.get(module or ""), name, None) is thing:
        return f"{module}:{name}"
    key = type(thing), *map(Is, of or (thing,))
    if key not in _names:
        kind = (kind or f"a {type(thing).__name__}").replace(" ", "_")
        counted = (f"{kind}_{number}" for number in itertools.count(1))
        _names[key] = next(name for name in counted if name not in globals())
        globals()[_names[key]] = thing
    return Name(f"{__name__}:{_names[key]}")


# A module of another library, {0}, as a pair (init, apply).
PAIRS = {
    "flax.nnx": (
        "lambda key, x: nnx.state({0}(..., rngs=nnx.Rngs(key)), nnx.Param) and lambda params, x: "
        "nnx.merge(graph, params, rest)(x), where graph, _, rest = nnx.split({0}(..., "
        "rngs=nnx.Rngs(0)), nnx.Param, ...)"
    ),
    "equinox": (
        "lambda key, x: eqx.filter({0}(..., key=key), eqx.is_inexact_array) and lambda params, x: "
        "jax.vmap(eqx.combine(params, static))(x), where _, static = eqx.partition({0}(..., "
        "key=jax.random.key(0)), eqx.is_inexact_array)"
    ),
}


def _model(given: Any) -> Any:
    """The `Model` of a flax module, a pair (init, apply) or a function; others as they are.

    Raises `ConfigError` for a module of another library, or its class.
    """
    if isinstance(given, nn.Module):
        return Model(name_of(_Returns(given), f"the module {type(given).__name__}", given))
    kind = given if isinstance(given, type) else type(given)
    for library, pair in PAIRS.items():
        if any(f"{base.__module__}.".startswith(f"{library}.") for base in kind.__mro__):
            raise ConfigError(
                f"Experiment.model: {kind.__name__} is of {library}, so it must be given as a pair "
                f"of functions (init, apply): {pair.format(kind.__name__)}"
            )
    if isinstance(given, tuple) and len(given) == 2 and all(map(callable, given)):
        return Model(name_of(_Returns(_Pure(*given)), "two functions", *given))
    return Model(name_of(given)) if callable(given) else given


def _data(given: Any) -> Any:
    """The `Data` of arrays, or of a function that returns some; others as they are.

    Arrays are copied: what is written into them later is other data, by another name. The same
    numbers are the same data.
    """
    if isinstance(given, Mapping):
        copied = _copied(given if "train" in given else {"train": given})
        kept = _arrays.setdefault(digest(copied), copied)
        return Data(name_of(_Returns(kept), "arrays", kept))
    return Data(name_of(given)) if callable(given) else given


def _copied(given: Any) -> Any:
    """Arrays of NumPy of whatever holds numbers, in dicts; what cannot be one stays as it is."""
    if isinstance(given, Mapping):
        return {key: _copied(value) for key, value in given.items()}
    try:
        return given if given is None else np.array(given)
    except ValueError:  # rows of unlike length, which are refused later
        return copy.deepcopy(given)


def _optimizer(given: Any) -> Any:
    """The `Optimizer` of a transformation of optax, or of a function; others as they are."""
    if isinstance(given, optax.GradientTransformation):
        return Optimizer(name_of(_Fixed(given), OPTAX, given), learning_rate=0.0)
    return Optimizer(name_of(given)) if callable(given) else given


def _metrics(given: Any) -> Any:
    """Metrics by names: of functions their own; others as they are."""
    return tuple(map(_named, given if isinstance(given, (tuple, list)) else (given,)))


def chain(given: Any) -> Any:
    """The transforms of a chain by names: of optax's transformations and of functions their own."""
    if isinstance(given, optax.GradientTransformation):  # which is a tuple, too
        return (_named(given),)
    return tuple(map(_named, given)) if isinstance(given, (tuple, list)) else given


def _named(each: Any) -> Any:
    """The name of a function or of a transformation of optax; others as they are."""
    if isinstance(each, optax.GradientTransformation):
        return name_of(_Returns(each), OPTAX, each)
    return name_of(each) if callable(each) else each


# The fields of an experiment that take a thing itself, and what makes them the value of a name.
NAMED: Mapping[str, Callable[[Any], Any]] = {
    "model": _model,
    "data": _data,
    "optimizer": _optimizer,
    "metrics": _metrics,
}


@dataclass(frozen=True)
class _Returns:
    """A function that returns the thing, whatever it is given."""

    thing: Any

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self.thing


@dataclass(frozen=True)
class _Fixed:
    """A function of a learning rate, which the optimizer that it returns does not ask for."""

    fixed: ClassVar[bool] = True  # `optimizers.is_fixed`
    optimizer: optax.GradientTransformation

    def __call__(self, learning_rate: Any = 0.0) -> optax.GradientTransformation:
        return self.optimizer


class _Pure(nn.Module):
    """A pair of functions as a flax module, its parameters one tree."""

    init_params: Callable[[jax.Array, jax.Array], Any]
    apply_params: Callable[[Any, jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.apply_params(self.param("tree", self.init_params, x), x)
