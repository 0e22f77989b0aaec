"""What a report has beside its tables: the answer, fronts, pictures, notes, workers."""

import re

import numpy as np
import pandas as pd
import pytest

from optdyn.report import (
    arrivals,
    curves,
    figures,
    fronts,
    headline,
    relevant_keys,
    report,
    run_tables,
    tables,
)
from optdyn.train import trainer
from tests.report.reports import page, recording, run


def compared(workdir, target=np.nan):
    return curves.compared(tables.points(workdir), target)


def lines(workdir, target=np.nan):
    return headline.answer(compared(workdir, target))


def test_the_first_lines_are_the_question_and_the_answer(tmp_path):
    """Twice as fast with every seed: the ratio is a half, and its ends what the log leaves open.

    That is one log point of 10 updates each: 90 to 100 over 190 to 200, or of another seed.
    """
    for seed, slow in enumerate((1, 2, 3, 2, 1)):
        for name, rate in (("sync", 2 * slow), ("daso", slow)):
            losses = np.maximum(2 - np.arange(100) / (10 * rate), 0.5)
            config = {"method__name": name, "seed": seed, "note": "Is it faster?"}
            run(tmp_path / "points" / f"{name}{seed}", list(losses), **config)
    text, _ = page(tmp_path, target=1.0)
    first, updates, seconds = lines(tmp_path, 1.0)
    assert text.index("<p>Is it faster?</p>") < text.index(first) < text.index(seconds)
    assert first.startswith("2 methods were compared by their way to a training loss of 1,")
    assert "5 seeds" in first
    assert updates == (
        "Fewest updates: daso, 200, against 400 of sync, the synchronous one, 0.5 times "
        "[0.45, 0.526]."
    )
    assert "Fewest simulated seconds: daso, 20, against 40 of sync" in seconds


def test_clusters_are_answered_by_themselves(tmp_path):
    for nodes, best in ((2, "a"), (4, "b")):
        for name in ("a", "b"):
            losses = [2.0, 1.5, 0.4] if name == best else [2.0, 1.8, 1.4, 0.4]
            config = {"cluster__nodes": nodes, "optimizer__name": name}
            run(tmp_path / "points" / f"{name}{nodes}", losses, **config)
    first, *message = lines(tmp_path)
    found = [line for line in message if "updates" in line]
    assert "in 2 places by themselves" in first
    assert [re.split(r":", line)[0] for line in found] == ["cluster.nodes 2", "cluster.nodes 4"]
    assert "name a" in found[0].split("updates:")[0] + found[0].split(";")[0]
    assert "fewest updates: " in found[1]


@pytest.mark.parametrize("tuned", [{}, {"optimizer__learning_rate": 0.1}, {"steps": 9}])
def test_clusters_stay_apart_where_a_tuned_number_tells_them_apart_too(tmp_path, tuned):
    for seconds, more in ((0.001, {}), (1.0, tuned)):
        for name in ("sync", "daso"):
            config = {"cluster__seconds_per_example": seconds, "method__name": name, **more}
            run(tmp_path / "points" / f"{name}{seconds}", [2.0, 1.5, 0.4], **config)
    first, *message = lines(tmp_path)
    assert first.startswith("2 methods were") and "in 2 places by themselves" in first
    assert [line.split(":")[0] for line in message if "updates" in line] == [
        "cluster.seconds_per_example 0.001",
        "cluster.seconds_per_example 1",
    ]


def test_methods_of_other_clusters_are_not_compared_without_a_word(tmp_path):
    for name, seconds in (("sync", 1.0), ("daso", 0.001)):
        config = {"cluster__seconds_per_example": seconds, "method__name": name}
        run(tmp_path / "points" / name, [2.0, 1.5, 0.4], **config)
    _, warned, updates, *_ = lines(tmp_path)
    assert warned.startswith("No two methods had the same cluster.seconds_per_example")
    assert "cluster.seconds_per_example 0.001" in updates
    # But a method may have a layout and a batch of its own.
    for name, nodes, batch in (("sync", 8, 64), ("daso", 4, 16)):
        config = {"cluster__nodes": nodes, "batch_size": batch, "method__name": name}
        run(tmp_path / "own" / "points" / name, [2.0, 1.5, 0.4], **config)
    assert not any("No two methods" in line for line in lines(tmp_path / "own"))


def test_runs_that_learn_nothing_have_no_zeros(tmp_path):
    for groups in (1, 4):
        run(tmp_path / "points" / str(groups), [2.0, 2.5, 3.0], method__groups=groups)
    text, parsed = page(tmp_path)
    assert "no answer" in lines(tmp_path)[0] and "No target" in text
    titles = [title for table in parsed.tables for title in table[0]]
    assert not any("to target" in title for title in titles)


def test_a_target_that_runs_start_from_is_refused(tmp_path, capsys):
    run(tmp_path / "w", [2.0, 1.0])
    assert report.main([f"--workdir={tmp_path / 'w'}", "--target=2.5"]) == 2
    message = capsys.readouterr().err
    assert message == "error: --target=2.5: some run starts from 2; must be below it\n"
    assert not (tmp_path / "w" / "report.html").exists()


