"""Penalties read from runs, times prices: made-up runs, closed forms, a sweep's own seconds."""

import json
import shutil
import subprocess
from importlib.resources import files
from types import SimpleNamespace

import numpy as np
import pytest

import optdyn
from optdyn.base.errors import InputError
from optdyn.cli import price as command
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Constant, LogNormal
from optdyn.experiment import Config
from optdyn.price import price
from optdyn.price.shapes import parameter_shapes
from optdyn.problem.data.kinds import MNIST5k
from optdyn.problem.models import Quadratic
from optdyn.report import penalties, sliders, which
from optdyn.report.tables import TableError
from tests.report.test_statistical_efficiency import TARGET, write
from tests.train.runs import refusal

NODES, STEP, GIGABITS = 4, 0.5, 1.0
SHAPES = parameter_shapes(1e6)
RING = 2 * (NODES - 1) / NODES * SHAPES.bytes / (GIGABITS * price.GIGABIT)  # seconds
SLOW = (1.0, 1.3, 0.8)  # of each seed
RATES = (0.05, 0.1, 0.2)
# Updates of seed 0 at rate 0.1, by arm: its keys of method and its batch.
ARMS = {
    "sync": ({"name": "sync"}, 64, 100),
    "diloco 8": ({"name": "diloco", "period": 8}, 64, 110),
    "diloco 32": ({"name": "diloco", "period": 32}, 64, 150),
    "asynchronous (4 groups)": ({"name": "asynchronous", "groups": 4}, 64, 130),
}


def sweep(folder, arms=ARMS, rates=RATES, **changes):
    """Diloco's best outer momentum is 0.5; another takes twice the updates."""
    for label, (method, batch, updates) in arms.items():
        for i, (rate, seed) in enumerate((r, s) for r in rates for s in range(len(SLOW))):
            for outer in (0.5, 0.9) if method["name"] == "diloco" else (None,):
                keys = {} if outer is None else {"outer_momentum": outer}
                taken = updates * SLOW[seed] * (1 + abs(np.log2(rate / 0.1)))
                optimizer = {"name": "sgd", "momentum": 0.9, "learning_rate": rate}
                config = {
                    "method": method | keys,
                    "optimizer": optimizer,
                    "model": {"name": "mlp"},
                    "data": {"name": "mnist5k"},
                    "cluster": {"nodes": NODES, "service": {"name": "constant"}},
                    "batch_size": batch,
                    "seed": seed,
                } | changes
                write(folder, f"{label}{i}{outer}", config, taken * (1 + (outer == 0.9)), 1.0)
    return folder


def cluster(**keys):
    config = Config(cluster=Cluster(nodes=NODES, service=Constant()), batch_size=32)
    return price.with_step_seconds(config.with_({f"cluster.{k}": v for k, v in keys.items()}), STEP)


def asked(found, config=None):
    (answer,) = which.answers(config or cluster(), SHAPES, found, [GIGABITS])
    return answer, {row.label: row for row in answer.rows}


def test_a_penalty_is_what_the_losses_were_made_with(tmp_path):
    found = penalties.measured([sweep(tmp_path)], TARGET)
    assert found.seeds == 3 and found.problem == "mlp on mnist5k, sgd"
    _, rows = asked(found)
    assert {row.doubt for row in rows.values()} == {"", "outer_momentum on an edge"}
    for label, (_, _, updates) in ARMS.items():
        assert rows[label].updates == pytest.approx([updates / 100] * 3)
    assert found.anchor.median_updates(np.arange(3)[None]) == pytest.approx(100)


