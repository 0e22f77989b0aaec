"""The contest: what each network chooses, whose clock it is told by, and the rule as written."""

import json
import math
from pathlib import Path

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure

from optdyn.basics.files import finite
from optdyn.configs import combined, contest, race, serverless, slow_network
from optdyn.configs.papers import (
    asynchronous_and_local_again,
    contest_gasloc,
    contest_groups,
    contest_rules,
    contest_rules_again,
    contest_servers,
    contest_share,
    contest_text_arms,
    daso_and_asynchronous_again,
    daso_and_dynamic_batch_again,
    few_bits,
    further_rules,
    phase_diagram,
    sparse_shares,
)
from optdyn.evidence import contest as contested
from optdyn.evidence import raw
from optdyn.evidence.arms import at, point, rates, rung
from optdyn.evidence.contest import Place, Side
from optdyn.evidence.race import FASTER, MISSED, SAME, SLOWER
from optdyn.evidence.study import Job, Lines, curve_of, of_job
from optdyn.evidence.trial import Curve, to_loss
from optdyn.launch import papers
from optdyn.training import trainer
from optdyn.training.checks import check

RATIOS = contest.NETWORKS
RECORDS = Path(__file__).parents[1] / "benchmarks/records"


def place(ratio, nodes=8, devices=1):
    return Place(race.bandwidth(contest.config_of("mlp", contest.PLAIN), ratio), nodes, devices)


def side_of(name, **cluster):
    """An arm in the contest, nothing of it tuned."""
    entry = contest.entry("mlp", name)
    changed = entry.arm.config.with_(cluster=entry.arm.config.cluster.with_(**cluster))
    return Side(entry._replace(arm=entry.arm._replace(config=changed)), {})


class Known:
    """A study of one seed whose updates to the target are a known function of batch and period.

    The best long-run step is 1 and the best momentum 0.
    """

    choose, report = (0,), (9,)

    def __init__(self, updates, target=0.1):
        self.updates, self.target, self.tuned = updates, target, set()

    def trials(self, jobs):
        return [self.curve(job) for job in jobs]

    def curve(self, job):
        config = job.config
        self.tuned.add((config.batch_size, config.strategy.keys["period"]))
        step = config.optimizer.learning_rate / (1 - config.optimizer.momentum)
        off = abs(rung(rates, step)) + abs(config.optimizer.momentum)
        taken = math.ceil(self.updates(config) * 1.3**off)
        if taken > min(job.most, config.steps):
            return Curve([0, 16], [0.0, 1.0], [2.0, 1.0 + off / 10], "ended", {})
        return Curve([0, taken], [0.0, 1.0], [2.0, self.target], "reached", {})


ENTRIES = {
    problem: [
        contest.entry(problem, name)
        for name in (*contest.OPPONENTS, *contest.OTHERS, *contest.RULES)
    ]
    for problem in race.PROBLEMS
}
SMALLER = {of.problem: of for of in (slow_network.TEXT, slow_network.RESNET)}
for case, of in SMALLER.items():
    made = slow_network.of_smaller(of)
    ENTRIES[f"smaller {case}"] = [*made.opponents.values(), *made.entries.values()]
for case, every in {
    "sparse shares": sparse_shares.between(),
    "further rules": further_rules.of_rules(),
    "GASLoC": contest_gasloc.between(),
    "groups": contest_groups.of_groups(),
    "text arms": contest_text_arms.of_arms(),
    "servers": contest_servers.of_servers(),
    "serverless text": serverless.of_arms(slow_network.TEXT, contest.JUDGED),
    "serverless resnet": serverless.of_arms(slow_network.RESNET, contest.JUDGED),
    **{case: phase_diagram.held_out(case) for case in phase_diagram.PROBLEMS},
    **{case: combined.of(case) for case in combined.CASES},
}.items():
    ENTRIES[case] = [*every.opponents.values(), *every.entries.values()]


@pytest.mark.parametrize("problem", ENTRIES)
def test_every_arm_can_run_at_the_ends_of_what_a_network_chooses_from(problem):
    for entry in ENTRIES[problem]:
        top = tuple(len(steps) - 1 for steps in entry.ladders.values())
        for cell in (entry.usual, (0,) * len(top), top):
            setting = point(entry.arm, list(entry.arm.start.values()))
            check(at(Side(entry, {}).config(cell), setting, 0))


