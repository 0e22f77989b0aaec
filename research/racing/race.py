"""A race: groups compute gradients by themselves, and a server applies them as they arrive.

    server   x_{t+1} = step(x_t, grad f(x_r))      the strategy's own update rule
    group    grad f(x_r) of its batch              x_r: the version that it read last

The run is the trainer's own, with its log, its checkpoints and its files. Only who makes the next
update is not drawn: it is whoever arrives. Their order says all else (`timeline/versions.py`), so
`trace.csv` replays the race in the simulator, and a race goes on from a checkpoint and the trace of
what was before it: each group takes the gradient again that it was at.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from research import program, resident, trainer
from research.outputs.files import WorkdirError, read_json
from research.racing.worker import Compute, numbered, worker
from research.resuming import begun, is_finished
from research.run import Run
from research.strategies.base import Event, Info, Message, Params, State
from research.timeline.base import TimelineError
from research.timeline.versions import Versions, fill, put
from research.trainer import Ask, Infos

PATIENCE = 0.5  # seconds until the run looks whether it is to stop


class Workers(NamedTuple):
    """The groups: `send` starts a gradient, and `receive` waits for one, or for so many seconds."""

    send: Callable[[int, Params, int], None]  # (group, parameters, number of the batch)
    receive: Callable[[float], tuple[int, Message] | None]


Connect = Callable[[Run], AbstractContextManager[Workers]]
Answer = tuple[State, Infos]


def race(config: ConfigDict, workdir: Path, connect: Connect) -> dict[str, Any]:
    """Runs the config in the workdir, or goes on with it, and returns its summary.

    `config.cluster.service` is 'race'. Raises what `trainer.train` raises.
    """
    run = trainer.prepare(config, begun=begun(workdir), race=True)
    training = trainer.training(run, workdir)
    with contextlib.ExitStack() as stack:
        # Workers that cannot be had are known before the workdir is touched.
        done = is_finished(read_json(workdir / "summary.json"), config.steps)
        workers = None if done else stack.enter_context(connect(run))
        stack.enter_context(contextlib.closing(training))
        ask = trainer.proceed(training, None)
        if workers and isinstance(ask, Ask):
            versions = so_far(run, workdir / "trace.csv", ask.step)
            answer = server(run, versions, workers)
            while isinstance(ask, Ask):
                ask = trainer.proceed(training, answer(ask))
    assert not isinstance(ask, Ask)
    return ask


def so_far(run: Run, trace: Path, step: int) -> Versions:
    """Where the groups are after the first `step` arrivals, which it writes into the timeline.

    Raises `WorkdirError` if the trace does not have them.
    """
    import pandas as pd  # here, for it takes long

    bound = run.config.strategy.staleness_bound
    worker, seconds = [], np.zeros(0)
    try:
        if step:
            rows = pd.read_csv(trace)[:step]
            worker, seconds = rows["worker"].tolist(), rows["seconds"].to_numpy()
        if len(worker) < step:
            raise ValueError(f"{len(worker):,} arrivals")
        return fill(run.timeline, worker, seconds, bound if bound >= 0 else math.inf)
    except (OSError, ValueError, KeyError, IndexError, TimelineError) as error:
        raise WorkdirError(
            f"{trace} must have the {step:,} arrivals of the checkpoint ({error}); give another "
            "--workdir"
        ) from error


def server(run: Run, versions: Versions, workers: Workers) -> Callable[[Ask], Answer]:
    """What answers the run: updates as gradients arrive, for about as long as PATIENCE."""
    halves = program.raced(run.config, run.data.classes, run.timeline.slots)
    examples = resident.put(run.data, run.program.layout.put_examples, run.config).train
    second, line = numbered(run, independent=True), run.timeline
    begun = math.nan

    def event(t: int, hyper: Mapping[str, Any]) -> Event:
        control = {name: values[t] for name, values in (line.control or {}).items()}
        return Event(line.read[t], line.write[t], hyper, control, line.staleness[t])

    def update(ask: Ask, state: State, at: Event, sent: Message, batch: int) -> tuple[State, Info]:
        if ask.metered:
            return halves.metered(state, at, sent, examples, second(batch))
        return halves.update(state, at, sent)

    def compiled(ask: Ask) -> None:
        """Both programs, before the clock of the race begins."""
        hyper = {name: values[0] for name, values in ask.events(0)[0].hyper.items()}
        shapes = jax.eval_shape(halves.gradient, ask.state.params, examples, second(0))
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        for metered in {False, run.config.probes.momentum}:
            state = jax.tree.map(jnp.copy, ask.state)
            update(ask._replace(metered=metered), state, event(0, hyper), nothing, 0)

    def begin(ask: Ask) -> Answer:
        nonlocal begun
        compiled(ask)
        begun = time.monotonic() - (line.seconds[ask.step - 1] if ask.step else 0.0)
        for group, reading in versions.working.items():
            workers.send(group, jax.device_get(ask.state.at(reading.slot)), reading.batch)
        return ask.state, {"loss": np.zeros(0)}

    def answer(ask: Ask) -> Answer:
        if not ask.n:
            return begin(ask)
        state, said = ask.state, list[Mapping[str, Any]]()
        hypers = ask.events(ask.n)[0].hyper
        until = time.monotonic() + PATIENCE
        for i in range(ask.n):
            arrived = workers.receive(max(until - time.monotonic(), 0.0))
            if arrived is None:
                break
            (group, message), t = arrived, ask.step + i
            had, write, readers = versions.arrive(group)
            put(line, t, group, time.monotonic() - begun, had, write)
            hyper = {name: values[i] for name, values in hypers.items()}
            state, info = update(ask, state, event(t, hyper), message, had.batch)
            if readers:
                newest = jax.device_get(state.params)
            for other in readers:
                workers.send(other, newest, versions.working[other].batch)
            said.append(info)
        names = said[0] if said else ("loss",)
        return state, {name: np.array([info[name] for info in said]) for name in names}

    return answer


def replaying(order: Iterable[int]) -> Connect:
    """The groups of a race in this process, arriving in that order, by the same two programs."""
    arriving = iter(order)
    return lambda run: contextlib.nullcontext(in_turn(worker(run), lambda _: next(arriving, None)))


def in_turn(compute: Compute, choose: Callable[[list[int]], int | None]) -> Workers:
    """Groups of this process, one gradient at a time: of those at work `choose` says who is next.

    None: nobody yet.
    """
    asked: dict[int, tuple[Params, int]] = {}

    def send(group: int, params: Params, batch: int) -> None:
        asked[group] = params, batch

    def receive(seconds: float) -> tuple[int, Message] | None:
        group = choose(sorted(asked))
        return None if group is None else (group, compute(*asked.pop(group)))

    return Workers(send, receive)
