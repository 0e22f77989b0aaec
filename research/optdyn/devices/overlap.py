"""Nodes whose exchange runs beside their computing: the loop is cut where they send and receive.

Between two cuts every device runs the compiled loop of its own node's updates, in which nothing
waits for another node. At a send one device of every node, each in its turn (DASO's selective
groups), gives the message to its host, which carries it (`ring.py`) while the devices go on; at a
receipt the host waits for what is still under way, and the compiled merge takes it. A node's state
is what it is in all layouts: what is under way when it is asked for is waited for.
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
    """The nodes on their devices, and what is under way: of a fragment its sum over the nodes."""

    nodes: NodeStates
    flights: Mapping[int, "Future[np.ndarray]"]
    turn: int  # messages sent, since the state was put there


def overlap(advance: Advance, split_step: SplitStep, mesh: Mesh, streamed: bool) -> Layout:
    """`advance` is the loop of `split_step.update` on one device, of the axes `node` and `data`.

    Raises `DeviceError` where a process has a part of a node, or more nodes than another.
    """
    own = local_nodes(mesh)
    everywhere, node = P(), P("node")
    split = P(None, mesh.axis_names)
    held = P(mesh.axis_names) if streamed else P()

    def laid(piece: Callable[..., Tree], *specs: P, donate: bool = True) -> Callable[..., Tree]:
        mapped = jax.shard_map(
            piece, mesh=mesh, in_specs=(node, *specs), out_specs=node, check_vma=False
        )
        return jax.jit(mapped, donate_argnums=0 if donate else ())

    def between(
        nodes: NodeStates,
        examples: Examples,
        events: Event,
        indices: Array,
        start: jax.Array,
        n: jax.Array,
    ) -> tuple[NodeStates, Info]:
        """n updates from `start` on, and what they say of themselves, (1, events) of each node."""
        rolled = jax.tree.map(lambda leaf: jnp.roll(leaf, -start, axis=0), (events, indices))
        nodes, infos = advance(nodes, examples, *rolled, n)
        return nodes, jax.tree.map(lambda leaf: lax.pmean(leaf, "data")[None], infos)

    def message(fragment: int, blocking: bool, nodes: NodeStates) -> jax.Array:
        return split_step.message(first_state(nodes), fragment, blocking)[None]

    def landed(fragment: int, nodes: NodeStates, total: jax.Array) -> NodeStates:
        return single_node(split_step.on_receive(first_state(nodes), fragment, total[0]))

    def merge(nodes: NodeStates, events: Event, at: jax.Array) -> NodeStates:
        return single_node(
            split_step.merge_received(
                first_state(nodes), jax.tree.map(lambda leaf: leaf[at], events)
            )
        )

    every = range(split_step.fragments)
    update = laid(between, held, P(), split, P(), P())
    # Nothing is donated to a message: the next updates are written over what it was made of.
    messages = [[laid(partial(message, q, b), donate=False) for b in (False, True)] for q in every]
    landings = [laid(partial(landed, q), node) for q in every]
    merging = laid(merge, P(), P())

    def put(leaf: Tree, spec: P = everywhere) -> Tree:
        return to_global(leaf, NamedSharding(mesh, spec))

    def carried(vector: jax.Array, turn: int) -> np.ndarray:
        """The sum of the messages of this process's nodes, from a device of each."""
        first, *others = (_shard_on(vector, device)[0] for device in senders(own, turn))
        return reduce(np.add, others, first.copy())

    def land(nodes: NodeStates, fragment: int, flight: "Future[np.ndarray]") -> NodeStates:
        total = flight.result()
        shape = len(mesh.devices), len(total)
        sums = jax.make_array_from_callback(shape, NamedSharding(mesh, node), lambda _: total[None])
        return landings[fragment](nodes, sums)

    def run(
        running: Running, examples: Examples, events: Event, indices: Array, n: int
    ) -> tuple[Running, Info]:
        nodes, flights, turn = running.nodes, dict(running.flights), running.turn
        send, receive, waited = _schedule(events, split_step.fragments)
        events, indices, said, start = put(events), put(indices, split), [], 0
        for stop in _cuts(send | receive, int(n)):
            bounds = put(np.int32(start)), put(np.int32(stop - start))
            nodes, infos = update(nodes, examples, events, indices, *bounds)
            said.append((slice(start, stop), infos))
            start, at = stop, stop - 1
            if not stop or not (send[at] | receive[at]).any():
                continue
            begun = {}
            for q in filter(send[at].item, every):
                blocking = bool(receive[at, q] and not waited[at, q])
                vector = messages[q][blocking](nodes)
                begun[q] = ring.process_ring()(partial(carried, vector, turn))
                turn += 1
            for q in filter(receive[at].item, every):
                flight = (flights if waited[at, q] else begun).pop(q, None)
                if flight:  # else it had landed when the state was saved
                    nodes = land(nodes, q, flight)
            if receive[at].any():
                nodes = merging(nodes, events, put(np.int32(at)))
            flights = {q: flight for q, flight in flights.items() if not send[at, q]} | begun
        return Running(nodes, flights, turn), _mean_infos(said, len(send), own)

    def put_state(state: NodeStates) -> Running:
        ring.process_ring()  # here, where all processes are
        return Running(put(state, node), {}, 0)

    def get(running: Running) -> NodeStates:
        whole = gather(running.nodes)
        for q, flight in running.flights.items():
            arrived = partial(split_step.on_receive, fragment=q, total=flight.result())
            whole = NodeStates(jax.tree.map(np.asarray, jax.vmap(arrived)(whole.state)))
        return whole

    laid_out = Layout(run, put_state, put, get)
    return with_rows(laid_out, mesh) if streamed else laid_out


