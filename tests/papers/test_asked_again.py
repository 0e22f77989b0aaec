"""Claims 30 to 38: older ones as one estimate against one bound, on results that are made up."""

import numpy as np
import pytest

from optdyn.configs.papers import (
    automatic_speedup,
    automatic_speedup_again,
    daso_saves,
    delay_and_muon,
    groups_between,
    local_generalizes,
    momentum_falls,
    momentum_falls_again,
    negative_momentum,
    predicted_groups,
    steering_helps,
)
from optdyn.configs.papers import best_momentum as momenta
from optdyn.configs.papers import daso as of_daso
from optdyn.configs.papers import one_step_delay as delay
from optdyn.configs.papers import steered_momentum as steered
from optdyn.evidence.claim import above, again
from optdyn.evidence.intervals import mean_ratio, ratio

OWN = np.linspace(90.0, 110.0, 20)  # of 20 seeds, the same in all arms
LESS, SAME, MORE = (OWN * f for f in (0.5, 1.0, 2.0))
LATE = OWN * np.linspace(0.5, 2.0, 20)[::-1]  # by a factor that differs from seed to seed


def test_a_mean_of_ratios_is_geometric():
    assert mean_ratio([OWN, 4 * OWN], [OWN, OWN]) == pytest.approx([2.0] * 3)


def test_the_mean_of_one_ratio_has_its_interval():
    """Of the same draws: `ratio` draws 4,000 times 20 seeds, too, from the same generator."""
    found, other = mean_ratio([LATE], [OWN]), ratio(LATE.tolist(), OWN.tolist())
    assert found == pytest.approx(other)


def test_a_run_that_missed_makes_the_mean_infinite():
    assert mean_ratio([OWN, np.full(20, np.inf)], [OWN, OWN])[0] == np.inf


@pytest.mark.parametrize(
    ("found", "word"),
    [((2.0, 1.5, 3.0), "confirmed"), ((2.0, 0.5, 3.0), "open"), ((0.5, 0.2, 0.9), "refuted")],
)
def test_above(found, word):
    assert above(found, 1.0) == word


@pytest.mark.parametrize(
    ("more", "before"),
    [(momentum_falls_again, momentum_falls), (automatic_speedup_again, automatic_speedup)],
)
def test_only_the_number_of_seeds_is_asked_anew(more, before):
    for scale, (choose, report) in more.SEEDS.items():
        assert choose == before.SEEDS[scale][0]
        assert f"the seeds that report, {report}, drawn" in more.CLAIM.rule
        old = more.CLAIM.rule.replace(f"report, {report},", "report, 20,")
        assert old == before.CLAIM.rule and more.verdict is before.verdict
    with pytest.raises(ValueError, match="does not say"):
        again(more.CLAIM, 99, reporting=7)


def momentum_result(kept, negative):
    """Updates with 16 groups: about 100 with no momentum, or with all but one group's and -0.6."""
    found = {name: {"best": [0.8, -0.3, -0.6], "below": -0.3} for name in momenta.TARGETS}
    factors = {0.8: kept, -0.6: SAME, -0.3: negative, 0.0: SAME}
    rows = [
        {"problem": name, "groups": 16, "momentum": momentum, "updates": list(updates)}
        for name in found
        for momentum, updates in factors.items()
    ]
    return {"rows": rows, "found": found}


@pytest.mark.parametrize(
    ("kept", "word"), [(MORE, "confirmed"), (SAME, "refuted"), (LATE, "open"), (LESS, "refuted")]
)
def test_keeping_the_momentum_of_one_group(kept, word):
    assert momentum_falls.verdict(momentum_result(kept, SAME)).word == word


@pytest.mark.parametrize(
    ("negative", "word"), [(LESS, "confirmed"), (LATE, "open"), (MORE, "refuted")]
)
def test_momentum_below_zero(negative, word):
    assert negative_momentum.verdict(momentum_result(SAME, negative)).word == word


def cell(picked, seconds, best=4):
    return {
        "cluster": "slow",
        "batch": 4,
        "picked": picked,
        "best": best,
        "seconds": {g: list(values) for g, values in seconds.items()},
        "chosen_by": {g: float(np.median(values)) for g, values in seconds.items()},
        "interior": dict.fromkeys(seconds, True),
        "picked over best": [float(np.median(seconds[str(picked)]) / 100)],
    }