def test_a_seed_is_not_judged_at_the_setting_it_chose(tmp_path):
    """Two settings that are best on a seed each: judged on the others, none has its own luck."""
    arms = {"sync": ARMS["sync"]}
    sweep(tmp_path, arms, rates=(0.1,))
    lucky = {0.3: (10, 200, 210), 0.4: (205, 20, 215)}
    for rate, taken in lucky.items():
        for seed, updates in enumerate(taken):
            config = json.loads((tmp_path / "points" / f"sync{seed}None/config.json").read_text())
            config["method"] = {"name": "diloco", "period": 8}
            config["optimizer"]["learning_rate"] = rate
            write(tmp_path, f"{rate}-{seed}", config, updates, 1.0)
    found = penalties.measured([tmp_path], TARGET)
    (arm,) = (arm for arm in found.arms if not arm.synchronous)
    # Seed 0 is judged at 0.4 (of the others' medians, 205 and 117.5), seed 1 at 0.3, seed 2 at
    # 0.3 or 0.4 (105 and 112.5): 205, 200 and 210.
    assert arm.median_updates(np.arange(3)[None]) == pytest.approx(205)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Penalties of a sweep of one learning rate."""
    return penalties.measured([sweep(tmp_path_factory.mktemp("sweep"), rates=(0.1,))], TARGET)


def test_time_is_the_penalty_times_the_closed_form_of_a_ring(found):
    """Constant times: an update takes a step, and an exchange every period updates."""
    answer, rows = asked(found)
    sync = STEP + RING
    for label, seconds in (("sync", sync), ("diloco 8", STEP + RING / 8)):
        assert rows[label].seconds == pytest.approx([seconds] * 3, rel=1e-6)
        taken = ARMS[label][2] / 100 * seconds / sync
        assert rows[label].time == pytest.approx([taken] * 3, rel=1e-6)
    # Four groups arrive one by one: each update has the examples of a synchronous one, so that a
    # worker computes four steps for it, and sends there and back.
    alone = (4 * STEP + 2 * SHAPES.bytes / (GIGABITS * price.GIGABIT)) / 4
    assert rows["asynchronous (4 groups)"].seconds[0] == pytest.approx(alone, rel=0.02)
    times = [row.time[0] for row in answer.rows]
    assert times == sorted(times) and answer.rows[0].word == which.BEST
    assert {row.word for row in answer.rows[1:]} == {which.SLOWER}  # points are told apart
    assert rows["sync"].updates == rows["sync"].time == (1.0, 1.0, 1.0)


def test_the_opponent_has_the_best_of_its_batches(tmp_path):
    """Four times the batch in half the updates: slower where computing is all, faster where not."""
    arms = ARMS | {"sync-256": ({"name": "sync"}, 256, 50)}
    found = penalties.measured([sweep(tmp_path, arms, rates=(0.1,))], TARGET)
    assert found.anchor.batch == 64
    slow, fast = answers = which.answers(cluster(), SHAPES, found, [1e-3, 1e3])
    for answer, best in ((slow, "sync (batch 256)"), (fast, "sync (batch 64)")):
        (opponent,) = (row for row in answer.rows if row.time == (1.0, 1.0, 1.0))
        assert opponent.label == best
    batches = {row.label: row.batch_size for row in slow.rows}
    assert batches["sync (batch 64)"] == 32 and batches["sync (batch 256)"] == 128
    text = " ".join(which.sentences(answers, found, cluster()))
    assert "batch at 0.001 Gbit/s, 256, is the largest one measured" in text
    assert "batch at 1000 Gbit/s, 64, is the smallest one measured" in text


def test_noise_of_the_seeds_is_the_interval(tmp_path):
    """Seeds that go one way with one method and the other way with the other."""
    for name, taken in (("sync", (100, 110, 120, 130)), ("diloco", (130, 120, 110, 100))):
        for seed, updates in enumerate(taken):
            method = {"name": name, "period": 8} if name == "diloco" else {"name": name}
            config = {"method": method, "batch_size": 64, "seed": seed}
            config["optimizer"] = {"name": "sgd", "momentum": 0.0, "learning_rate": 0.1}
            write(tmp_path, f"{name}{seed}", config, updates, 1.0)
    _, rows = asked(penalties.measured([tmp_path], TARGET), cluster(bandwidth=0.0))
    value, low, high = rows["diloco 8"].updates
    assert value == pytest.approx(1) and low == pytest.approx(100 / 130, rel=0.05)
    assert high == pytest.approx(130 / 100, rel=0.05)
    assert {row.word for row in rows.values()} == {which.BEST, which.OPEN}
    assert {row.doubt for row in rows.values()} == {"one setting"}


@pytest.mark.slow
def test_the_product_is_what_a_sweep_measures_in_seconds(tmp_path):
    """On the sweep's own cluster, of equal workers: the ratio of its simulated seconds."""
    base = optdyn.Experiment(
        model=Quadratic(dimension=6, noise=0.2),
        data=MNIST5k(train_examples=100),
        optimizer=optdyn.SGD(learning_rate=0.05),
        cluster=Cluster(nodes=2, bandwidth=2e3, service=Constant(), seconds_per_example=0.01),
        batch_size=8,
        log_every=2,
    )
    arms = {"sync": base, "diloco": base.with_(method=optdyn.DiLoCo(period=4))}
    runs = optdyn.compare(arms, steps=120, seeds=range(3), workdir=tmp_path)
    target = 1.5 * runs.target
    found = base.which(tmp_path, target=target)
    table = runs.table(target)
    for name, label in (("sync", "sync"), ("diloco", "diloco 4")):
        assert found.loc[label, "updates"] == pytest.approx(table.loc[name, "updates_ratio"])
        # The price is of the steady state: a run may end within a period.
        rel = 4 / table.loc[name, "updates"]
        assert found.loc[label, "time"] == pytest.approx(table.loc[name, "seconds_ratio"], rel=rel)
    assert found["told"].iloc[0] == which.BEST


