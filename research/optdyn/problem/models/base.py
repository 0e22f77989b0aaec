"""A model is a tuple of (name, flax module); its parameters are a dict with the same names.

The last block is the output head. An auxiliary head of another block is the same module, applied to
that block's output, with parameters of its own.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any

import flax.linen as nn
import jax

from optdyn.base.fields import Value, field
from optdyn.base.ranges import BLOCKS, WIDE
from optdyn.base.trees import Params, Tree

Blocks = tuple[tuple[str, nn.Module], ...]


@dataclass(frozen=True)
class Model(Value, section="model", union=True):
    """The model, a sequence of blocks."""

    _: KW_ONLY
    remat: bool = field(
        False,
        "Whether blocks keep only their inputs, and the backward pass computes the rest again.",
    )

    def blocks_for(self, classes: int) -> Blocks:
        """The blocks, whose outputs are to count `classes`.

        Raises ValueError for numbers that do not make a model.
        """
        raise NotImplementedError

    @property
    def lowering(self) -> str:
        """How convolutions are computed; '' of models without any."""
        return ""

    @classmethod
    def of(cls, given: Any) -> Any:
        from optdyn.problem.models.own import of

        return super().of(of(given))


@dataclass(frozen=True)
class LayeredModel(Model):
    """A model of layers, which compute in some type."""

    _: KW_ONLY
    dtype: str = field(
        "float32", "Type of the computation; parameters stay float32.",
        one_of=("float32", "bfloat16"),
    )  # fmt: skip


@dataclass(frozen=True)
class ConvolutionalModel(LayeredModel):
    """A model with convolutions."""

    _: KW_ONLY
    lowering: str = field(
        "",
        "How convolutions are computed, or a list 'gemm,fft' in their order; '': as the backend "
        "does; 'measured': the fastest here.",
    )


@dataclass(frozen=True)
class ResidualModel(LayeredModel):
    """A model of residual blocks of one width."""

    blocks: int = field(8, "Residual blocks.", at_least=1, at_most=BLOCKS)
    width: int = field(256, "Width of the residual stream.", **WIDE)


@dataclass(frozen=True)
class Transformers(ResidualModel):
    """A transformer."""

    attention_heads: int = field(4, "Attention heads of a block.", **WIDE)


def init(blocks: Blocks, key: jax.Array, x: jax.Array, heads: Collection[str] = ()) -> Params:
    """Parameters of every block, for an input like `x`, and of the heads of the blocks in `heads`.

    No parameter depends on which heads there are. `ValueError` if `heads` names anything but a
    block before the last, or if a block has other variables than parameters, float32.
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
            own = jax.random.fold_in(key, len(blocks) + index)
            params[head_of(name)] = last.init(own, y).get("params", {})
    return params


def _parameters(name: str, variables: Mapping[str, Tree]) -> Params:
    """A block's parameters, which may be none. ValueError for other state, or if not float32."""
    if others := sorted(set(variables) - {"params"}):
        raise ValueError(
            f"block {name!r} has variables {others[0]!r}: blocks have parameters only (a norm over "
            "the batch drops its running averages in a pair (init, apply), as docs/faq.md shows)"
        )
    params = variables.get("params", {})
    if strange := {str(leaf.dtype) for leaf in jax.tree.leaves(params)} - {"float32"}:
        raise ValueError(f"block {name!r} has parameters of {min(strange)}: must be float32")
    return params


def remat(blocks: Blocks) -> Blocks:
    """The blocks, but for the gradient they keep their inputs only, and compute the rest once more.

    The function and its parameters stay what they are. The last block keeps all: its gradient comes
    first, so that there is nothing to save. On a CPU memory falls only where XLA schedules for it,
    and not for concurrency: with XLA_FLAGS=--xla_cpu_enable_concurrency_optimized_scheduler=false 8
    blocks of a transformer need 83 MB rather than 365, and as XLA is by default 696 rather than
    716.
    """
    return (*((name, _again(module)) for name, module in blocks[:-1]), blocks[-1])


def _again(module: nn.Module) -> nn.Module:
    kind: Callable[..., nn.Module] = type(module)
    fields = (field.name for field in dataclasses.fields(module) if field.init)
    values = {name: getattr(module, name) for name in fields if name not in ("parent", "name")}
    return _checkpointed(kind)(**values)


@lru_cache(maxsize=64)
def _checkpointed(kind: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    return nn.remat(kind)


def head_of(block: str) -> str:
    """The key of the parameters of a block's auxiliary head."""
    return f"{block}_head"


def apply(blocks: Blocks, params: Params, x: jax.Array) -> jax.Array:
    """The last block's output for a batch `x`."""
    return activations(blocks, params, x)[-1]


def activations(blocks: Blocks, params: Params, x: jax.Array) -> list[jax.Array]:
    """`x` and the output of every block in turn, each the input of the next."""
    hs: list[Tree] = [x]
    for name, module in blocks:
        hs.append(module.apply({"params": params[name]}, hs[-1]))
    return hs
