"""The local launcher, on small programs that stand for training processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.cli.local import environment

ROOT = Path(__file__).parents[2]
# What every program begins with: it leaves a file for each process, and can wait for the others.
PRELUDE = """
import os, signal, subprocess, sys, time
from pathlib import Path
folder, rank = Path(os.environ["FOLDER"]), int(os.environ["OPTDYN_PROCESS"])
(folder / f"pid {os.getpid()}").touch()

def spawn():
    child = subprocess.Popen(["sleep", "60"])
    (folder / f"pid {child.pid}").touch()

def rest():
    # In pieces: a signal that comes just before a sleep begins is handled when the sleep has ended.
    for _ in range(600):
        time.sleep(0.1)

def ready(processes=3):
    (folder / f"ready {rank}").touch()
    while len(list(folder.glob("ready *"))) < processes:
        time.sleep(0.01)
    (folder / "all ready").touch()
"""


@pytest.fixture
def start(tmp_path):
    """`start(program)`: the launcher, with three processes of `program`."""

    def start(program):
        command = [sys.executable, "-c", PRELUDE + program]
        return subprocess.Popen(
            [sys.executable, "-m", "launch.local", "--processes=3", "--", *command],
            cwd=ROOT,
            env={**os.environ, "FOLDER": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def begun(start, tmp_path):
    """`begun(program)`: the same, once all its processes are `ready()`."""

    def begun(program):
        launcher = start(program)
        wait_for((tmp_path / "all ready").exists)
        return launcher

    return begun


def end(launcher):
    """(exit code, standard output, standard error), all of it in at most 30 seconds."""
    stdout, stderr = launcher.communicate(timeout=30)
    return launcher.returncode, stdout, stderr


def wait_for(condition):
    """Until it holds; fails after 30 seconds, which nothing here takes."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def said(text, rank):
    """What process `rank` wrote."""
    prefix = f"[{rank}] "
    return [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]


def alive(folder):
    """The processes that left a file and still run (a zombie does not)."""
    pids = [path.name.split()[1] for path in folder.glob("pid *")]
    assert len(pids) >= 3
    states = [subprocess.run(["ps", "-o", "stat=", "-p", p], capture_output=True) for p in pids]
    shown = [state.stdout.strip() for state in states]  # a nice one's has a second letter
    return [state for state in shown if state and not state.startswith(b"Z")]


def test_every_line_carries_the_number_of_its_process(start):
    launcher = start("""
for i in range(50):
    sys.stdout.write(f"step {rank}"); sys.stdout.flush()
    sys.stdout.write(f" {i}\\n")
    print("warning", rank, i, file=sys.stderr)
print()
sys.stdout.write("no newline")
""")
    code, stdout, stderr = end(launcher)
    assert code == 0
    for rank in range(3):
        steps = [f"step {rank} {i}" for i in range(50)]
        assert said(stdout, rank) == [*steps, "", "no newline"]
        assert said(stderr, rank) == [f"warning {rank} {i}" for i in range(50)]
    assert len(stdout.splitlines()) == 3 * 52 and len(stderr.splitlines()) == 3 * 50


@pytest.mark.parametrize(
    ("last", "code", "how"),
    [
        ("sys.exit(7)", 7, "exit code 7"),
        ("sys.exit(128)", 128, "exit code 128"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "signal 9 (Killed)"),
    ],
)
def test_exit_code_and_error_are_those_of_the_process_that_failed(start, tmp_path, last, code, how):
    # The others end with a code and a message of their own when told to: neither is what counts.
    launcher = start(f"""
def obey(*_):
    print("told to end", file=sys.stderr)
    sys.exit(5)
signal.signal(signal.SIGTERM, obey)
ready()
if rank == 1:
    for i in range(30):
        print("wrong", i, file=sys.stderr)
    {last}
rest()
""")
    found, _, stderr = end(launcher)
    assert found == code
    assert said(stderr, 0) == said(stderr, 2) == ["told to end"]
    before, _, block = stderr.partition(f"process 1 ended with {how}:\n")
    assert said(before, 1) == [f"wrong {i}" for i in range(30)]
    assert block.splitlines() == [f"[1] wrong {i}" for i in range(10, 30)]  # its last, and no more
    assert not alive(tmp_path)


def test_processes_that_will_not_end_are_killed_within_ten_seconds(start, tmp_path):
    launcher = start("""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
spawn()
ready()
if rank == 2:
    sys.exit(f"failed at {time.monotonic()}")
rest()
""")
    code, _, stderr = end(launcher)
    now = time.monotonic()  # the same clock in all processes of a machine
    assert code == 1
    failed_at = float(stderr.splitlines()[-1].removeprefix("[2] failed at "))
    assert 5 <= now - failed_at < 10  # the launcher's promise: five seconds of grace, then SIGKILL
    assert not alive(tmp_path)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGTERM, 0), (signal.SIGHUP, 129)],
)
def test_a_signal_reaches_every_process_and_each_may_take_its_time(begun, tmp_path, number, code):
    launcher = begun(f"""
def save(number, frame):
    time.sleep(0.3 * rank)
    print("saved on", number)
    sys.exit({code})
signal.signal({number}, save)
ready()
rest()
""")
    launcher.send_signal(number)
    found, stdout, stderr = end(launcher)
    assert found == code
    assert [said(stdout, rank) for rank in range(3)] == [[f"saved on {int(number)}"]] * 3
    assert stderr == ""
    assert not alive(tmp_path)


