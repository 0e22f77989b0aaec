"""Several processes as one JAX job: how they find each other, and how they end when one fails.

`launch.local` sets OPTDYN_COORDINATOR (host:port of process 0), OPTDYN_PROCESSES (their number) and
OPTDYN_PROCESS (this one's, from 0); other launchers may set them, too. JAX reads the corresponding
variables of SLURM, Open MPI and TPU pods.
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
NOTICE = 15  # seconds until a line says that they have not
HEARTBEAT = 30  # seconds of silence after which a process counts as dead and the others end
SHUTDOWN = 120  # seconds that the first process to finish waits for the last


class ProcessError(InputError):
    """The environment variables of a job are wrong."""


def initialize() -> None:
    """Joins the job that the environment describes, if any; call it before devices are used.

    Raises `ProcessError` for a bad description. JAX aborts this process if the others do not come.
    """
    if "OPTDYN_COORDINATOR" in os.environ:
        address, processes, process = job_from_environment(os.environ)
        # Otherwise JAX would assign GPUs as a surrounding SLURM job says.
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
    """Raises `ProcessError` if JAX_PLATFORMS names no device that there is."""
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # an assertion: a platform without a device
        platforms = getattr(jax.config, PLATFORMS)
        if not platforms:
            raise
        jax.config.update(PLATFORMS, "")
        present = dict.fromkeys(device.platform for device in jax.devices())
        raise ProcessError(
            f"JAX_PLATFORMS = {platforms!r}: there is no such device, or JAX is not installed for "
            f"it; there is {', '.join(present)}"
        ) from error


def local_address(environ: Mapping[str, str]) -> str:
    """Returns the address of the route to the coordinator; without one the machine's name."""
    if "OPTDYN_COORDINATOR" not in environ:
        return socket.gethostname()
    host, _, port = environ["OPTDYN_COORDINATOR"].rpartition(":")
    family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # of datagrams: nothing is sent
        return str(probe.getsockname()[0])


def is_writer() -> bool:
    """Returns whether this process, number 0 or a single one, writes files and reports."""
    return jax.process_index() == 0


@contextlib.contextmanager
def leaving_on_failure() -> Iterator[None]:
    """Inside, an exception that ends one process of several ends it at once.

    Python's exit would wait in JAX for the other processes, and these in their next collective.
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


def job_from_environment(environ: Mapping[str, str]) -> tuple[str, int, int]:
    """Returns the coordinator, the number of processes and this one's, from OPTDYN_* variables."""
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
    """Returns whether a cluster says that it started this process as one of several.

    For SLURM the tasks of this step count, not the job's. On a Cloud TPU VM it is True.
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
