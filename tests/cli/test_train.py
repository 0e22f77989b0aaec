"""The command line: one line for what is wrong, signals, and kills at any moment."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from configs import quickstart
from optdyn.cli import train
from optdyn.train import history
from tests.cli.sweeping import start as start_command
from tests.proc import ended

CONFIG = Path(__file__).parent.parent.parent / "configs" / "quickstart.py"
# The quickstart, made small; a log point and a checkpoint every few updates, so that kills and
# signals meet all parts of a run.
SMALL = {
    "batch_size": 4,
    "steps": 600,
    "log_every": 10,
    "checkpoint_every": 20,
}


def changed(values):
    """SMALL with other values; a network has no noise of its own."""
    quadratic = {"model.name": "quadratic", "model.noise": 0.5}
    return SMALL | (quadratic if "model.name" not in values else {}) | dict(values)


def arguments(workdir, values=()):
    changes = [f"--config.{key}={value}" for key, value in changed(values).items()]
    return [f"--config={CONFIG}", f"--workdir={workdir}", *changes]


@pytest.fixture
def run(optdyn):
    """`run(arguments) -> (exit code, stderr)` of the command, in this process."""
    return lambda arguments: optdyn("train", *arguments)[::2]


def start(workdir, values=()):
    """The command in a process of its own."""
    return start_command(*arguments(workdir, values), module="launch.train")


def complete(workdir, values=()):
    """The same run in this process, until it ends by itself; its summary."""
    return train.run(quickstart.get_config().with_(changed(values)), workdir)


def start_until(workdir, values, count):
    """The command in a process, once it has opened the log and that has so many lines."""
    path = workdir / "metrics.jsonl"
    before = path.stat().st_ino if path.exists() else 0  # opening replaces the file
    process = start(workdir, values)
    while not path.exists() or path.stat().st_ino == before or line_count(path) < count:
        assert process.poll() is None, "it ended before it could be stopped"
        time.sleep(0.002)
    return process


def line_count(path):
    return path.read_bytes().count(b"\n")


def shape(workdir):
    """What lies in a workdir, whatever the names that hold times or random numbers."""
    return sorted(path.name.split(".17")[0] for path in workdir.iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, complete(workdir)


@pytest.mark.parametrize("missing", ["--workdir", "--config"])
def test_required_flags(run, tmp_path, missing):
    given = [one for one in arguments(tmp_path / "new") if not one.startswith(missing)]
    code, errors = run(given)
    assert code == 2
    assert errors.count("\n") == 1 and f"{missing} is required" in errors


def test_a_key_that_nothing_reads_is_told(run, tmp_path):
    """A new name drops what the file says of the old one: the quickstart's `groups`, say."""
    values = {"method.name": "sync", "steps": 20, "batch_size": 16}
    code, errors = run(arguments(tmp_path / "a", values))
    assert code == 0 and "warning" not in errors
    code, errors = run(arguments(tmp_path / "d", {**values, "cluster.absence": 0.5}))
    assert code == 0
    assert "warning: config.cluster.absence = 0.5: ignored, as config.cluster.presence" in errors
    lognormal = {"cluster.service.name": "lognormal", "cluster.service.variation": 0.5}
    assert "warning" not in run(arguments(tmp_path / "e", {**values, **lognormal}))[1]


def test_keys_are_given_in_any_order_with_a_space_or_an_equals_sign_or_in_a_file(run, tmp_path):
    """Those of the member that another key names, too, and flags stay flags between them."""
    (tmp_path / "flags").write_text("--config.method.period=4\n--config.steps=20\n")
    given = ["--config.method.period=2", "--config.method.name", "model_averaging"]
    given += ["--workdir", tmp_path / "run", "--noconfig.data.replacement", f"--config={CONFIG}"]
    given += ["--config.model.hidden", "(3,)", "--config.batch_size=16", "--config.probes.mean"]
    code, errors = run([*given, f"--flagfile={tmp_path / 'flags'}"])
    assert code == 0, errors
    keys = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (keys["method"]["name"], keys["method"]["period"]) == ("model_averaging", 4)
    assert keys["model"]["hidden"] == [3] and keys["steps"] == 20
    assert keys["probes"]["mean"] is True and keys["data"]["replacement"] is False


def test_the_config_that_a_run_wrote_is_a_config(run, whole, tmp_path):
    path = whole[0] / "config.json"
    assert run([f"--config={path}", f"--workdir={tmp_path / 'same'}"])[0] == 0
    assert (tmp_path / "same" / "config.json").read_bytes() == path.read_bytes()
    again = json.loads((tmp_path / "same" / "summary.json").read_text())
    assert again["parameters_crc32"] == whole[1]["parameters_crc32"]
    few = json.loads(path.read_text())
    del few["plan"], few["model"]["remat"]
    (tmp_path / "few.json").write_text(json.dumps(few | {"steps": 1}))
    given = ["--config", tmp_path / "few.json", "--config.steps=600"]
    assert run([*given, f"--workdir={tmp_path / 'same'}"])[0] == 0
    assert (tmp_path / "same" / "config.json").read_bytes() == path.read_bytes()


