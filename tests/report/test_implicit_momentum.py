"""What is recorded of runs and replicas, read again by `optdyn momentum`."""

import json
import shutil

import numpy as np
import pytest

import optdyn as od
from optdyn.base.errors import InputError
from optdyn.implicit_momentum.lags import groups_of, memoryless
from optdyn.implicit_momentum.readings import from_row
from optdyn.report import implicit_momentum
from optdyn.report.tables import TableError, folders_with
from optdyn.train import trainer
from optdyn.train.replicas import record
from optdyn.train.workdir import REPLICAS, SKETCHES

PROBED = {
    "steps": 700,
    "batch_size": 8,
    "log_every": 50,
    "data.train_examples": 4000,
    "checkpoint_every": 0,
    "model.dimension": 256,
    "model.noise": 1.0,
    "optimizer.momentum": 0.0,
    "optimizer.learning_rate": 0.3,
    "probes.momentum": True,
    "probes.window": 300,
    "probes.every": 320,
}


@pytest.fixture(scope="module")
def sweep(config, tmp_path_factory):
    """Two seeds of 4 memoryless groups, and one run of Adam."""
    workdir = tmp_path_factory.mktemp("sweep")
    adam = {"optimizer.name": "adam", "optimizer.learning_rate": 0.03}
    points = {"s0": {"seed": 0}, "s1": {"seed": 1}, "adam": adam}
    for name, values in points.items():
        trainer.train(config(PROBED).with_(values), workdir / "points" / name)
    return workdir


def command(capsys, *arguments):
    """(exit code, standard output, error)."""
    capsys.readouterr()
    try:
        code = implicit_momentum.main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = ended.code
    return code, *capsys.readouterr()


@pytest.mark.parametrize("name", ["s0", "adam"])
def test_a_run_says_again_what_it_said_at_its_end(sweep, name):
    folder = sweep / "points" / name
    summary = json.loads((folder / "summary.json").read_text())
    found = implicit_momentum.of_folder(folder)
    keys = [key for key in found if key in summary and key.startswith("implicit")]
    assert len(keys) == 7 and all(found[key] == summary[key] for key in keys)
    assert found["theory_momentum"] == 0.75
    assert od.momentum(folder) == from_row(summary)


def test_the_seeds_of_a_setting_are_read_together(sweep):
    recorded = [implicit_momentum.load(folder) for folder in folders_with(sweep, SKETCHES)]
    found = implicit_momentum.rows(recorded)
    assert [row["run"] for row in found] == ["adam", "s0", "s1", "s0 and 1 more"]
    _, one, other, both = map(from_row, found)
    assert both.updates == one.updates + other.updates
    width = [it.width for it in (both, one, other)]
    assert width[0] < min(width[1:])
    assert both.covers(0.75)


def test_command(sweep, capsys):
    code, printed, error = command(capsys, sweep)
    assert code == 0, error
    header, *rows = printed.strip().split("\n")
    assert "95 % set" in header and "strength" in header and "explicit, read" not in header
    assert [row.split()[0] for row in rows] == ["adam", "s0", "s1", "s0"]
    code, printed, _ = command(capsys, sweep / "points" / "s0", "--terms=2", "--json")
    (row,) = json.loads(printed)["readings"]
    explicit = from_row(row, implicit_momentum.EXPLICIT)
    assert explicit.covers(0)
    code, _, error = command(capsys, sweep, "--terms=2")
    assert code == 2 and "steps of SGD with one momentum only" in error  # Adam's are not


def test_laws_that_are_not_memoryless_are_rejected(config, tmp_path):
    """Two groups in turn by their steps, log-normal times by the order of arrivals."""
    in_turn = {"cluster.service.name": "constant", "method.groups": 2, "cluster.nodes": 2}
    law = {"cluster.service.name": "lognormal", "cluster.service.variation": 0.7}
    for name, keys in (("turn", in_turn), ("law", law)):
        values = PROBED | keys | {"optimizer.learning_rate": 1.0}
        trainer.train(config(values), tmp_path / name)
        row = implicit_momentum.of_folder(tmp_path / name)
        assert from_row(row).rejected and row["theory_momentum"] is None


def test_a_run_that_goes_on_is_read_up_to_its_last_log_point(sweep, tmp_path):
    folder = shutil.copytree(sweep / "points" / "s0", tmp_path / "run")
    (folder / "summary.json").unlink()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(lines[:8]) + "\n")  # to update 350
    assert len(implicit_momentum.load(folder).windows) == 1
    assert len(implicit_momentum.load(sweep / "points" / "s0").windows) == 3
    (folder / "metrics.jsonl").write_text("\n".join(lines[:1]) + "\n")
    assert from_row(implicit_momentum.of_folder(folder)).says_nothing


