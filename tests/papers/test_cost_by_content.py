"""Costs that go with the content: the clock, who is dropped, the rule, and the words."""

from itertools import product
from math import comb

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from optdyn.config import usual
from optdyn.configs import cost_by_content as study
from optdyn.configs.cost_by_content import (
    CELLS,
    EXAMPLES,
    LOOKS,
    REPORT,
    TARGET,
    WAYS,
    WORKERS,
    Cell,
    at_target,
    draws,
    images,
    init,
    judgement,
    line,
    losses,
    trained,
)
from optdyn.setup import Cluster

METHODS = {
    "all": {"name": "sync"},
    "4 fastest": {"name": "buffered", "arrivals": 4, "waiting": "k_sync"},
    "4 gradients": {"name": "buffered", "arrivals": 4, "waiting": "k_batch_sync"},
    "16 gradients": {"name": "buffered", "arrivals": 16, "waiting": "k_batch_sync"},
    "asynchronous": {"name": "asynchronous"},
    "Ringmaster, R = 8": {"name": "ringmaster", "delay_bound": 8},
}


@pytest.mark.parametrize("name", METHODS)
def test_where_all_cost_the_same_it_is_the_packages_clock(name):
    """Constant times of a second for a gradient, whichever worker takes it."""
    way, steps = WAYS[name], 40
    keys = {f"strategy.{key}": value for key, value in METHODS[name].items()}
    grouped = {} if name == "all" else {"strategy.groups": WORKERS}
    config = usual().with_(
        {**keys, **grouped},
        cluster=Cluster(nodes=WORKERS, service="constant", seconds_per_example=1 / EXAMPLES),
        batch_size=EXAMPLES * way.gradients,
        steps=steps,
    )
    theirs = config.timeline(steps_per_epoch=steps, update_bytes=0)
    own = line(way, np.ones(5000), 100.0)
    np.testing.assert_array_equal(own.seconds[:steps], theirs.seconds)  # whole seconds
    stale = theirs.staleness.reshape(steps, -1).max(axis=1)
    np.testing.assert_array_equal(own.staleness[:steps], stale)


@pytest.mark.parametrize("name", ["all", "asynchronous"])
def test_who_drops_nothing_learns_from_all_that_is_begun(name):
    """Of the draws, in order, but for what is under way at the end: a gradient a worker."""
    data = images(CELLS["c = 4"])[0]
    _, takes = draws(CELLS["c = 4"], data, 0)
    used = np.sort(line(WAYS[name], takes, 200.0).drawn.ravel())
    missing = set(range(used[-1] + 1)) - set(used.tolist())
    assert len(set(used.tolist())) == len(used)
    assert len(missing) < WORKERS


@pytest.mark.parametrize("m", [2, 4, 6])
def test_of_sorted_images_without_noise_the_fastest_are_heavy_where_too_few_are_light(m):
    """Exactly: max(m - L, 0) of m where L of 8 fair coins are light."""
    rng = np.random.default_rng(0)
    takes = np.where(rng.random(200_000) < 0.5, 1.0, 4.0)
    found = (takes[line(WAYS[f"{m} fastest"], takes, 20_000.0).drawn] > 1).mean()
    wanted = sum(comb(8, k) / 2**8 * max(m - k, 0) / m for k in range(9))
    assert found == pytest.approx(wanted, abs=0.006)  # 4 deviations of 5,000 updates or more


def test_waiting_drops_what_takes_long_in_the_order_of_seconds():
    """An update of the m fastest takes what the m-th of its eight draws takes."""
    takes = np.random.default_rng(0).lognormal(size=800)
    own = line(WAYS["4 fastest"], takes, 40.0)
    each = np.sort(takes[: 8 * len(own.seconds)].reshape(-1, 8), axis=1)
    np.testing.assert_allclose(np.diff(own.seconds, prepend=0), each[:, 3], rtol=1e-9)


