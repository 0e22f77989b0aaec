"""A race: groups compute by themselves, and a server applies what they send as it arrives.

    server   x_{t+1} = step(x_t, message)      the method's own update rule
    group    grad f(x_r) of its batch          x_r: the version that it read last
             or where H local steps lead to from there

The run is the trainer's own, with its log, its checkpoints and its files. Only who makes the next
update is not drawn: it is whoever arrives. Their order says all else (`clock/versions.py`,
`clock/versions.py`), so `trace.csv` replays the race in the simulator, and a race goes on from
a checkpoint and the trace of what was before it: each group does again what it was at.
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
from optdyn.train.loop import Chunk, proceed
from optdyn.train.resuming import begun
from optdyn.train.run import Run
from optdyn.train.workdir import damaged, is_finished

THREADS = Path("/proc/self/task")  # on Linux; a folder a thread
PATIENCE = 0.5  # seconds until the run looks whether it is to stop

Connect = Callable[[Run], AbstractContextManager[Workers]]


@lookup.files_read_once()
def race(config: Config, workdir: Path, connect: Connect, servers: int = 1) -> Json:
    """Runs the config in the workdir, or goes on with it, and returns its summary.

    `config.cluster.service.name` is 'race', and `connect` gives workers of so many `servers`.
    Raises what `trainer.train` raises.
    """
    run = prepare_race(config, servers, begun(workdir))
    training = trainer.training(run, workdir)
    with contextlib.ExitStack() as stack:
        # Workers that cannot be had are known before the workdir is touched, and before they are
        # started whether it is in use.
        check_unlocked(workdir)
        done = is_finished(read_json(workdir / "summary.json"), config.steps) and not damaged(
            workdir
        )
        workers = None if done else stack.enter_context(connect(run))
        stack.enter_context(contextlib.closing(training))
        chunk = proceed(training)
        if workers and isinstance(chunk, Chunk):
            order = restored_order(run, workdir / "trace.csv", chunk.start)
            make = chunk_maker(run, order, workers, chunk)
            where = one_core if workers.crowded else contextlib.nullcontext
            while isinstance(chunk, Chunk):
                with where():  # but not while it evaluates
                    make(chunk)
                chunk = proceed(training)
    assert not isinstance(chunk, Chunk)
    return chunk


def prepare_race(config: Config, servers: int, begun: bool = False) -> Run:
    """The prepared run. Raises what `trainer.prepare` does, and where it has no such servers."""
    run = trainer.prepare(config, begun=begun, race=True)
    if fresh := config.methods.get("fresh", ()):
        shards.check_separable(run, fresh, f"config.method.fresh = {tuple(fresh)!r}")
    shards.check_servers(run, servers)
    return run


def restored_order(run: Run, trace: Path, step: int) -> ArrivalOrder:
    """The order after the first `step` updates, which it writes into the timeline.

    Raises `WorkdirError` if the trace does not have them.
    """
    order = arrival_order(run)
    try:
        if step:
            held, parts = read_trace(str(trace), step), arrivals_per_update(run)
            groups = run.config.methods.groups
            worker = held.workers((parts,), groups) if parts > 1 else held.worker
            late = held.flags("dropped", (groups,)) if held.has("dropped") else None
            replay_order(order, worker, held.seconds, late)
        return order
    except TimelineError as error:
        raise WorkdirError(
            f"{trace} must have the {step:,} arrivals of the checkpoint ({error}); give another "
            "--workdir"
        ) from error


def chunk_maker(
    run: Run, order: ArrivalOrder, workers: Workers, begins: Chunk
) -> Callable[[Chunk], None]:
    """What makes a chunk's updates: those of messages that arrive, for about as long as PATIENCE.

    All groups are at work when it returns.
    """
    made = server.make_server(run, workers.shards)
    made.begin(begins)
    if run.config.methods.get("fresh", ()):
        workers = server.merged_server(run, order.working, workers, begins)
    line, step = run.timeline, begins.start
    clock = time.monotonic() - (line.seconds[step - 1] if step else 0.0)
    come = deque[tuple[int, Tree, float]]()  # arrivals that are not in the timeline yet
    gathered = list[Tree]()  # messages of the next update

    def send(state: State, groups: Iterable[int]) -> None:
        at = order.working
        given = made.given(state, {at[group].slot for group in groups})
        for group in groups:
            workers.send(group, given[at[group].slot], at[group].numbers)

    def arrivals(group: int, message: Tree) -> Iterator[tuple[int, Tree, float]]:
        """What a message is, one arrival after the other: a gradient, or local steps."""
        now = time.monotonic() - clock
        for loss in np.ravel(message.loss)[-order.left(group) :]:
            yield group, message._replace(loss=loss), now

    def make(chunk: Chunk) -> None:
        state, said = chunk.state, list[Info]()
        served, spent, idle = list[float](), time.monotonic(), 0.0
        until = spent + PATIENCE
        while len(said) < chunk.n:
            if not come:
                begun, used = time.monotonic(), time.thread_time()
                heard = workers.receive(max(until - begun, 0.0))
                idle += time.monotonic() - begun - (time.thread_time() - used)
                if heard is None:
                    break
                come.extend(arrivals(*heard))
            group, message, seconds = come.popleft()
            did = order.arrive(group, seconds)
            if not did.dropped:
                gathered.append(message)
            info: Info = {"loss": message.loss} | dict.fromkeys(run.program.sums, 0.0)
            if did.update:
                state, info = made.update(chunk, state, chunk.start + len(said), gathered)
            send(state, did.readers)
            if did.row:
                said.append(info)
                gathered.clear()
                now = time.monotonic() - idle
                served.append(now - spent)
                spent = now
        names = said[0] if said else ("loss",)
        infos = {name: np.array([info[name] for info in said]) for name in names}
        chunk.infos = infos | {SERVED: np.array(served)}
        chunk.state = made.collected(state) if said else state

    send(begins.state, list(order.working))
    return make


def replay_workers(order: Iterable[int]) -> Connect:
    """The groups of a race in this process, arriving in that order, by the same two programs.

    With a merged server each comes with both halves of its gradient, one after the other.
    """

    def connect(run: Run) -> AbstractContextManager[Workers]:
        halves = 2 if run.config.methods.get("fresh", ()) else 1
        arriving = (group for group in order for _ in range(halves))
        return contextlib.nullcontext(
            sequential_workers(make_compute(run), lambda _: next(arriving, None))
        )

    return connect


def sequential_workers(compute: Compute, choose: Callable[[list[int]], int | None]) -> Workers:
    """Groups of this process, one message at a time: of those at work `choose` says who is next.

    None: nobody yet.
    """
    asked: dict[int, tuple[Tree, range]] = {}

    def send(group: int, given: Tree, numbers: range) -> None:
        asked[group] = given, numbers

    def receive(seconds: float) -> tuple[int, Tree] | None:
        group = choose(sorted(asked))
        return None if group is None else (group, compute(*asked.pop(group)))

    return Workers(send, receive)


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Inside, all threads of this process run on one of its cores, where the system can do that.

    An update wakes a thread of XLA and waits for it. On two cores that 2 or 4 workers compute on, a
    race of an MLP makes a seventh more updates if these threads stay on one of them.
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
