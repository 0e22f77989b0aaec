"""Real devices: one loop over events, laid over a mesh in one of several idioms.

    jit         arrays carry their sharding and XLA places the collectives (today's pjit); examples
                are whole on every device, since XLA's gather may read any of them
    shard_map   each device runs the loop on its part; collectives are written over axis names
    pmap        the same, with a leading axis of devices on every array
    overlap     the loop is cut where nodes exchange, which the hosts do meanwhile (`overlap.py`)

Each takes the loop `advance(state, examples, events, indices, n) -> (state, losses)` and lays it
over devices; the loop itself is the same function everywhere.
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
    """Devices that are not there; the message is one line."""


class Layout(NamedTuple):
    """The loop on its devices, and the way in and out of them.

    `put_state` and `put_examples` make host arrays what `advance` takes (events and indices stay
    NumPy's); `get(state)` is the state whole, on every process. `advance` donates the state.
    Where devices hold streamed examples of their own, `put_rows(of)` takes `of(i)`, those of device
    i of `devices`, for the devices of this process; indices are then numbers among them.
    `measure(state, examples, events, indices, n)` times the workers, where they can be timed.
    `init` makes the state that a run starts from, where a device might not hold it whole.
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
    """The first device of this process."""
    put = partial(jax.tree.map, jnp.asarray)
    return Layout(jax.jit(advance, donate_argnums=0), put, put, lambda state: state)


def mesh(axes: Sequence[str], shape: Sequence[int]) -> Mesh:
    """The first devices of all processes, in their order, over named axes.

    Raises `DeviceError` if there are fewer.
    """
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
    """`advance` is written for the whole batch, which is split over the mesh.

    With `nodes` the state's first axis is, too, over the mesh's `node`. With `shard_optimizer` each
    optimizer buffer whose first axis divides by the number of devices is split as well: XLA
    scatters gradients to its parts and gathers the updates. With `shard_snapshots` so is every
    version in the state's `slots`, by its first axis that divides: what is read is gathered.
    """
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(None, mesh.axis_names))
    part = NamedSharding(mesh, P(mesh.axis_names))
    own = NamedSharding(mesh, P("node")) if nodes else whole

    def shardings(state: Tree) -> Tree:
        def of(leaf: Array) -> NamedSharding:
            return part if leaf.ndim and leaf.shape[0] % mesh.size == 0 else whole

        every = jax.tree.map(lambda _: own, state)
        if shard_optimizer:
            every = every._replace(opt_state=jax.tree.map(of, state.opt_state))
        if shard_snapshots:
            every = every._replace(slots=jax.tree.map(of_version, state.slots))
        return every

    def of_version(leaf: Array) -> NamedSharding:
        axis = part_axis(leaf.shape, mesh.size)
        return NamedSharding(mesh, P(*[None] * axis, mesh.axis_names)) if axis else whole

    def laid(state: Tree, *rest: Tree) -> tuple[Tree, Info]:
        state, losses = advance(state, *rest)
        return jax.lax.with_sharding_constraint(state, shardings(state)), losses

    compiled = jax.jit(laid, donate_argnums=0)

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
    """The first axis of versions (slots, ...) that divides by the number of devices; 0: none."""
    return next((i for i, size in enumerate(shape) if i and size % devices == 0), 0)


def shard_map(advance: Advance, mesh: Mesh, state: P, indices: P, streamed: bool = False) -> Layout:
    """`advance` is written for one device, with collectives over the mesh's axes.

    `state` and `indices` say how those are split; events are whole on every device, and so are
    examples unless they are `streamed`: then each device holds its own.
    """

    def laid(*arguments: Tree) -> tuple[Tree, Info]:
        after, losses = advance(*arguments)
        return after, jax.lax.pmean(losses, mesh.axis_names)

    specs = (state, P(mesh.axis_names) if streamed else P(), P(), indices, P())
    mapped = jax.shard_map(laid, mesh=mesh, in_specs=specs, out_specs=(state, P()), check_vma=False)
    compiled = jax.jit(mapped, donate_argnums=0)
    put = [lambda tree, spec=spec: to_global(tree, NamedSharding(mesh, spec)) for spec in specs]

    def run(
        state: Tree, examples: Examples, events: Event, indices: Array, n: int
    ) -> tuple[Tree, Info]:
        inputs = put[2](events), put[3](indices), put[4](np.int32(n))
        state, losses = compiled(state, examples, *inputs)
        return state, gather(losses)

    laid_out = Layout(run, put[0], put[1], gather)
    return with_rows(laid_out, mesh) if streamed else laid_out