def test_all_arms_of_the_race_are_in_it():
    every = contest.contest("mlp", first=2)
    assert {*contest.OTHERS, *race.SYNCHRONOUS} == set(race.ARMS)
    assert len(every.entries) == 2 and every.family == 15 * 4  # though two are finished
    rules = contest.contest("mlp", tuple(contest.RULES))
    assert (
        rules.family == len(rules.entries) * 4 and rules.opponents.keys() == every.opponents.keys()
    )


@pytest.mark.parametrize("network", RATIOS)
def test_each_network_chooses_the_batch_of_the_fewest_seconds(network):
    """By hand: 100 (1 + 256 / B) updates, each max(c, c / 3 + r) seconds, with c = B / 64."""
    r = RATIOS[network]
    seconds = {
        b: math.ceil(100 * (1 + 256 / b)) * max(b / 64, b / 192 + r) for b in contest.BATCHES
    }
    side = side_of(contest.PLAIN, service="constant")
    study = Known(lambda config: 100 * (1 + 256 / config.batch_size))
    times = contested.chosen(study, side, place(r), 0.1)
    best = contested.least(times)
    assert contest.BATCHES[best[0]] == min(seconds, key=seconds.get)
    for cell, (cost,) in times.items():
        assert cost == pytest.approx(seconds[contest.BATCHES[cell[0]]], rel=1e-9)  # float64 sums


def test_a_batch_and_a_period_that_only_pay_together_are_found():
    """Twice the batch or four times the period alone is worse; a search of one at a time stays."""

    def updates(config):
        together = (config.batch_size, config.strategy.keys["period"])
        return {(64, 8): 200, (128, 32): 50}.get(together, 600)

    side, study = side_of("local SGD", service="constant"), Known(updates)
    times = contested.chosen(study, side, place(0.2), 0.1)
    best = contested.values(side.entry, contested.least(times))
    assert best == {"batch_size": 128, "strategy.period": 32}
    around = {(b, h) for b in (64, 128, 256) for h in (8, 32, 128)}
    assert around <= study.tuned


def test_what_one_network_has_tuned_another_chooses_from():
    side = side_of(contest.PLAIN, service="constant")
    study = Known(lambda config: 100 * (1 + 256 / config.batch_size))
    contested.chosen(study, side, place(0.2), 0.1)
    before = set(side.cells)
    contested.chosen(study, side, place(20.0), 0.1)
    assert before < set(side.cells)


def told(name, there):
    """A curve of 40 updates at the usual batch, in the seconds of a place."""
    curve = Curve([0, 40], [0.0, 1.0], [2.0, 0.1], "reached", {})

    class Trained:
        def trials(self, jobs):
            return [curve for _ in jobs]

    return contested.timed(Trained(), side_of(name).entry, {}, there, 0.1, (3,))[0]


@pytest.mark.parametrize("ratio", [0.2, 20.0])
@pytest.mark.parametrize(("nodes", "devices"), [(8, 1), (4, 2)])
def test_outer_momentum_on_one_node_takes_the_seconds_of_synchronous_training(
    ratio, nodes, devices
):
    config = race.config_of("mlp", "synchronous").with_(seed=3, steps=40)
    shape = {"nodes": nodes, "devices_per_node": devices}
    there = place(ratio, nodes, devices)
    config = config.with_(cluster=config.cluster.with_(bandwidth=there.bandwidth, **shape))
    end = trainer.prepare(config).timeline.seconds[-1]
    for name in (contest.PLAIN, contest.SNOO):
        assert told(name, there).met[-1] == pytest.approx(end, rel=1e-12)  # float64 sums


def test_outer_momentum_on_one_node_waits_for_slow_workers_too():
    """Two of four workers are a third as fast as the others, and the update waits for them."""
    every = combined.of("unequal").opponents
    line = every[contest.PLAIN].arm.config.with_(steps=40, seed=3)
    end = trainer.prepare(line).timeline.seconds[-1]
    curve = Curve([0, 40], [0.0, 1.0], [2.0, 0.1], "reached", {})
    study = type("Trained", (), {"trials": lambda self, jobs: [curve for _ in jobs]})()
    there = Place(combined.BANDWIDTH, 2, 2, line.cluster.speeds)
    for name in (contest.PLAIN, contest.SNOO):
        (one,) = contested.timed(study, every[name], {}, there, 0.1, (3,))
        assert one.met[-1] == pytest.approx(end, rel=1e-12)  # float64 sums
    fast = line.with_({"cluster.speeds": (3.0,) * 4})
    assert trainer.prepare(fast).timeline.seconds[-1] < 0.9 * end


