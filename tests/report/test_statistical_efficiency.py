"""The command on sweeps whose numbers of updates are known."""

import json

import numpy as np
import pandas as pd
import pytest

from optdyn.report.statistical_efficiency import GroupTrials, main, summarize, trials
from optdyn.report.tables import TableError

TARGET = 0.25
SLOW = (1.0, 1.25, 0.8, 1.5, 0.9)  # of each seed, at all settings
PENALTY = {1: 1.0, 4: 1.5, 16: 4.0}  # of momentum 0.9; without momentum it is the square root


def updates(groups, momentum, rate, seed):
    """Learning rate 0.1 is best, and at momentum 0.9 with one group 100 updates are needed."""
    penalty = PENALTY[groups] if momentum else PENALTY[groups] ** 0.5
    return 100 * penalty * SLOW[seed] * (1 + abs(np.log2(rate / 0.1)))


def config(groups, momentum, rate, seed, **other):
    method = {"name": "asynchronous" if groups > 1 else "sync", "groups": groups}
    optimizer = {"name": "sgd", "momentum": momentum, "learning_rate": rate}
    return {"method": method, "optimizer": optimizer, "seed": seed, "steps": 1000} | other


def write(workdir, name, config, taken, seconds):
    """A run whose loss falls from 1 to 0 linearly, and so passes the target after `taken`."""
    folder = workdir / "points" / name
    folder.mkdir(parents=True, exist_ok=True)
    end = taken / (1 - TARGET)
    lines = [
        json.dumps({"step": step, "simulated_seconds": step * seconds, "train_loss": loss})
        for step, loss in ((0, 1.0), (end, 0.0))
    ]
    summary = {"status": "completed", "train_loss": 0.0, "simulated_seconds_per_step": seconds}
    (folder / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def sweep(tmp_path):
    for groups in PENALTY:
        for momentum in (0.9, 0.0):
            for rate in (0.05, 0.1, 0.2):
                for seed in range(len(SLOW)):
                    setting = (groups, momentum, rate, seed)
                    name = "g{}-momentum{}-rate{}-seed{}".format(*setting)
                    write(tmp_path, name, config(*setting), updates(*setting), 1 / groups)
    return tmp_path


def test_the_numbers_that_the_losses_were_made_with(sweep, capsys):
    assert main([f"--workdir={sweep}", f"--target={TARGET}", "--json"]) == 0
    found = json.loads((sweep / "statistical_efficiency.json").read_text())
    assert json.loads(capsys.readouterr().out) == found
    assert main([f"--workdir={sweep}", f"--target={TARGET}"]) == 0
    groups = np.array([row["groups"] for row in found["groups"]])
    assert groups.tolist() == list(PENALTY) and found["seeds"] == len(SLOW)
    penalty = np.array(list(PENALTY.values()))
    expected = {
        "fixed": 100 * penalty,  # the median seed has 1
        "tuned": 100 * np.sqrt(penalty),
        "P_SE fixed": penalty,
        "P_SE tuned": np.sqrt(penalty),
        "P_HE": 1 / groups,
        "product fixed": penalty / groups,
        "product tuned": np.sqrt(penalty) / groups,
        "ratio": np.sqrt(penalty),
    }
    for name, values in expected.items():
        value, low, high = np.array([row[name] for row in found["groups"]]).T
        # Rounding of float64 through a log, as text, and its interpolation.
        np.testing.assert_allclose(value, values, rtol=1e-9)
        # The best setting is never in doubt, and slow seeds are slow everywhere.
        wide = 1.2 if name in ("fixed", "tuned") else 1
        assert np.all(high >= wide * low * (1 - 1e-9))
        if wide == 1:
            np.testing.assert_allclose([low, high], [values, values], rtol=1e-9)
    assert found["groups"][0]["recovered"] == [None] * 3
    for row, p in zip(found["groups"][1:], penalty[1:], strict=True):
        np.testing.assert_allclose(row["recovered"], (p - p**0.5) / (p - 1), rtol=1e-9)
        assert row["tuned setting"] == {
            "momentum": 0.0,
            "learning_rate": 0.1,
            "updates": pytest.approx(row["tuned"][0], rel=1e-9),
            "edge": False,
        }
        assert row["fixed seeds"] == pytest.approx(100 * p * np.array(SLOW), rel=1e-9)
    model = found["model"]["tuned"]
    slope, intercept = np.polyfit(np.log(groups), np.log(100 * np.sqrt(penalty)), 1)
    assert model["b"][0] == pytest.approx(slope, rel=1e-6)
    assert model["a"][0] == pytest.approx(np.exp(intercept), rel=1e-6)
    predicted = np.exp(intercept) * groups**slope
    misfit = np.abs(np.log(predicted / (100 * np.sqrt(penalty)))).max()
    assert model["misfit"] == pytest.approx(np.exp(misfit), rel=1e-6)
    printed = capsys.readouterr().out
    assert "g = 16: fixed over tuned 2 [2, 2]; share of the penalty" in printed
    assert "lowest" not in printed


def test_a_target_that_fixed_momentum_misses(sweep, capsys):
    for file in sweep.glob("points/g16-momentum0.9*/summary.json"):
        summary = json.loads(file.read_text())
        file.write_text(json.dumps(summary | {"status": "diverged"}))
    assert main([f"--workdir={sweep}", f"--target={TARGET}"]) == 0
    row = json.loads((sweep / "statistical_efficiency.json").read_text())["groups"][-1]
    assert row["fixed"] == [None] * 3 and row["ratio"] == [None] * 3
    assert row["tuned"][0] == pytest.approx(200, rel=1e-9)
    assert "fixed over tuned inf [inf, inf]" in capsys.readouterr().out


def test_a_sweep_without_momenta_has_the_one_that_it_tried(sweep, capsys):
    given = [f"--workdir={sweep}", f"--target={TARGET}", "--where=optimizer.momentum=0.0"]
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["fixed setting"]["momentum"] for row in found["groups"]} == {0.0}


