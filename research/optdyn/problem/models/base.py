"""A model is a tuple of (name, flax module); its parameters are a dict with the same names.

The last block is the output head. An auxiliary head of another block is the same module with other
parameters, applied to that block's output.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any

import flax.linen as nn
import jax

from optdyn.base import lookup
from optdyn.base.errors import ConfigError, short_repr
from optdyn.base.fields import ConstantFunction, Custom, Value, field, plain
from optdyn.base.in_memory import name_of
from optdyn.base.ranges import BLOCKS, WIDE
from optdyn.base.trees import Params, Tree
from optdyn.problem.models.adapters import Adapter, haiku

KEY = "config.model.name"
Blocks = tuple[tuple[str, nn.Module], ...]
# How to give a module {0} of another library.
FROM_LIBRARY = {
    "flax.nnx": "model=od.from_nnx(lambda rngs: {0}(..., rngs=rngs))",
    "equinox": "model=od.from_equinox(lambda key: {0}(..., key=key))",
}


@dataclass(frozen=True)
class Model(Value, section="model", union=True):
    """The model, a sequence of blocks."""

    _: KW_ONLY
    remat: bool = field(
        False, "Keep only the inputs of blocks and compute the rest again in the backward pass."
    )

    def blocks_for(self, classes: int) -> Blocks:
        """Returns the blocks, the last with `classes` outputs. Raises `ValueError`."""
        raise NotImplementedError

    @property
    def lowering(self) -> str:
        return ""

    @classmethod
    def from_object(cls, thing: Any) -> Any:
        """Returns the model of a module, a pair, an adapter or a function. Raises `ConfigError`."""
        if isinstance(thing, nn.Module):
            words = f"the module {type(thing).__name__}"
            return OwnModel(name=name_of(ConstantFunction(thing), words, thing))
        if isinstance(thing, Adapter):
            return OwnModel(name=name_of(ConstantFunction(thing), "a network", thing))
        if _is_of("haiku", type(thing)) and type(thing).__name__.startswith("Transformed"):
            adapter = haiku(thing)
            return OwnModel(name=name_of(ConstantFunction(adapter), "a network", *thing))
        if isinstance(thing, tuple) and len(thing) == 2 and all(map(callable, thing)):
            return OwnModel(name=name_of(ConstantFunction(Pure(*thing)), "two functions", *thing))
        first = thing[0] if isinstance(thing, tuple) and thing else thing  # of (module, state)
        kind = first if isinstance(first, type) else type(first)
        for library, line in FROM_LIBRARY.items():
            if _is_of(library, kind):
                raise ConfigError(
                    f"Experiment.model: {kind.__name__} is of {library}, so it must be given by a "
                    f"function that makes it: {line.format(kind.__name__)}"
                )
        return super().from_object(thing)


def _is_of(library: str, kind: type) -> bool:
    return any(f"{base.__module__}.".startswith(f"{library}.") for base in kind.__mro__)


@dataclass(frozen=True)
class LayeredModel(Model):
    _: KW_ONLY
    dtype: str = field(
        "float32", "Type of the computation; parameters stay float32.",
        one_of=("float32", "bfloat16"),
    )  # fmt: skip


@dataclass(frozen=True)
class ResidualModel(LayeredModel):
    blocks: int = field(8, "Residual blocks.", at_least=1, at_most=BLOCKS)
    width: int = field(256, "Width of the residual stream.", **WIDE)


@dataclass(frozen=True)
class OwnModel(Model, Custom, custom=True):
    """Your model: `make(classes, **options)` returns a flax module or (name, module) pairs."""

    def blocks_for(self, classes: int) -> Blocks:
        function = lookup.find(KEY, self.name, {})
        result = lookup.call_user_code(KEY, self.name, function, classes, **plain(self.options))
        pairs = (("model", result),) if isinstance(result, nn.Module) else result
        try:
            blocks = tuple((block, module) for block, module in pairs)
        except (TypeError, ValueError):
            blocks = ()
        good = [isinstance(block, str) and isinstance(m, nn.Module) for block, m in blocks]
        if not blocks or not all(good) or len(dict(blocks)) < len(blocks):
            raise ConfigError(
                f"{lookup.key_value(KEY, self.name)}: must return a flax.linen module or a "
                "sequence of (name, module), all names different, and returned "
                f"{short_repr(result)}"
            )
        return blocks


class Pure(nn.Module):
    init_params: Callable[[jax.Array, jax.Array], Any]
    apply_params: Callable[[Any, jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.apply_params(self.param("tree", self.init_params, x), x)


def make(model: Model, classes: int) -> Blocks:
    """Returns the blocks of a model with `classes` outputs.

    With `remat` all but the last, whose gradient comes first, keep only their inputs for the
    gradient. On a CPU that saves memory only with
    XLA_FLAGS=--xla_cpu_enable_concurrency_optimized_scheduler=false.
    """
    *trunk, head = model.blocks_for(classes)
    if model.remat:
        trunk = [(name, _with_remat(module)) for name, module in trunk]
    return (*trunk, head)


def _with_remat(module: nn.Module) -> nn.Module:
    fields = (field.name for field in dataclasses.fields(module) if field.init)
    values = {name: getattr(module, name) for name in fields if name not in ("parent", "name")}
    return _rematerialized(type(module))(**values)


_rematerialized: Callable[..., Callable[..., nn.Module]] = lru_cache(maxsize=64)(nn.remat)


def init(blocks: Blocks, key: jax.Array, x: jax.Array, heads: Collection[str] = ()) -> Params:
    """Returns the parameters of all blocks, for an input like `x`, and of auxiliary heads.

    No parameter depends on which heads there are. Raises `ValueError` for heads of anything but
    blocks before the last, and for variables that are no float32 parameters.
    """
    trunk, (_, last) = [name for name, _ in blocks[:-1]], blocks[-1]
    if unknown := sorted(set(heads) - set(trunk)):
        among = ", ".join(trunk) or "none"
        raise ValueError(f"auxiliary head of {unknown[0]!r}: blocks before the last are {among}")
    params = {}
    y: jax.Array = x
    for index, (name, module) in enumerate(blocks):
        y, variables = module.init_with_output(jax.random.fold_in(key, index), y)
        params[name] = _parameters(name, variables)
        if name in heads:
            head_key = jax.random.fold_in(key, len(blocks) + index)
            params[head_of(name)] = last.init(head_key, y).get("params", {})
    return params


def _parameters(name: str, variables: Mapping[str, Tree]) -> Params:
    if others := sorted(set(variables) - {"params"}):
        raise ValueError(
            f"block {name!r} has variables {others[0]!r}: blocks have parameters only (a norm over "
            "the batch drops its running averages in a pair (init, apply), as docs/faq.md shows)"
        )
    params = variables.get("params", {})
    if strange := {str(leaf.dtype) for leaf in jax.tree.leaves(params)} - {"float32"}:
        raise ValueError(f"block {name!r} has parameters of {min(strange)}: must be float32")
    return params


def head_of(block: str) -> str:
    return f"{block}_head"


def apply(blocks: Blocks, params: Params, x: jax.Array) -> jax.Array:
    return activations(blocks, params, x)[-1]


def activations(blocks: Blocks, params: Params, x: jax.Array) -> list[jax.Array]:
    """Returns `x` and the outputs of all blocks in order."""
    hs: list[Tree] = [x]
    for name, module in blocks:
        hs.append(module.apply({"params": params[name]}, hs[-1]))
    return hs