def test_a_front_for_each_value_of_what_is_varied(tmp_path):
    for adapt in (False, True):
        for rate in (0.1, 0.2):
            config = {"method__name": "dynamic_batch", "method__adapt": adapt}
            config |= {"optimizer__learning_rate": rate}
            run(tmp_path / "points" / f"{adapt}{rate}", [2.0, 1.0 + adapt, 0.5], **config)
    section = fronts.section(compared(tmp_path))
    (alt,) = [picture.alt for picture in section.pictures]
    assert "method.adapt False gets" in alt and "method.adapt True gets" in alt
    assert "Settings of one kind differ in learning rate." in section.text
    assert alt.count(" gets to ") == 2


def test_kinds_are_few(tmp_path):
    runs = pd.DataFrame({"method.name": "asynchronous", "method.groups": [1, 2] * 30})
    runs = runs.assign(**{"model.width": range(60), "cluster.nodes": [1] * 30 + [2] * 30})
    found = run_tables.kind_keys(runs, list(runs))
    assert found == ["method.name", "method.groups", "cluster.nodes"]


def test_only_keys_that_are_heeded_tell_settings_apart(tmp_path):
    link = "cluster__server_bandwidth"
    run(tmp_path / "a", [2.0, 1.0], method__name="sync", **{link: 1.0})
    ignored = {link: 3.0, "log_every": 7, "tune__seeds": 2, "seed": 1}
    run(tmp_path / "b", [2.0, 1.1], method__name="sync", **ignored)
    its = compared(tmp_path)
    assert its.runs["setting"].nunique() == 1 and "with the worst of its seeds" in its.why
    config = {"method.name": "sync"}
    assert not relevant_keys.affects_run(config, "cluster.server_bandwidth")
    assert relevant_keys.affects_run(config, "model.hidden")
    asynchronous = {"method.name": "asynchronous"}
    assert relevant_keys.affects_run(asynchronous, "cluster.server_bandwidth")
    joined = {"method.name": "diloco+asynchronous"}
    assert relevant_keys.affects_run(joined, "method.diloco.period")
    of_user = {"method.name": "not.there:METHOD"}
    assert relevant_keys.affects_run(of_user, "cluster.split")
    assert relevant_keys.affects_run(of_user, "method.a")


def test_pictures_have_the_numbers_of_the_log(tmp_path):
    for seed in range(3):
        losses = [2.0, 1.0 + seed / 4, 0.5 + seed / 4]
        run(tmp_path / "points" / str(seed), losses, seed=seed, method__groups=2)
    found = compared(tmp_path)
    assert found.target == 1  # the worst seed's lowest
    for clock, times in (("step", [0, 10, 20]), ("simulated_seconds", [0, 1, 2])):
        (axes,) = figures.losses(found.curves, clock, "", found.target).axes
        line, target = axes.lines
        np.testing.assert_array_equal(line.get_xydata().T, [times, [2, 1.25, 0.75]])
        assert set(target.get_ydata()) == {1}
        (band,) = axes.collections
        corners = {tuple(corner) for corner in band.get_paths()[0].vertices}
        ends = zip(times * 2, [2, 1, 0.5, 2, 1.5, 1], strict=True)
        assert corners == set(ends)


def test_workers_of_a_run_are_those_of_its_timeline(config, tmp_path):
    keys = {"steps": 40, "log_every": 10, "method.groups": 4, "checkpoint_every": 0}
    trainer.train(config(keys), tmp_path)
    (point,) = tables.points(tmp_path)
    bars, lanes = arrivals.first(point)
    assert lanes == [f"group {i}" for i in range(4)]
    assert (bars["end"] > bars["start"]).all() and (bars["staleness"] >= 0).all()
    horizon = bars["end"].max()
    for _, its in bars.groupby("lane"):  # no pause: an arrival reads and goes on
        np.testing.assert_array_equal(its["start"].iloc[1:], its["end"].iloc[:-1])
        assert its["start"].iloc[0] == 0 and its["end"].iloc[-1] == horizon
    other = [row | {"simulated_seconds": 2 * row["simulated_seconds"]} for row in point.log]
    assert arrivals.first(point._replace(log=other)) is None  # not the run that was logged


def test_a_recorded_trace_is_what_is_shown(tmp_path):
    run(tmp_path, [2.0, 1.0])
    (tmp_path / "trace.csv").write_text("worker,seconds\n0,1.0\n1,1.5\n0,2.0\n1,3.5\n")
    bars, _ = arrivals.first(tables.points(tmp_path)[0])
    spans = bars[["lane", "start", "end", "staleness"]].to_numpy().tolist()
    assert spans == [[0, 0, 1, 0], [1, 0, 1.5, 1], [0, 1, 2, 1], [1, 1.5, 3.5, 1]]


@pytest.mark.parametrize("target", [np.nan, 1.0])
def test_best_points_as_text(tmp_path, target):
    for groups, last in ((1, 0.8), (4, 0.4)):
        run(tmp_path / "points" / str(groups), [2.0, 1.5, last], method__groups=groups)
    first, *rest = report.best(tmp_path, target).splitlines()
    assert re.split("  +", first.strip()) == ["best points", *re.split("  +", first.strip())[1:]]
    assert [row.split("  ")[0] for row in rest] == ["g = 4", "g = 1"] and "updates" in first
    recording(tmp_path / "alone", 4)
    assert report.best(tmp_path / "alone") == ""