def test_the_edge_of_the_learning_rates_is_pointed_out(sweep, capsys):
    for folder in sweep.glob("points/g4-*-rate0.2-*"):
        (folder / "config.json").rename(folder / "config.old")  # no longer a run
    assert main([f"--workdir={sweep}", f"--target={TARGET}"]) == 0
    printed = capsys.readouterr().out
    assert "g = 4, fixed: 0.1 is the lowest or the highest learning rate tried" in printed
    assert "g = 1, fixed" not in printed


def test_groups_without_a_synchronous_run_have_no_penalty(sweep, capsys):
    where = ["--where=method.groups=16"]
    assert main([f"--workdir={sweep}", f"--target={TARGET}", *where]) == 0
    found = json.loads((sweep / "statistical_efficiency.json").read_text())
    row, without = found["groups"][0], ("P_SE", "P_HE", "product", "recovered")
    assert {*map(str, [row[key] for key in row if key.startswith(without)])} == {
        "[None, None, None]"
    }
    assert found["model"] == {}
    assert "fixed over tuned 2 [2, 2]\n" in capsys.readouterr().out


def test_asynchronous_with_one_group_is_synchronous(sweep):
    for file in sweep.glob("points/g1-*/config.json"):
        file.write_text(file.read_text().replace('"sync"', '"asynchronous"'))
    assert [row.groups for row in trials(sweep, TARGET)] == [1, 4, 16]


def test_points_that_differ_in_more_are_chosen_from(sweep):
    for seed in range(len(SLOW)):
        for law in ("constant", "lognormal"):
            values = config(16, 0.9, 0.1, seed, cluster={"service": {"name": law}})
            taken = 300 if law == "constant" else 600
            write(sweep, f"{law}-seed{seed}", values, taken, 1.0)
    line = r"differ in cluster\.service\.name; choose one with --where="
    with pytest.raises(TableError, match=line):
        trials(sweep, TARGET)
    (only,) = trials(sweep, TARGET, ["cluster.service.name=constant"])
    assert only.groups == 16 and only.updates == pytest.approx(np.full((1, 5), 300.0))
    summary = summarize([only], 0.9, TARGET)
    assert summary["groups"][0]["tuned"] == pytest.approx([300] * 3)


def broken(sweep, what):
    """The sweep with something wrong, and further arguments."""
    point = sweep / "points" / "g4-momentum0.9-rate0.1-seed0"
    setting = (4, 0.9, 0.1, 0)
    if what == "unfinished":
        (point / "summary.json").unlink()
    if what == "lacks a seed":
        (point / "config.json").unlink()
    if what == "twice":
        write(sweep, "again", config(*setting), 1, 1.0)
    if what == "another method":
        values = config(*setting) | {"method": {"name": "daso", "groups": 1}}
        (point / "config.json").write_text(json.dumps(values))
    return {
        "target": ["--target=-1"],
        "momentum": ["--fixed_momentum=0.5"],
        "where": ["--where=seed"],
        "where else": ["--where=optimiser.name=sgd"],
        "nothing": ["--where=seed=77"],
        "one seed": ["--where=seed=1"],
    }.get(what, [])


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("unfinished", "run g4-momentum0.9-rate0.1-seed0 is unfinished, must be completed"),
        ("lacks a seed", "with 4 groups there are 29 runs of 6 settings and 5 seeds"),
        ("twice", "run g4-momentum0.9-rate0.1-seed0 is there twice"),
        ("another method", "in groups or not, has runs of method.name = 'daso'"),
        ("target", "no run reaches --target=-1; the lowest training loss is 0"),
        ("momentum", "--fixed_momentum=0.5: not tried with 1 groups"),
        ("where", "--where=seed: must be KEY=VALUE"),
        ("where else", "--where=optimiser.name=sgd: must be KEY=VALUE, KEY of the config"),
        ("nothing", "has none that were asked for"),
        ("one seed", "the same seeds, at least two; with 1 groups there are 6 runs"),
    ],
)
def test_what_cannot_be_compared_is_one_line(sweep, what, line, capsys):
    given = [f"--workdir={sweep}", f"--target={TARGET}"]
    assert main([*given, *broken(sweep, what)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("\n") == 1 and line in message
    assert not list(sweep.glob("statistical_efficiency*"))


def test_no_ratio_and_no_number_of_updates_has_an_interval_below_0():
    """Where both sides miss on some draws of seeds the ratio may be any number from 0 on."""
    settings = pd.MultiIndex.from_tuples([(0.0, 0.1), (0.9, 0.1)])
    one = GroupTrials(1, settings, np.array([np.arange(100.0, 105)] * 2), np.ones(5))
    missed = [[200.0, 210, 220, np.inf, np.inf], [np.inf] * 5]
    found = summarize([one, one._replace(groups=8, updates=np.array(missed))], 0.9, TARGET)
    row = found["groups"][1]
    assert row["ratio"] == [np.inf, 0, np.inf]
    assert found["model"]["tuned"]["a"][1:] == [0, np.inf]
    assert found["model"]["tuned"]["b"][1:] == [-np.inf, np.inf]  # an exponent may be negative