def test_the_last_meeting_of_nodes_counts_where_they_have_not_just_met():
    """40 updates end with a meeting where H = 8; in the seconds of one at 39 there is one more."""
    on = told("local SGD", place(2.0))
    assert on.met[-1] == on.seconds[-1]
    curve = Curve([0, 39], [0.0, 1.0], [2.0, 0.1], "reached", {})
    study = type("Trained", (), {"trials": lambda self, jobs: [curve for _ in jobs]})()
    (one,) = contested.timed(study, side_of("local SGD").entry, {}, place(2.0), 0.1, (3,))
    assert to_loss(one, 0.1, "met") == pytest.approx(one.seconds[-1] + 2.0, rel=1e-12)


def test_every_entry_meets_the_best_opponent_on_nodes_like_its_own():
    """64 updates at every batch: the smallest is the best, and an all-reduce of 20 is all of it.

    A ring of 8 takes 20 seconds, one of 4 nodes 20 (3/4) / (7/8); the usual update computes for 1.
    """
    pairs, alone = side_of("gossip", nodes=4, devices_per_node=2), side_of("gossip")
    made = contested.measure(
        Known(lambda _: 64),
        contested.Contest(
            {contest.PLAIN: side_of(contest.PLAIN, service="constant").entry},
            {"alone": alone.entry, "pairs": pairs.entry},
            (0.5, 0.1),
            {"0.1 Gb/s": place(20.0).bandwidth},
            "0.1 Gb/s",
            2,
        ),
    )
    against = made["opponents"]["0.1 Gb/s"]
    for shape, ring in (("8 x 1", 20), ("4 x 2", 20 * (3 / 4) / (7 / 8))):
        usual, best = against[shape]["usual"]["0.1"], against[shape]["every"][0]
        assert usual == [pytest.approx(64 * (1 / 3 + ring), rel=1e-4)]  # of 5 digits
        assert best["seconds"]["0.1"] == [pytest.approx(64 * (1 / 24 + ring), rel=1e-4)]
        assert best["chosen"] == {"batch_size": 8} and not best["interior"]  # the ladder's end
    for row, shape in zip(made["rows"], ("8 x 1", "4 x 2"), strict=True):
        own = row["networks"]["0.1 Gb/s"]
        assert own["shape"] == shape
        best, usual = against[shape]["every"][0]["seconds"]["0.1"], against[shape]["usual"]["0.1"]
        assert own["over"]["0.1"][0] == pytest.approx(own["seconds"]["0.1"][0] / best[0])
        assert own["over usual"]["0.1"][0] == pytest.approx(own["seconds"]["0.1"][0] / usual[0])


SEEDS = 5


def result(batch, *arms):
    """Of an opponent that takes `batch` of its usual seconds, and arms that take so much."""
    usual = np.linspace(100, 110, SEEDS)

    def times(part):
        return {"0.5": list(part * usual / 2), "0.1": list(part * usual)}

    def cell(part, p):
        own = times(part)
        over = {x: [part / batch] * 3 for x in own}
        said = {"chosen": {"batch_size": 128}, "interior": True, "seconds": own, "cost": part}
        said["over at best"] = [part / batch] * 3
        return {**said, "over": over, "over usual": {x: [part] * 3 for x in own}} | {
            "chance": p,
            "shape": "8 x 1",
        }

    plain = {"arm": "synchronous", **cell(batch, 1.0)}
    against = {"8 x 1": {"usual": times(1.0), "best": "synchronous", "every": [plain]}}
    rows = [
        {"arm": f"arm {i}", "networks": {"1 Gb/s": {"arm": f"arm {i}", **cell(part, p)}}}
        for i, (part, p) in enumerate(arms)
    ]
    said = {"losses": [0.5, 0.1], "judged": "1 Gb/s", "family": 4}
    return {**said, "opponents": {"1 Gb/s": against}, "rows": rows}


