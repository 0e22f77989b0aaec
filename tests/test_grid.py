"""Grids: their points, in order and not before they are asked for, and what is no grid."""

import importlib
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.experiment import Config, ConfigError
from optdyn.train.grid import (
    MOST,
    Grid,
    Points,
    log_range,
    named,
    point_name,
    product,
    resolve,
    seeds,
)

AXES = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(), min_size=1, max_size=3), min_size=1
)


@given(AXES)
def test_a_product_is_every_combination_the_last_axis_first(axes):
    points = product(axes)
    assert list(points) == [
        dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
    ]
    assert points.count == math.prod(map(len, axes.values()))
    assert list(points) == list(points)  # as often as they are asked for


@given(AXES)
def test_products_of_products(axes):
    """A product of sets of points is the product of their axes."""
    parts = [{key: values} for key, values in axes.items()]
    assert list(product(*map(product, parts))) == list(product(axes)) == list(product(*parts))


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 50))
def test_log_ranges_have_equal_ratios(first, last, count):
    values = np.array(log_range(first, last, count))
    assert len(values) == count
    # Each is rounded to six digits, 5e-6 at most; a ratio has two of them.
    np.testing.assert_allclose(values[[0, -1]], (first, last), rtol=5e-6)
    np.testing.assert_allclose(
        values[1:] / values[:-1], (last / first) ** (1 / (count - 1)), rtol=2e-5
    )


def test_seeds():
    assert list(seeds(3)) == [0, 1, 2] and list(seeds(2, first=7)) == [7, 8]


def test_points_are_made_when_they_are_asked_for():
    made = []

    def points():
        for seed in range(MOST):
            made.append(seed)
            yield {"seed": seed}

    config = Grid(Config(), Points(MOST, points))
    every = named(config)
    assert not made
    assert [next(every)[0] for _ in range(3)] == ["seed=0", "seed=1", "seed=2"]
    assert made == [0, 1, 2]


def test_names_are_folders():
    assert point_name({"a.b": 1, "name": "chosen"}) == "chosen"
    assert point_name({}) == "base"
    assert point_name({"model.hidden": (3, 4)}) == "model.hidden=_3,_4_"
    long = [point_name({"model.hidden": tuple(range(n))}) for n in range(50, 60)]
    assert len(set(long)) == 10 and max(map(len, long)) <= 120


BAD = {
    "an unknown key": (
        lambda: [{"optimizer.learnin_rate": 0.1}],
        "learnin_rate=0.1: config.optimizer has no key 'learnin_rate'; did you mean learning_rate?",
    ),
    "an unknown group": (
        lambda: [{"nosuch.key": 1}],
        "point nosuch.key=1: config has no key 'nosuch'",
    ),
    "a key of a number": (lambda: [{"steps.key": 1}], "config.steps has no keys of its own"),
    "another type": (lambda: [{"steps": "many"}], "config.steps = 'many': must be a whole number"),
    "a bad value": (lambda: [{"seed": 0}, {"seed": -1}], "point seed=-1: config.seed = -1: must"),
    "a list": (lambda: [[("seed", 1)]], "is no point: must be a dict of dotted keys"),
    "no points": (lambda: [], "grid: it has no points"),
    "an empty axis": (lambda: product({"seed": []}), "grid: axis seed is empty"),
    "a number as axis": (lambda: product({"seed": 3}), "grid: axis seed = 3: must be a list"),
    "a text as axis": (lambda: product({"seed": "12"}), "grid: axis seed = '12': must be a list"),
    "an axis twice": (
        lambda: product({"seed": [1]}, {"steps": [1], "seed": [2]}),
        "grid: seed is on two axes of a product",
    ),
    "a point twice": (lambda: [{"seed": 1}, {"seed": 1}], "grid: point seed=1 occurs twice"),
    "a point by two names": (
        lambda: [{"seed": 1, "name": "a"}, {"seed": 1, "name": "b"}],
        "grid: points a and b are the same",
    ),
    "a value twice on an axis": (lambda: product({"seed": [1, 1]}), "seed=1 occurs twice"),
    "too many on an axis": (
        lambda: product({"seed": range(10**9)}),
        "grid: 1,000,000,000 points or more; 100,000 is the most",
    ),
    "too many in all": (
        lambda: product({"seed": range(10**5), "steps": range(1, 10**4 + 1)}),
        "grid: 1,000,000,000 points or more; 100,000 is the most",
    ),
    "too many of a generator": (
        lambda: ({"seed": seed} for seed in itertools.count()),
        "grid: 100,001 points or more; 100,000 is the most",
    ),
    "a log range from 0": (lambda: product({"seed": log_range(0, 1, 3)}), "log_range(0, 1, 3)"),
    "too long a log range": (lambda: log_range(1, 2, 10**9), "in 2 to 100,000 numbers"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_grid_is_one_line(what):
    points, expected = BAD[what]
    with pytest.raises(ConfigError) as caught:
        config = Grid(Config(), points())
        for name, point in named(config):
            resolve(config, name, point)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_the_demo_is_a_part_of_the_whole_study():
    """The study goes on from its workdir; no worker has a fraction of an example."""
    module = importlib.import_module("configs.grids.quickstart")
    demo, study = ({p["name"]: p for p in module.get_config(*a).points} for a in (("demo",), ()))
    assert demo.items() <= study.items() and len(demo) == 285
    groups = {(p["batch_size"], p["method.groups"]) for p in demo.values()}
    assert groups == {(batch, g) for batch in (16, 64) for g in (1, 4, 16)}
    workers = module.get_config().base.cluster.nodes
    trained = [p for p in study.values() if "replicas.count" not in p]
    assert all(
        p["batch_size"] % (workers // p["method.groups"]) == 0 for p in trained if "batch_size" in p
    )
    with pytest.raises(ConfigError, match=r"must be one of .demo., or left out"):
        module.get_config("demos")
