"""Nodes whose exchange runs beside their computing: the loop is split where they send and receive.

Between two splits each device runs the compiled loop of its node's updates, in which nothing waits
for another node. To send, one device of each node in turn (DASO's selective groups) gives the
message to its host, which sends it (`ring.py`) while the devices go on. To receive, the host waits
for messages under way, and the compiled merge takes their sum. The state of a node is the same as
in all layouts: `get` waits for messages under way.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from optdyn.base.trees import Array, Examples, Tree
from optdyn.core import Event, Info, SplitStep
from optdyn.devices import ring
from optdyn.devices.layout import Advance, DeviceError, Layout, gather, to_global, with_rows
from optdyn.devices.simulated import NodeStates, first_state, single_node


class Running(NamedTuple):
    nodes: NodeStates
    messages: Mapping[int, "Future[np.ndarray]"]  # by fragment, the sum over the nodes
    sent: int  # messages since the state was put there


def overlap(advance: Advance, split_step: SplitStep, mesh: Mesh, streamed: bool) -> Layout:
    """Returns the layout of the loop of `split_step.update`. Raises `DeviceError`."""
    local = local_nodes(mesh)
    everywhere, node = P(), P("node")
    split = P(None, mesh.axis_names)
    placed = P(mesh.axis_names) if streamed else P()

    def compiled(piece: Callable[..., Tree], *specs: P, donate: bool = True) -> Callable[..., Tree]:
        mapped = jax.shard_map(
            piece, mesh=mesh, in_specs=(node, *specs), out_specs=node, check_vma=False
        )
        return jax.jit(mapped, donate_argnums=0 if donate else ())

    def updates(
        nodes: NodeStates,
        examples: Examples,
        events: Event,
        indices: Array,
        start: jax.Array,
        n: jax.Array,
    ) -> tuple[NodeStates, Info]:
        """Makes n updates from `start` on; returns their info, (1, events) of each node."""
        rolled = jax.tree.map(lambda leaf: jnp.roll(leaf, -start, axis=0), (events, indices))
        nodes, info = advance(nodes, examples, *rolled, n)
        return nodes, jax.tree.map(lambda leaf: lax.pmean(leaf, "data")[None], info)

    def message(fragment: int, blocking: bool, nodes: NodeStates) -> jax.Array:
        return split_step.message(first_state(nodes), fragment, blocking)[None]

    def on_receive(fragment: int, nodes: NodeStates, total: jax.Array) -> NodeStates:
        return single_node(split_step.on_receive(first_state(nodes), fragment, total[0]))

    def merge_received(nodes: NodeStates, events: Event, t: jax.Array) -> NodeStates:
        event = jax.tree.map(lambda leaf: leaf[t], events)
        return single_node(split_step.merge_received(first_state(nodes), event))

    fragments = range(split_step.fragments)
    update = compiled(updates, placed, P(), split, P(), P())
    # Nothing is donated to a message: the next updates overwrite what it was made of.
    messages = [
        [compiled(partial(message, q, b), donate=False) for b in (False, True)] for q in fragments
    ]
    receive_fragment = [compiled(partial(on_receive, q), node) for q in fragments]
    merge = compiled(merge_received, P(), P())

    def put(leaf: Tree, spec: P = everywhere) -> Tree:
        return to_global(leaf, NamedSharding(mesh, spec))

    def local_sum(vector: jax.Array, turn: int) -> np.ndarray:
        """Returns the sum of the messages of this process's nodes, from a device of each."""
        first, *others = (_shard_on(vector, device)[0] for device in senders(local, turn))
        return reduce(np.add, others, first.copy())

    def on_nodes(total: np.ndarray) -> jax.Array:
        shape = len(mesh.devices), len(total)
        return jax.make_array_from_callback(shape, NamedSharding(mesh, node), lambda _: total[None])

    def run(
        running: Running, examples: Examples, events: Event, indices: Array, n: int
    ) -> tuple[Running, Info]:
        nodes, under_way, turn = running.nodes, dict(running.messages), running.sent
        send, receive, waited = _schedule(events, split_step.fragments)
        events, indices, infos, start = put(events), put(indices, split), [], 0
        ends: list[int] = (1 + np.flatnonzero((send | receive)[:n].any(axis=1))).tolist()
        for stop in ends if ends[-1:] == [n] else [*ends, int(n)]:  # after each meeting, and at n
            bounds = put(np.int32(start)), put(np.int32(stop - start))
            nodes, info = update(nodes, examples, events, indices, *bounds)
            infos.append((slice(start, stop), info))
            start, t = stop, stop - 1
            if not stop or not (send[t] | receive[t]).any():
                continue
            new = {}
            for q in filter(send[t].item, fragments):
                blocking = bool(receive[t, q] and not waited[t, q])
                vector = messages[q][blocking](nodes)
                new[q] = ring.process_ring()(partial(local_sum, vector, turn))
                turn += 1
            for q in filter(receive[t].item, fragments):
                arriving = (under_way if waited[t, q] else new).pop(q, None)
                if arriving:  # else it had arrived when the state was saved
                    nodes = receive_fragment[q](nodes, on_nodes(arriving.result()))
            if receive[t].any():
                nodes = merge(nodes, events, put(np.int32(t)))
            under_way = {q: future for q, future in under_way.items() if not send[t, q]} | new
        return Running(nodes, under_way, turn), _mean_infos(infos, len(send), local)

    def put_state(state: NodeStates) -> Running:
        ring.process_ring()  # here, where all processes are
        return Running(put(state, node), {}, 0)

    def get(running: Running) -> NodeStates:
        whole = gather(running.nodes)
        for q, future in running.messages.items():
            arrived = partial(split_step.on_receive, fragment=q, total=future.result())
            whole = NodeStates(jax.tree.map(np.asarray, jax.vmap(arrived)(whole.state)))
        return whole

    layout = Layout(run, put_state, put, get)
    return with_rows(layout, mesh) if streamed else layout


