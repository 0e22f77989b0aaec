"""Races made up of known laws are recognised, and the simulator with the fitted law repeats them.

Service times are drawn and merged here, in a few lines that share nothing with the simulator.
"""

import ast
import heapq
import json
import math
import shlex
from collections import deque

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from optdyn.clock.cluster import Cluster
from optdyn.experiment import Config, to_json
from optdyn.methods.asynchronous import Asynchronous
from optdyn.report import race, raced
from optdyn.report.tables import TableError

START = "python -m launch.race --config=a.py --config.steps=9 --x"
MEANS = (0.02, 0.05, 0.03)  # seconds


def draws(name, variation, size, seed):
    """Of unit mean, by NumPy."""
    rng = np.random.default_rng(seed)
    if name == "exponential":
        return rng.exponential(size=size)
    if name == "gamma":
        return rng.gamma(variation**-2, variation**2, size)
    sigma = math.sqrt(math.log(1 + variation**2))
    return np.exp(rng.normal(-(sigma**2) / 2, sigma, size))


def arrivals(services):
    """(worker, seconds) of services (g, n) by workers that never wait, while all are at work."""
    times = np.cumsum(services, axis=1)
    worker = np.repeat(np.arange(len(times)), times.shape[1])
    order = np.argsort(times.ravel(), kind="stable")
    order = order[times.ravel()[order] <= times[:, -1].min()]
    return worker[order], times.ravel()[order]


def workdir(folder, worker, seconds, losses=(), log_every=10**6, **columns):
    """Of a race; `losses` are logged evenly over the updates."""
    groups = int(max(worker)) + 1
    config = Config(
        method=Asynchronous(groups=groups),
        cluster=Cluster(nodes=groups),
        steps=len(worker),
        log_every=log_every,
        checkpoint_every=0,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(to_json(config))
    table = pd.DataFrame({"worker": worker, "seconds": seconds, **columns})
    table.to_csv(folder / "trace.csv", index=False)
    rows = [{"step": 0, "simulated_seconds": 0.0, "train_loss": 1.0}]
    for i, loss in enumerate(losses, start=1):
        step = i * len(worker) // len(losses)
        rows.append({"step": step, "simulated_seconds": seconds[step - 1], "train_loss": loss})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def made(folder, name, variation, means=MEANS, size=1500, seed=0, **more):
    services = draws(name, variation, (len(means), size), seed) * np.array(means)[:, None]
    return workdir(folder, *arrivals(services), **more)


def command(capsys, *arguments):
    """(exit code, standard output, error)."""
    code = race.main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("name", "variation"),
    [("exponential", 1.0), ("gamma", 0.4), ("gamma", 1.6), ("lognormal", 0.3), ("lognormal", 1.2)],
)
def test_a_known_law_is_recognised_and_its_variation_covered(name, variation):
    """Of 40 samples 95 % and more, each of three workers, are to be named and covered."""
    named = covered = 0
    for seed in range(40):
        services = draws(name, variation, (3, 700), seed) * np.array(MEANS)[:, None]
        laws = raced.fit(raced.ratios(services), 3)
        low, high = next(law.interval for law in laws if law.name == name)
        named += laws[0].name == name
        covered += low <= variation <= high
    # Of a probability of 0.95, fewer than 33 of 40 come once in a thousand times.
    assert named >= 33 and covered >= 33


def test_fits_are_those_of_scipy_and_of_closed_forms():
    x = raced.ratios(draws("gamma", 0.7, (2, 400), 3))
    found = {law.name: law for law in raced.fit(x, 2)}
    shape, _, scale = stats.gamma.fit(x, floc=0)
    assert shape * scale == pytest.approx(1)  # so the unit mean is no restriction
    # Both stop within some 1e-6 of the maximum.
    assert found["gamma"].variation == pytest.approx(shape**-0.5, rel=1e-4)
    likelihood = stats.gamma.logpdf(x, shape, scale=scale).sum()
    assert found["gamma"].aic == pytest.approx(2 * (2 + 1) - 2 * likelihood)
    # d/dv of the likelihood of log x ~ N(-v / 2, v) is 0 where v^2 / 4 + v = mean (log x)^2.
    v = 2 * (math.sqrt(1 + np.mean(np.log(x) ** 2)) - 1)
    assert found["lognormal"].variation == pytest.approx(math.sqrt(math.expm1(v)), rel=1e-4)
    assert found["exponential"].aic == pytest.approx(2 * 2 + 2 * x.sum())