@pytest.mark.parametrize("explicit", [0.0, 0.5])
def test_replicas_are_read_from_what_they_move_by(config, tmp_path, capsys, explicit):
    values = {"replicas.count": 400, "replicas.block": 400, "steps": 12, "batch_size": 4}
    values |= {"data.replacement": True, "optimizer.momentum": explicit}
    record(config(values), tmp_path)
    row = implicit_momentum.of_folder(tmp_path)
    assert row == json.loads((tmp_path / "implicit_momentum.json").read_text())
    assert from_row(row).covers(0.75)
    code, printed, _ = command(capsys, tmp_path, "--terms=2", "--json")
    (row,) = json.loads(printed)["readings"]
    read = from_row(row, implicit_momentum.EXPLICIT)
    assert code == 0 and read.covers(explicit)


@pytest.mark.parametrize("file", [SKETCHES, REPLICAS, "config.json"])
@pytest.mark.parametrize("damage", ["cut", "text", "shape", "config"])
def test_damaged_recordings_are_one_line(config, sweep, tmp_path, capsys, file, damage):
    folder = tmp_path / "run"
    if file == REPLICAS:
        record(config({"replicas.count": 2, "steps": 8, "data.replacement": True}), folder)
    else:
        shutil.copytree(sweep / "points" / "s0", folder)
    content = (folder / file).read_bytes()
    if damage == "cut":
        (folder / file).write_bytes(content[: len(content) // 2])
    elif damage == "text":
        (folder / file).write_text("no array")
    elif damage == "shape" and file != "config.json":
        some = np.zeros((4, 5, 6))
        (np.save if file == SKETCHES else np.savez)(folder / file, some)
    else:
        (folder / "config.json").write_text('{"steps": "many"}')
    with pytest.raises(TableError, match=str(folder)):
        implicit_momentum.load(folder)
    code, _, error = command(capsys, folder)
    assert code == 2 and error.count("\n") == 1


def test_bad_input_ends_the_command_with_2(tmp_path, capsys):
    for folder, said in ((tmp_path, "no trajectories.npz and no"), ("nosuch", "no such folder")):
        code, _, error = command(capsys, folder)
        assert code == 2 and said in error and error.count("\n") == 1
    with pytest.raises(InputError, match="cannot be read"):
        od.momentum(tmp_path)


def settings(groups=4, *, name="asynchronous", service="exponential", **cluster):
    shape = {"service": {"name": service}, "nodes": groups, "devices_per_node": 1}
    return {
        "method": {"name": name} if name in ("sync", "daso") else {"name": name, "groups": groups},
        "cluster": shape | cluster,
    }


def with_method(**keys):
    whole = settings()
    return whole | {"method": whole["method"] | keys}


@pytest.mark.parametrize(
    "config, expected",
    [
        (settings(8), True),
        (settings(4, service="geometric", nodes=16), True),
        (settings(1, service="lognormal"), True),  # one group, whose turn it always is
        (settings(8, name="sync", service="lognormal"), True),
        (settings(4, name="ringmaster"), True),
        (with_method(name="ringmaster", delay_bound=2), False),
        (settings(3, service="constant"), False),
        (settings(4, service="lognormal"), False),
        (settings(4, nodes=16), False),  # the slowest of 4 is not memoryless
        (settings(4, speeds=[1, 1, 1, 2]), False),
        (settings(4, pieces={"fc": 0.1}), False),
        (settings(4, latency=0.1), False),
        (settings(4, server_bandwidth=1e6), False),  # the server's queue makes arrivals regular
        (settings(4, regions=2), False),
        (settings(4, presence=5.0, absence=5.0), False),
        (with_method(staleness_bound=2), False),
        (with_method(fresh=["fc"]), False),
        (with_method(compression="sign"), False),
        (settings(4, name="daso"), False),
        (settings(4, name="asynchronous+local"), False),
    ],
)
def test_service_that_has_no_memory(config, expected):
    assert memoryless(config) == expected


def test_groups_of_joined_methods_are_in_their_section():
    method = {"name": "diloco+asynchronous", "diloco": {"period": 8}, "asynchronous": {"groups": 4}}
    assert groups_of({"method": method}) == 4
    assert groups_of({"method": {"name": "sync", "fresh": []}}) == 1
