"""Files of a run: refused, torn, damaged and killed ones, and that nothing is lost by them."""

import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from optdyn.base.files import WorkdirError, write_npz
from optdyn.base.signals import ENDING, SAVING
from optdyn.base.workdir_lock import LOCK
from optdyn.train import hooks, loop
from optdyn.train.checkpoints import SUMS, Checkpoints
from optdyn.train.trainer import train
from optdyn.train.workdir import claim
from tests.train.runs import raise_at
from tests.train.runs import refusal as refused

CHECKPOINT_EVERY = 20


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """An uninterrupted run."""
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, train(config(), workdir)


@pytest.fixture(scope="module")
def half(config, tmp_path_factory):
    """A run interrupted at step 40 of 60, with checkpoints of steps 20 and 40."""
    workdir = tmp_path_factory.mktemp("half")
    with pytest.MonkeyPatch.context() as patch:
        raise_at(patch, 40, signal.SIGTERM)
        assert train(config(), workdir)["status"] == "interrupted"
    return workdir


@pytest.fixture
def workdir(half, tmp_path):
    """A copy of the interrupted run, to be damaged."""
    return shutil.copytree(half, tmp_path / "workdir")


def assert_completes(config, workdir, whole, rows):
    """The run goes on to the same floats, log points and events."""
    summary = train(config(), workdir)
    assert summary["status"] == "completed"
    assert summary["parameters_crc32"] == whole[1]["parameters_crc32"]
    assert rows(workdir) == rows(whole[0])


def refusal(config, workdir):
    return refused(train, config, workdir, error=WorkdirError)


@pytest.mark.parametrize("step", [0, 30, 40])
@pytest.mark.parametrize("number", ENDING)
def test_interrupted_and_resumed_is_whole(
    config, whole, tmp_path, monkeypatch, scalars, step, number, rows
):
    handlers = [signal.getsignal(number) for number in (*ENDING, *SAVING)]
    with monkeypatch.context() as patch:
        raise_at(patch, step, number)
        summary = train(config(), tmp_path)
    assert (summary["status"], summary["signal"]) == ("interrupted", number)
    assert handlers == [signal.getsignal(number) for number in (*ENDING, *SAVING)]
    # Heeded after the chunk of updates in which it came.
    assert step <= summary["step"] <= step + 10
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert_completes(config, tmp_path, whole, rows)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    walls = [json.loads(line)["wall_seconds"] for line in lines]
    assert walls == sorted(walls)  # the clock goes on where it stood
    assert set(scalars(tmp_path)) == set(range(0, 61, 10))


@pytest.mark.parametrize("removed, expected", [([], 40), (["40"], 20), (["40", "20"], 0)])
def test_it_goes_on_from_the_latest_checkpoint(
    config, workdir, whole, scalars, rows, monkeypatch, removed, expected
):
    for step in removed:
        shutil.rmtree(workdir / "checkpoints" / step)
    events, begun = loop.events_of, []
    monkeypatch.setattr(loop, "events_of", lambda *a: begun.append(a[1]) or events(*a))
    assert_completes(config, workdir, whole, rows)
    assert begun[0] == expected
    assert set(scalars(workdir)) == set(range(0, 61, 10))  # no log point is there twice


