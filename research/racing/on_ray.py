"""The workers of a race as Ray actors, on this machine or on a cluster that Ray runs.

Ray starts an actor anew that has died, and gives it again what it was at: the server hears of it
once, whatever dies.
"""

import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from research.racing.worker import Workers, warm, worker
from research.run import Run
from research.trainer import prepare
from research.values import InputError

# Bytes up to which a message goes by itself, and not through Ray's store of shared memory: with
# 200 kB each way a call takes 1.9 ms in place of 3.6.
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


class Worker:
    """An actor: a compute group, which reads its data and compiles its gradient by itself."""

    def __init__(self, config: dict[str, Any], group: int):
        run = prepare(ConfigDict(config), race=True)
        self._compute = worker(run)
        warm(run, self._compute, group)

    def ready(self) -> None:
        """Returns when the worker is there."""

    def work(self, given: Any, numbers: range) -> Any:
        return self._compute(given, numbers)


@contextlib.contextmanager
def ray_workers(run: Run, address: str = "", gpus: float = 0.0) -> Iterator[Workers]:
    """Inside, an actor a group; afterwards they are gone, whatever they were at.

    `address`: of a Ray cluster ('auto': the one that this machine is of); '' starts one here.
    `gpus`: of each worker. Raises `RayError`.
    """
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_max_direct_call_object_size", str(DIRECT))
        import ray
    except ImportError as error:
        raise RayError("Ray is not installed: pip install 'optdyn[ray]'") from error
    groups = run.config.strategy.groups
    given: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if not address:
        given["include_dashboard"] = False
    try:
        # Python fears for JAX's threads, but what Ray forks only becomes another program.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        ray.init(address=address or "local", **given)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RayError(
            f"--address={address}: no Ray there ({' '.join(str(error).split())})"
        ) from error
    try:
        threads = str(max((os.cpu_count() or 1) // groups, 1))  # of XLA, on a machine of its own
        variables = MEMORY if address else {**MEMORY, "NPROC": threads, "OMP_NUM_THREADS": threads}
        actor: Any = ray.remote(Worker)
        actor = actor.options(
            num_cpus=0,  # more groups than cores may share them
            num_gpus=gpus,
            scheduling_strategy="SPREAD",
            max_restarts=-1,
            max_task_retries=-1,
            runtime_env={"env_vars": variables},
        )
        config = run.config.to_dict()
        actors = [actor.remote(config, group) for group in range(groups)]
        ray.get([each.ready.remote() for each in actors])
        yield actors_at_work(ray, actors)
    finally:
        ray.shutdown()


def actors_at_work(ray: Any, actors: list[Any]) -> Workers:
    """The groups as these actors, one call of each at a time."""
    coming: dict[Any, int] = {}  # the oldest first, so that none is passed over
    # What a group is to do that is at something which it is to drop: a call cannot be interrupted,
    # so its message is let go.
    later: dict[int, tuple[Any, range]] = {}

    def send(group: int, given: Any, numbers: range) -> None:
        if group in coming.values():
            later[group] = given, numbers
        else:
            coming[actors[group].work.remote(given, numbers)] = group

    def receive(seconds: float) -> tuple[int, Any] | None:
        until = time.monotonic() + seconds
        while True:
            ready, _ = ray.wait(list(coming), timeout=max(until - time.monotonic(), 0.0))
            if not ready:
                return None
            group = coming.pop(ready[0])
            if group not in later:
                return group, received(ready[0], group)
            send(group, *later.pop(group))

    def received(message: Any, group: int) -> Any:
        try:
            return ray.get(message)
        except ray.exceptions.RayActorError as error:
            said = " ".join(str(error).split())
            raise RayError(f"worker {group} cannot work: {said}") from error

    return Workers(send, receive)
