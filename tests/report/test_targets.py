"""Targets that mean something, on logs made up here; figures no finer than they."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdyn.evidence import intervals
from optdyn.evidence.crossing import of_runs
from optdyn.report import curves, efficiency, kept_momentum
from optdyn.report.efficiency import common_target, crossings, start_below, to_target
from optdyn.report.figures import LossCurve
from optdyn.report.page import cell, number


def tables(*logs, status="completed"):
    """Runs, each a method of its own, logged every 10 updates, and their log."""
    names = [f"run{i}" for i in range(len(logs))]
    runs = pd.DataFrame({"point": names, "status": status, "method": names, "setting": names})
    log = pd.concat(
        pd.DataFrame(
            {"point": name, "step": 10.0 * np.arange(len(losses)), "train_loss": losses}
        ).assign(simulated_seconds=lambda table: table["step"] / 100)
        for name, losses in zip(names, logs, strict=True)
    )
    return runs, log


losses = st.lists(st.floats(0.01, 10), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(losses, min_size=1, max_size=6))
def test_no_run_starts_at_a_target(logs):
    """So no figure is zero, whatever the runs did: one that learns nothing has no say."""
    runs, log = tables(*logs)
    target = common_target(runs, log)
    if np.isnan(target.loss):
        assert min(map(min, logs)) >= min(its[0] for its in logs) and target.methods == 0
        return
    assert all(its[0] > target.loss for its in logs)
    found = efficiency.with_target(runs, log, target.loss)
    assert (found["updates_to_target"] > 0).all()
    assert np.isfinite(found["updates_to_target"]).sum() == sum(
        min(its) <= target.loss for its in logs
    )
    assert np.isfinite(found["updates_to_target"]).sum() >= target.methods > 0


def test_a_method_that_learns_nothing_does_not_set_the_target():
    """At its 2.5 all others would be at 0 updates."""
    runs, log = tables([2.0, 1.0, 0.5], [2.0, 1.2, 0.6], [2.0, 2.5, 2.5])
    assert common_target(runs, log) == (0.6, 2, True)


def test_a_target_is_later_than_the_first_log_point():
    """All three reach 0.9, but two of them at once; the lowest that two reach is told apart."""
    runs, log = tables([2.0, 0.8, 0.3], [2.0, 0.7, 0.4], [2.0, 1.5, 0.9])
    assert common_target(runs, log) == (0.4, 2, True)
    coarse = common_target(*tables([2.0, 0.8], [2.0, 0.7]))
    assert coarse == (0.8, 2, False)  # the log has no more


def test_who_starts_below_a_target_is_told():
    _, log = tables([2.0, 1.0], [1.5, 1.0])
    assert start_below(1.6, log) == 1.5 and start_below(1.5, log) == 1.5
    assert np.isnan(start_below(1.49, log))


@settings(max_examples=40, deadline=None)
@given(losses, st.floats(0.01, 10))
def test_a_crossing_lies_between_what_the_log_leaves_possible(its, target):
    """At the first log point with such a loss, or before it, and after one with a larger loss."""
    _, log = tables(its)
    low, value, high = (float(end[0]) for end in crossings(log, [target])[0])
    if min(its) > target:
        assert low == value == high == np.inf
        return
    assert low <= value <= high and its[int(high / 10)] <= target
    if high:
        assert low <= high - 10 and its[int(low / 10)] > target


@pytest.mark.parametrize(
    ("value", "apart", "text"),
    [
        (137.2, 25, "140"),
        (137.2, 10, "140"),
        (137.2, 5, "137"),
        (4, 10, "under 10"),
        (2.345, 0.5, "2.3"),
        (1234.5, 100, "1,200"),
        (28.123, 0, "28.12"),
        (28.123, np.nan, "28.12"),
    ],
)
def test_a_figure_has_no_digit_finer_than_the_log(value, apart, text):
    assert number(value, apart) == text
    assert cell(value, apart) == (text, value, False, "")  # sorted by what was read


def test_time_to_every_loss_is_that_to_each():
    """Of two seeds that take 10 and 30 updates an e-fold, and one that diverged."""
    runs, log = tables(*(np.exp(-np.arange(7) / rate) for rate in (1, 3)), [1.0, 0.01])
    runs["status"] = ["completed", "completed", "diverged"]
    both = LossCurve("both", "red", "solid", log[log["point"] != "run2"], runs[:2])
    wanted = curves.losses_to_reach([both])
    assert wanted[0] == pytest.approx(np.median([np.exp(-6), np.exp(-2)])) and wanted[-1] < 1
    table = curves.times(both, wanted, "updates").set_index("x")
    for loss, row in table.iterrows():
        each = [to_target(its, loss)[0] for _, its in both.log.groupby("point")]
        assert list(row) == [np.median(each), min(each), max(each)]
    assert np.isinf(table["high"].iloc[0]) and np.isfinite(table["low"].iloc[0])
    lost = LossCurve("lost", "red", "solid", log[log["point"] == "run2"], runs[2:])
    assert np.isinf(curves.times(lost, wanted, "seconds")["value"]).all()


def test_arms_are_compared_by_losses_below_the_start():
    """Of 1.6, 3.2 and 6.4 times what is reached only the first is below 2; 2.0 itself is not."""
    rows, logs = [], []
    for groups in (1, 2):
        for momentum in (0.0, 0.5):
            for seed in (0, 1):
                name = f"{groups}-{momentum}-{seed}"
                row = {"point": name, "status": "completed", "method.name": "asynchronous"}
                row |= {"method.groups": groups, "optimizer.momentum": momentum, "seed": seed}
                row |= {"optimizer.learning_rate": 0.1 * groups, "train_loss": 1.6}
                row |= {"setting": name[:-2], "lowest": 1.6}
                rows.append(row)
                if groups == 2 and momentum == 0.5:
                    rows[-1] |= {"optimizer.learning_rate": 0.3, "setting": "other"}
                steps = [0.0, 10, 20]
                logs.append(
                    pd.DataFrame({"point": name, "step": steps, "train_loss": [2, 1.9, 1.6]})
                )
                logs[-1]["simulated_seconds"] = logs[-1]["step"]
    keys = ["method.groups", "optimizer.momentum", "optimizer.learning_rate", "seed"]
    runs, log = pd.DataFrame(rows), pd.concat(logs)
    runs = runs[(runs["method.groups"] == 2) | (runs["optimizer.momentum"] == 0.5)]
    (it,) = kept_momentum.comparisons(runs, log, keys)
    assert it.losses == (1.6,)
    assert (it.values[:, 0] == 20).all() and (it.resolutions[:, :2] == 10).all()


def test_an_update_that_is_not_done_has_changed_nothing():
    """A meeting of 0.3 s after which the loss is at the target: no part of it would do."""
    log = pd.DataFrame({"step": [31.0, 32.0], "train_loss": [0.55, 0.4]})
    log["simulated_seconds"] = [0.587, 0.893]
    assert to_target(log, 0.5) == (32.0, 0.893)
    log["step"] = [28.0, 32.0]  # nobody knows which of four updates it was
    assert to_target(log, 0.5) == pytest.approx((28 + 4 / 3, 0.587 + 0.306 / 3))


@pytest.mark.parametrize("every", [5, 8, 10, 25, 50])
def test_an_interval_has_in_it_what_every_update_would_have_told(every):
    """Losses of five seeds that go up and down every 8 updates, lowest where nodes meet."""
    rng = np.random.default_rng(0)
    steps = np.arange(201.0)

    def log(rate, swing):
        apart = swing * rng.random(26).repeat(8)[:201] * np.sin(np.pi * steps / 8) ** 2
        loss = np.exp(-steps / rate + apart + rng.normal(0, 0.03, 201))
        return pd.DataFrame({"step": steps, "simulated_seconds": steps, "train_loss": loss})

    arms = [[log(rate, swing) for _ in range(5)] for rate, swing in ((70, 1.0), (100, 0))]

    def found(of, apart):
        return of_runs([crossings(its[its["step"] % apart == 0], [0.18])[0] for its in of], 0)

    whole, *_ = intervals.ratio(*(found(arm, 1) for arm in arms))
    value, low, high = intervals.ratio(*(found(arm, every) for arm in arms))
    assert low <= whole <= high and low <= value <= high
    if every >= 25:  # which drawing the seeds again does not show
        assert whole < intervals.ratio(*(found(arm, every).value for arm in arms))[1]


def test_a_loss_that_goes_up_and_down_may_have_been_at_the_target_before_the_last_log_point():
    """Off its course by 0.2 in logarithms, of which it falls 0.1 from one log point to the next."""
    course, swing = -0.1 * np.arange(31), 0.1 * (-1.0) ** np.arange(31)
    for losses, before in ((np.exp(course), 150), (np.exp(course + swing), 129)):
        low = crossings(tables(losses)[1], [np.exp(-1.55)])[0].low[0]
        assert low == pytest.approx(before, abs=0.5)  # the last log point above is at 150 and 140
