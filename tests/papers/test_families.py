"""The study of families: arms that run, and what its words mean."""

import numpy as np
import pytest

from optdyn.configs import families
from optdyn.configs.families import FAMILIES, LOSSES, RULES, alike, arm, parameters, table, word
from optdyn.evidence.arms import point
from optdyn.training.checks import check


@pytest.mark.parametrize("name", RULES)
def test_every_rule_can_run_where_its_search_starts(name):
    made = arm(name)
    check(made.config.with_(point(made, tuple(made.start[key] for key in made.ladders))))


def test_every_rule_is_of_one_family():
    assert sorted(name for _, names in FAMILIES.values() for name in names) == sorted(RULES)


def test_bytes_of_the_parameters_are_those_of_the_network():
    """784 x 32 and 32 x 10 weights and their biases, of 4 bytes."""
    assert parameters(families.config_of("synchronous")) == 4 * (784 * 32 + 32 + 32 * 10 + 10)


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        ((0.9, 1.1), "alike"),
        ((1.02, 1.2), "alike"),  # more, but no more than is meant by alike
        ((0.7, 1.1), "no difference seen"),
        ((1.1, 1.3), "more"),
        ((0.7, 0.9), "less"),
    ],
)
def test_an_interval_inside_the_bounds_says_alike(interval, said):
    assert word((1.0, *interval)) == said


def rows(**factors):
    own = np.linspace(95.0, 105.0, 20)
    return [
        {
            "rule": name,
            "updates": {
                f"{loss:g}": (f * own).tolist() for loss, f in zip(LOSSES, by, strict=True)
            },
            "bytes": 100.0,
            "staleness": 0.0,
            "stalest": 0,
        }
        for name, by in factors.items()
    ]


def test_alike_to_every_loss_is_more_than_to_the_last():
    made = rows(a=(1, 1, 1), b=(1, 1.1, 0.9), c=(2, 1, 1))
    assert alike(made, LOSSES) == [("a", "b")]
    assert alike(made, LOSSES[-1:]) == [("a", "b"), ("a", "c"), ("b", "c")]


def test_the_table_compares_with_both():
    made = rows(synchronous=(1, 1, 1), DiLoCo=(1, 1, 1), late=(2, 2, 2))
    every = {
        other: {f"{loss:g}": families.against(made, other, loss) for loss in LOSSES}
        for other in (families.DILOCO, families.PLAIN)
    }
    said = table({"rows": made, "against": every, "alike": {"every loss": alike(made, LOSSES)}})
    assert "| late | 2 [2, 2] more | 2 [2, 2] more |" in said
    assert "| DiLoCo | 1 | 1 [1, 1] alike |" in said
    assert said.endswith("Alike, every loss: synchronous and DiLoCo.")
