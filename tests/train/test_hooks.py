"""Each hook by itself, the user's own, and a run without a workdir: the same, and no file."""

import json
import math
import os
import sys
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest

import optdyn as od
from optdyn.base.progress import Watch
from optdyn.clock.trace import SERVED
from optdyn.methods.compose import METERED
from optdyn.problem import shared_data
from optdyn.train import hooks, program
from optdyn.train.hooks import is_due
from optdyn.train.loop import Chunk, updates
from optdyn.train.meter import Meter
from optdyn.train.recorder import Recorder
from optdyn.train.trainer import prepare
from optdyn.train.workdir import Metrics

CHECKPOINT_EVERY = 20

STEPS = 60


def chunk_of(start=0, losses=(), row=None, status="", metered=False, run=None, **infos):
    """A chunk whose updates were made, of a run that logs every 10 and saves every 20 updates."""
    values = {"steps": STEPS, "log_every": 10, "checkpoint_every": 20}
    run = run or SimpleNamespace(config=SimpleNamespace(**values), epoch=20, timeline="line")
    infos = {"loss": np.array(losses, float)} | {k: np.array(v) for k, v in infos.items()}
    more = {"infos": infos, "row": row, "status": status, "metered": metered}
    return Chunk(run, start, len(losses), 0, "state", {}, None, 0.0, **more)


def quiet(stopped=0, asked=0):
    return Watch(lambda: stopped, lambda step, text: None, saves=lambda: asked)


class Calls:
    """Notes what it is called with: `calls.made` has (name, arguments)."""

    def __init__(self, **results):
        self.made, self._results = [], results

    def __getattr__(self, name):
        def call(*arguments):
            self.made.append((name, *arguments))
            return self._results.get(name)

        return call


@pytest.fixture
def begun(config):
    """The first chunk of a run, whose updates are none, and its sets."""
    run = prepare(config({"probes.noise_scale": True}))
    state = run.program.layout.put_state(run.program.init(run.params))
    chunk = next(updates(run, state, 0, [STEPS]))
    chunk.compute()
    return chunk, shared_data.put_on_devices(run.data, run.program.layout.put_examples, run.config)[
        1:
    ]


def test_losses_and_probes_are_logged_at_log_points_alone(begun):
    chunk, sets = begun
    measuring = [hooks.LossHook(*sets, 0.0, quiet), hooks.ProbeHook(*sets)]
    for hook in measuring:
        hook.chunk(chunk)
    assert chunk.row is None
    chunk.row = {}
    for hook in measuring:
        hook.chunk(chunk)
    of = chunk.run.program, chunk.run.params
    assert chunk.row["train_loss"] == program.evaluate(*of, sets[0])["loss"]
    assert chunk.row["test_loss"] == program.evaluate(*of, sets[1])["loss"]
    assert (chunk.row["step"], chunk.row["simulated_seconds"]) == (0, 0.0)
    assert list(chunk.row)[-3:] == ["gradient_square", "gradient_trace", "noise_scale"]


def test_what_updates_say_is_summed_over_all_of_them():
    hook = hooks.SumHook({"sent_bytes": 0.0})
    hook.chunk(chunk_of(0, [1, 1], sent_bytes=[3, 4], **{METERED[0]: [9, 9], SERVED: [1, 1]}))
    last = chunk_of(2, [1], row={"step": 3}, sent_bytes=[5])
    last.full_state = SimpleNamespace(logged=lambda: {"drift": 2.0})
    hook.chunk(last)
    assert last.row == {"step": 3, "sent_bytes": 12.0, "drift": 2.0}


def test_the_meter_records_windows_and_reads_those_since_the_last_log_point(config, monkeypatch):
    values = {"probes.momentum": True, "probes.window": 54, "probes.every": 80, "steps": 160}
    run = prepare(config({**values, "model.dimension": 4}))
    meter, asked, found = Meter(run, [{"step": 10}]), [], [{"implicit_momentum": 0.5}]
    monkeypatch.setattr(meter, "_read", lambda chunk, since: asked.append(since) or found[-1])
    infos = {name: [[1.0, 2, 3, 4]] for name in METERED}
    meter.chunk(chunk_of(80, [1.0], metered=True, run=run, **infos))  # of the second window
    meter.chunk(chunk_of(81, [1.0], run=run))
    meter.chunk(last := chunk_of(82, [1.0, math.nan], run=run, row={}))
    assert meter._rows.any(axis=(1, 2)).nonzero()[0].tolist() == [54] and asked == [10]
    assert meter._rows[54].tolist() == [[1, 2, 3, 4]] * 3
    assert last.row == {"implicit_momentum": 0.5}
    summary = {"step": 14, "implicit_momentum_p": 0.2, "loss": 1}
    for _ in range(2):  # the second time no window has ended, and what there is stays
        meter.end(last, summary)
        assert summary == {"step": 14, "loss": 1, "implicit_momentum": 0.5}
        found.append({})


