"""Pieces of the hardware model: the two phases, what is known of them, and how they are timed."""

import json
import sys
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.cli import profile
from optdyn.clock.arrivals import conv_seconds
from optdyn.clock.cluster import Pieces
from optdyn.experiment import Config, ConfigError
from optdyn.plan import phases as timing
from optdyn.plan.phases import Loop, first_phase, measure, phases, prepare
from optdyn.problem import problem
from optdyn.problem.models import base
from optdyn.train.checks import check
from tests.devices.started import ROOT, start
from tests.tune.hardware import seconds_per_iteration

LENET = ("conv0", "conv1", "hidden0", "hidden1", "classifier")
NETWORK = {
    "method.name": "sync",
    "model.name": "cnn",
    "model.channels": (2,),
    "model.hidden": (5,),
    "optimizer.learning_rate": 0.1,
    "cluster.latency": 0.25,
    "cluster.bandwidth": 1000.0,
}


def test_closed_form_by_hand():
    pieces = Pieces(conv_compute=12.0, conv_network=0.5, fc=1.0, fc_network=2.0)
    # k = 4: max(12 / 4, 0.5 x 4) = 3. k = 8: max(1.5, 4) = 4, the network is the longer.
    assert [conv_seconds(pieces, k) for k in (1, 4, 8)] == [12.0, 3.0, 4.0]
    # (3 + 1) / g until 4 groups, then the server's second.
    assert [seconds_per_iteration(pieces, g, 4) for g in (1, 2, 4, 8)] == [4.0, 2.0, 1.0, 1.0]
    assert seconds_per_iteration(pieces, 1, 8) == 4 + 1
    # 3 + 1 on the group's own machines and 2 at the server.
    unmerged = [seconds_per_iteration(pieces, g, 4, merged=False) for g in (1, 2, 3, 4)]
    assert unmerged == [6.0, 3.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("names", "fresh", "first"),
    [
        (LENET, (), 2),  # after the convolutions
        (LENET, ("classifier",), 4),  # or what is said, in any order
        (LENET, ("classifier", "hidden1", "hidden0"), 2),
        (("hidden0", "classifier"), (), 2),  # no convolutions: not cut
        (("hidden0", "classifier"), ("classifier",), 1),
    ],
)
def test_the_first_phase(names, fresh, first):
    assert first_phase(names, fresh) == first


@pytest.mark.parametrize("fresh", [("hidden1",), ("conv0", "classifier"), LENET])
def test_a_server_has_the_last_blocks_but_not_all(fresh):
    with pytest.raises(ConfigError, match=r"^config\.method\.fresh = .* must have the last of"):
        first_phase(LENET, fresh)


@pytest.fixture(scope="module")
def network():
    """Blocks conv0, hidden0, classifier; parameters, a batch, and the gradient of its loss."""
    config = Config().with_(NETWORK)
    whole, rng = problem.make(config.model, 10), np.random.default_rng(0)
    batch = {
        "image": jnp.asarray(rng.integers(256, size=(6, 12, 12, 1)), jnp.uint8),
        "label": jnp.asarray(rng.integers(10, size=6), jnp.int32),
    }
    params = jax.jit(whole.init)(jax.random.key(0), batch)
    return whole, params, batch, jax.jit(jax.grad(whole.loss))(params, batch)