def test_a_second_signal_stops_at_once(config, whole, tmp_path, monkeypatch, rows, request):
    # Whatever runs the tests may have a handler of its own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with monkeypatch.context() as patch:
        raise_at(patch, 30, signal.SIGINT, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            train(config(), tmp_path)
    assert not (tmp_path / "summary.json").exists()
    assert_completes(config, tmp_path, whole, rows)


def test_asked_to_it_saves_and_goes_on(config, tmp_path, monkeypatch, rows):
    chosen = config({"method.name": "gossip"})
    whole = tmp_path / "whole", train(chosen, tmp_path / "whole")
    cut = tmp_path / "cut"
    with monkeypatch.context() as patch:
        raise_at(patch, 0, signal.SIGUSR1)
        raise_at(patch, 10, signal.SIGINT, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            train(chosen, cut)
    assert [path.name for path in (cut / "checkpoints").iterdir()] == ["1"]
    saved = json.loads((cut / "checkpoints/1/run.json").read_text())
    assert saved["sums"]["sent_bytes"] > 0
    again = train(chosen, cut)
    assert [start["at"] for start in again["starts"]] == [0, 1]
    of_start = {"wall_seconds": 0, "starts": []}
    assert again | of_start == whole[1] | of_start
    assert rows(cut) == rows(whole[0])


def test_of_several_processes_the_first_one_has_all_save(config, whole, tmp_path, monkeypatch):
    saves = []

    def agreed(value):
        if isinstance(value, tuple) and len(value) == 3:
            saves.append(value[2])
            return (*value[:2], len(saves) == 1)
        return value

    with monkeypatch.context() as patch:
        patch.setattr(hooks, "from_first", agreed)
        raise_at(patch, 30, signal.SIGUSR1)
        summary = train(config({"checkpoint_every": 0}), tmp_path)
    assert sum(saves) == 1 and not saves[0]
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"1", "60"}
    assert summary["parameters_crc32"] == whole[1]["parameters_crc32"]


def test_a_finished_run_is_left_as_it_is(config, whole, files):
    before = files(whole[0])
    assert train(config(), whole[0]) == whole[1]
    assert files(whole[0]) == before


OF_UPDATE_40 = "not what was saved at update 40: {path} ({size} of"
UNREADABLE = "{path}: cannot be read"
SPOILT = {  # {what is wrong: (file, its new bytes or None, words of the refusal)}
    "gone": ("config.json", None, "holds a run but no config.json"),
    **{
        f"{name} {content}": (name, content, UNREADABLE if name.endswith("n") else OF_UPDATE_40)
        for content in (b"", b'{"seed": ', b"[1]\n", b"\xff\xfe\n", b"nonsense\n")
        for name in ("config.json", "summary.json", "metrics.jsonl")
    },
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_spoilt_file_is_refused_and_left_as_it_is(config, workdir, files, case):
    name, content, words = SPOILT[case]
    path = workdir / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    before = files(workdir)
    message = refusal(config(), workdir)
    assert words.format(path=path, size=len(content or b"")) in message
    if words == OF_UPDATE_40:
        assert message.endswith(f"put that file back, or move {workdir} away to start again")
    assert files(workdir) == before


def test_a_workdir_of_another_config_or_of_fewer_keys_is_refused(config, workdir, files):
    before = files(workdir)
    message = refusal(config({"seed": 1, "optimizer.learning_rate": 0.3}), workdir)
    assert str(workdir) in message and "differs in optimizer.learning_rate, seed;" in message
    assert files(workdir) == before
    path = workdir / "config.json"
    keys = json.loads(path.read_text())
    del keys["cluster"]["overlap"]
    path.write_text(json.dumps(keys))
    before = files(workdir)
    assert refused(train, config(), workdir) == f"{path} has no cluster.overlap"
    assert files(workdir) == before


def test_a_log_without_its_end_goes_back_to_the_checkpoint_that_it_reaches(
    config, workdir, whole, rows, capsys
):
    path = workdir / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))  # updates 0 to 30
    assert_completes(config, workdir, whole, rows)
    errors = capsys.readouterr().err
    assert f"not what was saved at update 40: {path} (" in errors and "resuming at 20" in errors


LAST = r"\d(?=\D*$)"


@pytest.mark.parametrize(
    "name, digit",
    [
        ("metrics.jsonl", LAST),
        ("summary.json", r'(?<="train_loss": 0\.)\d'),
        ("crc32.json", LAST),
        ("summary.json", None),  # killed between the last checkpoint and the summary
    ],
)
def test_a_finished_run_is_believed_if_its_files_are_as_it_left_them(
    config, whole, tmp_path, rows, name, digit
):
    workdir = shutil.copytree(whole[0], tmp_path / "workdir")
    path = workdir / name
    before = path.read_text()
    path.unlink()
    if digit:
        path.write_text(re.sub(digit, lambda found: str((int(found[0]) + 1) % 10), before))
        assert path.read_text() != before
    assert_completes(config, workdir, whole, rows)
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["train_loss"] == whole[1]["train_loss"]


