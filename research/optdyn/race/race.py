"""A race: groups compute by themselves, and a server applies what they send as it arrives.

    server   x_{t+1} = step(x_t, message)      the method's own update rule
    group    grad f(x_r) of its batch          x_r: the version that it read last
             or where H local steps lead to from there

The run is the trainer's; only who makes the next update is whoever arrives, and not drawn. All else
follows from that order (`clock/versions.py`), so `trace.csv` replays the race in the simulator, and
a race resumes from a checkpoint and the trace before it: each group repeats its work.
"""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from optdyn.base import lookup
from optdyn.base.files import WorkdirError, read_json
from optdyn.base.trees import Json, Tree
from optdyn.base.workdir_lock import check_unlocked
from optdyn.clock.timeline import TimelineError
from optdyn.clock.trace import SERVED, read_trace
from optdyn.clock.versions import ArrivalOrder, replay_order
from optdyn.core import Info, State
from optdyn.experiment import Config
from optdyn.race import server, shards
from optdyn.race.worker import Compute, Workers, arrival_order, arrivals_per_update, make_compute
from optdyn.train import trainer
from optdyn.train.loop import Chunk, next_or_result
from optdyn.train.resuming import has_checkpoint
from optdyn.train.run import Run
from optdyn.train.workdir import damaged, is_finished

THREADS = Path("/proc/self/task")  # on Linux; a folder a thread
PATIENCE = 0.5  # seconds after which the run checks whether to stop

Connect = Callable[[Run], AbstractContextManager[Workers]]


@lookup.files_read_once()
def race(config: Config, workdir: Path, connect: Connect, servers: int = 1) -> Json:
    """Starts or resumes the run in the workdir, and returns its summary.

    `config.cluster.service.name` is 'race'. Raises what `trainer.train` raises.
    """
    run = prepare_race(config, servers, has_checkpoint(workdir))
    training = trainer.training(run, workdir)
    with contextlib.ExitStack() as stack:
        # Workers fail to start before the workdir is touched, and only if it is not in use.
        check_unlocked(workdir)
        done = is_finished(read_json(workdir / "summary.json"), config.steps) and not damaged(
            workdir
        )
        workers = None if done else stack.enter_context(connect(run))
        stack.enter_context(contextlib.closing(training))
        chunk = next_or_result(training)
        if workers and isinstance(chunk, Chunk):
            order = restored_order(run, workdir / "trace.csv", chunk.start)
            make = chunk_maker(run, order, workers, chunk)
            where = one_core if workers.crowded else contextlib.nullcontext
            while isinstance(chunk, Chunk):
                with where():  # but not while it evaluates
                    make(chunk)
                chunk = next_or_result(training)
    assert not isinstance(chunk, Chunk)
    return chunk


def prepare_race(config: Config, servers: int, resumed: bool = False) -> Run:
    """Returns the prepared run. Raises as `trainer.prepare`, and if it cannot have the servers."""
    run = trainer.prepare(config, resumed=resumed, race=True)
    if fresh := config.methods.get("fresh", ()):
        shards.check_separable(run, fresh, f"config.method.fresh = {tuple(fresh)!r}")
    shards.check_servers(run, servers)
    return run


def restored_order(run: Run, trace: Path, step: int) -> ArrivalOrder:
    """Returns the order after the first `step` updates of the trace. Raises `WorkdirError`."""
    order = arrival_order(run)
    try:
        if step:
            found, parts = read_trace(str(trace), step), arrivals_per_update(run)
            groups = run.config.methods.groups
            worker = found.workers((parts,), groups) if parts > 1 else found.worker
            dropped = found.flags("dropped", (groups,)) if found.has("dropped") else None
            replay_order(order, worker, found.seconds, dropped)
        return order
    except TimelineError as error:
        raise WorkdirError(
            f"{trace} must have the {step:,} arrivals of the checkpoint ({error}); give another "
            "--workdir"
        ) from error


