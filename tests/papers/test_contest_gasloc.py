"""GASLoC against NoLoCo in the contest: the rule as written, and that only the rule differs."""

import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from optdyn.configs import contest
from optdyn.configs.papers import contest_gasloc
from optdyn.evidence import raw
from optdyn.evidence.arms import at
from optdyn.evidence.race import infinite
from optdyn.evidence.study import Job, Lines, curve_of, of_job
from optdyn.evidence.trial import to_loss
from optdyn.launch import papers
from optdyn.training import trainer
from tests.papers.test_contest import RECORDS, result


@pytest.mark.parametrize(
    ("there", "elsewhere", "word"),
    [
        ([0.8, 0.7, 0.9], [1.2, 1.1, 1.3], "confirmed"),
        ([1.2, 1.1, 1.3], [0.8, 0.7, 0.9], "refuted"),
        ([0.9, 0.7, 1.1], [0.8, 0.7, 0.9], "open"),
        ([math.nan, 0.7, math.nan], [0.8, 0.7, 0.9], "open"),
    ],
)
def test_gasloc_is_judged_against_noloco_on_the_slowest_network(there, elsewhere, word):
    made = json.loads(json.dumps(result(0.8, (0.6, 0.01))).replace('"1 Gb/s"', '"0.1 Gb/s"'))
    over = {"1 Gb/s": (elsewhere, 0.5), "0.1 Gb/s": (there, 0.02)}
    said = {name: {"ratio": found, "chance": p} for name, (found, p) in over.items()}
    found = contest_gasloc.verdict(made | {"over rival": said})
    assert found.word == word and "of NoLoCo's seconds (p = 0.04); 1 Gb/s: GASLoC" in found.by
    assert "(n = 5, Holm over 2)" in found.by


def test_gasloc_and_noloco_choose_from_the_same_and_meet_the_same_pairs():
    own, rival = contest_gasloc.entry(), contest.entry("mlp", contest_gasloc.RIVAL)
    assert (own.ladders, own.usual) == (rival.ladders, rival.usual)
    one, other = (each.arm.config.with_(steps=40) for each in (own, rival))
    of_rule, of_rival = one.strategy.keys, other.strategy.keys
    assert of_rule["outer_learning_rate"] == of_rival["slow_learning_rate"]
    assert one.optimizer == other.optimizer and one.optimizer.momentum == 0.0
    lines = [trainer.prepare(each).timeline for each in (one, other)]
    for a, b in zip(*((line.seconds, line.choice.to) for line in lines), strict=True):
        np.testing.assert_array_equal(a, b)


def side(part):
    """A network's row of a rule that takes so much, and twice that with another batch."""
    seconds = {"0.1": list(part * np.linspace(0.9, 1.1, 20))}
    return {"seconds": seconds, "tried": [[8, 2, *[part] * 4], [16, 2, *[2 * part] * 4]]}


def test_what_it_takes_over_noloco_is_of_the_last_loss_on_the_same_seeds(tmp_path):
    study = papers.study_of(tmp_path, "full", 24, "contest_gasloc")
    assert (study.choose[0], study.report[0]) == (24500, 24000)  # the contest's
    found = contest_gasloc._over(study, side(0.8), side(1.0), {"losses": [0.5, 0.1]})
    assert found["ratio"][0] == pytest.approx(0.8) and found["ratio"][2] < 1
    assert found["chance"] < 0.01


def test_the_record_is_of_this_rule_and_of_the_trials_that_are_shipped(tmp_path):
    """Of one seed at 1 Gb/s, where it was tuned, by what a curve found again says."""
    record = json.loads((RECORDS / "papers_decided.json").read_text())["claims"]["contest_gasloc"]
    said = contest_gasloc.verdict(infinite(record["result"]))
    assert (said.word, said.by) == (record["verdict"], record["by"])
    assert record["rule"] == contest_gasloc.CLAIM.rule
    own, seed = (
        record["result"]["rows"][0]["networks"][contest.JUDGED],
        record["seeds"]["report"][0],
    )
    table = pq.read_table(RECORDS / "contest_gasloc.parquet")
    is_of = [f'"seed": {seed},' in config for config in table["config"].to_pylist()]
    pq.write_table(table.filter(is_of), tmp_path / "one_seed.parquet")
    raw.unpack(tmp_path / "one_seed.parquet", tmp_path)
    config = contest_gasloc.entry().arm.config.with_(own["chosen"])
    line = Lines(tmp_path / "trials.jsonl").at(of_job(Job(at(config, own["point"], seed), 0.1)))
    # The record has five digits.
    assert to_loss(curve_of(line), 0.1, "met") == pytest.approx(own["seconds"]["0.1"][0], rel=1e-4)