def test_sums_and_starts_are_those_of_the_checkpoint(config, tmp_path, monkeypatch):
    """Stopped between two log points; neither the summary nor the history is needed."""
    values = {"method.name": "model_averaging", "cluster.nodes": 2}
    whole = train(config(values), tmp_path / "whole")
    events = loop.events_of
    with monkeypatch.context() as patch:
        patch.setattr(loop, "next_length", lambda *_: 1)
        patch.setattr(
            loop,
            "events_of",
            lambda *a: (signal.raise_signal(signal.SIGTERM) if a[1] == 33 else None, events(*a))[1],
        )
        first = train(config(values), tmp_path / "run")
    assert (first["status"], first["step"]) == ("interrupted", 34)
    for name in ("summary.json", "history.json"):
        (tmp_path / "run" / name).unlink()
    summary = train(config(values), tmp_path / "run")
    assert [start["at"] for start in summary["starts"]] == [0, 34]
    for name in ("wall_seconds", "starts"):
        del summary[name], whole[name]
    assert summary == whole


def test_what_a_checkpoint_vouches_for_is_on_the_disk_before(config, tmp_path, monkeypatch):
    synced, fsync, replace = [], os.fsync, os.replace

    def where(descriptor):
        return str(Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(tmp_path))

    monkeypatch.setattr(os, "fsync", lambda file: synced.append(where(file)) or fsync(file))
    monkeypatch.setattr(
        os,
        "replace",
        lambda a, b: synced.append(f"-> {Path(b).relative_to(tmp_path)}") or replace(a, b),
    )
    train(config(), tmp_path)
    for step in ("20", "40", "60"):
        folder = f"checkpoints/{step}"
        at = synced.index(f"-> {folder}/{SUMS}")
        before = synced[synced.index(f"{folder}/.run.json.part") - 4 : at]
        folders = {".", "checkpoints", folder, f"{folder}/default"}
        assert {"metrics.jsonl", f"{folder}/.{SUMS}.part", *folders} <= {*before}
        assert synced[at + 1] == folder
    assert synced.count("metrics.jsonl") == 3 + 1  # the last before the sums of the ended run
    assert synced.index("-> crc32.json") < synced.index("-> summary.json")


def test_unwritable_workdirs(config, tmp_path, files):
    (tmp_path / "file").write_text("not a folder")
    for workdir in (tmp_path / "file", tmp_path / "file" / "below"):
        message = refusal(config(), workdir)
        assert str(workdir) in message and "cannot be written" in message
    (tmp_path / "taken" / "config.json").mkdir(parents=True)
    assert "config.json: cannot be read" in refusal(config(), tmp_path / "taken")
    assert files(tmp_path) == {"file": b"not a folder"}


@pytest.mark.parametrize("kept", [0, 1, -1])
def test_a_torn_last_line_is_dropped_and_logged_again(config, workdir, whole, scalars, kept, rows):
    path = workdir / "metrics.jsonl"
    content = path.read_bytes()
    last = content.rindex(b"\n", 0, -1) + 1
    path.write_bytes(content[: last + kept if kept >= 0 else -1])
    assert_completes(config, workdir, whole, rows)
    assert set(scalars(workdir)) == set(range(0, 61, 10))


@pytest.mark.parametrize(
    "log_every, checkpoint_every, expected",
    [
        (10, 20, [20, 40, 60]),
        (7, 20, [21, 42, 60]),  # the first log points from 20, 40 and 60 on, and the end
        (20, 7, [20, 40, 60]),  # all log points: each has a multiple of 7 behind the one before
        (40, 10, [40, 60]),
        (100, 50, [60]),
        (10, 0, [60]),
    ],
)
def test_a_checkpoint_is_written_at_the_next_log_point(
    config, whole, tmp_path, rows, monkeypatch, log_every, checkpoint_every, expected
):
    saved, save = [], Checkpoints.save
    monkeypatch.setattr(
        Checkpoints, "save", lambda self, step, state: saved.append(step) or save(self, step, state)
    )
    values = {"log_every": log_every, "checkpoint_every": checkpoint_every}
    train(config(values), tmp_path)
    assert saved == expected
    logged = rows(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "60")
    (tmp_path / "summary.json").unlink()
    assert train(config(values), tmp_path)["parameters_crc32"] == whole[1]["parameters_crc32"]
    assert rows(tmp_path) == logged