def senders(nodes: list[np.ndarray], turn: int) -> list[jax.Device]:
    """Returns the device of each node whose turn it is to send."""
    return [row[turn % row.size] for row in nodes]


def _schedule(events: Event, fragments: int) -> tuple[np.ndarray, ...]:
    """Returns `send`, `receive` and `waited` of the plan, (events, fragments)."""
    plan = events.plan
    fields = map(np.asarray, (plan.send, plan.receive, plan.waited))
    return tuple(np.broadcast_to(x.reshape(len(x), -1), (len(x), fragments)) for x in fields)


def _mean_infos(infos: list[tuple[slice, Info]], events: int, nodes: list[np.ndarray]) -> Info:
    """Returns the info of updates, (events, ...), means over the nodes of all processes."""

    def mean(*leaves: jax.Array) -> np.ndarray:
        values = np.zeros((len(nodes), events, *leaves[0].shape[2:]), np.float32)
        for (window, _), leaf in zip(infos, leaves, strict=True):
            for i, row in enumerate(nodes):
                values[i, window] = _shard_on(leaf, row[0])[0, : window.stop - window.start]
        return np.asarray(multihost_utils.process_allgather(values, tiled=True)).mean(axis=0)

    return jax.tree.map(mean, *(info for _, info in infos))


def local_nodes(mesh: Mesh) -> list[np.ndarray]:
    """Returns the devices of each of this process's nodes. Raises `DeviceError`."""
    processes = [tuple({device.process_index for device in row}) for row in mesh.devices]
    counts = Counter(processes)
    is_even = max(map(len, processes)) == 1 and len(set(counts.values())) == 1
    if not is_even or len(counts) < jax.process_count():
        shape = " x ".join(map(str, mesh.devices.shape))
        raise DeviceError(
            f"config.parallel.api = 'overlap': {shape} devices over {jax.process_count()} "
            "processes; each must have as many whole nodes as all others"
        )
    here = (jax.process_index(),)
    return [row for row, process in zip(mesh.devices, processes, strict=True) if process == here]


def _shard_on(array: jax.Array, device: jax.Device) -> np.ndarray:
    return np.asarray(next(s.data for s in array.addressable_shards if s.device == device))