def test_signals_that_are_no_second_thought_are_passed_on(begun, tmp_path):
    launcher = begun("""
def note(number, frame):
    (folder / f"{number} {rank}").touch()
    if {int(path.name.split()[0]) for path in folder.glob(f"[0-9]* {rank}")} >= {10, 1, 15}:
        time.sleep(0.3 * rank)
        sys.exit(129)
for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, note)
ready()
rest()
""")
    for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
        launcher.send_signal(number)
        wait_for(lambda number=number: len(list(tmp_path.glob(f"{int(number)} *"))) == 3)
    assert end(launcher)[0] == 129
    assert not alive(tmp_path)


def test_a_second_signal_kills(begun, tmp_path):
    launcher = begun("""
signal.signal(signal.SIGINT, lambda *_: (folder / f"asked {rank}").touch())
spawn()
ready()
while True:
    time.sleep(1)
""")
    launcher.send_signal(signal.SIGINT)
    wait_for(lambda: len(list(tmp_path.glob("asked *"))) == 3)
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGINT)
    assert end(launcher)[0] == 128 + signal.SIGINT
    assert not alive(tmp_path)


def test_nothing_is_left_of_processes_that_ended_well(start, tmp_path):
    # What they leave behind also holds their output open.
    assert end(start("spawn()"))[0] == 0
    assert not alive(tmp_path)


def test_a_killed_launcher_leaves_no_process(begun, tmp_path):
    launcher = begun("ready(); rest()")
    launcher.kill()
    end(launcher)
    wait_for(lambda: not alive(tmp_path))


def test_a_reader_that_sleeps_does_not_keep_it_from_ending(begun, tmp_path):
    launcher = begun("""
ready()
os.write(1, b"more\\n" * 100_000)
rest()
""")
    time.sleep(0.5)  # for the pipe to fill, which is not seen from here
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=30) == 143
    end(launcher)
    assert not alive(tmp_path)


def test_progress_that_nobody_reads_does_not_end_the_run(start, tmp_path):
    launcher = start("""
ready()
print("begun", file=sys.stderr)
while not (folder / "left").exists():
    time.sleep(0.01)
for _ in range(100):
    print("progress", file=sys.stderr)
(folder / f"done {rank}").touch()
""")
    assert launcher.stderr.readline().endswith("begun\n")
    launcher.stderr.close()
    (tmp_path / "left").touch()
    assert launcher.wait(timeout=30) == 0
    launcher.stdout.close()
    assert len(list(tmp_path.glob("done *"))) == 3


def test_a_reader_that_leaves_ends_the_run(start, tmp_path):
    launcher = start("""
ready()
while True:
    print("more")
    time.sleep(0.01)
""")
    assert launcher.stdout.readline().endswith("more\n")
    launcher.stdout.close()
    assert launcher.wait(timeout=30) != 0
    launcher.stderr.close()
    assert not alive(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--processes"),
        (["--processes=0", "--", "true"], "--processes=0"),
        (["--processes=two", "--", "true"], "--processes=two"),
        (["--processes=2", "--devices_per_process=0", "--", "true"], "--devices_per_process=0"),
        (["--processses=2", "--", "true"], "processses"),
        (["--processes=2"], "no command"),
        (["--processes=2", "--", "no-such-command"], "cannot start no-such-command"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message):
    command = [sys.executable, "-m", "launch.local", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and message in line


@given(processes=st.integers(1, 8), devices=st.none() | st.integers(1, 4))
def test_every_process_gets_its_own_number_and_gpus(processes, devices):
    base = {"HOME": "/home/me", "XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}
    environments = [environment(base, i, processes, 4321, devices) for i in range(processes)]
    gpus = [int(gpu) for e in environments for gpu in e["JAX_LOCAL_DEVICE_IDS"].split(",")]
    assert gpus == list(range(processes * (devices or 1)))
    assert [e["OPTDYN_PROCESS"] for e in environments] == [str(i) for i in range(processes)]
    for found in environments:
        assert found["OPTDYN_COORDINATOR"] == "127.0.0.1:4321"
        assert found["OPTDYN_PROCESSES"] == str(processes)
        assert found["HOME"] == "/home/me"
        flags = found["XLA_FLAGS"].split()
        assert flags[0] == base["XLA_FLAGS"]
        assert flags[1:] == (
            [f"--xla_force_host_platform_device_count={devices}"] if devices else []
        )


def test_what_the_user_set_stays():
    users = {"OMP_NUM_THREADS": "3", "NPROC": "7"}
    users |= {"PYTHONUNBUFFERED": "", "JAX_LOCAL_DEVICE_IDS": "5"}
    assert environment(users, 0, 2, 4321).items() >= users.items()