def with_rows(layout: Layout, mesh: Mesh) -> Layout:
    """The layout, for streamed examples of which every device holds its own."""

    def put_rows(of: Callable[[int], Examples]) -> Examples:
        def joined(*own: jax.Array) -> jax.Array:
            shape = (mesh.size * len(own[0]), *own[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, split, list(own))

        split = NamedSharding(mesh, P(mesh.axis_names))
        every = enumerate(mesh.devices.flat)
        own = [jax.device_put(of(i), d) for i, d in every if d in mesh.local_devices]
        return jax.tree.map(joined, *own)

    return layout._replace(put_rows=put_rows, devices=mesh.size)


def pmap(
    advance: Advance, axis: str, devices: int, nodes: bool = False, streamed: bool = False
) -> Layout:
    """`advance` is written for one device of `axis`; every array gets an axis of local devices.

    With `nodes` every device has its own part of the state's first axis, and if they are `streamed`
    its own examples.
    """
    every = jax.devices()[:devices]
    local = [device for device in every if device.process_index == jax.process_index()]
    own = [every.index(device) for device in local]
    # What pmap itself returns: arrays laid otherwise are moved, and compiled for, once more.
    split = NamedSharding(Mesh(np.array(local), (axis,)), P(axis))

    def laid(*arguments: Tree) -> tuple[Tree, Info]:
        after, losses = advance(*arguments)
        return after, jax.lax.pmean(losses, axis)

    mapped = jax.pmap(laid, axis, devices=every, donate_argnums=0)

    def put(tree: Tree) -> Tree:
        each = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(local), *np.shape(leaf))), tree)
        return jax.device_put(each, split)

    def run(
        state: Tree, examples: Examples, events: Event, indices: Array, n: int
    ) -> tuple[Tree, Info]:
        def of_devices(leaf: np.ndarray) -> np.ndarray:
            return np.stack(np.split(leaf, devices, axis=1))[own]

        mine = jax.tree.map(of_devices, indices)
        state, losses = mapped(state, examples, put(events), mine, put(np.int32(n)))
        return state, jax.tree.map(first, losses)

    def first(leaf: jax.Array) -> np.ndarray:
        return np.asarray(leaf.addressable_data(0)).reshape(leaf.shape[1:])

    def put_state(state: Tree) -> Tree:
        def of_nodes(leaf: Array) -> np.ndarray:
            return np.asarray(leaf)[own][:, None]

        return jax.device_put(jax.tree.map(of_nodes, state), split) if nodes else put(state)

    def put_rows(of: Callable[[int], Examples]) -> Examples:
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *map(of, own))
        return jax.device_put(stacked, split)

    def get(state: Tree) -> Tree:
        if not nodes:
            return jax.tree.map(first, state)
        every = multihost_utils.process_allgather(state) if jax.process_count() > 1 else state
        return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), every)

    laid_out = Layout(run, put_state, put, get)
    return laid_out._replace(put_rows=put_rows, devices=devices) if streamed else laid_out


def to_global(tree: Tree, sharding: NamedSharding) -> Tree:
    """Global arrays of what every process holds whole."""
    return jax.tree.map(lambda leaf: _put_leaf(leaf, sharding), tree)


def _put_leaf(leaf: Array, sharding: NamedSharding) -> jax.Array:
    """A global array; every process holds the whole value and gives its devices their parts."""
    value = np.asarray(leaf)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def gather(tree: Tree) -> Tree:
    """Global arrays whole, on every process."""

    def whole(leaf: jax.Array) -> np.ndarray:
        if leaf.is_fully_replicated:
            return np.asarray(leaf.addressable_data(0))
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(whole, tree)