@pytest.mark.parametrize("cell", CELLS)
def test_a_gradient_takes_a_second_in_the_mean_and_halves_are_as_large_as_in_the_data(cell):
    data = images(CELLS[cell])[0]
    drawn, takes = draws(CELLS[cell], data, 0)
    assert takes.mean() == pytest.approx(1, abs=0.025)  # 11,520 of a deviation of 0.7 at most
    heavy = data.heavy[drawn]
    assert heavy.mean() == pytest.approx(data.heavy.mean(), abs=0.02)  # 4 deviations if sorted
    assert (heavy.mean(axis=1) % 1 == 0).all() == CELLS[cell].sorted


@pytest.mark.parametrize(("slots", "stale"), [(1, (0, 0, 0)), (4, (0, 1, 2))])
def test_a_run_is_sgd_with_momentum_at_the_versions_that_were_read(slots, stale):
    data = images(Cell(1))[0]
    rng = np.random.default_rng(0)
    drawn, looks = rng.integers(len(data.y), size=(3, 8)), np.array([1, 2, 4])
    seen = trained(data.x, data.y, slots, (np.array(stale), looks, drawn), 7, 0.1, 0.5)
    x, tree = ravel_pytree(init(jax.random.key(7)))
    versions, v = [x], 0.0
    for late, own in zip(stale, drawn, strict=True):
        at = versions[len(versions) - 1 - late]
        g = jax.grad(lambda p, i=own: losses(tree(p), data.x[i], data.y[i]).mean())(at)
        v = 0.5 * v + g
        versions.append(versions[-1] - 0.1 * v)
    # float32, of numbers below 1; look 3 has had no update of its own.
    for look, version in zip((0, 1, 2, 4), versions, strict=True):
        np.testing.assert_allclose(seen[look], version, atol=1e-6)


def test_the_network_is_the_formula_in_numpy():
    p = jax.tree.map(np.asarray, init(jax.random.key(0)))
    data = images(Cell(1))[0]
    x, y = data.x[:5].astype(float), data.y[:5]
    z = np.maximum(x @ p["in"] + p["b"], 0) @ p["out"] + p["c"]
    wanted = np.log(np.exp(z).sum(axis=1)) - z[np.arange(5), y]
    np.testing.assert_allclose(losses(p, data.x[:5], y), wanted, rtol=1e-5)  # float32


def test_the_target_is_met_between_looks_on_an_exponential():
    loss = 2.0 * np.exp(-np.arange(1 + LOOKS) / 10)
    assert at_target(loss) == pytest.approx(10 * np.log(2 / TARGET))
    assert at_target(np.ones(5)) == np.inf


def result(share, tilt, waits):
    """All but synchronous and asynchronous training have this share and tilt."""
    spread = np.linspace(0.99, 1.01, len(REPORT))
    rows = []
    for cell, name in product(CELLS, WAYS):
        plain = name in ("all", "asynchronous")
        seconds = 100 * (waits if WAYS[name].waits else 1)
        rows.append(
            {
                "cell": cell,
                "way": name,
                "share": (spread * (1 if plain else share)).tolist(),
                "tilt": (spread * (1 if plain else tilt)).tolist(),
                "heavy error": spread.tolist(),
                "seconds": (spread * seconds).tolist(),
                "both": (spread * seconds).tolist(),
                "cost": {"seconds": seconds, "both": seconds},
            }
        )
    return judgement(rows)


def test_the_rules():
    found = result(0.8, 1.3, 1.2)
    assert found["ways"]["c = 4, 4 fastest"]["share"][3] == "biased"
    assert found["ways"]["c = 4, 4 fastest"]["tilt"][3] == "more"
    assert found["ways"]["c = 4, asynchronous"]["share"][3] == "fair"
    assert found["ways"]["c = 4, asynchronous"]["heavy error"][3] == "not more"
    assert {each[-1] for each in found["claim"].values()} == {"fails"}
    assert {each[-1] for each in result(1, 1, 1.05)["claim"].values()} == {"holds"}
    assert len(found["claim"]) == 2 * (len(CELLS) + 1)
    assert study.word((1.1, 1.0, 1.2)) == "open"