def test_correlation_of_services_in_a_row():
    rng = np.random.default_rng(0)
    noise, walk = rng.normal(size=(2, 5000)), np.zeros((2, 5000))
    for i in range(1, 5000):
        walk[:, i] = 0.6 * walk[:, i - 1] + noise[:, i]
    found, error = raced.serial([10 + walk[0], 30 + walk[1]])
    assert error == pytest.approx(0.01, rel=1e-3) and found == pytest.approx(0.6, abs=4 * error)
    assert abs(raced.serial([10 + noise[0], 20 + noise[1]])[0]) < 4 * error


def test_the_geometric_law():
    law = raced.geometric(4, 3)
    np.testing.assert_allclose(law, [1 / 4, 3 / 16, 9 / 64, 27 / 64], rtol=1e-15)
    np.testing.assert_array_equal(raced.geometric(1, 2), [1, 0, 0])
    assert raced.distance(np.array([3, 1]), np.array([0, 0, 7])) == 1
    assert raced.distance(np.array([1, 1]), np.array([5])) == 0.5


def test_memoryless_arrivals_pass_and_turns_fail():
    rng, p = np.random.default_rng(0), []
    for _ in range(300):
        worker = rng.integers(4, size=1500)
        late = raced.from_arrivals(worker, np.arange(1500.0), 4).staleness
        p.append(raced.memoryless(raced.histogram(worker, late, np.zeros(0, int)), 4)["p"])
    # 5 % of 300 are 15, four deviations more 30: the bound leaves room for staleness that is not
    # independent, and none for a law that is wrong by 5 % anywhere.
    assert 4 <= np.sum(np.array(p) < 0.05) <= 30
    turns = np.tile(np.arange(4), 300)
    late = raced.from_arrivals(turns, np.arange(1200.0), 4).staleness
    found = raced.memoryless(raced.histogram(turns, late, np.zeros(0, int)), 4)
    assert found["p"] < 1e-100 and found["distance"] == pytest.approx(1 - 27 / 256)
    assert raced.memoryless(np.array([50]), 1) == {
        "distance": 0.0,
        "chi_square": None,
        "freedom": 0,
        "p": None,
    }


def test_a_worker_that_waited_is_not_slow(tmp_path):
    """Two workers, 1 and 3 seconds a gradient; the fast one reads when the slow one arrives."""
    rounds = np.arange(40)
    worker = np.tile([0, 1], 40)
    seconds = (3.0 * rounds[:, None] + [1.0, 3.0]).ravel()
    version = np.repeat(2 * rounds, 2)  # both read what the slow one made
    found = raced.load(workdir(tmp_path, worker, seconds, version=version))
    np.testing.assert_array_equal(found.means, [1, 3])
    assert found.services[0].size == 38  # without the first two, near the start
    np.testing.assert_array_equal(found.staleness, np.tile([0, 1], 40))


@pytest.mark.parametrize(("name", "variation"), [("gamma", 0.4), ("lognormal", 1.2)])
def test_the_simulator_with_the_fitted_law_repeats_the_race(tmp_path, name, variation):
    recorded = raced.load(made(tmp_path, name, variation))
    found = race.summarize(recorded)
    drawn = found["simulated"]
    whole = sum(1 / mean for mean in recorded.means)
    # 3,000 services of variation v leave each mean uncertain by v / 30: 4 % at most, of the sum
    # of three half of that, in the race as in a seed.
    assert found["updates_a_second"] == pytest.approx(whole, rel=0.05)
    assert drawn["updates_a_second"][0] == pytest.approx(whole, rel=0.05)
    assert found["law_from"] is None and "identity" in found["notes"][0]
    assert drawn["distance"] < 2 * drawn["chance"] and found["geometric"]["p"] < 1e-3
    assert found["geometric"]["distance"] > 2 * drawn["distance"]
    # The gaps of every worker add up to the length of the run, so the mean is g - 1.
    assert found["staleness_mean"] == pytest.approx(2, rel=0.01)
    assert found["momentum"]["of_staleness"] == pytest.approx(2 / 3, rel=0.01)


def test_constant_service_is_told(tmp_path):
    services = np.full((4, 50), 0.25)
    found = race.summarize(raced.load(workdir(tmp_path, *arrivals(services))))
    assert found["laws"][0]["name"] == "constant" and len(found["laws"]) == 1
    assert found["staleness_histogram"] == [0, 0, 0, 179]
    assert found["simulated"]["relative_error"] == pytest.approx(0, abs=1e-5)  # six digits
    assert found["simulated"]["distance"] == 0
    line = " ".join(found["notes"])
    assert "Service is constant" in line and "always 3: workers take turns" in line
    # A delay of 3 is nothing like one term of momentum: no mass at 0, 1 and 2.
    assert found["momentum"]["distance"] == pytest.approx(1 - 27 / 256, abs=1e-6)


