"""Claim 61: it asks first what claim 43 asked, its predictions by hand, and its rule."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from optdyn.configs import contest, slow_network
from optdyn.configs.papers import contest_text_networks as networks
from optdyn.configs.slow_network import ARMS, SLOW, TEXT
from optdyn.evidence import raw
from optdyn.evidence.arms import at
from optdyn.evidence.study import Job, Study
from optdyn.launch import papers
from optdyn.tuning import who_pays

RECORDS = Path(__file__).parents[1] / "benchmarks/records"
LIKE = who_pays.NOISE * 16 / who_pays.BATCH  # with a usual batch of 16 the MLP's rho's


def test_it_asks_first_what_claim_43_asked_on_the_same_seeds(tmp_path):
    made, before = networks.of_networks(), slow_network.of_smaller(TEXT)
    assert (made.opponents, made.entries) == (before.opponents, before.entries)
    assert list(made.networks) == ["0.1 Gb/s", "0.3 Gb/s", "1 Gb/s", "10 Gb/s"]
    assert made.networks[SLOW] == before.networks[SLOW] and made.family == 2 * 4
    for name, seconds in contest.NETWORKS.items():  # of the same bytes
        assert made.networks[name] * seconds == pytest.approx(made.networks[SLOW] * 20, rel=1e-12)
    old = papers.study_of(tmp_path, "full", 41, "contest_text")
    new = papers.study_of(tmp_path, "full", 41, "contest_text_networks")
    assert (old.choose, old.report) == (new.choose, new.report)


def test_trials_of_claim_43_are_found(tmp_path, monkeypatch):
    """What it chose on the slowest network, on one seed that reports: nothing trains again.

    A study refuses trials of other code than there is, here of the file that has text's Adam.
    """

    def refuse(_):
        raise AssertionError("contest_text.parquet lacks a trial, or has it of another race.py")

    record = json.loads((RECORDS / "papers_decided.json").read_text())["claims"]["contest_text"]
    seed = record["seeds"]["report"][0]
    table = pq.read_table(RECORDS / "contest_text.parquet")
    is_of = [
        config is not None and f'"seed": {seed}' in config for config in table["config"].to_pylist()
    ]
    pq.write_table(table.filter(is_of), tmp_path / "one_seed.parquet")
    raw.unpack(tmp_path / "one_seed.parquet", tmp_path)
    made, others = networks.of_networks(), record["result"]["opponents"][SLOW]["8 x 1"]["every"]
    chose = {each["arm"]: each for each in others}
    chose |= {row["arm"]: row["networks"][SLOW] for row in record["result"]["rows"]}
    configs = [
        at(entry.arm.config, {**chose[name]["chosen"], **chose[name]["point"]}, seed)
        for name, entry in {**made.opponents, **made.entries}.items()
    ]
    monkeypatch.setattr(Study, "_executor", refuse)
    with Study(tmp_path, "full", (), (seed,)) as study:
        curves = study.trials([Job(config, TEXT.losses[-1]) for config in configs])
    assert [curve.status for curve in curves] == ["reached"] * 4


def test_a_noise_scale_that_makes_the_perceptrons_rho_predicts_the_perceptron():
    """B / 16 as there 187 / 64: what was seen of the MLP, over the better of two opponents."""
    found = networks.predicted(LIKE)
    for i, network in enumerate(contest.NETWORKS):
        for arm in ARMS:
            seen = who_pays.SEEN[arm][i] / min(1, who_pays.SEEN[who_pays.OUTER][i])
            cell = found[arm, network]
            assert cell["rho"] == pytest.approx(who_pays.KNOWN[i], rel=1e-12)
            assert cell["predicted"] == pytest.approx(seen, rel=1e-9) == cell["copied"]


def test_with_a_larger_noise_scale_the_boundary_is_at_a_slower_network():
    """rho 0.68 at 1 Gb/s: only DiLoCo is near 1 there. A fourth of it is beside the fast end."""
    near, far = networks.predicted(LIKE), networks.predicted(4 * LIKE)
    assert near["top-k", "0.3 Gb/s"]["predicted"] < 0.7 < 1 < near["top-k", "1 Gb/s"]["predicted"]
    assert far["top-k", "0.3 Gb/s"]["rho"] == near["top-k", "0.3 Gb/s"]["rho"] / 4
    assert far["top-k", "0.3 Gb/s"]["predicted"] > 1


def made_up(new, seen=(0.3, 0.3)):
    """A result: of every cell (what is predicted, what is measured), with narrow intervals."""
    where = [n for n in contest.NETWORKS if n != SLOW]
    places = [(arm, network) for network in where for arm in ARMS][: len(new)]
    cells = [
        {
            "arm": arm,
            "network": network,
            "rho": 0.1 + i,
            "predicted": predicted,
            "copied": 1 / predicted,
            "measured": [ratio, ratio - 0.05, ratio + 0.05],
        }
        for i, ((arm, network), (predicted, ratio)) in enumerate(zip(places, new, strict=True))
    ]
    cells += [
        dict(cells[0], arm=arm, network=SLOW, predicted=0.4, measured=[s, s - 0.01, s + 0.01])
        for arm, s in zip(ARMS, seen, strict=True)
    ]
    own = {"arm": "top-k", "shape": "8 x 1", "cost": 1.0, "over at best": [0.5, 0.4, 0.6]}
    others = {"8 x 1": {"best": "synchronous"}}
    return {
        "cells": cells,
        "noise": 20.0,
        "rows": [{"arm": "top-k", "networks": {"0.3 Gb/s": own}}],
        "opponents": {"0.3 Gb/s": others},
    }


RIGHT, WRONG, EVEN = (0.5, 0.7), (0.5, 1.3), (0.5, 1.0)


@pytest.mark.parametrize(
    ("cells", "word"),
    [
        ([RIGHT] * 6, "confirmed"),
        ([RIGHT] * 5 + [WRONG], "confirmed"),  # 0.83
        ([RIGHT] * 4 + [WRONG, EVEN], "confirmed"),  # 0.8 of five is enough
        ([RIGHT] * 4 + [WRONG] * 2, "refuted"),  # 0.67
        ([WRONG] * 6, "refuted"),
        ([RIGHT] * 4 + [EVEN] * 2, "open"),  # four differ
        ([EVEN] * 6, "open"),
    ],
)
def test_the_rule(cells, word):
    found = networks.verdict(made_up(cells))
    assert found.word == word
    n, good = sum(c is not EVEN for c in cells), sum(c is RIGHT for c in cells)
    assert found.by.startswith(f"{good} of {n} cells that differ are predicted right [")
    assert f"had been seen {good + 2} of {n + 2}" in found.by
    assert "at 0.3 Gb/s top-k takes 0.5 [0.4, 0.6] of the seconds of synchronous" in found.by


def test_cells_that_had_been_seen_do_not_decide():
    """Two wrong ones there would make 5 of 8."""
    found = networks.verdict(made_up([RIGHT] * 5 + [WRONG], seen=(1.5, 1.5)))
    assert found.word == "confirmed" and "had been seen 5 of 8" in found.by


def test_the_picture_has_every_cell():
    figure = Figure()
    networks.picture(made_up([RIGHT] * 6), figure)
    (axes,) = figure.axes
    drawn = [bars.lines[0].get_xdata() for bars in axes.containers]
    assert [len(x) for x in drawn] == [4, 4]