def test_the_momentum_that_is_logged_is_that_of_the_last_update():
    run = SimpleNamespace(hypers={"momentum": np.array([0.0, 0.25, 0.5])})
    rows = [{}, {}]
    for start, row in zip((0, 1), rows, strict=True):
        hooks.SteeringHook().chunk(chunk_of(start, [1.0] * start, row=row, run=run))
    assert [row["explicit_momentum"] for row in rows] == [0.0, 0.25]


def test_workers_are_timed_where_an_epoch_ends(monkeypatch):
    hook = hooks.WorkerTimeHook(None)
    monkeypatch.setattr(hook, "measure", lambda chunk: np.array([1.0, 2.0]))
    made = [chunk_of(10, [1.0] * 10, row=row) for row in ({}, None)] + [chunk_of(10, row={})]
    for chunk in (*made, first := chunk_of(0, row={})):
        hook.chunk(chunk)
    assert [chunk.row for chunk in made] == [{"worker_seconds": [1.0, 2.0]}, None, {}]
    assert first.row == {}


def test_arrivals_are_recorded_with_the_times_that_there_are(tmp_path, monkeypatch):
    recorder, made = Recorder(tmp_path / "trace.csv", 0), []
    monkeypatch.setattr(recorder, "append", lambda *given: made.append(("even", *given)))
    monkeypatch.setattr(recorder, "append_raced", lambda *given: made.append(("raced", *given)))
    for chunk in (chunk_of(), chunk_of(0, [1.0]), chunk_of(1, [1, 1], **{SERVED: [0.1, 0.2]})):
        recorder.chunk(chunk)
    (first, line, one, seconds), (second, _, two, served) = made
    assert (first, line, one, second, two) == ("even", "line", slice(0, 1), "raced", slice(1, 3))
    assert seconds > 0 and served.tolist() == [0.1, 0.2]


def test_a_log_keeps_rows_or_writes_them(tmp_path):
    rows = []
    with Metrics(tmp_path, 0) as metrics:
        for hook in (hooks.LogHook(rows), metrics):
            for chunk in (chunk_of(row={"step": 0, "loss": 1.5}), chunk_of(0, [1.0])):
                hook.chunk(chunk)
        assert rows == metrics.rows == [{"step": 0, "loss": 1.5}]
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0, "loss": 1.5}\n'


@pytest.mark.parametrize(
    ("start", "loss", "stopped", "given", "status"),
    [
        (0, 1.0, 0, "", ""),
        (STEPS - 1, 1.0, 0, "", "completed"),
        (STEPS - 1, 1.0, 2, "", "completed"),
        (0, 1.0, 2, "", "interrupted"),
        (0, math.nan, 2, "", "diverged"),
        (0, 1.0, 0, "reached", "reached"),
        (0, math.inf, 0, "reached", "diverged"),
        (STEPS - 1, math.nan, 0, "", "diverged"),
    ],
)
def test_a_run_ends_where_there_is_a_reason(start, loss, stopped, given, status):
    hook = hooks.StopHook(lambda: quiet(stopped), [{"train_loss": loss}])
    hook.chunk(first := chunk_of(start))
    assert first.status == ""  # an update is made, whatever came before it
    hook.chunk(chunk := chunk_of(start, [1.0], status=given))
    assert chunk.status == status
    chunk.full_state, summary = SimpleNamespace(params={"x": np.zeros(2)}), {}
    hook.end(chunk, summary)
    assert summary.get("signal") == (2 if status == "interrupted" else None)
    assert ("parameters_crc32" in summary) == (status != "diverged")


def test_a_checkpoint_is_asked_for_once_a_signal():
    asked = [0]
    hook = hooks.StopHook(lambda: quiet(asked=asked[0]), [{"train_loss": 1.0}])
    found = []
    for asked[0] in (1, 1, 1, 2):  # the first came while the first log point was taken
        hook.chunk(chunk := chunk_of(len(found), [1.0] if found else ()))
        found.append(chunk.save)
    assert found == [False, True, False, True]


@pytest.mark.parametrize(
    ("chunk", "saved"),
    [
        (chunk_of(0), False),  # nothing was made
        (chunk_of(10, [1.0] * 10), True),
        (chunk_of(0, [1.0] * 10), False),
        (chunk_of(0, [1.0], status="interrupted"), True),
        (chunk_of(10, [1.0] * 10, status="diverged"), False),
    ],
)
def test_a_state_is_saved_where_it_is_due(chunk, saved):
    checkpoints, chunk.full_state = Calls(latest=40), "whole"
    hook = hooks.SaveHook(checkpoints)
    hook.chunk(chunk)
    assert checkpoints.made == [("save", chunk.step, "whole")] * saved
    hook.end(chunk, summary := {})
    assert summary == ({"kept_checkpoint": 40} if chunk.status == "diverged" else {})
    assert not is_due(20, 10, 0) and is_due(20, 10, 15) and not is_due(30, 20, 15)


def test_the_line_shows_updates_that_were_made_and_are_finite():
    shown = []
    watch = Watch(lambda: 0, lambda *line: shown.append(line))
    hook = hooks.ProgressHook(lambda: watch, [{"train_loss": 0.25}])
    for chunk in (chunk_of(), chunk_of(0, [1.0]), chunk_of(1, [math.nan])):
        hook.chunk(chunk)
    assert shown == [(1, "loss 0.25")]


