"""A strategy on its devices: the state it starts from, and the loop over events laid out."""

from collections.abc import Callable, Mapping
from typing import Any

from jax.sharding import PartitionSpec as P

from research import strategies
from research.parallel import layout
from research.parallel.layout import Advance, Layout
from research.parallel.measured import measure
from research.parallel.simulated import one_node, over_nodes, over_workers
from research.parallel.stages import stages
from research.problem import Problem
from research.strategies import Strategy, daso, dynamic_batch, local, sync
from research.strategies.dynamic_batch import part

Loop = Callable[[Strategy], Advance]


def make(
    loop: Loop, strategy: Mapping[str, Any], whole: Problem, optimizer: Any, slots: int
) -> tuple[Strategy, Layout]:
    """The strategy as one device simulates it, and the loop on real devices or on that one.

    `strategy` holds `name`, `api` ('' : one device), `shape` (devices along the strategy's axes,
    real or simulated) and the strategy's own keys. States look the same either way.
    """
    name, api, shape = strategy["name"], strategy["api"], strategy["shape"]
    if name == "daso":
        device = daso(whole.loss, optimizer, strategy["transfer_dtype"] or None)
        simulated = over_nodes(device, *shape)
        if not api:
            return simulated, layout.one_device(loop(simulated))
        mesh = layout.mesh(("node", "local"), shape)
        split = P(None, mesh.axis_names)
        return simulated, layout.shard_map(loop(one_node(device)), mesh, P("node"), split)
    if name == "dynamic_batch":
        device = dynamic_batch(
            whole.each_loss, optimizer, strategy["micro_batch"], strategy["weights"]
        )
        simulated = over_workers(device, *shape)
        if not api:
            return simulated, layout.one_device(loop(simulated))
        mesh = layout.mesh(("data",), shape)
        laid = layout.shard_map(loop(device), mesh, P(), P())
        own = part(whole.each_loss, strategy["micro_batch"])
        return simulated, laid._replace(measure=measure(whole, own, mesh))
    if name == "local":
        groups = tuple((a, b) for a, b in strategy["groups"])
        alone = local(whole, optimizer, groups, strategy["shared_heads"])
        if not api:
            return alone, layout.one_device(loop(alone))
        mesh = layout.mesh(("stage", "data"), shape)
        whole_batch = len(groups) > 1 or shape[0] == 1
        parts = 1 if whole_batch else strategy["micro_batches"]
        return alone, stages(whole, optimizer, groups, mesh, parts)
    if name == "sync" and api:
        alone = sync(whole.loss, optimizer, accumulation=strategy["accumulation"])
        mesh = layout.mesh(("data",), shape)
        # A mean over one device would not be free: XLA copies all gradients through it.
        axis = "data" if mesh.size > 1 else None
        device = sync(whole.loss, optimizer, axis, strategy["accumulation"])
        if api == "jit":
            return alone, layout.jit(loop(alone), mesh, strategy["shard_optimizer"])
        if api == "pmap":
            return alone, layout.pmap(loop(device), "data", mesh.size)
        return alone, layout.shard_map(loop(device), mesh, P(), P(None, "data"))
    made = strategies.make(name, whole.loss, optimizer, slots, tuple(strategy["fresh"]))
    return made, layout.one_device(loop(made))
