"""The study of volunteers all over the earth: what runs in it, and its clocks."""

import itertools

import pytest

from optdyn.basics.errors import InputError
from optdyn.configs import internet
from optdyn.evidence.arms import PERIOD, counts
from optdyn.training import memory_checks
from optdyn.training.checks import check

CASES = list(itertools.product(internet.PROBLEMS, internet.ARMS, (*internet.SIZES, 10_000)))


@pytest.fixture(autouse=True)
def enough(monkeypatch):
    """Whether a machine is large enough is not what is asked."""
    monkeypatch.setattr(memory_checks, "available", lambda: 2.0**40)


@pytest.mark.parametrize(("problem", "arm", "size"), CASES)
def test_all_arms_can_run_at_every_size(problem, arm, size):
    found = internet.arm_of(problem, arm, size)
    check(found.config)
    workers = size if arm in internet.ALONE else 1
    assert found.config.methods.groups == workers
    assert found.config.cluster.nodes == size and found.config.cluster.regions == 100


@pytest.mark.parametrize("arm", internet.ARMS)
def test_the_parts_of_the_clock_add_up(arm):
    """Alike and with nothing to send, n nodes take 30 seconds for an update, or for n of them."""
    config = internet.config_of("quadratic", arm, 8)
    found = internet.clocks(config, 24)
    updates = 3 if arm in internet.ALONE else 24
    assert found["computing"] == pytest.approx(30 * updates)
    assert found["volunteers"] > 0.5 * found["computing"]
    if arm == "decoupled":  # nobody waits for a message, however slow the links are
        slower = config.with_({"cluster.bandwidth": config.cluster.bandwidth / 100})
        assert internet.clocks(slower, 24)["network"] == found["network"]
    else:
        assert found["network"] > found["volunteers"]


@pytest.mark.parametrize("arm", internet.ARMS)
def test_computing_is_told_of_every_run(arm):
    """Of 24 updates and of 16, each in 1,000 seconds; an update takes 30, or eight together do."""
    config = internet.config_of("quadratic", arm, 8)
    found = internet.computed(config, [24.0, 16.0], [1000.0, 1000.0])
    each = 30 / 8 if arm in internet.ALONE else 30
    assert found.tolist() == pytest.approx([24 * each / 1000, 16 * each / 1000])


def test_a_table_says_where_a_rate_is_not_known_to_be_the_best():
    one = {"arm": "gossip", "nodes": 4096, "updates": (3, 2, 4), "seconds": (9, 8, 10)}
    one |= {"rate": 0.5, "momentum": 0.3}
    rows = [one | {"interior": interior} for interior in (True, False)]
    best, end = internet.table(rows).split("\n")[2:]
    assert best.startswith("| gossip | 4,096 | 0.5, 0.3 | 3 (2 to 4) | 9 (8 to 10) |")
    assert "0.5, 0.3 (not interior)" in end


def test_a_table_says_how_often_nodes_meet_where_that_was_tuned():
    one = {"arm": "DiLoCo", "nodes": 8, "updates": (3, 2, 4), "seconds": (9, 8, 10)}
    one |= {"rate": 0.5, "momentum": 0.3, "outer": 0.6, "period": 16, "interior": True}
    assert "| 0.5, 0.3, 0.6 outside, every 16 |" in internet.table([one])


def test_the_period_is_tuned_of_those_that_have_one():
    found = {arm: internet.arm_of("quadratic", arm, 64) for arm in internet.ARMS}
    assert [arm for arm in found if PERIOD in found[arm].ladders] == ["DiLoCo", "decoupled"]
    period = found["DiLoCo"].config.methods.mix.period
    assert counts(found["DiLoCo"].start[PERIOD]) == period
    assert [counts(i) for i in (-1, 0, 1, 2)] == [1, 1, 2, 4]


def test_ratios_are_of_seeds_in_pairs_and_of_as_many_nodes():
    def of(arm, nodes, *each):
        return {"arm": arm, "nodes": nodes, "each": list(each)}

    rows = [of("synchronous", 8, 4, 6, 8), of("DiLoCo", 8, 2, 3, 4), of("gossip", 64, 1, 1, 1)]
    _, _, line = internet.against(rows).split("\n")
    assert line == "| DiLoCo | 8 | 2 [2, 2] | 3 |"


def test_a_setting_that_is_given_has_every_number_of_its_arm():
    arm = internet.arm_of("quadratic", "decoupled", 8)
    given = ["batch_size=1", "optimizer.learning_rate=2", "optimizer.momentum=0"]
    given += ["strategy.outer_momentum=0.3", "strategy.period=8"]
    found = internet.setting_of(arm, given)
    assert set(found) == {item.split("=")[0] for item in given}
    check(arm.config.with_(found))
    for wrong in (given[1:], [*given, "seed=1"], [*given[:-1], "strategy.period=x"]):
        with pytest.raises(InputError, match="--setting: "):
            internet.setting_of(arm, wrong)


def test_a_seed_that_chooses_and_reports_is_refused(monkeypatch, tmp_path, capsys):
    workdir = tmp_path / "internet"
    command = ["internet", str(workdir), "--choose", "3", "4", "--report", "2", "3"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as stopped:
        internet.main()
    assert stopped.value.code == 2 and not workdir.exists()
    assert "both have 3" in capsys.readouterr().err
