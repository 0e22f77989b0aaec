"""The workers of a race as Ray actors, on this machine or on a cluster that Ray runs.

Ray restarts an actor that has died, and calls it again with the same arguments: the server receives
each message once, whatever dies.
"""

import contextlib
import os
import secrets
import signal
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

from optdyn.base.errors import InputError, one_line
from optdyn.base.handshake import Address, Listener, connect
from optdyn.base.trees import Json
from optdyn.experiment import Config
from optdyn.race import shards
from optdyn.race.shards import PartLost
from optdyn.race.sockets import connected_groups, serve_group
from optdyn.race.worker import Workers, first_job, forms_of, make_compute
from optdyn.train.run import Run
from optdyn.train.trainer import prepare

LOWEST = (2, 52)  # the first version whose services all ask for the token
LOOPBACK = "127.0.0.1"
TOKEN = secrets.token_hex(32)  # of races on this machine; Ray reads it once in a process

# A gradient's temporaries stay with the worker. By default glibc gives them back to the kernel
# after each, and those of other threads than the first have an arena that holds no 64 MiB: LeNet's
# gradient of 448 images then takes 40 ms in place of 20.
MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}


class RayError(InputError):
    pass


class Worker:
    """An actor: a compute group, which reads its data and compiles its gradient."""

    def __init__(self, config: Config, group: int):
        self._run = prepare(config, race=True)
        self._compute, self._group = make_compute(self._run), group
        first_job(self._run, self._compute, group).send()

    def ready(self) -> None:
        """Returns when the worker is there."""

    def answer(self, address: Address, key: bytes, parts: Sequence[Address]) -> None:
        """Computes for the server at that address, and its parts if any, until one is gone."""
        known, compute = forms_of(self._run), self._compute
        with contextlib.ExitStack() as stack, contextlib.suppress(EOFError, OSError):
            if parts:
                known = shards.forms_of(self._run, len(parts))
                lines = [stack.enter_context(connect(part, key, self._group)) for part in parts]
                compute = shards.compute_with_parts(lines, known, self._run, compute)
            serve_group(address, key, known, self._group, compute)


class PartActor:
    def __init__(self, config: Config, number: int, servers: int):
        self._run = prepare(config, race=True)
        self._part, self._servers = shards.Part(self._run, number, servers), servers

    def open(self, key: bytes, here: bool) -> Address:
        """Opens a door and returns its address, reachable from this machine only if `here`."""
        self._door = Listener(key, "" if here else node_address())
        return self._door.address

    def serve(self) -> None:
        """Serves its blocks until the command is gone."""
        with contextlib.closing(self._door):
            shards.serve_part(self._part, self._door, shards.forms_of(self._run, self._servers))


