"""The rules of the claims about groups and momentum, on results that are made up."""

import math

import pytest
from matplotlib.figure import Figure

from optdyn.configs.papers import (
    best_momentum,
    interior_groups,
    keeping_momentum,
    steered_momentum,
    systems,
)
from optdyn.training.checks import check

LESS, SAME, MORE = (0.7, 0.6, 0.8), (1.0, 0.9, 1.05), (1.5, 1.3, 1.8)
UNSURE = (1.2, 0.9, 1.6)


def momentum(kept, below, best=(0.6, 0.3, -0.3)):
    found = {"best": list(best), "kept": kept, "below": -0.3, "below over 0": below}
    return {"rows": [], "found": dict.fromkeys(best_momentum.TARGETS, found)}


@pytest.mark.parametrize(
    ("result", "word"),
    [
        (momentum(MORE, LESS), "confirmed"),
        (momentum(MORE, UNSURE), "open"),
        (momentum(MORE, LESS, best=(0.3, 0.6, -0.3)), "open"),
        (momentum(SAME, UNSURE), "refuted"),
        (momentum(UNSURE, UNSURE), "open"),
        (momentum(MORE, MORE), "refuted"),
    ],
)
def test_the_best_momentum_falls_and_is_negative(result, word):
    assert best_momentum.verdict(result).word == word


@pytest.mark.parametrize(
    ("ratios", "word"), [((MORE, MORE), "confirmed"), ((MORE, SAME), "open"), ((SAME,), "refuted")]
)
def test_a_kept_momentum_costs_everywhere_somewhere_or_nowhere(ratios, word):
    rows = [
        {
            "network": "mlp",
            "batch": 8,
            "loss": "0.25",
            "kept over tuned": found,
            "kept over one group": MORE,
            "tuned over one group": MORE,
        }
        for found in ratios
    ]
    result = {"rows": [], "ratios": [*rows, {**rows[0], "loss": "1.0", "kept over tuned": LESS}]}
    assert keeping_momentum.verdict(result).word == word
    figure = Figure()
    keeping_momentum.picture(result, figure)
    assert len(figure.axes) == 1


def steering(total, kept, yellowfin, early=True):
    over = {"tuned": SAME, "0 kept": SAME, "0.9 kept": kept, "YellowFin": yellowfin}
    totals = [] if total is None else [total, total]
    return {"total": total, "totals": totals, "over": over, "early": early, "interior": True}


@pytest.mark.parametrize(
    ("mlp", "quadratic", "word"),
    [
        (steering(0.91, LESS, LESS), steering(0.88, LESS, LESS), "confirmed"),
        (steering(0.91, LESS, LESS), steering(0.80, LESS, LESS), "open"),
        (steering(0.91, LESS, LESS, early=False), steering(0.9, LESS, LESS), "open"),
        (steering(0.91, LESS, UNSURE), steering(0.90, LESS, LESS), "open"),
        (steering(0.99, LESS, LESS), steering(0.90, LESS, MORE), "refuted"),
        (steering(None, LESS, LESS), steering(0.90, LESS, LESS), "open"),
    ],
)
def test_steering_has_to_reach_its_total_and_to_be_faster(mlp, quadratic, word):
    result = {"rows": [], "found": {"mlp": mlp, "quadratic": quadratic}}
    assert steered_momentum.verdict(result).word == word
    figure = Figure()
    steered_momentum.picture(result, figure)
    assert len(figure.axes) == 1


def cell(best, over_one, over_all, regret=1.0):
    return {
        "cluster": "slow network",
        "batch": 4,
        "best": best,
        "picked": best,
        "best over 1": over_one,
        "best over 16": over_all,
        "picked over best": (regret, regret, regret),
    }


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([cell(4, LESS, LESS), cell(16, LESS, SAME)], "confirmed"),
        ([cell(4, LESS, LESS, regret=1.5)], "open"),
        ([cell(4, LESS, UNSURE)], "open"),
        ([cell(4, LESS, MORE)], "refuted"),
        ([cell(1, SAME, LESS), cell(16, LESS, SAME)], "refuted"),
    ],
)
def test_a_number_between_one_and_all_is_best(rows, word):
    assert interior_groups.verdict({"rows": rows}).word == word


@pytest.mark.parametrize(
    ("named", "over", "word"),
    [
        ((False, False), LESS, "confirmed"),
        ((True, False), LESS, "open"),
        ((True, True), LESS, "refuted"),
        ((False, False), UNSURE, "refuted"),
    ],
)
def test_no_named_system_is_as_fast_as_the_chosen_setting(named, over, word):
    clusters = {
        cluster: {
            "rows": [],
            "chosen": "4 groups, merged",
            "named": is_named,
            "over": {"synchronous all-reduce": over, "4 groups": (math.inf,) * 3},
        }
        for cluster, is_named in zip(systems.CLUSTERS, named, strict=True)
    }
    assert systems.verdict({"clusters": clusters}).word == word


def test_every_setting_of_the_space_can_run():
    for cluster in systems.CLUSTERS:
        for setting in systems.settings(cluster, "full").values():
            check(systems.config_of(cluster, setting))
    for cluster in interior_groups.CLUSTERS:
        check(interior_groups.config_of(cluster, 4, 8))
