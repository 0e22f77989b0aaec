"""Fronts and winners of sweeps made up here, with both known beforehand."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.report import tables
from optdyn.report.curves import compared
from optdyn.report.fronts import front, fronts, levels, losses_at, regions, section

VARIANT = "method.variant"

FLOPS = {"backprop": (100, 100), "greedy": (25, 130), "overlapping": (50, 200), "chunked": (40, 80)}
STEPS = (0, 10, 20, 40, 80, 160)


def run(workdir, variant, losses, seed=0, status="completed", flops=None, **config):
    """A run logged at the first of `STEPS`, before the first update at a loss of 9."""
    values = {"batch_size": 32, "width": 64} | config
    folder = workdir / "points" / f"{variant}-{'-'.join(map(str, values.values()))}-{seed}"
    folder.mkdir(parents=True)
    nested = {
        "method": {"name": "local", "variant": variant},
        "model": {"width": values["width"]},
        "optimizer": {"momentum": 0.0, "learning_rate": 0.1},
        "cluster": {"service": {"name": "constant"}},
        "batch_size": values["batch_size"],
        "seed": seed,
    }
    rows = [
        {"step": step, "simulated_seconds": float(step), "train_loss": loss}
        for step, loss in zip(STEPS, (9.0, *losses), strict=False)
    ]
    counted = dict(zip(("sequential_flops", "total_flops"), flops or FLOPS[variant], strict=False))
    (folder / "config.json").write_text(json.dumps(nested))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "summary.json").write_text(json.dumps(rows[-1] | {"status": status} | counted))
    return folder


def table_of(workdir):
    found = tables.points(workdir)
    by = [VARIANT, "batch_size", "model.width"]
    return levels(tables.runs(found, by), tables.metrics(found), by)


@pytest.fixture
def crossing(tmp_path):
    """Greedy is ahead from 1000 to 2000 sequential FLOPs and behind from there on.

    backprop  1000: 1.0        2000: 0.5           4000: 0.1
    greedy    1000: 0.8        2000: 0.6           4000: 0.55    and less before
    """
    for seed, more in enumerate((0.0, 0.05, -0.05)):
        run(tmp_path, "backprop", [1.0 + more, 0.5 + more, 0.1], seed)
        run(tmp_path, "greedy", [1.5, 1.0, 0.8 + more, 0.6 + 3 * more, 0.55], seed)
    return tmp_path


points = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=30)


@given(points)
def test_the_front_by_its_definition(given_):
    """A point is on it if nothing is as good in both and better in one; of equals it is one."""
    cost, loss = np.array(given_, float).T
    found = front(cost, loss)
    on_it = {
        (c, v)
        for c, v in given_
        if not any(a <= c and b <= v and (a, b) != (c, v) for a, b in given_)
    }
    assert sorted(on_it) == [given_[i] for i in found]  # each once, by cost
    assert all(given_.index(given_[i]) == i for i in found)  # the first of equals


def test_the_median_of_seeds_and_their_range(tmp_path):
    for seed, loss in enumerate((0.3, 0.9, 0.5)):
        run(tmp_path, "greedy", [1.0, loss], seed)
    table = table_of(tmp_path)
    assert table["step"].tolist() == [10, 20]  # nothing was learned before the first update
    assert table["sequential"].tolist() == [250, 500] and table["total"].tolist() == [1300, 2600]
    last = table.iloc[1]
    assert (last["loss"], last["low"], last["high"], last["seeds"]) == (0.5, 0.3, 0.9, 3)


def test_a_diverged_seed_is_the_worst_of_its_setting(tmp_path):
    run(tmp_path, "greedy", [1.0, 0.5, 0.4], 0)
    run(tmp_path, "greedy", [1.2, None], 1, status="diverged")
    run(tmp_path, "greedy", [0.8, 0.6, None], 2, status="diverged")
    table = table_of(tmp_path)
    assert table["step"].tolist() == [10, 20]
    assert table["loss"].tolist() == [1.0, 0.6]
    assert table["high"].tolist() == [1.2, np.inf]


def test_what_diverged_is_not_on_the_front(tmp_path):
    run(tmp_path, "greedy", [1.0, 0.5])
    run(tmp_path, "greedy", [0.9, None], status="diverged", width=128)
    run(tmp_path, "greedy", [None], status="diverged", width=256)
    best = fronts(table_of(tmp_path), "sequential", VARIANT)
    assert best["loss"].tolist() == [0.9, 0.5]
    assert best["model.width"].tolist() == [128, 64]


def test_dominated_settings_are_not_on_the_front(tmp_path):
    """A small network is ahead early, a large one late; one is never ahead, one takes a tie."""
    run(tmp_path, "greedy", [1.0, 0.8, 0.7])  # 250, 500, 1000
    run(tmp_path, "greedy", [0.9, 0.7, 0.4], width=128, flops=(50, 1))  # 500, 1000, 2000
    run(tmp_path, "greedy", [1.1, 0.9, 0.75], batch_size=64)  # at the first one's compute
    run(tmp_path, "greedy", [0.8, 0.8, 0.8], batch_size=16, flops=(50, 1))  # equal at 500
    best = fronts(table_of(tmp_path), "sequential", VARIANT)
    found = best[["sequential", "loss", "model.width", "batch_size"]].to_numpy().tolist()
    assert [row[:2] for row in found] == [[250, 1.0], [500, 0.8], [1000, 0.7], [2000, 0.4]]
    assert found[3][2:] == [128, 32] and found[0][2:] == [64, 32]


def test_fronts_are_by_variant_and_by_compute(crossing):
    table = table_of(crossing)
    run(crossing, "chunked", [2.0, 1.9, 1.9, 2.0, 1.8])
    with_bad = table_of(crossing)
    for compute in ("sequential", "total"):
        one, other = (fronts(its, compute, VARIANT) for its in (table, with_bad))
        same = other[other["method.variant"] != "chunked"]
        np.testing.assert_array_equal(one[[compute, "loss"]], same[[compute, "loss"]])
        chunked = other[other["method.variant"] == "chunked"]
        assert chunked["step"].tolist() == [10, 20, 160]


def test_the_report_says_where_which_is_the_lowest(crossing):
    message = section(compared(tables.points(crossing))).points
    first, second = "local, greedy from 1,000 to 2,000", "local, backprop from 2,000 to 4,000"
    assert f"Lowest loss by sequential FLOPs: {first}; {second}." in message
    # Greedy has more to do in total: from its first point at 1300 on it is never ahead.
    assert "Lowest loss by total FLOPs: local, backprop from 1,300 to 4,000." in message


def test_losses_at_budgets(crossing):
    budgets = np.array([500, 1000, 1999, 2000, 4000, 4001])
    losses = losses_at(table_of(crossing), "sequential", VARIANT, ["backprop", "greedy"], budgets)
    # At 500 there is no backprop yet, beyond 4000 nobody knows.
    nothing = np.nan
    backprop, greedy = losses[0]
    np.testing.assert_array_equal(backprop, [nothing, 1.0, 1.0, 0.5, 0.1, nothing])
    np.testing.assert_array_equal(greedy, [1.0, 0.8, 0.8, 0.6, 0.55, nothing])
    # Seeds at 2000; 0.6 + 3 * 0.05 is rounded.
    np.testing.assert_allclose(losses[1:, :, 3], [[0.45, 0.45], [0.55, 0.75]])


def test_a_tie_is_the_firsts(tmp_path):
    same = {"flops": FLOPS["backprop"]}
    run(tmp_path, "greedy", [0.5, 0.6], **same)
    run(tmp_path, "overlapping", [0.5, 0.4], **same)
    run(tmp_path, "backprop", [0.5, 0.3], **same)
    table, names = table_of(tmp_path), ["backprop", "greedy", "overlapping"]
    assert regions(table, "sequential", VARIANT, names) == [("backprop", 1000, 2000)]
    # What greedy has reached with less compute, it has with more.
    assert losses_at(table, "sequential", VARIANT, names, np.array([2000]))[0, 1] == 0.5


def test_variants_that_share_no_compute(tmp_path):
    run(tmp_path, "greedy", [0.5], flops=(1, 100))
    run(tmp_path, "backprop", [0.5])
    assert regions(table_of(tmp_path), "sequential", VARIANT, ["backprop", "greedy"]) == []
