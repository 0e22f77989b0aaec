"""Claim 65: its opponents are claim 61's, every arm can run, and its rule."""

import pytest

from optdyn.configs import contest, slow_network
from optdyn.configs.papers import contest_text_arms as arms
from optdyn.configs.papers import contest_text_networks
from optdyn.configs.slow_network import TEXT
from optdyn.evidence.arms import at, point
from optdyn.evidence.contest import Side
from optdyn.launch import papers
from optdyn.training.checks import check

EVERY = arms.of_arms()
OPPONENT = [100.0 + seed for seed in range(20)]


def test_opponents_network_and_seeds_are_claim_61s(tmp_path):
    before = contest_text_networks.of_networks()
    assert EVERY.opponents == before.opponents and EVERY.losses == before.losses
    assert EVERY.networks == {arms.NETWORK: before.networks[arms.NETWORK]}
    old = papers.study_of(tmp_path, "full", 41, "contest_text_networks")
    new = papers.study_of(tmp_path, "full", 41, "contest_text_arms")
    assert (old.choose, old.report) == (new.choose, new.report)


@pytest.mark.parametrize("name", arms.ARMS)
def test_an_arm_can_run_at_the_ends_of_its_batches_and_starts_from_the_usual_one(name):
    entry = EVERY.entries[name]
    plain = slow_network.entry(TEXT, contest.PLAIN)
    assert entry.usual == plain.usual == (contest.BATCHES.index(16),)
    setting = point(entry.arm, list(entry.arm.start.values()))
    for cell in (entry.usual, (0,), (len(contest.BATCHES) - 1,)):
        check(at(Side(entry, {}).config(cell), setting, 0))


def made_up(ratios):
    """A result: every arm takes so many times the seconds of its opponent, whatever it chose."""
    last = str(TEXT.losses[-1])

    def told(name, times):
        return {
            "arm": name,
            "chosen": {"batch_size": 16},
            "cost": times * 110,
            "seconds": {last: [times * s for s in OPPONENT]},
            "over": {last: [times, times, times]},
            "over at best": [times, times - 0.05, times + 0.05],
            "chance": 1e-4 if times != 1 else 1.0,
            "shape": "8 x 1",
        }

    rows = [
        {"arm": name, "networks": {arms.NETWORK: told(name, times)}}
        for name, times in zip(arms.ARMS, ratios, strict=True)
    ]
    every = [told(name, times) for name, times in ((contest.PLAIN, 1.1), (contest.SNOO, 1.0))]
    usual = {last: [2 * s for s in OPPONENT]}
    others = {"8 x 1": {"usual": usual, "best": contest.SNOO, "every": every}}
    return {
        "losses": list(TEXT.losses),
        "judged": arms.NETWORK,
        "family": len(arms.ARMS),
        "opponents": {arms.NETWORK: others},
        "rows": rows,
    }


@pytest.mark.parametrize(
    ("ratios", "word", "best"),
    [
        ((3.0, 0.8, 1.0, 1.2), "confirmed", "gossip"),
        ((3.0, 1.3, 1.1, 1.2), "refuted", "PowerSGD"),
        ((3.0, 1.3, 1.02, 1.2), "open", "PowerSGD"),
        ((3.0, 1.3, 1.2, 0.97), "open", "AD-PSGD"),
    ],
)
def test_the_fastest_arm_decides(ratios, word, best):
    found = arms.verdict(made_up(ratios))
    assert found.word == word
    assert found.by.startswith(f"{best} takes {min(ratios)}") and contest.SNOO in found.by
    assert "asynchronous (batch 16) 3 [2.95, 3.05], slower" in found.by