@pytest.mark.parametrize(
    ("between", "word"), [(LESS, "confirmed"), (LATE, "open"), (1.5 * OWN, "refuted")]
)
def test_groups_between_are_held_against_the_better_end(between, word):
    """One group is twice as slow as 16."""
    result = {"rows": [cell(4, {"1": MORE, "4": between, "16": SAME})]}
    assert groups_between.verdict(result).word == word


def test_no_cell_between_decides_nothing():
    result = {"rows": [cell(16, {"1": MORE, "4": LESS, "16": SAME})]}
    assert groups_between.verdict(result).word == "open"


@pytest.mark.parametrize(
    ("picked", "word"), [(SAME, "confirmed"), (1.05 * OWN, "confirmed"), (MORE, "refuted")]
)
def test_the_predicted_number_of_groups(picked, word):
    result = {"rows": [cell(8, {"1": MORE, "4": SAME, "8": picked, "16": MORE})]}
    assert predicted_groups.verdict(result).word == word


@pytest.mark.parametrize(
    ("authors", "word"),
    [
        ([2.5, 2.0, 3.0], "confirmed"),
        ([2.0, 1.5, 3.0], "open"),
        ([1.0, 0.5, 1.5], "refuted"),
    ],
)
def test_the_authors_mode_decides(authors, word):
    each = {"predictive": [9.0, 8.0, 10.0], "omnivore": authors, "synchronous": [1.0]}
    result = {"can win": each, "cannot": each}
    assert automatic_speedup.verdict(result).word == word


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ([0.6, 0.5, 0.65], "confirmed"),
        ([0.6, 0.5, 0.7], "open"),
        ([0.8, 0.7, 0.9], "refuted"),
    ],
)
def test_what_daso_saves_is_of_the_slowest_network(found, word):
    losses = {str(loss): [1.0, 1.0, 1.0] for loss in of_daso.LOSSES}
    networks = [{"equal_epochs": [1.0, 1.0, 1.0], "to_loss": losses} for _ in of_daso.NETWORKS]
    networks[-1] = networks[-1] | {"to_loss": losses | {str(of_daso.LOSSES[-1]): found}}
    result = {
        "networks": networks,
        "tuned": {"sync": {"interior": True}, "daso": {"interior": True}},
        "accuracy_ratio": [1.0, 1.0, 1.0],
        "accuracy": {"daso": [0.9]},
    }
    assert daso_saves.verdict(result).word == word


@pytest.mark.parametrize(("own", "word"), [(MORE, "confirmed"), (LATE, "open"), (LESS, "refuted")])
def test_generalization(own, word):
    test = {"backprop": list(OWN), "overlapping": list(own), "greedy": list(own)}
    over = {v: ratio(own.tolist(), OWN.tolist()) for v in ("overlapping", "greedy")}
    result = {"test_loss": test, "test_over_backprop": over}
    assert local_generalizes.verdict(result).word == word


@pytest.mark.parametrize(("own", "word"), [(LESS, "confirmed"), (LATE, "open"), (MORE, "refuted")])
def test_steering(own, word):
    rows = [
        {"problem": p, "arm": arm, "updates": list(own if arm == "steered" else OWN)}
        | {"interior": True}
        for p in steered.TARGETS
        for arm in steered.ARMS
    ]
    result = {"rows": rows, "found": {p: {"total": 0.9} for p in steered.TARGETS}}
    assert steering_helps.verdict(result).word == word


@pytest.mark.parametrize(
    ("adamw", "word", "times"),
    [(4.0, "confirmed", 2.0), (2.0, "open", 1.0), (1.0, "refuted", 0.5)],
)
def test_adamw_over_muon(adamw, word, times):
    """Muon takes twice its updates with delay; AdamW `adamw` times, with 2 % of noise."""
    noise = np.random.default_rng(0).normal(1.0, 0.02, (2, 20))
    last = str(delay.TARGETS[-1])
    rows = [
        {
            "optimizer": name,
            "batch_size": batch,
            "updates": [{last: list(OWN)}, {last: list(OWN * factor * its)}],
            "interior": True,
        }
        for batch in delay.BATCHES
        for name, factor, its in (("adamw", adamw, noise[0]), ("muon", 2.0, noise[1]))
    ]
    found = delay_and_muon.verdict({"rows": rows})
    assert found.word == word
    assert float(found.by.split()[0]) == pytest.approx(times, rel=0.02)