def senders(own: list[np.ndarray], turn: int) -> list[jax.Device]:
    """The device of each node whose turn it is to send."""
    return [row[turn % row.size] for row in own]


def _schedule(events: Event, fragments: int) -> tuple[np.ndarray, ...]:
    """`send`, `receive`, `waited` of `outer.py`, (events, fragments)."""
    each = map(np.asarray, (events.plan.send, events.plan.receive, events.plan.waited))
    return tuple(np.broadcast_to(x.reshape(len(x), -1), (len(x), fragments)) for x in each)


def _cuts(meets: np.ndarray, n: int) -> list[int]:
    """Cuts of the first n updates: after those that nodes meet after, and at the end."""
    ends: list[int] = (1 + np.flatnonzero(meets[:n].any(axis=1))).tolist()
    return ends if ends and ends[-1] == n else [*ends, n]


def _mean_infos(said: list[tuple[slice, Info]], events: int, own: list[np.ndarray]) -> Info:
    """What the updates say of themselves, (events, ...): means over the nodes of all processes."""

    def one(*leaves: jax.Array) -> np.ndarray:
        every = np.zeros((len(own), events, *leaves[0].shape[2:]), np.float32)
        for (window, _), leaf in zip(said, leaves, strict=True):
            for i, row in enumerate(own):
                every[i, window] = _shard_on(leaf, row[0])[0, : window.stop - window.start]
        return np.asarray(multihost_utils.process_allgather(every, tiled=True)).mean(axis=0)

    return jax.tree.map(one, *(infos for _, infos in said))


def local_nodes(mesh: Mesh) -> list[np.ndarray]:
    """The devices of each of this process's nodes."""
    of = [tuple({device.process_index for device in row}) for row in mesh.devices]
    counts = Counter(of)
    if max(map(len, of)) > 1 or len(set(counts.values())) > 1 or len(counts) < jax.process_count():
        shape = " x ".join(map(str, mesh.devices.shape))
        raise DeviceError(
            f"config.parallel.api = 'overlap': {shape} devices over {jax.process_count()} "
            "processes; each must have as many whole nodes as all others"
        )
    return [row for row, its in zip(mesh.devices, of, strict=True) if its == (jax.process_index(),)]


def _shard_on(array: jax.Array, device: jax.Device) -> np.ndarray:
    """What that device holds of it."""
    return np.asarray(next(s.data for s in array.addressable_shards if s.device == device))
