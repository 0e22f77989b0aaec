"""A rule on its devices: its initial state and the loop over events, in their layout."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import optax
from jax.sharding import PartitionSpec as P

from optdyn.base.trees import Params
from optdyn.core import State
from optdyn.devices import layout
from optdyn.devices.layout import Advance, Layout
from optdyn.devices.overlap import overlap
from optdyn.devices.paged import broadcast_init, paged
from optdyn.devices.simulated import one_node, over_nodes, over_workers
from optdyn.methods import MethodStack, Rule, compose
from optdyn.methods.kept import NOTHING_KEPT, Keeping
from optdyn.problem.problem import Problem
from optdyn.train.worker_seconds import measure


class LayoutRequest(NamedTuple):
    methods: MethodStack  # their `static_part`
    api: str = ""  # '': one device simulates all
    nodes: int = 1
    devices: int = 1  # of a node, real or simulated
    accumulation: int = 1
    shard_optimizer: bool = False
    shard_snapshots: bool = False
    streamed: bool = False  # whether examples come to real devices as they are needed
    keeping: Keeping = NOTHING_KEPT


def make(
    loop: Callable[[Rule], Advance],
    request: LayoutRequest,
    problem: Problem,
    optimizer: optax.GradientTransformationExtraArgs,
    slots: int,
    meter: bool = False,
) -> tuple[Rule, Layout]:
    """Returns the rule as one device simulates it, and the layout of the loop on its devices.

    States have one structure on all layouts. With `meter`, batches, examples and indices are pairs.
    """
    methods = request.methods
    api, nodes, devices, streamed = request.api, request.nodes, request.devices, request.streamed

    def rule(axis: str | None, real: bool = False, slots: int = slots) -> Rule:
        accumulation = request.accumulation
        sizes = slots, axis, accumulation, real, meter
        return compose(methods, problem, optimizer, *sizes, keeping=request.keeping)

    def on_host() -> Callable[[Params], State]:
        return broadcast_init(jax.jit(rule(None, slots=1).init), slots)

    if methods.mix:
        simulated = over_nodes(rule("data"), nodes, devices)
    elif methods.reduces_itself:
        simulated = over_workers(rule("data"), devices)
    else:
        simulated = rule(None)
    if methods.get("snapshots", "") == "host":
        placed = paged(loop(rule(None, slots=1)), methods.servers(problem))
        return simulated, placed._replace(init=on_host())
    if not api:
        return simulated, layout.one_device(loop(simulated))
    if methods.stages and api == "shard_map":
        assert methods.gradient and methods.gradient.layout
        return simulated, methods.gradient.layout(problem, optimizer, nodes, devices)
    axes, shape = (("node", "data"), (nodes, devices)) if methods.mix else (("data",), (devices,))
    mesh = layout.mesh(axes, shape)
    if api == "jit":
        advance = loop(simulated)
        shards = request.shard_optimizer, bool(methods.mix), request.shard_snapshots
        placed = layout.jit(advance, mesh, *shards)
        return simulated, placed._replace(init=on_host() if request.shard_snapshots else None)
    # A mean over one device would not be free: XLA copies all gradients through it.
    device = rule("data" if devices > 1 or methods.reduces_itself else None, real=True)
    split_step = device.split
    if api == "overlap":
        assert split_step
        device = Rule(device.init, split_step.update)
    if methods.reduces_itself and devices == 1:
        device = over_workers(device, 1)
    if methods.mix:
        device = one_node(device)
    if api == "pmap":
        one, several = ("node", True) if methods.mix else ("data", False)
        return simulated, layout.pmap(loop(device), one, mesh.size, several, streamed)
    if split_step and api == "overlap":
        return simulated, overlap(loop(device), split_step, mesh, streamed)
    state = P("node") if methods.mix else P()
    placed = layout.shard_map(loop(device), mesh, state, P(None, axes), streamed)
    if methods.gradient and methods.gradient.worker_part and not methods.mix:
        placed = placed._replace(
            measure=measure(problem, methods.gradient.worker_part(problem), mesh)
        )
    return simulated, placed
