"""Claims 68 and 69: their arms, whom these are held against, and the rule of the median arm."""

import numpy as np
import pytest

from optdyn.configs import contest, race, serverless, slow_network
from optdyn.configs.papers import contest_text_arms
from optdyn.configs.papers import serverless_resnet as resnet
from optdyn.configs.papers import serverless_text as text
from optdyn.configs.slow_network import RESNET, TEXT
from optdyn.evidence.intervals import typical_at_best
from optdyn.launch import papers
from tests.papers.made_up import made_up

CASES = {
    "serverless_text": (text, TEXT, 41, "contest_text_arms"),
    "serverless_resnet": (resnet, RESNET, 50, "contest_resnet_fast"),
}


def test_arms_are_those_of_the_race_without_a_server():
    with_one = {
        name for name, keys in race.ARMS.items() if "strategy.groups" in keys and name != "AD-PSGD"
    }
    assert {*serverless.ARMS} == {*race.ARMS} - with_one - {*race.SYNCHRONOUS}


@pytest.mark.parametrize("name", CASES)
def test_opponents_and_seeds_are_those_of_older_claims(name, tmp_path):
    module, of, seed, before = CASES[name]
    made, old = serverless.of_arms(of, module.NETWORK), slow_network.of_smaller(of, module.NETWORK)
    assert made.opponents == old.opponents and made.networks == old.networks
    assert made.losses == old.losses and made.judged == old.judged == module.NETWORK
    older = {**old.entries, **(contest_text_arms.of_arms().entries if of is TEXT else {})}
    shared = older.keys() & made.entries.keys()
    assert len(shared) == (5 if of is TEXT else 2)
    assert all(made.entries[each] == older[each] for each in shared)
    studies = (papers.study_of(tmp_path, "full", seed, each) for each in (name, before))
    seeds = {(study.choose, study.report) for study in studies}
    assert len(seeds) == 1


@pytest.mark.parametrize("of", [TEXT, RESNET], ids=["text", "resnet"])
def test_new_arms_start_from_the_usual_batch(of):
    plain = slow_network.entry(of, contest.PLAIN).usual
    for name in {*serverless.ARMS} - {*slow_network.ARMS}:
        assert serverless.entry(of, name).usual[:1] == plain


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ((0.6, 0.7, 0.8, 0.8, 0.8, 2.0, 3.0, np.inf), "confirmed"),
        ((0.3, 0.3, 1.2, 1.2, 1.2, 1.2, 1.3, np.inf), "refuted"),
        ((0.3, 0.3, 0.4, 1.0, 1.0, 1.2, 1.3, 1.4), "open"),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_the_median_arm_decides(name, ratios, word):
    module, of, *_ = CASES[name]
    result = made_up(serverless.of_arms(of, module.NETWORK), ratios)
    found = module.verdict(result)
    assert found.word == word and found.by.count(";") == len(ratios)
    assert (
        found.by.startswith(f"{module.NETWORK}: the median arm takes")
        and "gossip (16, 8)" in found.by
    )


def test_the_typical_ratio_by_hand():
    """Every draw by a loop: seeds that report, then seeds that choose, the same for all arms."""
    rng = np.random.default_rng(3)
    arms = [
        tuple(rng.lognormal(size, 0.2, shape) for shape in (7, 7, (3, 4), (2, 4)))
        for size in (0.0, 0.3, -0.2)
    ]
    reports = np.random.default_rng(0).integers(7, size=(4000, 7))
    chooses = np.random.default_rng(1).integers(4, size=(4000, 4))

    def worse(tried, seeds):
        again = [np.median(each[seeds]) for each in tried]
        every = [np.median(each) for each in tried]
        return every[int(np.argmin(again))] / min(every)

    drawn = []
    for report, choose in zip(reports, chooses, strict=True):
        each = [
            np.median(a[report])
            / np.median(b[report])
            / worse(a_tried, choose)
            * worse(b_tried, choose)
            for a, b, a_tried, b_tried in arms
        ]
        drawn.append(sorted(each)[1])
    whole = sorted(np.median(a) / np.median(b) for a, b, *_ in arms)[1]
    low, high = sorted(drawn)[99], sorted(drawn)[3899]
    assert typical_at_best(arms) == pytest.approx((whole, low, high), rel=1e-12)