def assert_close(found, expected):
    """Numbers of order 0.01 to 1 in float32, summed in another order."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("first", [1, 2])
def test_the_two_phases_make_the_gradient_of_the_loss(network, first):
    whole, params, batch, gradient = network
    params_of = [
        {n: params[n] for n, _ in part} for part in (whole.blocks[:first], whole.blocks[first:])
    ]
    parts = {name: jax.jit(phase) for name, phase in phases(whole, first).items()}
    h = jax.jit(partial(base.apply, whole.blocks[:first]))(params_of[0], whole.input(batch))
    last, cotangent = parts["fc"](params_of[1], batch, h)
    before, handed = parts["conv"](params_of[0], batch, cotangent)
    assert_close(handed, h)
    assert_close(before | last, gradient)


def test_a_network_that_is_not_cut_is_one_phase(network):
    whole, params, batch, gradient = network
    (name, alone), *none = phases(whole, len(whole.blocks)).items()
    assert name == "conv" and not none
    assert_close(jax.jit(alone)(params, batch, 0.0)[0], gradient)


@pytest.fixture(scope="module")
def work(config, mnist):
    """`work({...})`: what there is to measure of a small network with these differences."""
    return lambda values=(): prepare(config(mnist | NETWORK).with_(dict(values)))


def test_the_network_follows_from_bytes_latency_and_bandwidth(work):
    """There and back. 5 x 5 x 1 x 2 + 2 float32 in the convolution; 12 x 12 x 2 x 5 + 5 and 5 x 10
    + 10 in the dense part."""
    found = work()
    assert found.blocks == {"conv": ["conv0"], "fc": ["hidden0", "classifier"]}
    assert set(found.loops) == {"conv_compute", "fc"}
    expected = {
        "conv_network": 2 * (0.25 + 4 * 52 / 1000),
        "fc_network": 2 * (0.25 + 4 * (1445 + 60) / 1000),
    }
    assert found.known == pytest.approx(expected, rel=1e-12)  # a few float64 operations


def test_a_network_without_convolutions_has_no_dense_pieces(work):
    found = work({"model.name": "mlp"})
    assert found.blocks["fc"] == [] and set(found.loops) == {"conv_compute"}
    assert found.known["fc"] == found.known["fc_network"] == 0


@pytest.mark.parametrize("values", [{}, {"optimizer.name": "adam", "model.name": "mlp"}])
def test_a_loop_goes_through_every_update_and_leaves_the_parameters(work, values):
    """With the optimizer: momentum has the sum of what Adam or SGD were given, and steps are 0."""
    loops = work(values).loops
    for loop in loops.values():
        (start, *_), (params, opt_state, _) = loop.run(0), loop.run(5)
        jax.tree.map(np.testing.assert_array_equal, params, start)
        moved = [float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(opt_state)]
        assert max(moved) > 0


class PhaseTimer:
    """Seconds that go by only while a loop runs."""

    now = 0.0

    def loop(self, name, seconds, ran, exchanges=1):
        def run(n):
            ran.append((name, n))
            self.now += n * seconds

        return Loop(run, exchanges)


@given(
    st.lists(st.tuples(st.floats(1e-5, 1.0), st.integers(1, 8)), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_every_piece_is_timed_once_a_round(loops, rounds):
    clock, ran = PhaseTimer(), []
    made = {str(i): clock.loop(str(i), *loop[:1], ran, loop[1]) for i, loop in enumerate(loops)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))
        found = measure(made, rounds)
    for (seconds, exchanges), taken in zip(loops, found.values(), strict=True):
        # Differences of sums below 100 seconds over at least 1e-5 of them.
        np.testing.assert_allclose(taken, np.full(rounds, seconds / exchanges), rtol=1e-8)
    # One to compile, two calls to find out how many fill SECONDS; then all in turn.
    timed = ran[3 * len(loops) :]
    assert [name for name, _ in timed] == list(made) * rounds
    for (seconds, _), (_, n) in zip(loops, timed, strict=False):
        assert n == 1 or n * seconds <= timing.SECONDS * (1 + 1e-6) < (n + 2) * seconds


@pytest.mark.parametrize("name", ["daso", "dynamic_batch"])
def test_other_methods_have_no_such_pieces(work, name):
    with pytest.raises(ConfigError, match=rf"^config\.method\.name = '{name}'"):
        work({"method.name": name})


@pytest.fixture
def profiled(monkeypatch, tmp_path):
    monkeypatch.setattr(timing, "SECONDS", 1e-3)
    return tmp_path / "profiled"


def test_the_command_prints_flags_of_a_run_with_these_pieces(config, mnist, profiled, capsys):
    chosen = config(mnist | NETWORK | {"cluster.service.name": "constant", "cluster.nodes": 4})
    assert profile.main(chosen, profiled) == 0
    flags = capsys.readouterr().out.splitlines()[-1].split()
    values = dict(flag.removeprefix("--config.").split("=") for flag in flags)
    chosen = chosen.with_({name: float(text) for name, text in values.items()})
    check(chosen)
    written = json.loads((profiled / "pieces.json").read_text())
    assert written["blocks"]["conv"] == ["conv0"] and written["devices"] == 1
    medians = written["seconds"]
    # Flags have four digits.
    assert chosen.cluster.pieces.to_dict() == pytest.approx(medians, rel=1e-3)
    assert min(medians.values()) > 0
    compute, network, fc, fc_network = medians.values()
    expected = seconds_per_iteration(Pieces(compute, network, fc, fc_network), 1, 4, merged=False)
    made = chosen.timeline(steps_per_epoch=10, update_bytes=0)
    assert made.seconds[0] == pytest.approx(expected, rel=2e-3)


def test_nothing_is_touched_for_a_config_that_cannot_be_measured(config, mnist, profiled):
    with pytest.raises(ConfigError):
        profile.main(config(mnist | NETWORK | {"method.fresh": ("conv0",)}), profiled)
    assert not profiled.exists()


@pytest.mark.slow
def test_processes_measure_an_all_reduce(tmp_path):
    """In place of a network that takes no time; it takes some, and not always the same."""
    launcher = [sys.executable, "-m", "launch.local", "--processes=2", "--"]
    values = {"method.name": "sync", "parallel.api": "jit", "data.train_examples": 200}
    flags = [f"--config.{name}={value}" for name, value in values.items()]
    first = [f"--config={ROOT}/configs/quickstart.py", f"--workdir={tmp_path}"]
    start("launch.profile", [*first, *flags], launcher, "")
    written = json.loads((tmp_path / "pieces.json").read_text())
    assert written["devices"] == 2
    assert 0 < written["lower quartile"]["conv_network"] < written["upper quartile"]["conv_network"]
    assert written["seconds"]["fc_network"] == 0  # an MLP is not cut
