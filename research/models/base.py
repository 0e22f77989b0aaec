"""A model is a tuple of (name, flax module); its parameters are a dict with the same names."""

from typing import Any

import flax.linen as nn
import jax

Blocks = tuple[tuple[str, nn.Module], ...]


def init(blocks: Blocks, key: jax.Array, x: jax.Array) -> dict[str, Any]:
    """Parameters of every block, for an input like `x`."""
    params = {}
    y: Any = x
    for index, (name, module) in enumerate(blocks):
        y, variables = module.init_with_output(jax.random.fold_in(key, index), y)
        params[name] = variables["params"]
    return params


def apply(blocks: Blocks, params: dict[str, Any], x: jax.Array) -> jax.Array:
    """The last block's output for a batch `x`."""
    y: Any = x
    for name, module in blocks:
        y = module.apply({"params": params[name]}, y)
    return y
