"""Several processes as one JAX job: how they find each other, and how they end when one fails.

`launch.local` sets OPTDYN_COORDINATOR (host:port of process 0), OPTDYN_PROCESSES (how many) and
OPTDYN_PROCESS (which one this is, from 0); so can any other way to start processes. SLURM, Open
MPI and TPU pods say the same in variables of their own, which JAX reads.
"""

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from threading import Timer

import jax

from optdyn.base.errors import InputError
from optdyn.base.streams import put

PLATFORMS = "jax_platforms"  # of JAX's configuration, from the environment's JAX_PLATFORMS
CONNECT = 300  # seconds until all processes must have come
NOTICE = 15  # seconds until the user is told that they have not
HEARTBEAT = 30  # seconds of silence after which a process counts as dead and the others end
SHUTDOWN = 120  # seconds that the first process to finish waits for the last


class ProcessError(InputError):
    """The variables that should describe the job do not; the message says which and how."""


def initialize() -> None:
    """Joins the job that the environment describes; does nothing if it describes none.

    To be called before anything that touches a device. Raises ProcessError if the description
    does not hold together. If the other processes do not come, JAX aborts this one.
    """
    if "OPTDYN_COORDINATOR" in os.environ:
        address, processes, process = described(os.environ)
        # Left to itself JAX would take a surrounding SLURM job's word for which GPU is whose.
        _connect(address, processes, process, method="deactivate")
    elif in_cluster(os.environ):
        try:
            _connect()
        except ValueError as error:
            raise ProcessError(
                f"this is one of several processes, but JAX cannot find the others ({error}); "
                "set OPTDYN_COORDINATOR, OPTDYN_PROCESSES and OPTDYN_PROCESS"
            ) from error


def devices() -> None:
    """Raises `ProcessError` if there is none of the devices that JAX_PLATFORMS asks for."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # an assertion: a platform without a device
        asked = getattr(jax.config, PLATFORMS)
        if not asked:
            raise
        jax.config.update(PLATFORMS, "")
        there = dict.fromkeys(device.platform for device in jax.devices())
        raise ProcessError(
            f"JAX_PLATFORMS = {asked!r}: there is no such device, or JAX is not installed for it; "
            f"there is {', '.join(there)}"
        ) from error


def local_address(environ: Mapping[str, str]) -> str:
    """The address that other processes reach this machine at, on the way to the coordinator.

    It is the machine's name where no coordinator is known: only `described` jobs say theirs.
    """
    if "OPTDYN_COORDINATOR" not in environ:
        return socket.gethostname()
    host, _, port = environ["OPTDYN_COORDINATOR"].rpartition(":")
    family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # of datagrams: nothing is sent
        return str(probe.getsockname()[0])


def is_writer() -> bool:
    """Whether this process is the one that writes files and reports: number 0, or alone."""
    return jax.process_index() == 0


@contextlib.contextmanager
def leaving_on_failure() -> Iterator[None]:
    """Inside, an exception that ends one process of several ends it at once.

    Python's exit would wait in JAX for the other processes, which wait for this one in their next
    collective. Without a job, exceptions pass.
    """
    try:
        yield
    except BaseException as error:
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        if isinstance(error, SystemExit):  # what Python would end with
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not jax.distributed.is_initialized() or code == 0:
            raise
        if isinstance(error, Exception):
            traceback.print_exception(error)
        elif isinstance(error, SystemExit) and not isinstance(error.code, int):
            put(f"{error.code}\n")
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


def described(environ: Mapping[str, str]) -> tuple[str, int, int]:
    """The coordinator, how many processes there are and which this is, as OPTDYN_* say it."""
    numbers = []
    for name in ("OPTDYN_PROCESSES", "OPTDYN_PROCESS"):
        value = environ.get(name, "")
        if not value.isdecimal():
            raise ProcessError(f"OPTDYN_COORDINATOR is set, but {name} is {value!r}, not a number")
        numbers.append(int(value))
    processes, process = numbers
    if process >= processes:
        raise ProcessError(f"OPTDYN_PROCESS={process} is not below OPTDYN_PROCESSES={processes}")
    return environ["OPTDYN_COORDINATOR"], processes, process


def in_cluster(environ: Mapping[str, str]) -> bool:
    """Whether a cluster says that it started this process as one of several.

    SLURM is asked for the tasks of this step: a shell inside a job of many tasks is one process.
    The environment of a Cloud TPU VM does not say: there JAX asks a server, and may hear of one.
    """
    hosts = environ.get("TPU_PROCESS_ADDRESSES", environ.get("TPU_WORKER_HOSTNAMES", ""))
    counts = (
        int(environ.get("SLURM_STEP_NUM_TASKS", 1)),
        int(environ.get("OMPI_COMM_WORLD_SIZE", 1)),
        len(hosts.split(",")) * int(environ.get("MEGASCALE_NUM_SLICES", 1)),
    )
    # JAX sets the variable, when imported, on any machine that has no TPU.
    tpu = "TPU_SKIP_MDS_QUERY" not in environ and "tpu" in environ.get("JAX_PLATFORMS", "tpu")
    return tpu or max(counts) > 1


def _connect(
    address: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    method: str | None = None,
) -> None:
    # With its preemption service JAX would swallow SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    text = f"waiting for the other processes; giving up after {CONNECT} seconds"
    notice = Timer(NOTICE, put, [f"{text}\n"])
    notice.daemon = True
    notice.start()
    try:
        jax.distributed.initialize(
            address,
            processes,
            process,
            cluster_detection_method=method,
            initialization_timeout=CONNECT,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=SHUTDOWN,
        )
    finally:
        notice.cancel()