@pytest.mark.parametrize(
    ("batch", "best", "word"),
    [(0.7, 0.6, "confirmed"), (0.9, 0.6, "refuted"), (0.6, 0.36, "open"), (0.9, 1.1, "open")],
)
def test_the_rule(batch, best, word):
    """log 0.7 / log 0.6 is 0.70 and log 0.9 / log 0.6 0.21; half is 1/2; no gain has no share."""
    assert contested.verdict(result(batch, (best, 0.01), (1.2, 0.01))).word == word


@pytest.mark.parametrize(
    ("rule", "older", "opponent", "word"),
    [(0.4, 0.6, 0.8, "confirmed"), (0.6, 0.4, 0.8, "refuted"), (0.6, 0.8, 0.4, "refuted")],
)
def test_the_best_rule_is_held_against_the_best_older_arm_or_opponent(rule, older, opponent, word):
    """Whoever takes least; the arm that is worse than another one has no say."""
    made = result(opponent, (rule, 0.01), (1.2, 0.01))
    others = result(opponent, (1.2, 0.01), (older, 0.01))["rows"]
    found = contest_rules.verdict(made | {"older": others})
    assert found.word == word
    assert f"takes {rule / min(older, opponent):.3g} " in found.by and "(n = 5, Holm" in found.by


@pytest.mark.parametrize("of", SMALLER.values(), ids=SMALLER)
def test_a_smaller_network_meets_the_link_that_is_as_slow_for_it(of):
    """Its all-reduce takes 20 times the second that the usual batch takes 8 workers."""
    made = slow_network.of_smaller(of)
    config = made.opponents[contest.PLAIN].arm.config
    size = 2 * (1 - 1 / 8) * program_bytes(config)
    assert size / made.networks[slow_network.SLOW] == pytest.approx(20.0, rel=1e-12)
    assert config.cluster.seconds_per_example * config.batch_size / 8 == 1.0


def program_bytes(config):
    run = trainer.prepare(config.with_(steps=1))
    return sum(leaf.nbytes for leaf in jax.tree.leaves(run.params))


@pytest.mark.parametrize(
    ("joined", "best", "word"),
    [(0.4, 0.8, "confirmed"), (0.8, 0.4, "refuted"), (0.5, 0.5, "open")],
)
def test_a_combination_is_judged_against_the_best_of_all_others(joined, best, word):
    made = json.loads(json.dumps(result(best, (joined, 0.01))).replace('"1 Gb/s"', '""'))
    found = combined.verdict(json.loads(json.dumps(made).replace('"0.1":', '"0.15":')))
    assert found.word == word and f"takes {joined / best:.3g} " in found.by


@pytest.mark.parametrize(
    ("rule", "batch", "word"),
    [(0.4, 0.8, "confirmed"), (0.8, 0.4, "refuted"), (0.5, 0.5, "open")],
)
def test_a_smaller_network_is_judged_by_the_interval_that_draws_the_choice_again(rule, batch, word):
    made = json.loads(json.dumps(result(batch, (rule, 0.01), (1.2, 0.01))))
    of = json.loads(json.dumps({**made, "losses": [0.1]}).replace('"0.1":', '"2.1":'))
    found = slow_network.verdict({**of, "losses": [2.1]})
    assert found.word == word and "arm 0 takes" in found.by and "of synchronous" in found.by


@pytest.mark.parametrize(
    ("best", "other", "word"),
    [(0.7, 0.6, "confirmed"), (0.9, 0.6, "refuted"), (0.6, 0.36, "open"), (0.9, 1.1, "open")],
)
def test_the_share_of_more_seeds_is_judged_alike(best, other, word):
    own = np.linspace(0.9, 1.1, 20)
    times = [list(part * own) for part in (1.0, best, other)]
    found = contest_share.verdict(
        {"seconds": dict(zip(contest_share.SETTINGS, times, strict=True))}
    )
    assert found.word == word and "(n = 20)" in found.by


