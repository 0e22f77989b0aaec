"""The fit of predictors to cells: on cells that one of them predicts exactly."""

import numpy as np
import pytest

from tests.benchmarks.tree_distance import NAMES, Cell, judged


@pytest.mark.parametrize("over_one", [True, False])
def test_who_predicts_exactly_is_found_with_its_constant(over_one):
    rng = np.random.default_rng(0)
    seeds = np.exp(0.05 * rng.normal(size=20))
    cells = []
    for term in (0.5, 1.0, 2.0, 4.0, 8.0):
        taken = (over_one + 2.0 * term) * 100 * seeds  # the same seeds in both sides
        alone = 100 * seeds if over_one else np.ones(20)
        cells.append(Cell(taken, alone, (1.0, rng.lognormal(), term**2, term)))
    found = {row["distance"]: row for row in judged(cells, over_one, draws=50)}
    right, other = found[NAMES[-1]], found[NAMES[2]]
    assert right["spearman"] == other["spearman"] == pytest.approx(1)
    constant = 2.0 if over_one else 200 * np.median(seeds)
    assert right["constant"][0] == pytest.approx(constant, rel=0.012)  # a step of the constants
    assert right["factor"][2] < 1.012
    assert right["largest"] < 1.012 < found["none"]["largest"]
    assert other["factor"][0] > 1.2
    assert other["over"][1] > 1
