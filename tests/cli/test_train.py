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
from optdyn.cli import app, train
from optdyn.train import history
from tests.own_flags import called
from tests.proc import ended

CONFIG = Path(__file__).parent.parent.parent / "configs" / "quickstart.py"
# The quickstart, made small; a log point and a checkpoint every few updates, so that kills and
# signals meet all parts of a run.
SMALL = {
    "model.name": "quadratic",
    "model.noise": 0.5,
    "batch_size": 4,
    "steps": 600,
    "log_every": 10,
    "checkpoint_every": 20,
}


def arguments(workdir, values=()):
    chosen = {**SMALL, **dict(values)}
    changes = [f"--config.{key}={value}" for key, value in chosen.items()]
    return [f"--config={CONFIG}", f"--workdir={workdir}", *changes]


@pytest.fixture
def run(monkeypatch, capsys):
    """`run(arguments) -> (exit code, stderr)` of the command, in this process."""

    def run(arguments):
        with called(monkeypatch, "launch.train", arguments), pytest.raises(SystemExit) as exited:
            app.run(train.main)
        return exited.value.code, capsys.readouterr().err

    return run


def start(workdir, values=()):
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "launch.train", *arguments(workdir, values)],
        cwd=CONFIG.parent.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def complete(workdir, values=()):
    """The same run in this process, until it ends by itself; its summary."""
    return train.run(quickstart.get_config().with_({**SMALL, **dict(values)}), workdir)


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


BAD_FILES = {
    "trace.csv": "worker,seconds\n" + "".join(f"{i % 7},{i}\n" for i in range(600)),
    "none.py": "def get_config():\n    return 3\n",
    "empty.py": "",
    "broken.py": "def get_config(:\n",
    "unknown.py": "get_config = nosuch\n",
    "misspelt.py": "import optdyn as od\n"
    "def get_config():\n    return od.config('quickstart').with_(step=3)\n",
    "typed.py": "import optdyn as od\ndef get_config():\n    return od.Experiment(model='mlp')\n",
    "assigned.py": "import optdyn as od\n"
    "def get_config():\n    config = od.Experiment()\n    config.steps = 3\n    return config\n",
    "key.py": "CASES = {'a': 1}\ndef get_config(case):\n    return CASES[case]\n",
    "missing.py": "def get_config():\n    return open('/nosuch/file')\n",
    "value.py": "def get_config():\n    raise ValueError('two\\nlines')\n",
    "deep.py": "import statistics\ndef get_config():\n    return statistics.mean(map(inverse, "
    "[0]))\ndef inverse(x):\n    return 1 // x\n",
    "given.py": "from optdyn.train.grid import log_range\ndef get_config():\n"
    "    return log_range(0, 1, 3)\n",
    "steps.json": '{"steps": "many"}',
    "other.json": '{"status": "completed"}',
    "torn.json": '{"steps": 3',
    "list.json": "[3]",
    "empty.json": "",
    "member.json": '{"method": {"name": "sync", "groups": 2}}',
    "grid.py": "import optdyn as od\n"
    "def get_config():\n    return od.Grid(od.Experiment(), [{'seed': 1}])\n",
}