@pytest.mark.parametrize("key", penalties.FREE)
def test_what_a_method_is_tuned_by_changes_no_price(key):
    owners = {"slow": "slowmo", "outer": "diloco", "mixing": "diloco"}
    owners |= {"momentum": "async_local_sgd"}
    name = owners.get(key.split("_")[0], "elastic")
    one = price.with_method(cluster(service=LogNormal(0.3)), name, period=4)
    other = one.with_({f"method.{key}": 0.35})
    assert other != one and price.price(one, SHAPES) == price.price(other, SHAPES)


def test_what_was_not_measured_is_listed_and_the_best_is_named(found):
    names, keys = ["sync", "diloco", "gossip", "asynchronous"], [{"period": h} for h in (8, 16)]
    rows = list(price.rows(cluster(), SHAPES, names, [GIGABITS], keys))
    lines, (answer,) = command._which(cluster(), SHAPES, found, [GIGABITS], rows)
    missing = [line.split("  ")[0] for line in lines if line.endswith("not measured")]
    assert missing == ["diloco 16", "gossip"] == answer["not measured"]
    best = min(answer["rows"], key=lambda row: row["time"][0])
    assert f"At 1 Gbit/s {best['label']} takes the least time" in " ".join(lines)
    assert json.loads(json.dumps(answer, allow_nan=False)) and max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("changes", "kept", "where", "target", "said"),
    [
        ({}, ["diloco 8"], [], TARGET, "synchronous training, the opponent"),
        ({}, list(ARMS), [], -1.0, "higher --target"),
        ({}, list(ARMS), [], 5.0, "must be below it"),
        ({}, list(ARMS), ["model.name"], TARGET, "KEY=VALUE"),
        ({"seed": 0}, list(ARMS), [], TARGET, "two seeds"),
        ({"model": {"name": "cnn"}}, list(ARMS), [], TARGET, "--where=model.name=VALUE"),
    ],
)
def test_what_cannot_be_compared_is_one_line(tmp_path, changes, kept, where, target, said):
    sweep(tmp_path / "a", {label: ARMS[label] for label in kept}, rates=(0.1,), **changes)
    sweeps = [tmp_path / "a"]
    if "model" in changes:
        sweeps.append(sweep(tmp_path / "b", rates=(0.1,)))
    line = refusal(penalties.measured, sweeps, target, where, error=TableError)
    assert said in line