def test_memoryless_workers_are_told(tmp_path):
    found = race.summarize(raced.load(made(tmp_path, "exponential", 1.0, means=(0.1,) * 4)))
    assert found["laws"][0]["name"] == "exponential" and found["geometric"]["p"] > 1e-3
    assert "agrees with the geometric law" in " ".join(found["notes"])
    assert found["momentum"]["distance"] < 0.05


def test_a_setup_is_no_part_of_the_pace(tmp_path):
    services = draws("gamma", 0.3, (2, 800), 1)
    plain = race.summarize(raced.load(workdir(tmp_path / "a", *arrivals(services))))
    services[:, 0] += 7
    late = race.summarize(raced.load(workdir(tmp_path / "b", *arrivals(services))))
    for old, new in zip(plain["workers"], late["workers"], strict=True):
        assert new == pytest.approx(old)
    assert late["staleness_histogram"] == plain["staleness_histogram"]
    assert late["updates_a_second"] == pytest.approx(plain["updates_a_second"], rel=1e-2)
    assert late["setup_seconds"] == pytest.approx(7, abs=1)  # a service more or less


def test_stops_of_the_server_are_left_out(tmp_path):
    """Before every 50th update it stops for 2 s: who arrives meanwhile waits, all others go on.

    A service takes 0.1 s, so with the stops in it the variation would be several times as large.
    """
    rng, steps, pause = np.random.default_rng(5), 5000, 2.0
    working = [(x, w) for w, x in enumerate(rng.gamma(4, 0.025, 4))]
    heapq.heapify(working)
    worker, seconds, free = [], [], 0.0
    for t in range(steps):
        if t and t % 50 == 0:
            free = seconds[-1] + pause
        now, w = heapq.heappop(working)
        now = max(now, free)
        worker.append(w)
        seconds.append(now)
        heapq.heappush(working, (now + rng.gamma(4, 0.025), w))
    recorded = raced.load(workdir(tmp_path / "a", np.array(worker), seconds, log_every=50))
    # Half of the services are left, 600 a worker, of variation 0.5: errors of 2 % each.
    assert 400 < min(map(len, recorded.services)) < 800
    np.testing.assert_allclose(recorded.means, 0.1, rtol=0.08)
    found = race.summarize(recorded)
    law = found["laws"][0]
    assert law["name"] == "gamma" and law["variation"] == pytest.approx(0.5, rel=0.08)
    assert found["updates_a_second"] == pytest.approx(40, rel=0.03)
    # 50 updates take 1.25 s, and the stop 2 s, during which four come that are then there at once.
    assert found["updates_a_second_with_stops"] == pytest.approx(50 / (46 / 40 + pause), rel=0.03)
    assert found["simulated"]["distance"] < 2 * found["simulated"]["chance"]
    often = raced.load(workdir(tmp_path / "b", np.array(worker), seconds, log_every=5))
    assert len(often.stops) == 0 and "come too often" in " ".join(race.summarize(often)["notes"])
    assert raced.fit(raced.ratios(often.services), 4)[0].variation > 0.7


def test_command(tmp_path, capsys):
    losses = [0.9, 0.7, 0.5, 0.4]
    two = made(tmp_path / "two", "gamma", 0.5, means=(0.1, 0.1), seed=1)
    four = made(tmp_path / "four", "gamma", 0.5, means=(0.1,) * 4, losses=losses)
    other = made(tmp_path / "other", "gamma", 0.5, means=(0.1,) * 4, losses=[0.9, 0.6, 0.5, 0.4])
    (four / "history.json").write_text(json.dumps({"starts": [{"at": 0, "command": START}]}))
    asked = (f"--workdir={four}", f"--from={two}", f"--against={other}")
    code, out, error = command(capsys, *asked)
    assert (code, error) == (0, "")
    found = json.loads((four / "race.json").read_text())
    # 40 a second; of 2,900 and 6,000 services of variation 0.5 known to 1 % and 0.6 %.
    assert found["simulated"]["updates_a_second"][0] == pytest.approx(40, rel=0.05)
    assert abs(found["simulated"]["relative_error"]) < 0.05
    assert found["law_from"] == "two" and "this is a prediction" in out
    against = found["against"]
    assert against["by_update"]["largest"] == pytest.approx(0.1)
    assert against["by_update"]["train_loss"] == 0.7 and against["by_update"]["points"] == 5
    assert against["differ"] == []
    words = shlex.split(out.strip().split("\n")[-1])
    assert words[:4] == ["optdyn", "train", "--config=a.py", "--config.steps=9"]
    flags = dict(word.removeprefix("--config.").split("=") for word in words[4:-1])
    kept = {"cluster.service.name": flags.pop("cluster.service.name")}
    values = kept | {key: ast.literal_eval(value) for key, value in flags.items()}
    assert values["cluster.service.name"] == "gamma" and values["method.groups"] == 4
    recorded = raced.load(four)
    again = race.rates(race.simulate(recorded, values), recorded.stops)
    assert np.median(again) == found["simulated"]["updates_a_second"][0]