@contextlib.contextmanager
def ray_workers(
    run: Run, address: str = "", gpus: float = 0.0, servers: int = 1
) -> Iterator[Workers]:
    """Yields an actor a group; afterwards they are gone, whatever they were doing.

    `address`: of a Ray cluster ('auto': this machine's); '' starts one here, which nobody else can
    reach or use. `gpus`: of each worker. With several `servers` each is an actor too. Raises
    `RayError`, and the workers may raise `PartLost`.
    """
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(connected_ray(address))
        groups, key, here = run.config.methods.groups, secrets.token_bytes(32), not address
        # Threads of XLA, where Ray is started here; fewer if NPROC says so.
        cores = os.cpu_count() or 1
        threads = str(min(int(os.environ.get("NPROC") or cores), max(cores // groups, 1)))
        variables = MEMORY | ({"NPROC": threads, "OMP_NUM_THREADS": threads} if here else {})
        shared = {
            "num_cpus": 0,  # more groups than cores may share them
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": variables},
        }
        config = run.config.with_(code=run.code)  # for an actor that is replaced later
        worker_class: Any = ray.remote(Worker).options(
            num_gpus=gpus, max_restarts=-1, max_task_retries=-1, **shared
        )
        actors = [worker_class.remote(config, group) for group in range(groups)]
        part_class: Any = ray.remote(PartActor).options(**shared)
        parts = servers if servers > 1 else 0
        part_actors = [part_class.remote(config, number, servers) for number in range(parts)]
        try:
            ray.get([actor.ready.remote() for actor in actors])
        except ray.exceptions.RayActorError as error:
            # The answers of a Ray without tokens are refused here, which then drops the actors.
            hint = "" if here else "it must have been started with RAY_AUTH_MODE=token; "
            raise RayError(
                f"--address={address}: no worker starts; {hint}{one_line(error)}"
            ) from error
        door = stack.enter_context(
            contextlib.closing(Listener(key, "" if here else node_address()))
        )
        try:
            addresses = ray.get([part.open.remote(key, here) for part in part_actors])
            part_tasks = [part.serve.remote() for part in part_actors]
            lines = [stack.enter_context(connect(part, key, shards.COMMAND)) for part in addresses]
        except (ray.exceptions.RayActorError, OSError) as error:
            raise PartLost from error
        worker_tasks = [actor.answer.remote(door.address, key, addresses) for actor in actors]
        known = shards.forms_of(run, servers) if parts else forms_of(run)
        check = partial(check_alive, ray, worker_tasks, part_tasks)
        workers = stack.enter_context(connected_groups(door, known, groups, check))
        if parts:
            server = shards.server_parts(lines, known, run.program.init(run.params))
            yield shards.via_parts(server, workers)
        else:
            yield workers._replace(crowded=here and groups >= cores)


@contextlib.contextmanager
def connected_ray(address: str) -> Iterator[ModuleType]:
    """Yields Ray, connected to that cluster or started here. Raises `RayError`.

    Whoever reaches a Ray that asks for no token can run programs in it.
    """
    variables = {"RAY_AUTH_MODE": "token"}  # which Ray reads when it is imported
    if not address:
        # Its only way to listen on the loopback alone, whatever the system is.
        variables |= {"RAY_AUTH_TOKEN": TOKEN, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    os.environ.update(variables)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own is 15: then a server takes cores from the workers that share them.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        import ray
    except ImportError as error:
        raise RayError("Ray is not installed: pip install 'optdyn[ray]'") from error
    if tuple(map(int, ray.__version__.split(".")[:2])) < LOWEST:
        raise RayError(
            f"Ray {ray.__version__} asks for no token, so others could run programs here: "
            "pip install --upgrade 'optdyn[ray]'"
        )
    options: Json = {"log_to_driver": False, "logging_level": "ERROR"}
    with contextlib.ExitStack() as stack:
        if not address:
            # Ray opens its folder to all users, with the sockets in it: so it lies in one that is
            # closed to them, where Ray has its folder, as paths of sockets must be short.
            parent = os.environ.get("RAY_TMPDIR", "/tmp")
            folder = tempfile.TemporaryDirectory("", "ray-", parent, ignore_cleanup_errors=True)
            options |= {
                "include_dashboard": False,
                "_temp_dir": f"{stack.enter_context(folder)}/ray",
            }
        try:
            # Python fears for JAX's threads, but what Ray forks only becomes another program.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
            stack.callback(ray.shutdown)
            term = signal.getsignal(signal.SIGTERM)
            ray.init(address=address or "local", **options)
            if term is signal.SIG_IGN:  # Ray takes it
                signal.signal(signal.SIGTERM, term)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise RayError(
                f"--address={address}: no Ray there, or not with this token ({one_line(error)})"
            ) from error
        if not address and node_address() != LOOPBACK:
            raise RayError(f"Ray {ray.__version__} listens to others, on {node_address()}")
        yield ray


def check_alive(ray: ModuleType, workers: Sequence[object], parts: Sequence[object]) -> None:
    """Raises `PartLost` or `RayError` if the task of a part or a worker has ended for good."""
    ended, _ = ray.wait([*workers, *parts], num_returns=1, timeout=0.0)
    if not ended:
        return
    group = workers.index(ended[0]) if ended[0] in workers else None
    try:
        ray.get(ended[0])
    except ray.exceptions.RayActorError as error:
        if group is not None:
            raise RayError(f"worker {group} cannot work: {one_line(error)}") from error
    if parts:  # this one, or one that the worker noticed was gone
        raise PartLost
    raise RayError(f"worker {group} cannot work: it lost its connection and did not die")


def node_address() -> str:
    """Returns the address at which other machines of Ray reach this one."""
    import ray

    return str(ray.util.get_node_ip_address())