def test_the_settings_of_the_share_are_what_the_contest_chose():
    """But for the last bits of a rate, which is a product of its ladders' rungs."""
    record = json.loads((RECORDS / "papers_contest.json").read_text())
    result = record["claims"]["contest_mlp"]["result"]
    arms = [*result["opponents"]["1 Gb/s"]["8 x 1"]["every"]]
    arms += [row["networks"]["1 Gb/s"] for row in result["rows"]]
    chose = {arm["arm"]: arm for arm in arms}
    for name in (contest_share.BEST, contest_share.OTHER):
        entry, chosen, tuned = contest_share.SETTINGS[name]
        assert chosen == chose[entry]["chosen"]
        assert tuned == pytest.approx(chose[entry]["point"], rel=1e-12)
    assert contested.fastest(result, "1 Gb/s")["arm"] == contest_share.SETTINGS["DiLoCo"][0]


@pytest.mark.parametrize(("rule", "word"), [(0.8, "confirmed"), (1.2, "refuted"), (1.0, "open")])
def test_the_best_rule_is_judged_on_more_seeds(rule, word):
    own = np.linspace(0.9, 1.1, 20)
    found = contest_rules_again.verdict(
        {"seconds": {"SparseLoCo": list(rule * own), "top-k": list(own)}}
    )
    assert found.word == word and "(n = 20)" in found.by


def test_the_settings_of_more_seeds_are_what_the_rules_contest_chose():
    record = json.loads((RECORDS / "papers_decided.json").read_text())
    result = record["claims"]["contest_rules"]["result"]
    network = contest_rules_again.SLOW
    chose = {row["arm"]: row["networks"][network] for row in (*result["rows"], *result["older"])}
    for name, (entry, chosen, tuned) in contest_rules_again.SETTINGS.items():
        assert name == entry and chosen == chose[entry]["chosen"]
        assert tuned == pytest.approx(chose[entry]["point"], rel=1e-12)  # last bits of a rate
    older = result | {"rows": result["older"]}
    best = [contested.fastest(each, network)["arm"] for each in (result, older)]
    assert best == [contest_rules_again.RULE, contest_rules_again.ARM]


@pytest.mark.parametrize(
    "again",
    [daso_and_dynamic_batch_again, daso_and_asynchronous_again, asynchronous_and_local_again],
)
def test_the_settings_of_combinations_are_what_their_contests_chose(again):
    record = json.loads((RECORDS / "papers_decided.json").read_text())
    name = again.__name__.rpartition(".")[2].removesuffix("_again")
    result = record["claims"][name]["result"]
    (row,) = (each["networks"][""] for each in result["rows"])
    (others,) = result["opponents"][""].values()
    chose = {arm["arm"]: arm for arm in (row, *others["every"])}
    assert list(again.SETTINGS) == [row["arm"], others["best"]]
    for name, (entry, chosen, tuned) in again.SETTINGS.items():
        assert name == entry and chosen == chose[entry]["chosen"]
        assert tuned == pytest.approx(chose[entry]["point"], rel=1e-12)  # last bits of a rate


@pytest.mark.parametrize(("joined", "word"), [(0.8, "confirmed"), (1.2, "refuted"), (1.0, "open")])
def test_a_combination_is_judged_on_more_seeds(joined, word):
    own = np.linspace(0.9, 1.1, 20)
    found = combined.verdict_again({"seconds": {"both": list(joined * own), "one": list(own)}})
    assert found.word == word and "both takes" in found.by and "(n = 20)" in found.by


def test_words_are_of_chances_that_are_corrected_for_all_that_are_planned():
    """Of four words two are there: 0.01 times four is below 0.05, 0.02 times three is not."""
    made = result(0.8, (0.6, 0.01), (0.7, 0.02))
    said = contested.words(made)["1 Gb/s"]
    assert said == {"arm 0": (FASTER, 0.04), "arm 1": (SAME, pytest.approx(0.06))}
    assert contested.words(result(0.8, (0.9, 0.01)))["1 Gb/s"]["arm 0"][0] == SLOWER


def test_table_and_picture_show_every_arm_as_the_record_has_it():
    made = result(0.8, (0.6, 0.01), (math.inf, 0.01))
    table = contested.table(json.loads(json.dumps(finite(made), allow_nan=False)))
    first = next(line for line in table.splitlines() if line.startswith("| arm 0 |"))
    assert "batch_size 128 | 0.6 [0.6, 0.6] | 0.75 [0.75, 0.75] | 0 of 5 |" in first
    assert first.endswith("| 0.75 [0.75, 0.75] | 0.04 | faster |")
    assert MISSED in table and "| 1 Gb/s | 8 x 1 | synchronous |" in table
    figure = Figure()
    contested.picture(made, figure)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["arm 1", "arm 0"]