def test_what_is_no_race_is_one_line(tmp_path, capsys):
    good = made(tmp_path / "good", "gamma", 0.5, size=200)
    code, _, error = command(capsys, f"--workdir={tmp_path / 'none'}")
    assert code == 2 and error.startswith("error: ") and error.count("\n") == 1
    cases = {
        "no race in it": lambda table: None,
        "workers 0 to 2": lambda table: table[table["worker"] != 1],
        "finite, from 0 up": lambda table: table.iloc[::-1],
        "fewer than 31 arrivals": lambda table: table[:60],
        "columns worker and seconds": lambda table: table[["worker"]],
        "version must be": lambda table: table.assign(version=10**6),
    }
    for number, (message, change) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in ("config.json", "metrics.jsonl"):
            (folder / name).write_bytes((good / name).read_bytes())
        table = change(pd.read_csv(good / "trace.csv"))
        if table is not None:
            table.to_csv(folder / "trace.csv", index=False)
        with pytest.raises(TableError, match=message) as error:
            raced.load(folder)
        assert "\n" not in str(error.value)
        assert command(capsys, f"--workdir={folder}")[0] == 2
        assert not (folder / "race.json").exists()


def in_turns(workers, updates, w=0.1, s=0.02, cores=2, quantum=1e-3):
    """(worker, seconds) of a race on cores that an operating system hands out in turn."""
    rng = np.random.default_rng(workers)
    left = {group: w * draws("lognormal", 0.3, None, rng) for group in range(workers)}
    runnable, queue, arrived, now = deque(left), deque(), [], 0.0
    while len(arrived) < updates:
        now += quantum
        for task in [runnable.popleft() for _ in range(min(cores, len(runnable)))]:
            left[task] -= quantum
            if left[task] > 0:
                runnable.append(task)
            elif task == "server":
                group = queue.popleft()
                arrived.append((group, now))
                left[group] = w * draws("lognormal", 0.3, None, rng)
                runnable.append(group)
            else:
                queue.append(task)
        if queue and "server" not in runnable:
            left["server"] = s
            runnable.append("server")
    return map(np.array, zip(*arrived, strict=True))


def test_shared_cores_are_predicted_from_one_worker(tmp_path, capsys):
    """Three workers and a server on two cores, w = 0.1 and s = 0.02 s, from a race of one.

    Today's clock says 25 a second, of workers that do not slow one another: two cores have
    2 / 0.12 = 16.7 updates' work done at the most.
    """
    one, three = (
        workdir(tmp_path / str(g), *in_turns(g, 2000), served=np.full(2000, 0.02)) for g in (1, 3)
    )
    found = race.summarize(raced.load(three), raced.load(one), cores=2.0)
    shared = found["shared"]
    # 2,000 services of variation 0.3 are known to 0.7 %, those of the source and of the race; a
    # phase ends up to a millisecond late, of 0.12 s.
    assert shared["relative_error"] == pytest.approx(0, abs=0.02)
    assert shared["computing_seconds"] == pytest.approx(0.1, rel=0.02)
    assert found["simulated"]["relative_error"] > 0.5
    # Of 2,000 updates over some five stalenesses 0.02 is chance.
    assert shared["distance"] < 0.04
    code, out, error = command(capsys, f"--workdir={three}", f"--from={one}", "--cores=2")
    assert (code, error) == (0, "") and "updates a second, 2 cores shared" in out
    for asked, message in (
        ((f"--workdir={three}", "--cores=2"), "needs --from=DIR1, a race of one worker"),
        ((f"--workdir={one}", f"--from={three}", "--cores=2"), "needs --from=DIR1"),
        ((f"--workdir={three}", f"--from={one}", "--cores=0"), "must be positive"),
    ):
        code, _, error = command(capsys, *asked)
        assert code == 2 and message in error and error.count("\n") == 1
