"""What the tests of whole runs share: configs, data, folders as they lie on disk, event files."""

import gc
import json
import os
import shutil
import struct
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import hypothesis
import jax
import pytest
from tensorboardX.proto.event_pb2 import Event

from optdyn.experiment import Config
from optdyn.problem.data.kinds import MNIST5k
from optdyn.train import trainer
from optdyn.train.checkpoints import Checkpoints
from tests.often import is_often
from tests.proc import no_other_worker, usual_signals

# No test judges how long an example takes: machines differ, and the first one compiles.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

RUN = {
    "steps": 60,
    "batch_size": 4,
    "log_every": 10,
    "checkpoint_every": 0,  # one takes as long as all updates; modules that need some say so
    "model.name": "quadratic",
    "model.dimension": 6,
    "model.noise": 0.5,
    "data.train_examples": 100,
    "optimizer.momentum": 0.3,
    "method.name": "asynchronous",
    "method.groups": 4,
    "cluster.nodes": 4,
}

COMPILED = "JAX_COMPILATION_CACHE_DIR"
# The suite compiles for most of its time, with XLA's optimizations for twice as long: what is
# tested, our equations, does not depend on them. It also cuts programs to compile the pieces at a
# time, while all cores are taken by tests. `XLA_FLAGS= make test` compiles as users do.
QUICKLY = "--xla_backend_optimization_level=0"
if jax.__version_info__ < (0, 11):  # XLA ends a process that gives it a flag which it has no more
    QUICKLY += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"


def pytest_configure(config):
    """One folder of compiled programs for a session, its workers and the processes of its tests.

    It begins empty and goes with the session, unless the environment names one of its own. Workers
    take all cores: threads of BLAS beside them would only wait for one another, and busily.
    """
    no_other_worker(config)
    config.option.loadscopereorder = False  # or files of few tests begin last, however long
    os.fsync = lambda _: None  # no test cuts the power; a checkpoint waits for the disk 24 times
    gc.set_threshold(50_000)  # JAX makes so many objects that a usual 700 takes 5 % of the time
    os.environ.setdefault("XLA_FLAGS", QUICKLY)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if COMPILED not in os.environ:  # a worker of xdist inherits that of its session
        os.environ[COMPILED] = folder = tempfile.mkdtemp(prefix="optdyn-compiled-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    jax.config.update("jax_compilation_cache_dir", os.environ[COMPILED])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


LONG = (  # files that take longest, which begin first: a worker that begins one last ends alone
    *("test_lint.py", "test_layouts.py", "test_fuzz_files.py", "test_battery.py", "test_single.py"),
    *(
        "test_equations.py",
        "test_train.py",
        "test_going_on.py",
        "test_averaging.py",
        "test_sweep.py",
    ),
    *("test_clocks.py", "test_local.py", "test_race.py", "test_stages.py", "test_snapshots.py"),
)


@pytest.hookimpl(tryfirst=True)  # before those that are not asked for go by their marks
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONG)
    for item in items:
        if not is_often(item.nodeid):
            item.add_marker(pytest.mark.slow)


def small(values=()):
    return Config().with_(RUN).with_(dict(values))


@pytest.fixture(scope="module")
def config(request):
    """`config({"optimizer.name": "adam", ...})`: a small run and its differences.

    With a checkpoint every `CHECKPOINT_EVERY` updates of the module that asks, if it has that.
    """
    every = getattr(request.module, "CHECKPOINT_EVERY", 0)
    return lambda values=(): small({"checkpoint_every": every, **dict(values)})


@pytest.fixture(scope="session")
def mnist(tmp_path_factory):
    """Values for `config`: a small network on a few images, prepared in a folder of the session."""
    folder = str(tmp_path_factory.mktemp("data"))
    MNIST5k(dir=folder).load()
    return {
        "model.name": "mlp",
        "model.hidden": (8,),
        "data.dir": folder,
        "data.train_examples": 200,
    }


@pytest.fixture(scope="session")
def trained(mnist, tmp_path_factory):
    """Config, workdir and summary of a network trained asynchronously."""
    chosen, workdir = small(mnist), tmp_path_factory.mktemp("trained")
    return chosen, workdir, trainer.train(chosen, workdir)


@pytest.fixture(scope="session")
def final():
    """`final(run, workdir)`: (step, state) of its last checkpoint, as NumPy arrays."""

    def restore(run, workdir):
        with Checkpoints(workdir) as checkpoints:
            step, state = checkpoints.restore(run.program.rule.init(run.params))
        return step, jax.device_get(state)

    return restore


@pytest.fixture(scope="session")
def rows():
    """`rows(workdir)`: log points without the one figure that differs between equal runs."""

    def read(workdir):
        lines = (workdir / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        return [{k: v for k, v in row.items() if k != "wall_seconds"} for row in rows]

    return read


@pytest.fixture(scope="session")
def files():
    """`files(folder)`: what is on disk, {path below the folder: its bytes}, but Python's own."""

    def read(folder):
        paths = (path for path in folder.rglob("*") if path.is_file())
        own = (path for path in paths if path.parent.name != "__pycache__")
        return {str(path.relative_to(folder)): path.read_bytes() for path in own}

    return read


@pytest.fixture(scope="session")
def scalars():
    """`scalars(workdir)`: {step: {name: value}} of its one event file, every checksum verified."""

    def read(workdir):
        (path,) = workdir.glob("events.out.tfevents.*")
        steps = {}
        for record in _records(path.read_bytes()):
            event = Event.FromString(record)
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name:  # the page of hyperparameters
                    continue
                row = steps.setdefault(event.step, {})
                assert value.tag not in row
                row[value.tag] = value.simple_value
        return steps

    return read


def _records(content):
    """TFRecord: length, its masked CRC, data, its masked CRC."""
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        body, rest = content[12 : 12 + length], content[12 + length :]
        assert struct.unpack("<I", content[8:12])[0] == _masked_crc32c(content[:8])
        assert len(body) == length and struct.unpack("<I", rest[:4])[0] == _masked_crc32c(body)
        yield body
        content = rest[4:]


def _masked_crc32c(content):
    """Castagnoli's polynomial bit by bit, then TensorFlow's mask."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.fixture(autouse=True)
def signals_of_a_terminal(request):
    """In files that import `signal`; outside of them the suite lives on as it was started."""
    with usual_signals() if hasattr(request.module, "signal") else nullcontext():
        yield


@pytest.fixture(autouse=True)
def path_as_it_was():
    """Files of one's own, that a test names, do not hide those of the next."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True, scope="module")
def forgotten():
    """What tests compiled goes when there is much of it.

    XLA maps memory for every program, and a process may have 65,530 maps only (Linux's default):
    the suite in one process met that, and ended there without a word.
    """
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_text().count("\n") > 15_000:
        jax.clear_caches()
