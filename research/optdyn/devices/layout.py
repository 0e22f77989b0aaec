"""Layouts of the loop `advance(state, examples, events, indices, n) -> (state, losses)` on devices.

jit         arrays carry their sharding and XLA places the collectives (today's pjit); examples
            are whole on every device, since XLA's gather may read any of them
shard_map   each device runs the loop on its part; collectives are written over axis names
pmap        the same, with a leading axis of devices on every array
overlap     the loop is split where nodes exchange, which the hosts do (`overlap.py`)
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from optdyn.base.errors import InputError
from optdyn.base.trees import Array, Examples, Params, Tree
from optdyn.core import Event, Info

Advance = Callable[..., tuple[Tree, Info]]  # (state, examples, events, indices, n)


class DeviceError(InputError):
    pass


class Layout(NamedTuple):
    """The loop on its devices, and how arrays get there and back.

    `put_state` and `put_examples` put host arrays where `advance` takes them (events and indices
    stay NumPy's); `get(state)` returns the whole state, on every process. `advance` donates the
    state. Where each device holds other examples, streamed, `put_rows(examples_of)` takes
    `examples_of(i)` for device i of `devices`; indices are then numbers among a device's examples.
    `measure` takes what `advance` takes and times the workers, where they can be timed. `init`
    makes the first state, where a device might not hold it whole.
    """

    advance: Advance
    put_state: Callable[[Tree], Tree]
    put_examples: Callable[[Examples], Examples]
    get: Callable[[Tree], Tree]
    put_rows: Callable[[Callable[[int], Examples]], Examples] | None = None
    devices: int = 1
    measure: Callable[..., np.ndarray] | None = None
    init: Callable[[Params], Tree] | None = None


def one_device(advance: Advance) -> Layout:
    put = partial(jax.tree.map, jnp.asarray)
    return Layout(jax.jit(advance, donate_argnums=0), put, put, lambda state: state)


def mesh(axes: Sequence[str], shape: Sequence[int]) -> Mesh:
    """Returns the mesh of the first devices of all processes. Raises `DeviceError`."""
    if np.prod(shape) > jax.device_count():
        raise DeviceError(
            f"{' x '.join(map(str, shape))} devices are asked for, there are {jax.device_count()} "
            "(XLA_FLAGS=--xla_force_host_platform_device_count=N makes N of a CPU)"
        )
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    used = {device.process_index for device in devices.flat}
    if len(used) < jax.process_count():
        raise DeviceError(
            f"{' x '.join(map(str, shape))} devices are asked for, those of {len(used)} of the "
            f"{jax.process_count()} processes; all must take part"
        )
    return Mesh(devices, axes, axis_types=(AxisType.Auto,) * len(axes))


def jit(
    advance: Advance,
    mesh: Mesh,
    shard_optimizer: bool = False,
    nodes: bool = False,
    shard_snapshots: bool = False,
) -> Layout:
    """Returns the layout of an `advance` for the whole batch, which is split over the mesh.

    With `nodes` the state's first axis is split too, over the mesh's `node`. With `shard_optimizer`
    so is each optimizer buffer whose first axis divides by the number of devices: XLA scatters
    gradients to its parts and gathers the updates. With `shard_snapshots` so is each version in the
    state's `slots`, by its first axis that divides; what is read is gathered.
    """
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(None, mesh.axis_names))
    part = NamedSharding(mesh, P(mesh.axis_names))

    def shardings(state: Tree) -> Tree:
        of_state = NamedSharding(mesh, P("node")) if nodes else whole
        tree = jax.tree.map(lambda _: of_state, state)
        if shard_optimizer:
            tree = tree._replace(opt_state=jax.tree.map(of_buffer, state.opt_state))
        if shard_snapshots:
            tree = tree._replace(slots=jax.tree.map(of_version, state.slots))
        return tree

    def of_buffer(leaf: Array) -> NamedSharding:
        return part if leaf.ndim and leaf.shape[0] % mesh.size == 0 else whole

    def of_version(leaf: Array) -> NamedSharding:
        axis = part_axis(leaf.shape, mesh.size)
        return NamedSharding(mesh, P(*[None] * axis, mesh.axis_names)) if axis else whole

    def sharded(state: Tree, *inputs: Tree) -> tuple[Tree, Info]:
        state, losses = advance(state, *inputs)
        return jax.lax.with_sharding_constraint(state, shardings(state)), losses

    compiled = jax.jit(sharded, donate_argnums=0)

    def run(
        state: Tree, examples: Examples, events: Event, indices: Array, n: int
    ) -> tuple[Tree, Info]:
        inputs = to_global(events, whole), to_global(indices, split), to_global(np.int32(n), whole)
        state, losses = compiled(state, examples, *inputs)
        return state, gather(losses)

    return Layout(
        run,
        lambda state: jax.tree.map(_put_leaf, state, shardings(state)),
        lambda examples: to_global(examples, whole),
        gather,
    )


def part_axis(shape: Sequence[int], devices: int) -> int:
    """Returns the first axis of versions (slots, ...) that `devices` divides; 0: none."""
    return next((i for i, size in enumerate(shape) if i and size % devices == 0), 0)


def shard_map(advance: Advance, mesh: Mesh, state: P, indices: P, streamed: bool = False) -> Layout:
    """Returns the layout of an `advance` for one device, with collectives over the mesh's axes.

    Events are whole on every device, and so are examples unless they are `streamed`.
    """

    def on_device(*arguments: Tree) -> tuple[Tree, Info]:
        after, losses = advance(*arguments)
        return after, jax.lax.pmean(losses, mesh.axis_names)

    specs = (state, P(mesh.axis_names) if streamed else P(), P(), indices, P())
    mapped = jax.shard_map(
        on_device, mesh=mesh, in_specs=specs, out_specs=(state, P()), check_vma=False
    )
    compiled = jax.jit(mapped, donate_argnums=0)
    put = [lambda tree, spec=spec: to_global(tree, NamedSharding(mesh, spec)) for spec in specs]

    def run(
        state: Tree, examples: Examples, events: Event, indices: Array, n: int
    ) -> tuple[Tree, Info]:
        inputs = put[2](events), put[3](indices), put[4](np.int32(n))
        state, losses = compiled(state, examples, *inputs)
        return state, gather(losses)

    layout = Layout(run, put[0], put[1], gather)
    return with_rows(layout, mesh) if streamed else layout


def with_rows(layout: Layout, mesh: Mesh) -> Layout:
    """Returns the layout for streamed examples, of which each device holds others."""

    def put_rows(examples_of: Callable[[int], Examples]) -> Examples:
        def join(*parts: jax.Array) -> jax.Array:
            shape = (mesh.size * len(parts[0]), *parts[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, split, list(parts))

        split = NamedSharding(mesh, P(mesh.axis_names))
        local = [(i, d) for i, d in enumerate(mesh.devices.flat) if d in mesh.local_devices]
        return jax.tree.map(join, *(jax.device_put(examples_of(i), d) for i, d in local))

    return layout._replace(put_rows=put_rows, devices=mesh.size)


def pmap(
    advance: Advance, axis: str, devices: int, nodes: bool = False, streamed: bool = False
) -> Layout:
    """Returns the layout of an `advance` for one device of `axis`, with an axis of local devices.

    With `nodes` each device has a part of the state's first axis; `streamed`: of the examples.
    """
    all_devices = jax.devices()[:devices]
    local = [device for device in all_devices if device.process_index == jax.process_index()]
    numbers = [all_devices.index(device) for device in local]
    # The sharding that pmap returns: arrays with another are moved, and compiled for, once more.
    split = NamedSharding(Mesh(np.array(local), (axis,)), P(axis))

    def on_device(*arguments: Tree) -> tuple[Tree, Info]:
        after, losses = advance(*arguments)
        return after, jax.lax.pmean(losses, axis)

    mapped = jax.pmap(on_device, axis, devices=all_devices, donate_argnums=0)

    def put(tree: Tree) -> Tree:
        rows = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(local), *np.shape(leaf))), tree)
        return jax.device_put(rows, split)

    def run(
        state: Tree, examples: Examples, events: Event, indices: Array, n: int
    ) -> tuple[Tree, Info]:
        def local_parts(leaf: np.ndarray) -> np.ndarray:
            return np.stack(np.split(leaf, devices, axis=1))[numbers]

        indices = jax.tree.map(local_parts, indices)
        state, losses = mapped(state, examples, put(events), indices, put(np.int32(n)))
        return state, jax.tree.map(first, losses)

    def first(leaf: jax.Array) -> np.ndarray:
        return np.asarray(leaf.addressable_data(0)).reshape(leaf.shape[1:])

    def put_state(state: Tree) -> Tree:
        def local_nodes(leaf: Array) -> np.ndarray:
            return np.asarray(leaf)[numbers][:, None]

        return jax.device_put(jax.tree.map(local_nodes, state), split) if nodes else put(state)

    def put_rows(examples_of: Callable[[int], Examples]) -> Examples:
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *map(examples_of, numbers))
        return jax.device_put(stacked, split)

    def get(state: Tree) -> Tree:
        if not nodes:
            return jax.tree.map(first, state)
        whole = multihost_utils.process_allgather(state) if jax.process_count() > 1 else state
        return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), whole)

    layout = Layout(run, put_state, put, get)
    return layout._replace(put_rows=put_rows, devices=devices) if streamed else layout


def to_global(tree: Tree, sharding: NamedSharding) -> Tree:
    """Returns global arrays, of whole arrays that every process holds."""
    return jax.tree.map(lambda leaf: _put_leaf(leaf, sharding), tree)


def _put_leaf(leaf: Array, sharding: NamedSharding) -> jax.Array:
    value = np.asarray(leaf)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def gather(tree: Tree) -> Tree:
    """Returns global arrays whole, on every process."""

    def whole(leaf: jax.Array) -> np.ndarray:
        if leaf.is_fully_replicated:
            return np.asarray(leaf.addressable_data(0))
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(whole, tree)
