"""The planner's command: a plan of a small problem, resumed, refused, and what it is told."""

import json
import math

import numpy as np
import pytest

from optdyn.base import progress
from optdyn.cli import app, plan
from optdyn.clock.network import round_trip
from optdyn.experiment import to_json
from optdyn.plan import layers, phases, planner, plans
from optdyn.plan.planner import Interval
from optdyn.report.plan import text

# Of the quadratic of conftest.py, whose program is compiled soon. Mostly, an example more takes
# 1,024 bytes for its place in the order of 256 updates.
SMALL = {
    "method.name": "sync",
    "cluster.nodes": 1,
    "cluster.bandwidth": 1e6,
    "cluster.latency": 1e-6,
    "plan.memory": 50_000,
    "plan.batches": (2, 8, 90),
    "plan.rounds": 3,
    "batch_size": 4,
}
NOISE = {"plan.noise_scale": 4.0}


@pytest.fixture(scope="module")
def small(config):
    def make(values=()):
        return config({**SMALL, **dict(values)})

    return make


@pytest.fixture(scope="module")
def planned(small, tmp_path_factory):
    """The plan and its workdir."""
    workdir = tmp_path_factory.mktemp("planned")
    return plan.run(small(NOISE), workdir), workdir


def test_the_largest_fits_and_a_larger_one_does_not(planned):
    made, _ = planned
    largest, memory = made["largest"], made["memory"]
    assert largest["bytes"] <= memory < largest["too_large"]["bytes"]
    assert math.isfinite(largest["loss_of_an_update"])
    # As bytes grow by 1 KiB an example and a little, the largest is near what that says.
    assert 25 <= largest["batch"] <= 50_000 / 1024 and not largest["all_examples"]


def test_the_best_candidate_that_fits_is_chosen(planned):
    made, _ = planned
    rows = {row["batch"]: row for row in made["batches"]}
    assert [row["feasible"] for row in rows.values()] == [True, True, False]
    best = min((rows[2], rows[8]), key=lambda row: row["time"]["median"])
    assert made["batch"] == best["batch"] and best["bytes"] <= made["memory"]
    assert made["servers"]["compute_seconds"] == best["seconds"]["median"]
    low, median, high = (best["seconds"][key] for key in ("low", "median", "high"))
    assert 0 < low <= median <= high


def test_time_to_train_is_updates_times_seconds_of_one_mini_batch(planned):
    """60 updates of the config's 4, of a noise scale of 4: half of them were for the noise."""
    made, _ = planned
    assert made["source"] == "config.steps, noise scale 4"
    for row, updates in zip(made["batches"][:2], (60 * (1 + 4 / 2) / 2, 60 * 1.5 / 2), strict=True):
        assert row["updates"]["median"] == pytest.approx(updates)
        # Certain updates only scale the interval.
        for key, seconds in row["seconds"].items():
            assert row["time"][key] == pytest.approx(updates * seconds, rel=1e-12)


def test_the_text_has_the_figures(planned):
    made, _ = planned
    shown = text(made)
    largest = made["largest"]
    for figure in (
        f"mini-batch {largest['batch']}, the largest that fits",
        f"mini-batch {largest['too_large']['batch']}: ",
        "does not fit",
        f"devices: {made['devices']['count']}, at most 64",
        f"use --config.batch_size={made['batch']} ",
        "planned with config.model.lowering as it is",  # there are no convolutions
    ):
        assert figure in shown


def test_the_same_command_reads_the_plan(planned, small, files, monkeypatch, capsys):
    made, workdir = planned
    before = files(workdir)
    assert json.loads(before["config.json"]) == json.loads(to_json(small(NOISE)))
    monkeypatch.setattr(layers, "updates", None)  # nothing can be measured
    assert plan.main(small(NOISE), workdir) == 0
    assert capsys.readouterr().out == text(made) + "\n"
    monkeypatch.setattr(app, "in_json", lambda: True)
    assert plan.main(small(NOISE), workdir) == 0
    assert json.loads(capsys.readouterr().out) == made
    assert files(workdir) == before


def test_another_config_is_refused(planned, small, files):
    _, workdir = planned
    before = files(workdir)
    with pytest.raises(app.InputError, match=r"config differs in plan\.memory; give another"):
        plan.run(small({**NOISE, "plan.memory": 60_000}), workdir)
    assert files(workdir) == before


def test_updates_of_an_unknown_noise_scale(small):
    updates, source = plan.updates_to_train(small({"batch_size": 4}))
    assert updates(4) == Interval(60, 60, 60)
    assert updates(8) == Interval(60, 30, 60) and updates(2) == Interval(120, 60, 120)
    assert source == "config.steps, the worst of all noise scales"


class PlanTimer:
    """Programs of known seconds by their lowering, with a noise of 1 %."""

    def __init__(self, seconds):
        self.seconds = seconds

    def update(self, batch, choice):
        return layers.UpdateProgram(100, 0, phases.Loop(lambda n=1: self.seconds[choice]))

    def measure(self, loops, rounds):
        noise = np.random.default_rng(0).normal(1, 0.01, (len(loops), rounds))
        return {name: loop.run() * noise[i] for i, (name, loop) in enumerate(loops.items())}


