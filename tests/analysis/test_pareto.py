"""Fronts and winners of sweeps made up here, with both known beforehand."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.analysis.fronts import front
from optdyn.analysis.pareto import budgets, compare, fronts, levels, main, regions, runs

FLOPS = {"backprop": (100, 100), "greedy": (25, 130), "overlapping": (50, 200), "chunked": (40, 80)}
STEPS = (0, 10, 20, 40, 80, 160)


def run(workdir, variant, losses, seed=0, status="completed", flops=None, **config):
    """A run logged at the first of `STEPS`, before the first update at a loss of 9."""
    values = {"batch_size": 32, "width": 64} | config
    folder = workdir / "points" / f"{variant}-{'-'.join(map(str, values.values()))}-{seed}"
    folder.mkdir(parents=True)
    nested = {
        "strategy": {"name": "local", "variant": variant},
        "model": {"width": values["width"]},
        "batch_size": values["batch_size"],
        "seed": seed,
    }
    rows = [
        {"step": step, "simulated_seconds": 0.0, "train_loss": loss}
        for step, loss in zip(STEPS, (9.0, *losses), strict=False)
    ]
    counted = dict(zip(("sequential_flops", "total_flops"), flops or FLOPS[variant], strict=False))
    (folder / "config.json").write_text(json.dumps(nested))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "summary.json").write_text(json.dumps(rows[-1] | {"status": status} | counted))
    return folder


def table_of(workdir):
    return levels(runs(workdir))


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
    """It logs a null and then no more; two of three make the median infinite."""
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
    best = fronts(table_of(tmp_path), "sequential")
    assert best["loss"].tolist() == [0.9, 0.5]
    assert best["model.width"].tolist() == [128, 64]


def test_dominated_settings_are_not_on_the_front(tmp_path):
    """A small network is ahead early, a large one late; one is never ahead, one takes a tie."""
    run(tmp_path, "greedy", [1.0, 0.8, 0.7])  # 250, 500, 1000
    run(tmp_path, "greedy", [0.9, 0.7, 0.4], width=128, flops=(50, 1))  # 500, 1000, 2000
    run(tmp_path, "greedy", [1.1, 0.9, 0.75], batch_size=64)  # at the first one's compute
    run(tmp_path, "greedy", [0.8, 0.8, 0.8], batch_size=16, flops=(50, 1))  # equal at 500
    best = fronts(table_of(tmp_path), "sequential")
    found = best[["sequential", "loss", "model.width", "batch_size"]].to_numpy().tolist()
    assert [row[:2] for row in found] == [[250, 1.0], [500, 0.8], [1000, 0.7], [2000, 0.4]]
    assert found[3][2:] == [128, 32] and found[0][2:] == [64, 32]


def test_fronts_are_by_variant_and_by_compute(crossing):
    table = table_of(crossing)
    run(crossing, "chunked", [2.0, 1.9, 1.9, 2.0, 1.8])
    with_bad = table_of(crossing)
    for compute in ("sequential", "total"):
        one, other = fronts(table, compute), fronts(with_bad, compute)
        same = other[other["strategy.variant"] != "chunked"]
        np.testing.assert_array_equal(one[[compute, "loss"]], same[[compute, "loss"]])
        chunked = other[other["strategy.variant"] == "chunked"]
        assert chunked["step"].tolist() == [10, 20, 160]


def test_the_crossover_is_found(crossing):
    first, second = regions(table_of(crossing), "sequential")
    assert (first["winner"], first["from"], first["to"]) == ("greedy", 1000, 2000)
    assert (second["winner"], second["from"], second["to"]) == ("backprop", 2000, 4000)
    # 1.0 - 0.8, and 0.55 - 0.1, rounded. The seeds are 0.95 and 0.85 at the closest, then one.
    assert first["by"] == pytest.approx(0.2) and second["by"] == pytest.approx(0.45)
    assert first["clear"] and second["clear"]
    # Greedy has more to do in total: from its first point at 1300 on it is never ahead.
    (only,) = regions(table_of(crossing), "total")
    assert (only["winner"], only["from"], only["to"]) == ("backprop", 1300, 4000)


def test_budgets_and_what_is_won_by(crossing):
    table = table_of(crossing)
    grid = budgets(table, "sequential")
    assert grid[0] == 1000 and grid[-1] == 4000  # where backprop begins and both end
    np.testing.assert_allclose(grid[1:] / grid[:-1], 4 ** (1 / 15))  # rounding
    compared = compare(table, "sequential", np.array([500, 1000, 1999, 2000, 4000, 4001]))
    # At 500 there is no backprop yet, beyond 4000 nobody knows.
    assert compared["budget"].tolist() == [1000, 1999, 2000, 4000]
    assert compared["backprop"].tolist() == [1.0, 1.0, 0.5, 0.1]
    assert compared["greedy"].tolist() == [0.8, 0.8, 0.6, 0.55]
    assert compared["winner"].tolist() == ["greedy", "greedy", "backprop", "backprop"]
    assert compared["rival"].tolist() == ["backprop", "backprop", "greedy", "greedy"]
    # Seeds at 2000: backprop 0.45 to 0.55, greedy 0.45 to 0.75. Rounding of differences.
    third = compared.iloc[2][["by", "least", "most"]].to_numpy(float)
    np.testing.assert_allclose(third, [0.1, 0.45 - 0.55, 0.75 - 0.45])


def test_a_win_that_seeds_do_not_agree_on_is_not_clear(tmp_path):
    for seed, loss in enumerate((0.5, 0.7, 0.9)):
        run(tmp_path, "backprop", [loss + 0.1], seed)
        run(tmp_path, "greedy", [loss], seed, flops=FLOPS["backprop"])
    (only,) = regions(table_of(tmp_path), "sequential")
    assert only["winner"] == "greedy" and not only["clear"]
    assert only["from"] == only["to"] == 1000


def test_a_tie_is_backprops_and_the_best_local_variant_is_its_rival(tmp_path):
    same = {"flops": FLOPS["backprop"]}
    run(tmp_path, "greedy", [0.5, 0.6], **same)
    run(tmp_path, "overlapping", [0.5, 0.4], **same)
    run(tmp_path, "backprop", [0.5, 0.3], **same)
    compared = compare(table_of(tmp_path), "sequential", np.array([1000, 2000]))
    assert compared["winner"].tolist() == ["backprop", "backprop"]
    assert compared["by"].tolist() == [0.0, pytest.approx(0.1)]  # rounding
    assert compared["rival"].iloc[1] == "overlapping"
    # What greedy has reached with less compute, it has with more.
    assert compared["greedy"].tolist() == [0.5, 0.5]


def test_variants_that_share_no_compute(tmp_path, capsys):
    run(tmp_path, "greedy", [0.5], flops=(1, 100))
    run(tmp_path, "backprop", [0.5])
    table = table_of(tmp_path)
    assert not budgets(table, "sequential").size and regions(table, "sequential") == []
    assert main([f"--workdir={tmp_path}"]) == 0
    assert "No sequential compute that both backprop and a local" in capsys.readouterr().out


def test_the_command_writes_what_it_prints(crossing, capsys):
    run(crossing, "chunked", [2.0, 1.9, None], status="diverged")
    assert main([f"--workdir={crossing}"]) == 0
    printed = capsys.readouterr().out
    assert "1000 to 2000 sequential FLOPs: greedy, by up to 0.2; all seeds agree" in printed
    assert "2000 to 4000 sequential FLOPs: backprop, by up to 0.45" in printed
    assert "1000 to 4000 total FLOPs: backprop" in printed  # against chunked first

    written = pd.read_csv(crossing / "pareto.csv")
    best = written[(written["compute"] == "sequential") & (written["strategy.variant"] == "greedy")]
    assert best["sequential"].tolist() == [250, 500, 1000, 2000, 4000]
    assert {"batch_size", "model.width", "step", "low", "high", "seeds"} <= set(written)
    assert "seed" not in written

    def refuse(constant):
        raise AssertionError(constant)  # NaN and Infinity are not JSON

    answer = json.loads((crossing / "pareto.json").read_text(), parse_constant=refuse)
    assert answer["sequential"]["regions"] == regions(table_of(crossing), "sequential")
    at_last = answer["sequential"]["budgets"][-1]
    assert (at_last["backprop"], at_last["chunked"]) == (0.1, None)  # chunked ended before

    files = [crossing / f"pareto-{compute}.svg" for compute in ("sequential", "total")]
    before = [file.read_bytes() for file in files]
    for text, name in zip(before, ("sequential", "total"), strict=True):
        assert ElementTree.fromstring(text).tag.endswith("svg")
        for label in (f"{name} FLOPs", "backprop", "greedy", "chunked", "training loss"):
            assert f"<!-- {label} -->".encode() in text
    capsys.readouterr()
    assert main([f"--workdir={crossing}", "--json"]) == 0
    assert [file.read_bytes() for file in files] == before
    assert json.loads(capsys.readouterr().out) == answer


def lacking(folder: Path, file: str, key: str, value=None) -> None:
    held = json.loads((folder / file).read_text())
    inner = held
    *path, last = key.split(".")
    for part in path:
        inner = inner[part]
    inner[last] = value
    (folder / file).write_text(json.dumps(held))


@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        (
            "summary.json",
            "total_flops",
            None,
            "summary.json of run greedy-32-64-0 has no total_",
        ),
        ("summary.json", "sequential_flops", 0, "of run greedy-32-64-0 has no sequential_flops"),
        ("summary.json", "status", "interrupted", "run greedy-32-64-0 is interrupted, must be"),
        (
            "config.json",
            "strategy.variant",
            "lazy",
            "strategy.variant = 'lazy', must be one of",
        ),
        ("config.json", "strategy.variant", "backprop", "has those of backprop"),
    ],
)
def test_sweeps_that_it_cannot_use(tmp_path, capsys, file, key, value, message):
    run(tmp_path, "backprop", [1.0])
    lacking(run(tmp_path, "greedy", [1.0]), file, key, value)
    assert main([f"--workdir={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path}: ") and message in said
    assert said.count("\n") == 1
    assert list(tmp_path.glob("pareto*")) == []


def test_sweeps_without_local_learning(tmp_path, capsys):
    assert main([f"--workdir={tmp_path}"]) == 2
    assert "no run in it" in capsys.readouterr().err
    lacking(run(tmp_path, "backprop", [1.0]), "config.json", "strategy.name", "sync")
    assert main([f"--workdir={tmp_path}"]) == 2
    assert "no run of local learning in it" in capsys.readouterr().err
    run(tmp_path, "greedy", [None], status="diverged")
    assert main([f"--workdir={tmp_path}"]) == 2
    assert "of a local variant, has those of none" in capsys.readouterr().err
