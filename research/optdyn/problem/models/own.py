"""Models of one's own: a flax module, a pair of functions, or a function that makes blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax

from optdyn.base import lookup
from optdyn.base.errors import ConfigError, shown
from optdyn.base.fields import Custom, Returns, plain
from optdyn.base.in_memory import name_of
from optdyn.problem.models.base import Blocks, Model

KEY = "config.model.name"
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


@dataclass(frozen=True)
class OwnModel(Model, Custom, custom=True):
    """A model of one's own.

    `make(classes, **options)` returns a flax module or a sequence of (name, module).
    """

    def blocks_for(self, classes: int) -> Blocks:
        """Raises `ConfigError` where the function fails or returns something else."""
        function = lookup.find(KEY, self.name, {})
        made = lookup.call(KEY, self.name, function, classes, **plain(self.options))
        pairs = (("model", made),) if isinstance(made, nn.Module) else made
        try:
            blocks = tuple((block, module) for block, module in pairs)
        except (TypeError, ValueError):
            blocks = ()
        names = [block for block, _ in blocks]
        good = [isinstance(block, str) and isinstance(m, nn.Module) for block, m in blocks]
        if not blocks or not all(good) or len(set(names)) < len(names):
            raise ConfigError(
                f"{lookup.setting(KEY, self.name)}: must return a flax.linen module or a sequence "
                f"of (name, module), all names different, and returned {shown(made)}"
            )
        return blocks


class Pure(nn.Module):
    """A pair of functions as a flax module, its parameters one tree."""

    init_params: Callable[[jax.Array, jax.Array], Any]
    apply_params: Callable[[Any, jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.apply_params(self.param("tree", self.init_params, x), x)


def of(given: Any) -> Any:
    """The model of a flax module or of a pair (init, apply); others as they are.

    Raises `ConfigError` for a module of another library, or its class.
    """
    if isinstance(given, nn.Module):
        return OwnModel(name=name_of(Returns(given), f"the module {type(given).__name__}", given))
    kind = given if isinstance(given, type) else type(given)
    for library, pair in PAIRS.items():
        if any(f"{base.__module__}.".startswith(f"{library}.") for base in kind.__mro__):
            raise ConfigError(
                f"Experiment.model: {kind.__name__} is of {library}, so it must be given as a pair "
                f"of functions (init, apply): {pair.format(kind.__name__)}"
            )
    if isinstance(given, tuple) and len(given) == 2 and all(map(callable, given)):
        return OwnModel(name=name_of(Returns(Pure(*given)), "two functions", *given))
    return given
