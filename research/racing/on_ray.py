"""The workers of a race as Ray actors, on this machine or on a cluster that Ray runs.

Ray starts an actor anew that has died, and gives it the gradient again that it was at: the server
hears of each gradient once, whatever dies.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from research.racing.race import Workers
from research.racing.worker import worker
from research.run import Run
from research.strategies.base import Message, Params
from research.trainer import prepare
from research.values import InputError

# Bytes up to which a message goes by itself, and not through Ray's store of shared memory: with
# 200 kB each way a call takes 1.9 ms in place of 3.6.
DIRECT = 2**20

# A gradient's temporaries stay with the worker. By default glibc gives them back to the kernel
# after each, which takes a third of the time where a batch is 44 MB.
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}


class RayError(InputError):
    """Workers that cannot be had; the message is one line."""


class Worker:
    """An actor: a compute group, which reads its data and compiles its gradient by itself."""

    def __init__(self, config: dict[str, Any]):
        run = prepare(ConfigDict(config), race=True)
        self._compute = worker(run)
        self._compute(run.params, 0)  # compiled

    def ready(self) -> None:
        """Returns when the worker is there."""

    def gradient(self, params: Params, batch: int) -> Message:
        return self._compute(params, batch)


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
        actors = [actor.remote(config) for _ in range(groups)]
        ray.get([each.ready.remote() for each in actors])
        yield _workers(ray, actors)
    finally:
        ray.shutdown()


def _workers(ray: Any, actors: list[Any]) -> Workers:
    coming: dict[Any, int] = {}  # the oldest first, so that none is passed over

    def send(group: int, params: Params, batch: int) -> None:
        coming[actors[group].gradient.remote(params, batch)] = group

    def receive(seconds: float) -> tuple[int, Message] | None:
        ready, _ = ray.wait(list(coming), timeout=seconds)
        if not ready:
            return None
        group = coming.pop(ready[0])
        try:
            return group, ray.get(ready[0])
        except ray.exceptions.RayActorError as error:
            said = " ".join(str(error).split())
            raise RayError(f"worker {group} cannot work: {said}") from error

    return Workers(send, receive)