def test_flags_of_a_penalty_need_one():
    usual = {"penalty": [], "target": None, "where": [], "bandwidths": ["1"], "out": "", "page": ""}
    for given, said in (
        ({"target": 0.0}, "--target: needs --penalty"),
        ({"where": ["seed=1"]}, "--where: needs --penalty"),
        ({"penalty": ["nowhere"]}, "there is no 'nowhere'"),
    ):
        with pytest.raises(InputError, match=said):
            InputError.refuse(command._flag_checks(SimpleNamespace(**usual | given)))


@pytest.fixture(scope="module")
def shown(found):
    """The experiment that the page is of, and its data."""
    config = cluster(service=LogNormal(0.3))
    with pytest.MonkeyPatch.context() as few:
        few.setattr(sliders, "GIGABITS", (1.0, 100.0))
        few.setattr(sliders, "SPREADS", (0.0,))
        data = sliders.grid(config, SHAPES, list(sliders.curves_of_arms(found)), (2, NODES), 1.0)
    return config, data


def test_the_figures_of_the_page_are_prices(found, shown):
    config, data = shown
    assert data["stragglers"] == ["none", "30%"] and data["periods"] == [8, 32]
    assert data["start"] == {"bandwidth": 0, "nodes": 1, "stragglers": 1, "period": 1}
    for row, arm in zip(data["rows"], found.arms, strict=True):
        for nodes in (2, NODES):
            here = price.with_nodes(config, nodes)
            if arm.name == "asynchronous" and nodes == 2:  # whom four groups cannot share
                assert row["seconds"][1][0] is None
                continue
            one = which.on_cluster(here, arm, found.anchor)
            of = price.price_by_bandwidth(one, SHAPES)
            for i, gigabits in enumerate(data["gigabits"]):
                for name in ("seconds", "computing"):
                    wanted = getattr(of(gigabits * price.GIGABIT), name)
                    written = row[name][1][(2, NODES).index(nodes)][i]
                    assert written == pytest.approx(wanted, rel=1e-4)  # five digits
    _, rows = asked(found, config)
    labels = which.labels(found.arms)
    for row, label in zip(data["rows"], labels, strict=True):
        assert row["penalty"][0] == pytest.approx(rows[label].updates, rel=1e-4)


def test_the_page_needs_nothing_and_every_slider_has_a_label(found, shown):
    _, data = shown
    text = sliders.render(data, "4 nodes & more", "the tables", found)
    assert "4 nodes &amp; more" in text and "the tables" in text
    assert "src=" not in text and "@import" not in text and "fetch(" not in text
    assert [word for word in text.split('"') if word.startswith("http")] == [
        "http://www.w3.org/2000/svg"  # the name of a kind of XML, which nobody asks for
    ]
    for name in ("bandwidth", "nodes", "stragglers", "period"):
        assert text.count(f'<label for="at-{name}">') == text.count(f'id="at-{name}"') == 1


@pytest.mark.skipif(shutil.which("node") is None, reason="needs a JavaScript engine")
def test_what_the_page_says_is_what_the_command_does(found, shown):
    config, data = shown
    script = files("optdyn.report").joinpath("sliders.js").read_text()
    call = "console.log(JSON.stringify(look(DATA, {...DATA.start, period: 0})))"
    program = f"{script}\nconst DATA = {json.dumps(data)};\n{call}"
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    page = json.loads(done.stdout)
    times = {row["label"].replace(", period", ""): row["time"] for row in page["rows"]}
    seconds = {
        label: price.price(
            which.on_cluster(config.with_({"cluster.bandwidth": price.GIGABIT}), arm, found.anchor),
            SHAPES,
        ).seconds
        for label, arm in zip(which.labels(found.arms), found.arms, strict=True)
    }
    assert set(times) == set(seconds) - {"diloco 32"}
    for label, (value, *_) in times.items():
        wanted = ARMS[label][2] / 100 * seconds[label] / seconds["sync"]
        assert value == pytest.approx(wanted, rel=1e-3)
    best = page["rows"][0]["label"]
    assert min(times, key=lambda label: times[label][0]) == best.replace(", period", "")
    assert f"With 4 nodes and 1 Gbit/s {best} takes the least time" in page["answer"]
