"""A server of a race in parts: each keeps some of the blocks, and workers send to it directly.

    part k    x_{t+1}[k] = step(x_t[k], g_t[k])      t: in the order that the command decides

The command hears only that the parts have a gradient, and numbers it. So all parts have one order
of updates, and what a worker reads is one version of all blocks.

    worker    `ReadRequest` to each part, its `Blocks`; gradient `Blocks`, its `Receipt`; `Message`
    command   `ApplyGradient` and `PrepareRead` to each part, `ComputeRequest` to the worker
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

COMMAND = 2**31 - 1  # what the command calls itself at a part's door, where groups are 0, 1, ...


class PartLost(Exception):
    """A part of the server died, and with it the updates since the last checkpoint."""


def assign_blocks(params: Params, servers: int) -> list[list[str]]:
    """Names by part, so that the largest is as small as this is likely to get: largest first."""
    size = {name: sum(x.size for x in jax.tree.leaves(own)) for name, own in params.items()}
    found: list[list[str]] = [[] for _ in range(servers)]
    for name in sorted(size, key=lambda name: -size[name]):
        min(found, key=lambda own: sum(size[other] for other in own)).append(name)
    return found


class Part:
    """Keeps some blocks, versions that are still to be read among them."""

    def __init__(self, run: Run, number: int, servers: int):
        self._halves = compiled_halves(run)
        own = {name: run.params[name] for name in assign_blocks(run.params, servers)[number]}
        self._state = run.program.rule.init(own)
        # Compiled before the clock of the race begins, of which `put` leaves nothing.
        self.step(event_of(run, 0), jax.tree.map(np.zeros_like, jax.device_get(own)))

    def put(self, state: Mapping[str, np.ndarray]) -> None:
        """`state`: leaves of the whole one."""
        self._state = with_leaves(self._state, state)

    def step(self, event: Event, grads: Params) -> None:
        """Makes an update of the gradients of its blocks."""
        self._state, _ = self._halves.update(self._state, event, Message(jnp.zeros(()), grads))

    def at(self, slot: int) -> Params:
        """What a worker sees of its blocks that reads the slot."""
        return jax.device_get(self._halves.given(self._state, slot))

    def get(self) -> dict[str, np.ndarray]:
        """The state of its blocks."""
        return leaves(self._state)


def leaves(state: State) -> dict[str, np.ndarray]:
    """The leaves of a state by path, which is the same in a state of some blocks only."""
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(state))
    }


def with_leaves(like: State, found: Mapping[str, np.ndarray]) -> State:
    """A state like this one, of leaves by path."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jnp.array(found[jax.tree_util.keystr(path)]), like
    )


def forms_of(run: Run, servers: int) -> Forms:
    """The forms of all that is sent in a race of a server in parts."""
    init, names = run.program.rule.init, assign_blocks(run.params, servers)
    parts = [{name: run.params[name] for name in own} for own in names]
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
    """A part's side: it does what the command and the groups ask for until the command is gone."""
    lines = dict[int, Connection]()
    given = dict[int, tuple[int, Params]]()  # what groups are to have, by the number of their batch
    wanted, grads = dict[int, int](), dict[int, Params]()

    def let_go(who: int) -> None:
        wanted.pop(who, None)
        if line := lines.pop(who, None):
            line.close()

    def reply(group: int, message: Tree) -> None:
        with contextlib.suppress(OSError):  # it died, and asks again when it is back
            send(lines[group], known, message)

    def give(group: int) -> None:
        number, x = given.get(group, (-1, {}))
        if wanted.get(group) == number:
            del wanted[group]
            reply(group, Blocks(x))

    def do(who: int, message: Tree) -> None:
        match message:
            case StateMessage(of):
                part.put(of)
                reply(who, Receipt())
            case ApplyGradient(event, group):
                part.step(event, grads.pop(int(group)))
            case PrepareRead(slot, group, number):
                given[int(group)] = int(number), part.at(int(slot))
                give(int(group))
            case StateRequest():
                reply(who, StateMessage(part.get()))
            case ReadRequest(number):
                wanted[who] = int(number)
                give(who)
            case Blocks(of):
                grads[who] = of
                reply(who, Receipt())

    while True:
        ready = wait([*door.sockets(), *lines.values()], 1.0)
        for who, line in [*lines.items()]:
            if line in ready:
                try:
                    do(who, receive(line, known))
                except (EOFError, OSError):
                    let_go(who)
                    if who == COMMAND:
                        return
        for who, line in door.accept():
            let_go(who)
            lines[who] = line