@pytest.mark.parametrize(
    "given, expected",
    [
        (
            ["--config.optimizer.learnin_rate=1"],
            "config.optimizer has no key 'learnin_rate'; did you mean learning_rate?",
        ),
        (["--config.base.steps=2"], "no key 'base.steps'; that of a run has 'steps'"),
        (["--config.groups=2"], "config has no key 'groups'; did you mean method.groups?"),
        (["--config.nosuch=1"], "no key 'nosuch'"),
        (["--config.nosuch.key=1"], "config has no key 'nosuch'\n"),
        (["--config.nosuch.options.key=1"], "config has no key 'nosuch'\n"),
        (["--config.a..b=1"], "config has no key 'a'"),
        (["--config.steps.key=1"], "config.steps has no keys of its own"),
        (["--config.base.nosuch=2"], "config has no key 'nosuch'"),
        (["--config.model.channels=(3,)"], "'quadratic' has no such key, which is of cnn and resn"),
        (["--config.method.period=3"], "config.method.period: 'asynchronous' has no such key"),
        (["--config.optimizer.b1=0.5"], "'sgd' has no such key, which is of adam and adamw"),
        (
            ["--config.cluster.service.variation=1"],
            "config.cluster.service.variation: 'exponential' has no such key, which is of gamma",
        ),
        (
            ["--config.method.name=diloco+asynchronous", "--config.method.period=3"],
            "'diloco+asynchronous' has no such key; say config.method.diloco.period",
        ),
        (
            ["--config.cluster.disturbance_epochs=wide"],
            "config.cluster.disturbance_epochs = ('wide',): must be a list, of which each is a",
        ),
        (["--nosuch=1"], "Unknown command line flag 'nosuch'; there are --"),
        (["--optimizer.learning_rate=1"], "; did you mean --config.optimizer.learning_rate?"),
        (["--config.optimizer.lr=1"], "config.optimizer has no key 'lr'; did you mean learning_r"),
        (["--config.optimizer=adam"], "config.optimizer = 'adam': must be set key by key"),
        (["--config.optimizer=adam"], "; did you mean config.optimizer.name?"),
        (["--config.method=diloco"], "; did you mean config.method.name?"),
        (["--config.parallel=jit"], "config.parallel = 'jit': must be set key by key\n"),
        (["--config.method.name=async"], "of your own; did you mean asynchronous or async_loc"),
        (["--config.method.name=daso+Local"], "config.method.name = 'Local': must be one of"),
        (["--config.model.name=MLP"], "of your own; did you mean mlp?"),
        (["--config.optimizer.name=Adam"], "must be an optimizer of optax; did you mean adam?"),
        (["--config.optimizer.schedule=cosin"], "of your own; did you mean cosine?"),
        (["--config.cluster.service.name=exponental"], "; did you mean exponential?"),
        (["--config.parallel.api=shardmap"], "'pmap', 'overlap'; did you mean shard_map?"),
        (["config.steps=3"], "unexpected argument 'config.steps=3'"),
        (["--config.steps=many"], "config.steps = 'many': must be a whole number"),
        (["--config.steps=1.5"], "config.steps = 1.5: must be a whole number"),
        (["--config.steps="], "config.steps = '': must be a whole number"),
        (
            ["--config.optimizer.learning_rate=fast: yes"],
            "config.optimizer.learning_rate = 'fast: yes': must be a number",
        ),
        (["--config.data.streaming=2"], "config.data.streaming = '2': must be True or False\n"),
        (["--config.optimizer.options.nosuch=1"], "must be an argument of optax.sgd"),
        (["--config.method.groups=0"], "config.method.groups = 0: must be at least 1"),
        (["--config.method.groups=7"], "config.method.groups = 7: must divide"),
        (["--config.checkpoint_every=-5"], "config.checkpoint_every = -5: must be at least 0"),
        (["--config.optimizer.learning_rate=nan"], "config.optimizer.learning_rate = nan"),
        (["--config.optimizer.name=nosuch"], "must be an optimizer of optax"),
        (["--config.optimizer.name=lbfgs"], "optax.lbfgs cannot be used"),
        (["--config.optimizer.name=adam", "--config.replicas.matching=(0.3,)"], "momentum SGD"),
        (["--config.model.name=nosuch"], "config.model.name = 'nosuch': must be one of"),
        (["--config.data.name=nosuch"], "config.data.name = 'nosuch': must be one of"),
        (["--config.cluster.service.name=trace"], "config.cluster.service.path = '': is empty"),
        (
            [
                "--config.cluster.service.name=trace",
                "--config.cluster.service.path={tmp}/trace.csv",
            ],
            "trace.csv: no arrival of worker 7 of 8",
        ),
        (
            [
                "--config.cluster.service.name=trace",
                "--config.cluster.service.path={tmp}/nosuch.csv",
            ],
            "nosuch.csv: No such file",
        ),
        (["--config={tmp}/nosuch.py"], "config file {tmp}/nosuch.py: not found"),
        (["--config=quikstart"], "quikstart: not found; did you mean quickstart or grids/quick"),
        (["--config=nosuch"], "nosuch: not found; shipped are gpt, images"),
        (["--config={tmp}/none.py"], "none.py: its get_config() returns no Experiment and no"),
        (["--config={tmp}/empty.py"], "error: empty.py: has no attribute 'get_config'"),
        (["--config={tmp}/broken.py"], "error: broken.py:1: SyntaxError: invalid syntax"),
        (["--config={tmp}/unknown.py"], "unknown.py:1: NameError: name 'nosuch' is not defined"),
        (["--config={tmp}/misspelt.py"], "config has no key 'step'; did you mean steps"),
        (["--config={tmp}/typed.py"], "config.model = 'mlp': must be of type Model, such as MLP("),
        (["--config={tmp}/assigned.py"], "error: assigned.py:4: FrozenInstanceError: cannot assi"),
        (["--config={tmp}/key.py:b"], "error: key.py:3: KeyError: 'b'\n"),
        (["--config={tmp}/key.py"], "error: key.py: get_config() missing 1 required positional"),
        (["--config={tmp}/missing.py", "--config.steps=3"], "missing.py:2: FileNotFoundError: "),
        (["--config={tmp}/value.py"], "value.py:2: ValueError: two lines\n"),
        (["--config={tmp}/deep.py"], "error: deep.py:5: ZeroDivisionError: integer division"),
        (["--config={tmp}/given.py"], "error: grid: log_range(0, 1, 3): must go from"),
        (["--config={tmp}/grid.py"], "the config is a grid of runs; `optdyn sweep`"),
        (["--config={tmp}/steps.json"], "steps.json: is no config of a run: config.steps = 'many'"),
        (
            ["--config={tmp}/other.json"],
            "other.json: is no config of a run: config has no key 'status'",
        ),
        (["--config={tmp}/list.json"], "list.json: "),
        (["--config={tmp}/empty.json"], "empty.json: "),
        (
            ["--config={tmp}/member.json"],
            "member.json: is no config of a run: config.method.groups: 'sync' has no such key",
        ),
        (["--config={tmp}/nosuch.json"], "config file {tmp}/nosuch.json: not found"),
        (["--flagfile={tmp}/nosuch"], "nosuch"),
        (["--config={tmp}/torn.json"], "torn.json: cannot be read (Expecting"),
        (["--config={tmp}/trace.csv"], "trace.csv: must be a .py file, which is run, or a .json"),
        (["--config={tmp}/run"], "is a workdir; its config is {tmp}/run/config.json"),
        (["--workdir="], "--workdir is empty"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(run, tmp_path, monkeypatch, given, expected):
    for name, content in BAD_FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    there = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    given = [argument.format(tmp=tmp_path) for argument in given]
    if any(argument.startswith("--config=") for argument in given):
        code, errors = run([f"--workdir={tmp_path / 'new'}", *given])
    else:
        code, errors = run([*arguments(tmp_path / "new"), *given])
    assert code == 2
    assert errors.startswith("error: ") and errors.endswith("\n") and errors.count("\n") == 1
    assert expected.format(tmp=tmp_path) in errors
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == there


@pytest.mark.parametrize("missing", ["--workdir", "--config"])
def test_required_flags(run, tmp_path, missing):
    given = [one for one in arguments(tmp_path / "new") if not one.startswith(missing)]
    code, errors = run(given)
    assert code == 2
    assert errors.count("\n") == 1 and f"{missing} is required" in errors


def test_a_key_that_nothing_reads_is_told_and_one_of_another_member_is_refused(run, tmp_path):
    """A new name drops what the file says of the old one: the quickstart's `groups`, say."""
    values = {"method.name": "sync", "steps": 20, "batch_size": 16}
    code, errors = run(arguments(tmp_path / "a", values))
    assert code == 0 and "warning" not in errors
    code, errors = run(arguments(tmp_path / "b", {**values, "method.period": 777}))
    assert code == 2 and not (tmp_path / "b").exists()
    assert errors.startswith("error: config.method.period: 'sync' has no such key, which is of ")
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
    held = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (held["method"]["name"], held["method"]["period"]) == ("model_averaging", 4)
    assert held["model"]["hidden"] == [3] and held["steps"] == 20
    assert held["probes"]["mean"] is True and held["data"]["replacement"] is False


def test_the_config_that_a_run_wrote_is_a_config(run, whole, tmp_path):
    """It makes the same run, also where it lacks keys at their defaults, and with one changed."""
    held = whole[0] / "config.json"
    assert run([f"--config={held}", f"--workdir={tmp_path / 'same'}"])[0] == 0
    assert (tmp_path / "same" / "config.json").read_bytes() == held.read_bytes()
    again = json.loads((tmp_path / "same" / "summary.json").read_text())
    assert again["parameters_crc32"] == whole[1]["parameters_crc32"]
    few = json.loads(held.read_text())
    del few["plan"], few["model"]["remat"]
    (tmp_path / "few.json").write_text(json.dumps(few | {"steps": 1}))
    given = ["--config", tmp_path / "few.json", "--config.steps=600"]
    assert run([*given, f"--workdir={tmp_path / 'same'}"])[0] == 0
    assert (tmp_path / "same" / "config.json").read_bytes() == held.read_bytes()


def test_workdirs_that_cannot_be_used_are_left_as_they_are(run, whole, tmp_path, files):
    """Another config's, one below a file, and one with a damaged checkpoint."""
    other = shutil.copytree(whole[0], tmp_path / "other")
    (tmp_path / "file").write_text("")
    damaged = shutil.copytree(whole[0], tmp_path / "damaged")
    (damaged / "summary.json").unlink()
    for array in (damaged / "checkpoints" / "600").rglob("d/*"):
        array.write_bytes(array.read_bytes()[::-1])
    before = files(tmp_path)
    for workdir, values, expected in [
        (other, {"seed": 5}, f"workdir {other} holds another run: its config differs in seed"),
        (tmp_path / "file", {}, f"cannot be written ({tmp_path}/file is no folder); give another"),
        (tmp_path / "file" / "new", {}, f"written ({tmp_path}/file is no folder); give another"),
        (damaged, {}, f"checkpoint {damaged}/checkpoints/600 is corrupt"),
    ]:
        code, errors = run(arguments(workdir, values))
        assert code == 2 and expected in errors and errors.count("\n") == 1
    assert files(tmp_path) == before


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

    monkeypatch.setattr(history, "started", refuse)
    code, errors = run(arguments(other, {"steps": 700}))
    assert code == 2
    assert errors == f"error: {other}/history.json: cannot be used (Permission denied)\n"


def test_a_process_that_fails_says_one_line(tmp_path):
    """The same as above, with all that an interpreter prints when it ends."""
    process = start(tmp_path / "new", {"batch_size": -64})
    _, errors = ended(process)
    assert process.returncode == 2
    assert errors == "error: config.batch_size = -64: must be at least 1\n"
    assert not (tmp_path / "new").exists()


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
    """Whatever the module that is being imported makes of a KeyboardInterrupt."""
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
    """Status, exit code, and the same floats when it is resumed."""
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


def test_killed_and_resumed_is_whole(whole, tmp_path, scalars, rows):
    moment = random.Random()
    count, delay = moment.randrange(2, 36), moment.uniform(0, 0.1)
    print("killed", delay, "seconds after", count, "log points")
    kill(tmp_path, {}, count, delay)
    assert_same(rows, tmp_path, complete(tmp_path), whole)
    assert list(scalars(tmp_path)) == [row["step"] for row in rows(tmp_path)]


@pytest.mark.slow
def test_killed_at_five_moments_and_resumed_is_whole(mnist, tmp_path, scalars, rows):
    """Spread over the run, half of which goes into checkpoints."""
    values = {
        **mnist,
        "batch_size": 16,
        "log_every": 10,
        "checkpoint_every": 10,
        "optimizer.momentum": 0.3,
    }
    whole = tmp_path / "whole", complete(tmp_path / "whole", values)
    seed = random.randrange(2**32)
    print("seed", seed)
    moments = random.Random(seed)
    for fifth in range(5):
        count, delay = 11 * fifth + moments.randrange(1, 8), moments.uniform(0, 0.1)
        print("killed", delay, "seconds after", count, "log points")
        kill(tmp_path / "killed", values, count, delay)
    assert_same(rows, tmp_path / "killed", complete(tmp_path / "killed", values), whole)
    assert scalars(tmp_path / "killed").keys() == scalars(whole[0]).keys()
    for step, row in scalars(whole[0]).items():
        resumed = scalars(tmp_path / "killed")[step]
        assert {**resumed, "time/wall_seconds": 0} == {**row, "time/wall_seconds": 0}
