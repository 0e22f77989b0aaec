"""The claim's rule, on results that are made up."""

import math

import pytest

from optdyn.configs.papers.predicted_penalty import factor
from optdyn.configs.papers.when_asynchrony_pays import Cell, cells, errors, verdict


def result(ratios, interior=True):
    """Cells of the CNN whose prediction is these multiples of a penalty of 3; one right MLP."""
    made = [("cnn", 3 * ratio) for ratio in ratios] + [("mlp", 3.0)]
    return {
        "cells": [
            {"model": m, "penalty": (3.0, 2.0, 4.0), "predicted": p, "interior": interior}
            for m, p in made
        ]
    }


def test_error_factors_are_symmetric():
    assert errors(result([2, 0.5, 1]), "cnn") == pytest.approx([2, 2, 1])


@pytest.mark.parametrize(
    ("ratios", "interior", "word"),
    [
        ([1.2, 1 / 1.2, 9.0], True, "confirmed"),
        ([1.2, 1 / 1.2, 1.0], False, "open"),
        ([1.3, 1 / 1.4, 1.0], True, "open"),
        ([1.6, 1 / 1.6, 1.0], True, "refuted"),
    ],
)
def test_rule(ratios, interior, word):
    assert verdict(result(ratios, interior)).word == word


def test_a_miss_is_an_infinite_error():
    missed = result([1.0, 1.0])
    missed["cells"][0]["penalty"] = (math.inf, 2.0, math.inf)
    assert errors(missed, "cnn")[0] == math.inf


@pytest.mark.parametrize("scale", ["small", "full"])
def test_cells_are_of_both_networks_and_of_several_groups(scale):
    every = cells(scale)
    assert {cell.model for cell in every} == {"mlp", "cnn"}
    assert all(isinstance(cell, Cell) and cell.groups > 1 for cell in every)
    assert len(set(every)) == len(every)


def test_the_median_error_factor_is_that_of_medians_over_seeds():
    """By hand: 20 / 10 updates where 3 is predicted, 30 / 10 where 2 is, 40 / 10 where 4 is."""
    rows = [
        {"batch": b, "updates": [u, u, u], "predicted": p}
        for b, u, p in ((4, 20.0, 3.0), (64, 30.0, 2.0), (64, 40.0, 4.0))
    ]
    alone = {4: [9.0, 10.0, 11.0], 64: [10.0, 10.0, 10.0]}
    middle, low, high = factor(rows, alone)
    assert middle == pytest.approx(1.5)  # of 1.5, 1.5 and 1
    # Where only the seed of 9 is drawn the first is 3 x 9 / 20; of 11, 1.65, and 1.5 is the median.
    assert (low, high) == pytest.approx((1.35, 1.5))
