"""The workers of a race as Ray actors, on this machine or on a cluster that Ray runs.

Ray starts an actor anew that has died, and gives it again what it was at: the server hears of it
once, whatever dies.
"""

import contextlib
import os
import signal
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from optdyn.basics.errors import InputError, one_line
from optdyn.basics.trees import Json, Tree
from optdyn.core import Message
from optdyn.experiment import Experiment
from optdyn.racing.shards import Part, parted, shards
from optdyn.racing.sockets import Door, answer, at_work, door
from optdyn.racing.worker import Handle, Shards, Workers, asked, worker
from optdyn.training.run import Run
from optdyn.training.trainer import prepare

# Bytes up to which a message to a server's part goes by itself, and not through Ray's store of
# shared memory: with 200 kB each way a call takes 1.9 ms in place of 3.6.
DIRECT = 2**20

# A gradient's temporaries stay with the worker. By default glibc gives them back to the kernel
# after each, and those of other threads than the first have an arena that holds no 64 MiB: LeNet's
# gradient of 448 images then takes 40 ms in place of 20.
MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}


class RayError(InputError):
    """Workers that cannot be had; the message is one line."""


class PartLost(Exception):
    """A part of the server died, and with it the updates since the last checkpoint."""


class Worker:
    """An actor: a compute group, which reads its data and compiles its gradient by itself."""

    def __init__(self, config: Experiment, group: int, servers: int):
        run = prepare(config, race=True)
        self._compute = worker(run)
        self._in_parts = parted(self._compute, run, servers)
        asked(run, self._compute, group).send()

    def ready(self) -> None:
        """Returns when the worker is there."""

    def answer(self, address: Any, key: bytes, group: int) -> None:
        """Works for the server at that address until it is gone."""
        answer(address, key, group, self._compute)

    def work_in_parts(self, numbers: range, *given: Tree) -> tuple[Tree, ...]:
        """The loss, and the gradients of each of the server's parts."""
        return self._in_parts(numbers, *given)


class Keeper(Part):
    """An actor: a part of the server."""

    def __init__(self, config: Experiment, number: int, servers: int):
        super().__init__(prepare(config, race=True), number, servers)

    def ready(self) -> None:
        """Returns when it is there."""


@contextlib.contextmanager
def ray_workers(
    run: Run, address: str = "", gpus: float = 0.0, servers: int = 1
) -> Iterator[Workers]:
    """Inside, an actor a group; afterwards they are gone, whatever they were at.

    `address`: of a Ray cluster ('auto': the one that this machine is of); '' starts one here.
    `gpus`: of each worker. With several `servers` each is an actor too. Raises `RayError`, and
    inside it may raise `PartLost`.
    """
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_max_direct_call_object_size", str(DIRECT))
        # Ray's own is 15: then a server takes cores from the workers that share them.
        os.environ.setdefault("RAY_worker_niceness", "0")
        import ray
    except ImportError as error:
        raise RayError("Ray is not installed: pip install 'optdyn[ray]'") from error
    groups = run.config.methods.groups
    given: Json = {"log_to_driver": False, "logging_level": "ERROR"}
    if not address:
        given["include_dashboard"] = False
    try:
        # Python fears for JAX's threads, but what Ray forks only becomes another program.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        term = signal.getsignal(signal.SIGTERM)
        ray.init(address=address or "local", **given)
        if term is signal.SIG_IGN:  # Ray takes it
            signal.signal(signal.SIGTERM, term)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RayError(f"--address={address}: no Ray there ({one_line(error)})") from error
    try:
        # Of XLA, on a machine of its own; fewer if NPROC says so.
        cores = os.cpu_count() or 1
        threads = str(min(int(os.environ.get("NPROC") or cores), max(cores // groups, 1)))
        variables = MEMORY if address else {**MEMORY, "NPROC": threads, "OMP_NUM_THREADS": threads}
        shared = {
            "num_cpus": 0,  # more groups than cores may share them
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": variables},
        }
        parts = servers if servers > 1 else 0
        config = run.config.with_(code=run.code)  # an actor that is replaced later has no other
        kind: Any = ray.remote(Worker)
        kind = kind.options(num_gpus=gpus, max_restarts=-1, max_task_retries=-1, **shared)
        actors = [kind.remote(config, group, servers) for group in range(groups)]
        keeps: Any = ray.remote(Keeper).options(**shared)
        keepers = [keeps.remote(config, number, servers) for number in range(parts)]
        ray.get([each.ready.remote() for each in actors + keepers])
        if parts:
            yield parts_at_work(ray, actors, keepers_at_work(ray, keepers, run))
        else:
            with door(ray.util.get_node_ip_address() if address else "") as at:
                crowded = not address and groups >= cores
                yield actors_at_work(ray, actors, at)._replace(crowded=crowded)
    finally:
        ray.shutdown()


def keepers_at_work(ray: ModuleType, keepers: list[Handle], run: Run) -> Shards:
    """The server's parts as these actors, whose calls are done in the order that they come in."""

    def fetch(handles: list[Handle]) -> list[Handle]:
        try:
            return ray.get(handles)
        except ray.exceptions.RayActorError as error:
            raise PartLost from error

    parts = [
        lambda name, *given, keeper=keeper: getattr(keeper, name).remote(*given)
        for keeper in keepers
    ]
    return shards(parts, fetch, run.program.init(run.params))


def actors_at_work(ray: ModuleType, actors: list[Any], at: Door) -> Workers:
    """The groups as these actors, which connect to a server that is one."""
    answers = [actor.answer.remote(at.address, at.key, w) for w, actor in enumerate(actors)]

    def check() -> None:
        ended, _ = ray.wait(answers, timeout=0.0)
        if not ended:
            return
        group = answers.index(ended[0])
        try:
            ray.get(ended[0])
        except ray.exceptions.RayActorError as error:
            raise RayError(f"worker {group} cannot work: {one_line(error)}") from error
        raise RayError(f"worker {group} cannot work: it lost its connection and did not die")

    return at_work(at, len(actors), check)


def parts_at_work(ray: ModuleType, actors: list[Any], server: Shards) -> Workers:
    """The groups as these actors, one call of each at a time, which send to the server's parts."""
    # Of a call its group, and handles of gradients. The oldest first, so that none is passed over.
    coming: dict[Handle, tuple[int, list[Handle]]] = {}

    def send(group: int, given: Tree, numbers: range) -> None:
        work = actors[group].work_in_parts.options(num_returns=1 + len(given))
        sent, *grads = work.remote(numbers, *given)
        coming[sent] = group, grads

    def receive(seconds: float) -> tuple[int, Tree] | None:
        ready, _ = ray.wait(list(coming), timeout=seconds)
        if not ready:
            return None
        group, grads = coming.pop(ready[0])
        try:
            return group, Message(ray.get(ready[0]), grads)
        except ray.exceptions.RayActorError as error:  # workers are replaced, what it keeps is not
            raise PartLost from error

    return Workers(send, receive, server)