def test_a_summary_is_written_at_the_end_and_vouched_for_if_nothing_is_left(config, tmp_path):
    chunk, files = chunk_of(run=SimpleNamespace(config=config({"steps": STEPS}))), Calls()
    for status, step in (("interrupted", 20), ("completed", STEPS)):
        summary = {"status": status, "step": step}
        hooks.SummaryHook(tmp_path, files).end(chunk, summary)
        assert json.loads((tmp_path / "summary.json").read_text()) == summary
        whole = status == "completed"
        assert ((tmp_path / "crc32.json").exists(), len(files.made)) == (whole, whole)


ARMS = {
    "sync": {},
    "groups": {"method": od.Asynchronous(groups=4)},
    "nodes": {"method": od.DiLoCo(period=5), "cluster": od.Cluster(nodes=4)},
    "elastic": {"method": od.Elastic(groups=4)},
    "meter": {"probes": od.Probes(momentum=True, window=54, every=80), "steps": 160},
    "diverges": {"optimizer": od.SGD(learning_rate=1e6)},
}


def experiment(**more):
    values = {
        "model": od.Quadratic(dimension=60, noise=0.5),
        "data": od.MNIST5k(train_examples=100),
        "optimizer": od.SGD(learning_rate=0.05, momentum=0.3),
        "cluster": od.Cluster(workers=4, service=od.Exponential()),
        **{"batch_size": 4, "steps": STEPS, "log_every": 20},
    }
    return od.Experiment(**values | more)


@pytest.mark.parametrize("name", ARMS)
def test_a_run_without_a_workdir_is_the_run_with_one(name, tmp_path):
    chosen = experiment(**ARMS[name])
    there, here = chosen.train(tmp_path), chosen.train()
    logs = [run.log.drop(columns="wall_seconds") for run in (here, there)]
    assert logs[0].equals(logs[1])
    of_files = {"wall_seconds": 0, "starts": 0, "kept_checkpoint": 0}
    assert {**here.summary, **of_files} == {**there.summary, **of_files}
    assert (here.params is None) == (name == "diverges")
    if name != "diverges":
        jax.tree.map(np.testing.assert_array_equal, here.params, there.params)


WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
MAKES = ("os.mkdir", "os.rename", "os.remove", "os.truncate", "tempfile.mkstemp")
written: list[str] | None = None  # what was since the watch began; None: nobody watches


def _watch(event, arguments):
    if written is not None and (
        (event == "open" and arguments[2] & WRITES) or event.startswith(MAKES)
    ):
        written.append(f"{event} {arguments[0]}")


@pytest.fixture(scope="module", autouse=True)
def _audited():
    sys.addaudithook(_watch)  # it cannot be taken away, and does nothing afterwards


def test_without_a_workdir_no_file_is_written():
    global written
    chosen, compare = experiment(), od.compare  # matplotlib, which it imports, has a cache
    written = []
    chosen.train()
    compare({"a": chosen, "b": experiment(**ARMS["groups"])}, seeds=range(2))
    found, written = written, None
    assert [path for path in found if "optdyn-compiled" not in path] == []  # the suite's cache


class Norm(od.Hook):
    """The tutorial's, which also notes the order in which it is told."""

    def __init__(self, loss=0.0):
        self.loss, self.steps, self.ended = loss, [], []

    def chunk(self, chunk):
        self.steps.append((chunk.start, chunk.step))
        if chunk.row:
            chunk.row["norm"] = float(optax.tree.norm(chunk.params))
            if chunk.row["train_loss"] < self.loss:
                chunk.status = "reached"

    def end(self, chunk, summary):
        summary["norms"] = len(self.steps)


@pytest.mark.parametrize("has_workdir", [False, True])
def test_a_hook_of_ones_own_logs_and_stops_a_run_on_images(tmp_path, has_workdir):
    chosen = od.Experiment(
        model=od.MLP(hidden=(8,)),
        optimizer=od.SGD(learning_rate=0.1),
        data=od.MNIST5k(train_examples=200),
        **{"batch_size": 20, "steps": STEPS, "log_every": 10},
    )
    workdir, plain = tmp_path / "run" if has_workdir else None, chosen.train()
    run = chosen.train(workdir, hooks=[hook := Norm()])
    assert hook.steps[0] == (0, 0) and hook.steps[-1][1] == STEPS
    assert run.log["norm"].is_monotonic_increasing and len(run.log) == 7
    assert run.log.drop(columns=["norm", "wall_seconds"]).equals(
        plain.log.drop(columns="wall_seconds")
    )
    assert run.summary["norms"] == len(hook.steps) and run.summary["norm"] > 0
    loss = float(run.log["train_loss"].iloc[3]) + 1e-6
    workdir = tmp_path / "stopped" if has_workdir else None
    stopped = chosen.train(workdir, hooks=[Norm(loss)])
    assert (stopped.summary["status"], stopped.summary["step"]) == ("reached", 30)
    if workdir:  # the command goes on to its end, with the floats of the whole run
        assert chosen.train(workdir).log["train_loss"].equals(run.log["train_loss"])
