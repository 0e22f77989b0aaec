"""Names for what is given to an experiment itself, and not by a name: a function, a module, arrays.

A config holds names. A function that can be imported has one; of anything else this module keeps
the thing, as long as the process lives, so that `optdyn.launch.in_memory:NAME` finds it. A NAME is
made of what the thing is (`cache_keys.text`), so that runs of several processes have it alike for
the same and for nothing else.
"""

import copy
import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import optax

from optdyn.basics.cache_keys import Is, text
from optdyn.setup import Data, Model, Optimizer

_names = dict[Is, str]()


def name_of(thing: object) -> str:
    """`MODULE:NAME`, by which `lookup.find` finds this very thing; of a text the text itself."""
    if isinstance(thing, str):
        return thing
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if name and getattr(sys.modules.get(module or ""), name, None) is thing:
        return f"{module}:{name}"
    if Is(thing) not in _names:
        mark = hashlib.sha256(text(thing).encode()).hexdigest()[:6]
        name = held = f"{type(thing).__name__}_{mark}"
        while held in globals():  # of another thing whose difference does not show
            held = f"{name}_{len(_names)}"
        _names[Is(thing)] = held
        globals()[held] = thing
    return f"{__name__}:{_names[Is(thing)]}"


_made = dict[Any, str]()


def _kept(make: Callable[..., Any], *things: Any) -> str:
    """The name of what is made of these very things, made once."""
    key = (make.__qualname__, *map(Is, things))
    if key not in _made:
        _made[key] = name_of(make(*things))
    return _made[key]


def _model(given: Any) -> Any:
    """The `Model` of a flax module, a pair (init, apply) or a function; others as they are."""
    if isinstance(given, nn.Module):
        return Model(_kept(_Returns, given))
    if isinstance(given, tuple) and len(given) == 2 and all(map(callable, given)):
        return Model(_kept(lambda *pair: _Returns(_Pure(*pair)), *given))
    return Model(name_of(given)) if callable(given) else given


def _data(given: Any) -> Any:
    """The `Data` of arrays, or of a function that returns some; others as they are.

    Arrays are copied: what is written into them later is other data, by another name.
    """
    if isinstance(given, Mapping):
        what = text(given)
        if what not in _made:
            _made[what] = name_of(_arrays(copy.deepcopy(given)))
        return Data(_made[what])
    return Data(name_of(given)) if callable(given) else given


def _optimizer(given: Any) -> Any:
    """The `Optimizer` of a transformation of optax, or of a function; others as they are."""
    if isinstance(given, optax.GradientTransformation):
        return Optimizer(_kept(_Fixed, given), learning_rate=0.0)
    return Optimizer(name_of(given)) if callable(given) else given


def _metrics(given: Any) -> Any:
    """Metrics by names: of functions their own; others as they are."""
    return tuple(map(_named, given if isinstance(given, (tuple, list)) else (given,)))


def chain(given: Any) -> Any:
    """The transforms of a chain by names: of optax's transformations and of functions their own."""
    return tuple(map(_named, given)) if isinstance(given, (tuple, list)) else given


def _named(each: Any) -> Any:
    """The name of a function or of a transformation of optax; others as they are."""
    if isinstance(each, optax.GradientTransformation):
        return _kept(_Returns, each)
    return name_of(each) if callable(each) else each


# The fields of an experiment that take a thing itself, and what makes them the value of a name.
NAMED: Mapping[str, Callable[[Any], Any]] = {
    "model": _model,
    "data": _data,
    "optimizer": _optimizer,
    "metrics": _metrics,
}


def _arrays(given: Mapping[str, Any]) -> "_Returns":
    return _Returns(given if "train" in given else {"train": given})


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