def server_parts(parts: Sequence[Connection], known: Forms, like: State) -> Shards:
    """The parts at these connections. `like`: a state of all blocks. They may raise `PartLost`."""

    def tell(message: Tree) -> None:
        for line in parts:
            with _lost():
                send(line, known, message)

    def answers() -> list[Tree]:
        with _lost():
            return [receive(line, known) for line in parts]

    def put(state: State) -> None:
        tell(StateMessage(leaves(state)))
        answers()

    def get() -> State:
        tell(StateRequest())
        return with_leaves(
            like, {path: leaf for own in answers() for path, leaf in own.leaves.items()}
        )

    return Shards(
        put,
        lambda event, group: tell(ApplyGradient(event, group)),
        lambda slot, group, number: tell(PrepareRead(slot, group, number)),
        get,
    )


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise PartLost from error


def via_parts(server: Shards, groups: Workers) -> Workers:
    """Groups that read from the server's parts and send to these."""

    def send_to(group: int, slot: int, numbers: range) -> None:
        server.give(slot, group, numbers.start)
        groups.send(group, (), numbers)

    def heard(seconds: float) -> tuple[int, Tree] | None:
        said = groups.receive(seconds)
        return said and (said[0], said[1]._replace(grads=said[0]))

    return Workers(send_to, heard, server)


def compute_with_parts(
    parts: Sequence[Connection], known: Forms, run: Run, compute: Compute
) -> Compute:
    """What a group computes that reads from the parts at these connections, and sends to them."""
    names = assign_blocks(run.params, len(parts))

    def work(_: Tree, numbers: range) -> Message:
        for line in parts:
            send(line, known, ReadRequest(numbers.start))
        x = {name: leaf for line in parts for name, leaf in receive(line, known).of.items()}
        loss, grads = compute(x, numbers)
        for line, own in zip(parts, names, strict=True):
            send(line, known, Blocks({name: grads[name] for name in own}))
        for line in parts:
            receive(line, known)  # before the command may make an update of it
        return Message(loss, ())

    return work


def check_servers(run: Run, servers: int) -> None:
    """Raises `ConfigError` if the server of this run cannot have so many parts."""
    config, wanted = run.config, f"--servers={servers}"
    methods = config.methods
    one = isinstance(methods.read, Grouped) and methods.read.single
    more = not one or methods.get("fresh", ()) or config.probes.momentum
    refuse(
        (
            not 1 <= servers <= len(run.params),
            f"{wanted}: must be from 1 to {len(run.params)}, the blocks of the model",
        ),
        (
            servers > 1 and more,
            f"{wanted}: only where an update is one gradient of the whole batch, and the server "
            "needs it for nothing else: without fresh blocks and config.probes.momentum",
        ),
    )
    if servers == 1:
        return
    for own in assign_blocks(run.params, servers):
        check_separable(run, own, wanted)


def check_separable(run: Run, blocks: Collection[str], wanted: str) -> None:
    """Raises `ConfigError` if how the blocks move depends on the gradients of others.

    So it does with an optimizer that scales all by the norm of all. Two updates are made of random
    gradients, the second for those that have a memory. `wanted` is the key that asks for it.
    """
    halves = compiled_halves(run)
    rng = np.random.default_rng(0)
    grads = jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(x.dtype), run.params)
    zeros = jax.tree.map(np.zeros_like, grads)
    event = event_of(run, 0)

    def moved(others: Params) -> list[jax.Array]:
        state = run.program.rule.init(run.params)
        own = {name: grads[name] for name in blocks}
        for _ in range(2):
            state, _ = halves.update(state, event, Message(jnp.zeros(()), {**others, **own}))
        return jax.tree.leaves({name: state.params[name] for name in blocks})

    pairs = zip(moved(grads), moved(zeros), strict=True)
    if not all(np.array_equal(one, other) for one, other in pairs):
        raise ConfigError(
            f"{wanted}: the servers of a race move their blocks one after the other, and this "
            "optimizer moves a block by the gradients of all; take one that does not"
        )