def test_killed_while_writing(config, workdir, whole, rows):
    for name in ("metrics.jsonl", "summary.json"):
        (workdir / f".{name}.part").write_text('{"st')
    tmp = shutil.copytree(
        workdir / "checkpoints" / "40", workdir / "checkpoints" / "45.orbax-checkpoint-tmp"
    )
    (tmp / SUMS).unlink()
    shutil.copytree(tmp, workdir / "checkpoints" / "50")  # committed, but without its sums
    assert_completes(config, workdir, whole, rows)
    assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == ["40", "60"]
    assert [path.name for path in workdir.glob(".*")] == [LOCK]


DAMAGES = {
    "first byte": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "middle byte": lambda content: (
        content[: len(content) // 2]
        + bytes([content[len(content) // 2] ^ 0x10])
        + content[len(content) // 2 + 1 :]
    ),
    "last byte": lambda content: content[:-1] + bytes([content[-1] ^ 0x80]),
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "removed": None,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_file_by_file(config, workdir, whole, files, damage, rows):
    folder = workdir / "checkpoints" / "40"
    intact = files(workdir)
    names = [name for name in files(folder) if (name, damage) != (SUMS, "removed")]
    assert len(names) > 8 and SUMS in files(folder)
    for name in names:
        path = folder / name
        content = path.read_bytes()
        if damage == "removed":
            path.unlink()
        else:
            path.write_bytes(DAMAGES[damage](content))
        damaged = files(workdir)
        message = refusal(config(), workdir)
        assert f"checkpoint {folder} is corrupt (" in message
        assert name in message or name == SUMS  # which may then blame a file that is good
        assert message.endswith("move that folder away to resume from step 20")
        assert files(workdir) == damaged
        path.write_bytes(content)
    assert files(workdir) == intact
    shutil.rmtree(folder)
    assert_completes(config, workdir, whole, rows)


class Inner(NamedTuple):
    params: Any
    errors: Any = ()


class OuterNode(NamedTuple):
    inner: Inner
    theta: Any
    errors: Any = ()


def some_state(**fields):
    return OuterNode(Inner({"a": np.arange(3.0)}), [{"a": np.ones(3)}], **fields)


def saved(workdir, state):
    with Checkpoints(workdir) as checkpoints:
        checkpoints.save(1, state)


def restored(workdir, like):
    with Checkpoints(workdir) as checkpoints:
        return checkpoints.restore(like)[1]


def zeros(state):
    return jax.tree.map(np.zeros_like, state)


def test_two_states_may_have_a_field_of_the_same_name(tmp_path):
    state = some_state(errors=(np.full(3, 2.0),))
    state = state._replace(inner=state.inner._replace(errors=(np.full(4, 7.0),)))
    saved(tmp_path, state)
    jax.tree.map(np.testing.assert_array_equal, restored(tmp_path, zeros(state)), state)


def test_a_checkpoint_of_other_arrays_is_refused(tmp_path):
    more = some_state(errors=(np.ones(2),))
    for name, state, like, words in [
        ("fewer", some_state(), more, "it has no errors.0"),
        ("more", more, some_state(), "errors.0 is not of this run"),
    ]:
        (tmp_path / name).mkdir()
        saved(tmp_path / name, state)
        with pytest.raises(WorkdirError, match=words):
            restored(tmp_path / name, like)


def test_when_all_checkpoints_are_damaged_the_start_is_left(config, workdir, whole, rows):
    for step, resume in [("40", "step 20"), ("20", "the start")]:
        folder = workdir / "checkpoints" / step
        (folder / "_CHECKPOINT_METADATA").write_text("")
        assert refusal(config(), workdir).endswith(f"to resume from {resume}")
        folder.rename(workdir / f"away{step}")
    assert_completes(config, workdir, whole, rows)


def test_claim_takes_an_empty_or_its_own_folder(config, tmp_path):
    for _ in range(2):
        claim(tmp_path / "new" / "deep", config())
    assert [path.name for path in (tmp_path / "new" / "deep").iterdir()] == ["config.json"]


def test_arrays_are_written_whole(tmp_path):
    write_npz(tmp_path / "a.npz", {"x": [1.0, 2.0]})
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]
