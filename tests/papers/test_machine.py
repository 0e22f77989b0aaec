"""The rules of the claims that are of one machine: each verdict from results that are made up."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from optdyn.configs.papers import lowering, planner, planner_speeds_up, throughput

ROUNDS = 9


def noisy(value: float, seed: int, deviation: float = 0.01) -> list[float]:
    noise = np.random.default_rng(seed).normal(1, deviation, ROUNDS)
    return (value * noise).tolist()


def lowered(one: dict[tuple[str, int], float], deviation: float = 0.01):
    """Seconds where one image at a time takes so many times as long, in half of which XLA does."""
    rows = []
    for seed, ((name, cores), factor) in enumerate(one.items()):
        for batch in (16, 256):
            # What small batches gain must not count.
            by = {"whole": 1.0, "one": factor if batch == 256 else 100.0, "xla": 0.5}
            rows += [
                {
                    "name": name,
                    "cores": cores,
                    "batch": batch,
                    "way": way,
                    "seconds": noisy(t, 10 * seed + i, deviation),
                }
                for i, (way, t) in enumerate(by.items())
            ]
    return {"rows": rows, "load": (0.0, 0.0)}


CASES = [("a", 1), ("a", 2), ("network", 1), ("network", 2)]


@pytest.mark.parametrize(
    ("factors", "word"),
    [
        ((6, 6, 6, 1), "confirmed"),
        ((6, 6, 5, 5), "open"),  # half is not more than half
        ((1.5, 1.5, 1.5, 3), "open"),
        ((1.5, 0.5, 1.5, 1), "refuted"),
    ],
)
def test_lowering(factors, word):
    result = lowered(dict(zip(CASES, factors, strict=True)))
    found = lowering.verdict(result)
    assert found.word == word and "takes 0.5" in found.by
    figure = Figure()
    lowering.picture(result, figure)
    assert len(figure.axes) == 1


def test_noise_does_not_refute():
    assert lowering.verdict(lowered(dict.fromkeys(CASES, 1.9), deviation=0.3)).word == "open"


def devices(speeds: dict[str, float], train: dict[str, float], deviation: float = 0.01):
    """Products at these speeds, and updates of every model at those."""
    seconds = {}
    for i, (name, speed) in enumerate(speeds.items()):
        seconds[f"product, {name}"] = noisy(1 / speed, i, deviation)
        for j, model in enumerate(throughput.MODELS):
            seconds[f"{model}, {name}"] = noisy((1 + j) / train[name], 100 * j + i, deviation)
    return {"devices": list(speeds), "seconds": seconds, "load": (0.0, 0.0)}


@pytest.mark.parametrize(("train", "word"), [(3.0, "confirmed"), (2.2, "open"), (1.5, "refuted")])
def test_throughput(train, word):
    """A device of three times the throughput: training on it is so many times as fast."""
    speeds = {"1 core, float32": 1.0, "2 cores, float32": 3.0}
    result = devices(speeds, {"1 core, float32": 1.0, "2 cores, float32": train})
    assert throughput.verdict(result).word == word
    figure = Figure()
    throughput.picture(result, figure)
    assert len(figure.axes) == 1


def trained(default: float, planned: float, batch: int = 128, name: str = "gemm,fft"):
    time = {"median": 2.2, "low": 2.0, "high": 2.4}
    row = {"feasible": True, "lowering": name, "time": time}
    seconds = {"default": noisy(default, 0), "planned": noisy(planned, 1)}
    return {
        "runs": {str(b): {"interior": b != 8} for b in planner.BATCHES},
        "plan": {"batch": batch, "rows": {str(b): {"batch": b, **row} for b in planner.BATCHES}},
        "arms": {"default": (planner.DEFAULT, "gemm"), "planned": (batch, name)},
        "seconds": seconds | {str(b): [2.0] * ROUNDS for b in planner.PREDICTED},
        "load": (0.0, 0.0),
    }


@pytest.mark.parametrize(
    ("result", "word"),
    [
        (trained(2.0, 1.5), "confirmed"),
        (trained(2.0, 2.5), "refuted"),
        (trained(2.0, 2.0), "open"),
        # The default itself, however lucky one of the two was.
        (trained(2.0, 1.5, planner.DEFAULT, "gemm,gemm"), "open"),
        (trained(2.0, 1.5, planner.DEFAULT, "gemm,fft"), "confirmed"),
    ],
)
def test_planner(result, word):
    found = planner.verdict(result)
    assert found.word == word and "1.10 at 16" in found.by and "edge at mini-batches 8" in found.by
    figure = Figure()
    planner.picture(result, figure)
    assert len(figure.axes) == 1


@pytest.mark.parametrize(
    ("result", "word"),
    [
        (trained(2.0, 1.5), "confirmed"),
        (trained(2.0, 1.98), "refuted"),  # a speed-up of 1 %
        (trained(2.0, 1.9), "open"),
        (trained(2.0, 1.5, planner.DEFAULT, "gemm,gemm"), "refuted"),  # none, by construction
        (trained(2.0, 1.5, planner.DEFAULT, "gemm,fft"), "confirmed"),
    ],
)
def test_the_planner_asked_again(result, word):
    found = planner_speeds_up.verdict(result)
    assert found.word == word and f"(n = {ROUNDS})" in found.by
