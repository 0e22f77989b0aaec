"""Claims 65 and 67: whom they are held against, and their rules."""

import pytest

from optdyn.configs import contest, slow_network
from optdyn.configs.papers import contest_servers as servers
from optdyn.configs.papers import contest_text_arms as arms
from optdyn.configs.papers import contest_text_networks
from optdyn.configs.slow_network import SLOW, TEXT
from optdyn.launch import papers
from optdyn.training import trainer
from tests.papers.made_up import made_up

TEXTS, SERVERS = arms.of_arms(), servers.of_servers()


def test_opponents_network_and_seeds_are_claim_61s(tmp_path):
    before = contest_text_networks.of_networks()
    assert TEXTS.opponents == before.opponents and TEXTS.losses == before.losses
    assert TEXTS.networks == {arms.NETWORK: before.networks[arms.NETWORK]}
    old = papers.study_of(tmp_path, "full", 41, "contest_text_networks")
    new = papers.study_of(tmp_path, "full", 41, "contest_text_arms")
    assert (old.choose, old.report) == (new.choose, new.report)


def test_text_starts_from_the_usual_batch():
    plain = slow_network.entry(TEXT, contest.PLAIN).usual
    assert {entry.usual for entry in TEXTS.entries.values()} == {plain}
    assert contest.BATCHES[plain[0]] == arms.START


def test_servers_differ_by_the_server_alone():
    """The same workers at the same seconds on the slowest network, of as many local steps."""
    every = {**SERVERS.opponents, **SERVERS.entries}
    lines = []
    for name, entry in every.items():
        config = entry.arm.config
        assert config.steps == 8 * 4000 and config.strategy.keys["groups"] == 8, name
        assert config.cluster.bandwidth == SERVERS.networks[SLOW], name
        lines.append(trainer.prepare(config.with_(steps=60)).timeline)
    for line in lines[1:]:
        assert line.seconds.tolist() == lines[0].seconds.tolist()
        assert line.choice.exchange.tolist() == lines[0].choice.exchange.tolist()
    # An exchange counts an eighth of 0.7 of delayed Nesterov's, and of HeLoCo's.
    nesterov, heloco = (
        every[name].arm.config.strategy.keys for name in (servers.OPPONENT, "HeLoCo")
    )
    assert heloco["outer_learning_rate"] == pytest.approx(nesterov["outer_learning_rate"] / 8)


@pytest.mark.parametrize(
    ("ratios", "word", "best"),
    [
        ((3.0, 0.8, 1.0, 1.2), "confirmed", "gossip"),
        ((3.0, 1.3, 1.1, 1.2), "refuted", "PowerSGD"),
        ((3.0, 1.3, 1.02, 1.2), "open", "PowerSGD"),
        ((3.0, 1.3, 1.2, 0.97), "open", "AD-PSGD"),
    ],
)
def test_on_text_the_fastest_arm_decides(ratios, word, best):
    found = arms.verdict(made_up(TEXTS, ratios))
    assert found.word == word
    assert found.by.startswith(f"{best} takes {min(ratios)}") and contest.SNOO in found.by
    assert "asynchronous (batch 16) 3 [2.95, 3.05], slower" in found.by


@pytest.mark.parametrize(
    ("ratios", "word", "best"),
    [
        ((0.8, 2.0), "confirmed", "HeLoCo"),
        ((1.4, 1.2), "refuted", "CGAD"),
        ((1.02, 2.0), "open", "HeLoCo"),
    ],
)
def test_the_faster_server_decides(ratios, word, best):
    found = servers.verdict(made_up(SERVERS, ratios))
    assert found.word == word and found.by.startswith(f"{best} takes {min(ratios)}")
    other = {"HeLoCo": "CGAD", "CGAD": "HeLoCo"}[best]
    assert f"; {other} {max(ratios):g} [" in found.by and "Holm over 2" in found.by