def test_a_folder_without_permission_is_one_line(run, whole, tmp_path, monkeypatch):
    """Root may write everywhere, so the system answers otherwise here. A finished run is read."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    code, errors = run(arguments(tmp_path / "deep" / "new"))
    assert code == 2 and errors.count("\n") == 1
    assert f"new: cannot be written (no permission to write into {tmp_path}); give" in errors
    assert not list(tmp_path.iterdir())
    assert run(arguments(whole[0]))[0] == 0


def test_a_file_without_permission_is_one_line(run, whole, tmp_path, monkeypatch):
    other = shutil.copytree(whole[0], tmp_path / "other")
    denied = PermissionError(errno.EACCES, "Permission denied", str(other / "history.json"))

    def refuse(*_, **__):
        raise denied

    monkeypatch.setattr(history, "record_start", refuse)
    code, errors = run(arguments(other, {"steps": 700}))
    assert code == 2
    assert errors == f"error: {other}/history.json: cannot be used (Permission denied)\n"


SLOW = """
import pathlib, time
try:
    pathlib.Path(__file__).with_name("begun").touch()
    for _ in range(6000):  # in pieces: a signal just before a sleep is handled when that has ended
        time.sleep(0.1)
except BaseException:
    pass  # as libraries do that try what they import
"""


@pytest.mark.parametrize("script", [["-m", "launch.train"], ["optdyn", "train"]])
def test_an_interrupt_while_modules_are_imported_is_one_line(tmp_path, script):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text(SLOW)
    (tmp_path / "optdyn").write_text("from optdyn.cli.main import main\nmain()\n")
    script = [str(tmp_path / part) if part == "optdyn" else part for part in script]
    process = subprocess.Popen(
        [sys.executable, *script, *arguments(tmp_path / "new")],
        cwd=CONFIG.parent.parent,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{CONFIG.parent.parent}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "jax" / "begun").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert ended(process)[1] == "interrupted\n" and process.returncode == 130
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there are other devices than CPUs")
@pytest.mark.parametrize("asked", ["cuda", "nosuch"])
def test_devices_that_are_not_there_are_one_line(tmp_path, asked):
    """JAX itself ends in an assertion for the one and in an error for the other."""
    done = subprocess.run(
        [sys.executable, "-m", "launch.train", *arguments(tmp_path / "new")],
        cwd=CONFIG.parent.parent,
        env={**os.environ, "JAX_PLATFORMS": asked},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: JAX_PLATFORMS = '{asked}': there is no such device")
    assert done.stderr.endswith("; there is cpu\n") and not (tmp_path / "new").exists()


def test_it_needs_no_standard_streams(whole, tmp_path, rows):
    """Buffered ones, of which Python would say as it ends that they have failed."""
    command = [sys.executable, "-m", "launch.train", *arguments(tmp_path)]
    gone = ["bash", "-c", 'exec "$0" "$@" <&- >/dev/full 2>/dev/full', *command]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    assert subprocess.run(gone, cwd=CONFIG.parent.parent, env=buffered).returncode == 0
    assert_same(rows, tmp_path, json.loads((tmp_path / "summary.json").read_text()), whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals(whole, tmp_path, number, rows):
    process = start_until(tmp_path, {}, 20)
    process.send_signal(number)
    _, errors = ended(process)
    assert process.returncode == 128 + number, errors
    assert "Traceback" not in errors
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["signal"]) == ("interrupted", number)
    assert 190 <= summary["step"] < 600
    assert_same(rows, tmp_path, complete(tmp_path), whole)


def assert_same(rows, workdir, summary, whole):
    assert summary["status"] == "completed"
    assert summary["parameters_crc32"] == whole[1]["parameters_crc32"]
    assert rows(workdir) == rows(whole[0])
    assert shape(workdir) == shape(whole[0])
    assert shape(workdir / "checkpoints") == shape(whole[0] / "checkpoints")


def kill(workdir, values, count, delay):
    """SIGKILL, `delay` seconds after that many log points; what is on disk can be read."""
    process = start_until(workdir, values, count)
    time.sleep(delay)
    assert process.poll() is None, "it ended before it could be killed"
    process.kill()
    ended(process)
    assert not (workdir / "summary.json").exists()
    json.loads((workdir / "config.json").read_text())
    for line in (workdir / "metrics.jsonl").read_text().split("\n")[:-1]:
        json.loads(line)


FIVE_KILLS = {"batch_size": 16, "checkpoint_every": 10, "optimizer.momentum": 0.3}


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_killed_and_resumed_is_whole(mnist, tmp_path, scalars, rows, kills):
    """Five kills are spread over a run that spends half of its time on checkpoints."""
    values = mnist | FIVE_KILLS if kills == 5 else {}
    whole = tmp_path / "whole", complete(tmp_path / "whole", values)
    seed = random.randrange(2**32)
    print("seed", seed)
    moments, killed = random.Random(seed), tmp_path / "killed"
    for number in range(kills):
        first = 11 * number + moments.randrange(1, 8) if kills == 5 else moments.randrange(2, 36)
        kill(killed, values, first, moments.uniform(0, 0.1))
    assert_same(rows, killed, complete(killed, values), whole)
    assert list(scalars(killed)) == [row["step"] for row in rows(killed)]
    for step, row in scalars(whole[0]).items():
        resumed = scalars(killed)[step]
        assert {**resumed, "time/wall_seconds": 0} == {**row, "time/wall_seconds": 0}
