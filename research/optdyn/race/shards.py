"""A server of a race in parts: each has some of the blocks, and workers send to it directly.

    part k    x_{t+1}[k] = step(x_t[k], g_t[k])      t: in the order that the command decides
    worker    to each part `ReadRequest`, answered by `Blocks`, and the gradient's `Blocks`, by
              `Receipt`; then to the command `Message`
    command   to each part `ApplyGradient` and `PrepareRead`; to the worker `ComputeRequest`

The command learns only that the parts have a gradient, and numbers it. So all parts have one order
of updates, and a worker reads one version of all blocks.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait

import jax
import jax.numpy as jnp
import numpy as np

from optdyn.base.errors import ConfigError, refuse
from optdyn.base.handshake import Listener
from optdyn.base.trees import Tree
from optdyn.core import Event, Message, Params, State
from optdyn.methods.asynchronous import Grouped
from optdyn.race.messages import (
    ApplyGradient,
    Blocks,
    ComputeRequest,
    Forms,
    PrepareRead,
    ReadRequest,
    Receipt,
    StateMessage,
    StateRequest,
    forms,
    receive,
    send,
)
from optdyn.race.server import event_of
from optdyn.race.worker import Compute, Shards, Workers, compiled_halves
from optdyn.train.run import Run

COMMAND = 2**31 - 1  # the command's number at a part's door, where groups have 0, 1, ...


class PartLost(Exception):
    """A part of the server died, and with it the updates since the last checkpoint."""


def assign_blocks(params: Params, servers: int) -> list[list[str]]:
    """Returns the names of each part's blocks: the largest first, each to the smallest part."""
    size = {name: sum(x.size for x in jax.tree.leaves(block)) for name, block in params.items()}
    parts: list[list[str]] = [[] for _ in range(servers)]
    for name in sorted(size, key=lambda name: -size[name]):
        min(parts, key=lambda part: sum(size[other] for other in part)).append(name)
    return parts


class Part:
    """A part of the server: the state of some blocks, with versions that may still be read."""

    def __init__(self, run: Run, number: int, servers: int):
        self._halves = compiled_halves(run)
        blocks = {name: run.params[name] for name in assign_blocks(run.params, servers)[number]}
        self._state = run.program.rule.init(blocks)
        # Compiles before the clock of the race begins; `put` replaces the result.
        self.step(event_of(run, 0), jax.tree.map(np.zeros_like, jax.device_get(blocks)))

    def put(self, state: Mapping[str, np.ndarray]) -> None:
        """Sets the state, from leaves of the whole one."""
        self._state = with_leaves(self._state, state)

    def step(self, event: Event, grads: Params) -> None:
        self._state, _ = self._halves.update(self._state, event, Message(jnp.zeros(()), grads))

    def read_slot(self, slot: int) -> Params:
        return jax.device_get(self._halves.parameters_at(self._state, slot))

    def get(self) -> dict[str, np.ndarray]:
        return leaves(self._state)


def leaves(state: State) -> dict[str, np.ndarray]:
    """Returns the leaves of a state by path, which is the same in a state of some blocks."""
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(state))
    }


