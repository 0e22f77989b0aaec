"""A strategy on its devices: the state it starts from, and the loop over events laid out."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from optdyn import strategies
from optdyn.parallel import layout
from optdyn.parallel.layout import Advance, Layout
from optdyn.parallel.overlap import overlap
from optdyn.parallel.paged import initial, paged
from optdyn.parallel.simulated import one_node, over_nodes, over_workers
from optdyn.parallel.worker_seconds import measure
from optdyn.problem import Problem
from optdyn.strategies import Strategy

Loop = Callable[[Strategy], Advance]


def make(
    loop: Loop,
    static: Mapping[str, Any],
    whole: Problem,
    optimizer: Any,
    slots: int,
    meter: bool = False,
) -> tuple[Strategy, Layout]:
    """The strategy as one device simulates it, and the loop on real devices or on that one.

    `static` holds the `name` of the methods and their `keys`, `api` ('': one device), `nodes` and
    `devices` (a node's), real or simulated, and whether examples are `streamed` to real ones.
    States look the same either way. With `meter` batches are pairs, and so are the loop's examples
    and indices.
    """
    methods, keys = strategies.chosen(static["name"]), static["keys"]
    api, nodes, devices = static["api"], static["nodes"], static["devices"]
    streamed = static["streamed"]

    def strategy(axis: str | None, real: bool = False, slots: int = slots) -> Strategy:
        parts = static["accumulation"]
        return strategies.compose(methods, keys, whole, optimizer, slots, axis, parts, real, meter)

    def on_host() -> Callable[[Any], Any]:
        return initial(jax.jit(strategy(None, slots=1).init), slots)

    if methods.mix:
        simulated = over_nodes(strategy("data"), nodes, devices)
    elif methods.sums:
        simulated = over_workers(strategy("data"), devices)
    else:
        simulated = strategy(None)
    if keys.get("snapshots") == "host":
        servers = methods.gradient and methods.gradient.servers
        laid = paged(loop(strategy(None, slots=1)), servers(whole) if servers else None)
        return simulated, laid._replace(init=on_host())
    if not api:
        return simulated, layout.one_device(loop(simulated))
    if methods.stages and api == "shard_map":
        assert methods.gradient and methods.gradient.layout
        return simulated, methods.gradient.layout(whole, optimizer, keys, nodes, devices)
    axes, shape = (("node", "data"), (nodes, devices)) if methods.mix else (("data",), (devices,))
    mesh = layout.mesh(axes, shape)
    if api == "jit":
        advance = loop(simulated)
        shards = static["shard_optimizer"], bool(methods.mix), static["shard_snapshots"]
        laid = layout.jit(advance, mesh, *shards)
        return simulated, laid._replace(init=on_host() if static["shard_snapshots"] else None)
    # A mean over one device would not be free: XLA copies all gradients through it.
    device = strategy("data" if devices > 1 or methods.sums else None, real=True)
    apart = device.apart
    if api == "overlap":
        assert apart
        device = Strategy(device.init, apart.update)
    if methods.sums and devices == 1:
        device = over_workers(device, 1)
    if methods.mix:
        device = one_node(device)
    if api == "pmap":
        one, several = ("node", True) if methods.mix else ("data", False)
        return simulated, layout.pmap(loop(device), one, mesh.size, several, streamed)
    if apart and api == "overlap":
        return simulated, overlap(loop(device), apart, mesh, streamed)
    state = P("node") if methods.mix else P()
    laid = layout.shard_map(loop(device), mesh, state, P(None, axes), streamed)
    if methods.gradient and methods.gradient.timed and not methods.mix:
        laid = laid._replace(measure=measure(whole, methods.gradient.timed(whole, keys), mesh))
    return simulated, laid