def test_it_is_run_where_it_is_named_on_seeds_of_its_own(tmp_path):
    assert "contest_mlp" in papers.names() and "contest_mlp" not in papers.usual()
    study = papers.study_of(tmp_path, "full", 3, "contest_mlp")
    assert (study.choose, study.report) == (tuple(range(3500, 3504)), tuple(range(3000, 3020)))


def test_tables_are_of_a_contest_that_has_ended_or_of_so_many_arms(tmp_path, capsys):
    for arguments, said in (([], "no contest_mlp has ended"), (["--arms=3"], "--seed")):
        with pytest.raises(SystemExit):
            contest.main([str(tmp_path), *arguments])
        assert said in capsys.readouterr().err.splitlines()[-1]
    made = finite(result(0.8, (0.6, 0.01)))
    board = {"claims": {"contest_mlp": {"result": made}}}
    (tmp_path / "scoreboard.json").write_text(json.dumps(board))
    contest.main([str(tmp_path)])
    assert contested.table(made) in capsys.readouterr().out


def test_the_trials_that_are_shipped_are_those_of_the_record(tmp_path):
    """Of the synchronous arm on 1 Gb/s, where it was tuned, by what a curve found again says."""
    record = json.loads((RECORDS / "papers_contest.json").read_text())["claims"]["contest_mlp"]
    others = record["result"]["opponents"][contest.JUDGED]["8 x 1"]["every"]
    plain = next(each for each in others if each["arm"] == contest.PLAIN)
    seed = record["seeds"]["report"][0]
    table = pq.read_table(RECORDS / "contest.parquet")
    is_of = [f'"seed": {seed},' in config for config in table["config"].to_pylist()]
    pq.write_table(table.filter(is_of), tmp_path / "one_seed.parquet")
    raw.unpack(tmp_path / "one_seed.parquet", tmp_path)
    config = at(
        contest.config_of("mlp", contest.PLAIN).with_(plain["chosen"]), plain["point"], seed
    )
    line = Lines(tmp_path / "trials.jsonl").at(of_job(Job(config, 0.1)))
    # The record has five digits.
    seconds = to_loss(curve_of(line), 0.1, "met")
    assert seconds == pytest.approx(plain["seconds"]["0.1"][0], rel=1e-4)


@pytest.mark.parametrize(("few", "word"), [(0.8, "confirmed"), (1.2, "refuted"), (1.0, "open")])
def test_few_bits_are_judged_by_what_either_side_chose(few, word):
    own = np.linspace(0.9, 1.1, 20)
    sides = {
        arm: {
            "tried": [list(part * own) for part in (1.0, 1.5)],
            "chosen": few_bits.setting(few_bits.CELLS[arm][0]),
            "seconds": list(part * own),
        }
        for arm, part in ((few_bits.FEW, few), (few_bits.OPPONENT, 1.0))
    }
    found = few_bits.verdict(sides)
    assert found.word == word and "; n = 20)" in found.by


def test_settings_of_few_bits_are_within_1_15_of_the_best_that_claim_56_tuned():
    record = json.loads((RECORDS / "papers_decided.json").read_text())
    result = record["claims"]["further_rules"]["result"]
    (others,) = result["opponents"][few_bits.SLOW].values()
    rows = {row["arm"]: row["networks"][few_bits.SLOW] for row in result["rows"]}
    sides = {few_bits.OPPONENT: contested.best_of(others), few_bits.FEW: rows[few_bits.FEW]}
    for arm, side in sides.items():
        costs = {tuple(each[:2]): np.median(np.array(each[2:], float)) for each in side["tried"]}
        near = {cell for cell, cost in costs.items() if cost <= 1.15 * min(costs.values())}
        assert near == {cell[:2] for cell in few_bits.CELLS[arm]}
        (own,) = (cell for cell in few_bits.CELLS[arm] if cell[:2] == min(costs, key=costs.get))
        assert few_bits.setting(own) == pytest.approx({**side["chosen"], **side["point"]})
