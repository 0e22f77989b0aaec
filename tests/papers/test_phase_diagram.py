"""What the MLP's contest and a noise scale predict of another problem, by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from optdyn.configs import contest, race
from optdyn.configs.papers import phase_diagram as diagram
from optdyn.tuning import who_pays

RECORD = Path(__file__).parents[1] / "benchmarks/records/papers_contest.json"


def test_what_was_seen_is_what_the_record_says():
    result = json.loads(RECORD.read_text())["claims"]["contest_mlp"]["result"]
    last = str(result["losses"][-1])

    def median(seconds):
        return np.median([np.inf if x is None else x for x in seconds[last]])

    for i, (network, shapes) in enumerate(result["opponents"].items()):
        others = {each["arm"]: median(each["seconds"]) for each in shapes["8 x 1"]["every"]}
        plain = others[contest.PLAIN]
        arms = {row["arm"]: median(row["networks"][network]["seconds"]) for row in result["rows"]}
        # Three digits are written down.
        for name, seen in who_pays.SEEN.items():
            assert seen[i] == pytest.approx((arms | others)[name] / plain, abs=6e-4)
        assert diagram.BATCH[i] == pytest.approx(plain / median(shapes["8 x 1"]["usual"]), abs=6e-4)


def test_a_problem_like_the_mlp_is_predicted_as_the_mlp_was():
    """Its noise scale, its usual batch: the same rho, so that R is what was seen."""
    for i, exchange in enumerate(contest.NETWORKS.values()):
        rho = exchange * who_pays.BATCH / who_pays.NOISE
        for name, seen in who_pays.SEEN.items():
            assert who_pays.over_best_batch(name, rho) == pytest.approx(seen[i], rel=1e-9)


def test_between_networks_the_logarithms_are_on_a_line_and_beyond_them_nothing_is_claimed():
    low, high = (x * who_pays.BATCH / who_pays.NOISE for x in (2.0, 20 / 3))
    middle = who_pays.over_best_batch("top-k", np.sqrt(low * high))
    assert middle == pytest.approx(np.sqrt(0.875 * 0.578), rel=1e-9)
    assert who_pays.over_best_batch("top-k", 1e3) == 0.402
    assert who_pays.over_best_batch("top-k", 1e-3) == 1.017


def test_the_gain_of_the_best_batch_is_that_of_a_clock_by_hand():
    """Constant service: an update takes max(c, c / 3 + exchange) seconds, with c = b / 16."""
    noise, exchange = 60.0, 20.0
    config = diagram.side("deep", contest.PLAIN).arm.config
    config = config.with_(cluster=config.cluster.with_(service="constant"))
    bandwidth, size = race.bandwidth(config, exchange), race.parameters(config)

    def time(batch):
        compute = batch / 16
        update = max(compute, compute / 3 + exchange)
        return (1 + diagram.C * noise / batch) * update

    wanted = min(map(time, contest.BATCHES)) / time(16)
    found = diagram.best_batch(config, bandwidth, size, noise)
    # The first of 200 updates hides no exchange behind an earlier one, and bytes are whole.
    assert found == pytest.approx(wanted, rel=0.01)


def test_a_cell_counts_where_a_difference_is_seen_and_is_right_on_its_side():
    def cell(predicted, *measured):
        return {"predicted": predicted, "copied": 1 / predicted, "measured": list(measured)}

    cells = [cell(0.5, 0.9, 0.8, 0.99), cell(0.5, 1.1, 1.01, 1.2), cell(2.0, 0.9, 0.7, 1.1)]
    assert diagram.right(cells) == (1, 2)
    assert diagram.right(cells, "copied") == (1, 2)
