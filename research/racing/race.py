"""A race: groups compute by themselves, and a server applies what they send as it arrives.

    server   x_{t+1} = step(x_t, message)      the strategy's own update rule
    group    grad f(x_r) of its batch          x_r: the version that it read last
             or where H local steps lead to from there

The run is the trainer's own, with its log, its checkpoints and its files. Only who makes the next
update is not drawn: it is whoever arrives. Their order says all else (`timeline/versions.py`,
`timeline/exchanges.py`), so `trace.csv` replays the race in the simulator, and a race goes on from
a checkpoint and the trace of what was before it: each group does again what it was at.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from research import program, resident, trainer
from research.outputs.files import WorkdirError, read_json
from research.outputs.hold import free
from research.racing import merged, separable, shards
from research.racing.worker import Compute, Workers, numbered, order_of, parts_of, worker
from research.resuming import begun, is_finished
from research.run import Run, joined
from research.strategies.base import Event, Info, State
from research.timeline.base import TimelineError
from research.timeline.trace import arrived
from research.timeline.versions import Order, fill
from research.trainer import Ask, Infos

PATIENCE = 0.5  # seconds until the run looks whether it is to stop


Connect = Callable[[Run], AbstractContextManager[Workers]]
Answer = tuple[State, Infos]


def race(config: ConfigDict, workdir: Path, connect: Connect, servers: int = 1) -> dict[str, Any]:
    """Runs the config in the workdir, or goes on with it, and returns its summary.

    `config.cluster.service` is 'race', and `connect` gives workers of so many `servers`. Raises
    what `trainer.train` raises.
    """
    run = prepared(config, servers, begun(workdir))
    training = trainer.training(run, workdir)
    with contextlib.ExitStack() as stack:
        # Workers that cannot be had are known before the workdir is touched, and before they are
        # started whether it is in use.
        free(workdir)
        done = is_finished(read_json(workdir / "summary.json"), config.steps)
        workers = None if done else stack.enter_context(connect(run))
        stack.enter_context(contextlib.closing(training))
        ask = trainer.proceed(training, None)
        if workers and isinstance(ask, Ask):
            order = so_far(run, workdir / "trace.csv", ask.step)
            answer = server(run, order, workers)
            while isinstance(ask, Ask):
                ask = trainer.proceed(training, answer(ask))
    assert not isinstance(ask, Ask)
    return ask


def prepared(config: ConfigDict, servers: int, begun: bool = False) -> Run:
    """As `trainer.prepare`. Raises what that does, also where it cannot race with such servers."""
    run = trainer.prepare(config, begun=begun, race=True)
    if fresh := config.strategy.fresh:
        separable.check(run, fresh, f"config.strategy.fresh = {tuple(fresh)!r}")
    shards.check(run, servers)
    return run


def so_far(run: Run, trace: Path, step: int) -> Order:
    """Where the groups are after the first `step` updates, which it writes into the timeline.

    Raises `WorkdirError` if the trace does not have them.
    """
    import pandas as pd  # here, for it takes long

    order = order_of(run)
    try:
        if step:
            rows = pd.read_csv(trace)[:step]
            if len(rows) < step:
                raise ValueError(f"{len(rows):,} arrivals")
            fill(order, arrived(rows), rows["seconds"].to_numpy())
        return order
    except (OSError, ValueError, KeyError, IndexError, TimelineError) as error:
        raise WorkdirError(
            f"{trace} must have the {step:,} arrivals of the checkpoint ({error}); give another "
            "--workdir"
        ) from error


def server(run: Run, order: Order, workers: Workers) -> Callable[[Ask], Answer]:
    """What answers the run: updates as messages arrive, for about as long as PATIENCE."""
    halves = program.raced(run.config, run.data.classes, run.timeline.slots)
    examples = resident.put(run.data, run.program.layout.put_examples, run.config).train
    chosen, second, line = numbered(run), numbered(run, independent=True), run.timeline
    parts, control = parts_of(run), line.control or {}
    begun = math.nan
    come = deque[tuple[int, Any, float]]()  # arrivals that are not in the timeline yet
    gathered = list[Any]()  # messages of the next update

    def event(t: int, hypers: Mapping[str, np.ndarray]) -> Event:
        hyper, decided = ({name: v[t] for name, v in of.items()} for of in (hypers, control))
        return Event(line.read[t], line.write[t], hyper, decided, line.staleness[t])

    def update(ask: Ask, state: State, at: Event, sent: list[Any], t: int) -> tuple[State, Info]:
        message = jax.tree.map(lambda *each: np.stack(each), *sent) if parts > 1 else sent[0]
        if ask.metered:
            numbers = np.ravel(control["batch"][t])
            other = joined(second(numbers), parts)[0]
            return halves.metered(state, at, message, examples, other)
        if workers.shards:
            workers.shards.step(at, message.grads)
            return state, {"loss": message.loss}
        return halves.update(state, at, message)

    def send(state: State, groups: Iterable[int]) -> None:
        at = workers.shards.at if workers.shards else lambda slot: halves.given(state, slot)
        slots = {order.working[group].slot for group in groups}
        given = {slot: jax.device_get(at(slot)) for slot in slots}
        for group in groups:
            reading = order.working[group]
            workers.send(group, given[reading.slot], reading.numbers)

    def compiled(ask: Ask) -> None:
        """Both programs, before the clock of the race begins."""
        hyper = {name: values[0] for name, values in ask.hypers.items()}
        seen = jax.eval_shape(lambda state: state.at(0), ask.state)
        shapes = jax.eval_shape(halves.work, seen, hyper, examples, chosen(range(1)))
        shapes = shapes._replace(loss=jax.ShapeDtypeStruct((), shapes.loss.dtype))
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        for metered in {False, run.config.probes.momentum}:
            state = jax.tree.map(jnp.copy, ask.state)
            one = ask._replace(metered=metered)
            update(one, state, event(0, ask.hypers), [nothing] * parts, 0)

    def begin(ask: Ask) -> Answer:
        nonlocal begun, workers
        if workers.shards:
            workers.shards.put(ask.state)
        else:
            compiled(ask)
        if halves.merged:
            workers = merged.serve(
                workers,
                halves,
                order.working,
                lambda numbers: (examples, chosen(numbers)[0]),
                lambda t: event(t, ask.hypers) if t < run.config.steps else None,
                ask.state,
                ask.step,
            )
        begun = time.monotonic() - (line.seconds[ask.step - 1] if ask.step else 0.0)
        send(ask.state, list(order.working))
        return ask.state, {"loss": np.zeros(0)}

    def arrivals(group: int, message: Any) -> Iterator[tuple[int, Any, float]]:
        """What a message is, one arrival after the other: a gradient, or local steps."""
        now = time.monotonic() - begun
        for loss in np.ravel(message.loss)[-order.left(group) :]:
            yield group, message._replace(loss=loss), now

    def answer(ask: Ask) -> Answer:
        if not ask.n:
            return begin(ask)
        state, said = ask.state, list[Mapping[str, Any]]()
        until = time.monotonic() + PATIENCE
        while len(said) < ask.n:
            if not come:
                heard = workers.receive(max(until - time.monotonic(), 0.0))
                if heard is None:
                    break
                come.extend(arrivals(*heard))
            group, message, seconds = come.popleft()
            did = order.arrive(group, seconds)
            gathered.append(message)
            info: Mapping[str, Any] = {"loss": message.loss} | dict.fromkeys(run.program.sums, 0.0)
            if did.update:
                t = ask.step + len(said)
                state, info = update(ask, state, event(t, ask.hypers), gathered, t)
            send(state, did.readers)
            if did.row:
                said.append(info)
                gathered.clear()
        if workers.shards and said:
            state = workers.shards.get()
        names = said[0] if said else ("loss",)
        return state, {name: np.array([info[name] for info in said]) for name in names}

    return answer


def replaying(order: Iterable[int]) -> Connect:
    """The groups of a race in this process, arriving in that order, by the same two programs.

    With a merged server each comes with both halves of its gradient, one after the other.
    """

    def connect(run: Run) -> AbstractContextManager[Workers]:
        halves = 2 if run.config.strategy.fresh else 1
        arriving = (group for group in order for _ in range(halves))
        return contextlib.nullcontext(in_turn(worker(run), lambda _: next(arriving, None)))

    return connect


def in_turn(compute: Compute, choose: Callable[[list[int]], int | None]) -> Workers:
    """Groups of this process, one message at a time: of those at work `choose` says who is next.

    None: nobody yet.
    """
    asked: dict[int, tuple[Any, range]] = {}

    def send(group: int, given: Any, numbers: range) -> None:
        asked[group] = given, numbers

    def receive(seconds: float) -> tuple[int, Any] | None:
        group = choose(sorted(asked))
        return None if group is None else (group, compute(*asked.pop(group)))

    return Workers(send, receive)