def with_leaves(like: State, found: Mapping[str, np.ndarray]) -> State:
    """Returns a state of the structure of `like`, from leaves by path."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jnp.array(found[jax.tree_util.keystr(path)]), like
    )


def forms_of(run: Run, servers: int) -> Forms:
    """Returns the forms of all messages in a race with a server in parts."""
    init, names = run.program.rule.init, assign_blocks(run.params, servers)
    parts = [{name: run.params[name] for name in part} for part in names]
    to_parts = [
        ApplyGradient(event_of(run, 0), 0),
        PrepareRead(0, 0, 0),
        StateRequest(),
        ReadRequest(0),
        Receipt(),
    ]
    states = [StateMessage(leaves(init(x))) for x in (run.params, *parts)]
    to_groups = [
        ComputeRequest((), (0, 0, 0)),
        Message(jnp.zeros(()), ()),
        *(Blocks(x) for x in parts),
    ]
    return forms(*to_parts, *states, *to_groups)


def serve_part(part: Part, door: Listener, known: Forms) -> None:
    """Answers the command and the groups, as that part, until the command is gone."""
    lines = dict[int, Connection]()
    prepared = dict[int, tuple[int, Params]]()  # number of a group's batch, and its blocks
    requested, grads = dict[int, int](), dict[int, Params]()

    def disconnect(sender: int) -> None:
        requested.pop(sender, None)
        if line := lines.pop(sender, None):
            line.close()

    def reply(sender: int, message: Tree) -> None:
        with contextlib.suppress(OSError):  # it died, and asks again when it is back
            send(lines[sender], known, message)

    def send_blocks(group: int) -> None:
        number, blocks = prepared.get(group, (-1, {}))
        if requested.get(group) == number:
            del requested[group]
            reply(group, Blocks(blocks))

    def answer(sender: int, message: Tree) -> None:
        match message:
            case StateMessage(state):
                part.put(state)
                reply(sender, Receipt())
            case ApplyGradient(event, group):
                part.step(event, grads.pop(int(group)))
            case PrepareRead(slot, group, number):
                prepared[int(group)] = int(number), part.read_slot(int(slot))
                send_blocks(int(group))
            case StateRequest():
                reply(sender, StateMessage(part.get()))
            case ReadRequest(number):
                requested[sender] = int(number)
                send_blocks(sender)
            case Blocks(gradient):
                grads[sender] = gradient
                reply(sender, Receipt())

    while True:
        ready = wait([*door.sockets(), *lines.values()], 1.0)
        for sender, line in [*lines.items()]:
            if line in ready:
                try:
                    answer(sender, receive(line, known))
                except (EOFError, OSError):
                    disconnect(sender)
                    if sender == COMMAND:
                        return
        for sender, line in door.accept():
            disconnect(sender)
            lines[sender] = line


def server_parts(parts: Sequence[Connection], known: Forms, like: State) -> Shards:
    """Returns the parts at these connections, which may raise `PartLost`."""

    def send_all(message: Tree) -> None:
        for line in parts:
            with _lost():
                send(line, known, message)

    def answers() -> list[Tree]:
        with _lost():
            return [receive(line, known) for line in parts]

    def put(state: State) -> None:
        send_all(StateMessage(leaves(state)))
        answers()

    def get() -> State:
        send_all(StateRequest())
        return with_leaves(
            like, {path: leaf for part in answers() for path, leaf in part.leaves.items()}
        )

    return Shards(
        put,
        lambda event, group: send_all(ApplyGradient(event, group)),
        lambda slot, group, number: send_all(PrepareRead(slot, group, number)),
        get,
    )


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise PartLost from error


def via_parts(server: Shards, groups: Workers) -> Workers:
    """Returns groups that read from the server's parts and send to these."""

    def set_to_work(group: int, slot: int, numbers: range) -> None:
        server.prepare_read(slot, group, numbers.start)
        groups.send(group, (), numbers)

    def next_message(seconds: float) -> tuple[int, Tree] | None:
        received = groups.receive(seconds)
        return received and (received[0], received[1]._replace(grads=received[0]))

    return Workers(set_to_work, next_message, server)


def compute_with_parts(
    parts: Sequence[Connection], known: Forms, run: Run, compute: Compute
) -> Compute:
    """Returns the computation of a group that reads from these parts and sends to them."""
    names = assign_blocks(run.params, len(parts))

    def work(_: Tree, numbers: range) -> Message:
        for line in parts:
            send(line, known, ReadRequest(numbers.start))
        x = {name: leaf for line in parts for name, leaf in receive(line, known).params.items()}
        loss, grads = compute(x, numbers)
        for line, part in zip(parts, names, strict=True):
            send(line, known, Blocks({name: grads[name] for name in part}))
        for line in parts:
            receive(line, known)  # before the command may make an update of it
        return Message(loss, ())

    return work


def check_servers(run: Run, servers: int) -> None:
    """Raises `ConfigError` if the server of this run cannot have so many parts."""
    config, key = run.config, f"--servers={servers}"
    methods = config.methods
    is_single = isinstance(methods.read, Grouped) and methods.read.single
    is_needed = not is_single or methods.get("fresh", ()) or config.probes.momentum
    refuse(
        (
            not 1 <= servers <= len(run.params),
            f"{key}: must be from 1 to {len(run.params)}, the blocks of the model",
        ),
        (
            servers > 1 and is_needed,
            f"{key}: must be 1 unless an update is one gradient of the whole batch, without fresh "
            "blocks and config.probes.momentum",
        ),
    )
    if servers == 1:
        return
    for part in assign_blocks(run.params, servers):
        check_separable(run, part, key)


def check_separable(run: Run, blocks: Collection[str], key: str) -> None:
    """Raises `ConfigError` for `key` if the blocks' updates depend on the gradients of others.

    So they do with an optimizer that scales by the norm of all. Of two updates by random gradients
    the second is for optimizers with a memory.
    """
    halves = compiled_halves(run)
    rng = np.random.default_rng(0)
    grads = jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(x.dtype), run.params)
    zeros = jax.tree.map(np.zeros_like, grads)
    event = event_of(run, 0)

    def updated(others: Params) -> list[jax.Array]:
        state = run.program.rule.init(run.params)
        gradient = {**others, **{name: grads[name] for name in blocks}}
        for _ in range(2):
            state, _ = halves.update(state, event, Message(jnp.zeros(()), gradient))
        return jax.tree.leaves({name: state.params[name] for name in blocks})

    pairs = zip(updated(grads), updated(zeros), strict=True)
    if not all(np.array_equal(one, other) for one, other in pairs):
        raise ConfigError(
            f"{key}: must go with an optimizer that moves a block by its gradient alone, as the "
            "servers of a race move their blocks one after the other"
        )