def test_who_waits_sees_how_many_programs_are_left(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PRINTED_SECONDS", 0.0)
    update = plans.with_progress(lambda batch, choice: (batch, choice), 4)
    for batch in (8, 8, 16):  # what is known already counts once
        assert update(batch, ("xla",)) == (batch, ("xla",))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "plan  program 1/4  mini-batch 8"
    assert len(lines) == 2 and lines[1].startswith("plan  program 2/4  mini-batch 16")
    assert lines[1].endswith("left")


@pytest.mark.parametrize(("planned", "kept"), [(2.0, True), (2.9999, False), (4.0, False)])
def test_a_plan_that_does_not_pay_falls_back(small, monkeypatch, planned, kept):
    """Planned FFT against the config's gemm of 3 s, in 1 % of noise."""
    clock = PlanTimer({("gemm",): 3.0, ("fft",): planned})
    monkeypatch.setattr(phases, "measure", clock.measure)
    given = clock.update, ("gemm",), 4, ("fft",)
    found = plans.verify(*given, small({"plan.memory": 200}).plan)
    assert found.choice == (("fft",) if kept else ("gemm",)) and found.planned == ("fft",)
    assert found.seconds.median == pytest.approx(planned if kept else 3.0, rel=0.05)
    assert planner.pays(found.gain) == kept
    # Where the config's own does not fit there is nothing to fall back to.
    alone = plans.verify(*given, small({"plan.memory": 50}).plan)
    assert alone.choice == ("fft",) and alone.gain is None and not alone.config_fits


@pytest.mark.parametrize("workers", [1, 3, 64])
def test_the_lemmas_of_a_cluster(small, workers):
    """R_O from the network: T_C such that so many devices are just as efficient as wanted."""
    size, config = 10**6, small({"plan.efficiency": 0.6, "cluster.latency": 0.25})
    overhead = round_trip(config.cluster, size)
    assert overhead == 2 * (0.25 + 1.0)
    allowed = (1 - 0.6) / (0.6 * workers - 1) if workers > 2 else 1e9  # lemma 1
    # A rounding less computation would be a device less.
    seconds = overhead / allowed * (1 + 1e-12)
    made = plan.cluster(config, size, seconds)
    assert made["devices"]["count"] == workers
    assert made["devices"]["overhead_ratio"] == pytest.approx(allowed)
    part = seconds / workers  # the devices divide the mini-batch
    assert made["servers"]["count"] == planner.parameter_servers(size, workers, 1e6, part)


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_the_lemmas_seconds_are_those_of_the_synchronous_clock(small, workers):
    """An exchange with a server, and a mini-batch that equal workers divide."""
    network = {"cluster.collective": "server", "cluster.latency": 0.25, "cluster.overlap": 0.0}
    nodes = {"cluster.nodes": workers, "cluster.seconds_per_example": 0.5, "batch_size": 24}
    values = {**network, **nodes, "cluster.service.name": "constant", "plan.devices": workers}
    config = small({**values, "plan.efficiency": 0.01, "steps": 5})
    size, seconds = 10**6, 24 * 0.5
    made = plan.cluster(config, size, seconds)["devices"]
    assert made["count"] == workers
    line = config.timeline(steps_per_epoch=1, update_bytes=size)
    assert line.seconds[-1] == pytest.approx(5 * made["seconds_per_update"])
    alone = plan.cluster(small({"plan.devices": 1}), size, seconds)["devices"]
    assert alone["seconds_per_update"] == seconds  # it exchanges with nobody


def test_the_limits_of_a_cluster(small):
    """Nothing to wait for: as many devices as there may be; efficiency 1: no second one."""
    free = plan.cluster(small({"cluster.bandwidth": 0.0, "cluster.latency": 0.0}), 100, 1.0)
    assert free["devices"]["count"] == 64 and free["devices"]["speedup"] == 64
    assert free["servers"]["count"] == 0
    alone = plan.cluster(small({"plan.efficiency": 1.0}), 100, 1.0)
    assert alone["devices"]["count"] == 1 and alone["devices"]["speedup"] == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"plan.memory": 5_000}, r"config\.plan\.memory = 5000: an update of one example takes"),
        (
            {"cluster.bandwidths": ((0.0,),)},
            r"config\.cluster\.bandwidths = \(\(0\.0,\),\): the lemmas know one link",
        ),
        (
            {"method.name": "asynchronous", "method.groups": 1},
            r"config\.method\.name = 'asynchronous': a plan is of one device",
        ),
        ({"parallel.api": "jit"}, r"config\.parallel\.api = 'jit': a plan is of one device"),
        (
            {"replicas.count": 2, "data.replacement": True},
            r"config\.replicas\.count = 2: a plan is of one device",
        ),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(small, values, message, tmp_path):
    workdir = tmp_path / "new"
    with pytest.raises(app.InputError, match=message) as error:
        plan.run(small(values), workdir)
    assert "\n" not in str(error.value) and not workdir.exists()


def test_no_candidate_fits(small, tmp_path):
    with pytest.raises(app.InputError, match=r"no mini-batch fits, of \[90\]"):
        plan.run(small({"plan.batches": (90,)}), tmp_path)