def chunk_maker(
    run: Run, order: ArrivalOrder, workers: Workers, first: Chunk
) -> Callable[[Chunk], None]:
    """Returns a function that makes a chunk's updates from messages, for PATIENCE seconds."""
    parts = workers.shards
    the_server = server.server_in_parts(run, parts) if parts else server.single_server(run)
    the_server.begin(first)
    if run.config.methods.get("fresh", ()):
        workers = server.merged_server(run, order.working, workers, first)
    line, step = run.timeline, first.start
    clock = time.monotonic() - (line.seconds[step - 1] if step else 0.0)
    waiting = deque[tuple[int, Tree, float]]()  # arrivals that are not in the timeline yet
    gathered = list[Tree]()  # messages of the next update

    def send(state: State, groups: Iterable[int]) -> None:
        tasks = order.working
        inputs = the_server.inputs(state, {tasks[group].slot for group in groups})
        for group in groups:
            workers.send(group, inputs[tasks[group].slot], tasks[group].numbers)

    def arrivals(group: int, message: Tree) -> Iterator[tuple[int, Tree, float]]:
        """Yields a message's arrivals: a gradient, or one local step after the other."""
        now = time.monotonic() - clock
        for loss in np.ravel(message.loss)[-order.arrivals_left(group) :]:
            yield group, message._replace(loss=loss), now

    def make(chunk: Chunk) -> None:
        state, infos = chunk.state, list[Info]()
        served, last, idle = list[float](), time.monotonic(), 0.0
        until = last + PATIENCE
        while len(infos) < chunk.n:
            if not waiting:
                start, cpu_start = time.monotonic(), time.thread_time()
                received = workers.receive(max(until - start, 0.0))
                idle += time.monotonic() - start - (time.thread_time() - cpu_start)
                if received is None:
                    break
                waiting.extend(arrivals(*received))
            group, message, seconds = waiting.popleft()
            outcome = order.arrive(group, seconds)
            if not outcome.dropped:
                gathered.append(message)
            info: Info = {"loss": message.loss} | dict.fromkeys(run.program.sums, 0.0)
            if outcome.update:
                t = chunk.start + len(infos)
                state, info = the_server.update(chunk, state, t, gathered)
            send(state, outcome.readers)
            if outcome.row:
                infos.append(info)
                gathered.clear()
                now = time.monotonic() - idle
                served.append(now - last)
                last = now
        names = infos[0] if infos else ("loss",)
        columns = {name: np.array([info[name] for info in infos]) for name in names}
        chunk.infos = columns | {SERVED: np.array(served)}
        chunk.state = the_server.state(state) if infos else state

    send(first.state, list(order.working))
    return make


def replay_workers(order: Iterable[int]) -> Connect:
    """Returns groups in this process that arrive in that order, by a race's two programs."""

    def connect(run: Run) -> AbstractContextManager[Workers]:
        halves = 2 if run.config.methods.get("fresh", ()) else 1
        arriving = (group for group in order for _ in range(halves))
        return contextlib.nullcontext(
            sequential_workers(make_compute(run), lambda _: next(arriving, None))
        )

    return connect


def sequential_workers(compute: Compute, choose: Callable[[list[int]], int | None]) -> Workers:
    """Returns groups in this process, of which `choose(at work)` is the next to arrive, or None."""
    requests: dict[int, tuple[Tree, range]] = {}

    def send(group: int, inputs: Tree, numbers: range) -> None:
        requests[group] = inputs, numbers

    def receive(seconds: float) -> tuple[int, Tree] | None:
        group = choose(sorted(requests))
        return None if group is None else (group, compute(*requests.pop(group)))

    return Workers(send, receive)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Runs all threads of this process on one of its cores, where the system can do that.

    An update wakes a thread of XLA and waits for it: a race of an MLP on two cores makes a seventh
    more updates if these threads stay on one of them.
    """
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    _pin_threads({min(before)} if before else before)
    try:
        yield
    finally:
        _pin_threads(before)


def _pin_threads(cores: set[int]) -> None:
    if not (cores and THREADS.exists()):
        return
    for thread in THREADS.iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)
