"""Recorded trajectories against plain loops, conservation laws and the law of the sketch."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.base import seeds
from optdyn.base.workdir_lock import LOCK
from optdyn.cli.train import print_ending
from optdyn.clock.timeline import entries_at
from optdyn.methods import Event
from optdyn.train import replicas, trainer
from optdyn.train.replicas import record, whole_gradient

CHECKPOINT_EVERY = 20

STEPS, COUNT = 12, 5


@pytest.fixture(scope="module")
def values(mnist):
    """A network of 7,960 parameters, none of which the sketch mixes with another."""
    return {
        **mnist,
        "model.hidden": (10,),
        "steps": STEPS,
        "data.train_examples": 60,
        "data.replacement": True,
        "replicas.count": COUNT,
        "replicas.subspace": 10_000,
    }


@pytest.fixture(scope="module")
def recorded(config, values, tmp_path_factory):
    """Prepared run, and arrays, of these replicas."""
    workdir = tmp_path_factory.mktemp("recorded")
    assert record(config(values), workdir)["status"] == "completed"
    content = [path.name for path in workdir.iterdir() if path.name != LOCK]
    assert sorted(name for name in content if not name.endswith(".diff")) == [
        "config.json",
        "crc32.json",
        "history.json",
        "summary.json",
        "trajectories.npz",
    ]
    return trainer.prepare(config(values), COUNT), arrays(workdir)


def arrays(workdir):
    with np.load(workdir / "trajectories.npz") as stored:
        return dict(stored)


def flat(tree):
    return np.asarray(jax.flatten_util.ravel_pytree(tree)[0])


def loop(run, replica):
    """x_0..x_T, (T + 1, p), of a replica by a Python loop over its events and batches."""
    step = jax.jit(run.program.rule.step)
    state = run.program.rule.init(run.params)
    x = [flat(state.params)]
    for t, indices in enumerate(replicas._indices(run, replica)):
        hyper = {name: values[t] for name, values in run.hypers.items()}
        event = Event(entries_at(run.timeline.plan, (replica, t)), hyper)
        state, _ = step(state, event, {k: v[indices] for k, v in run.data.train.items()})
        x.append(flat(state.params))
    return np.array(x)


def test_a_replica_is_a_plain_loop(recorded):
    run, stored = recorded
    ones = jax.tree.map(jnp.ones_like, run.params)
    project = replicas.sketch(seeds.key(run.config.seed, "subspace"), run.params, 10_000)
    signs = np.asarray(project(ones))
    assert set(signs) == {-1, 1}  # as many numbers as parameters: nothing is mixed
    gradient = jax.jit(jax.value_and_grad(run.program.problem.loss))
    _, unravel = jax.flatten_util.ravel_pytree(run.params)
    for replica in (0, COUNT - 1):
        x = loop(run, replica)
        moved = np.diff(x, axis=0)
        sketched = stored["displacements"][replica]
        assert sketched.shape == moved.shape == (STEPS, 7960)
        # Two compilations of the same sums: some ulp (1e-7) an update of numbers up to 0.1.
        np.testing.assert_allclose(sketched, signs * moved, atol=1e-6)
        # Nothing is lost or made: the displacements add up to the way from x_0 to x_T.
        total = signs * (x[-1] - x[0])
        np.testing.assert_allclose(sketched.sum(axis=0), total, atol=1e-6)
        assert np.linalg.norm(total) == pytest.approx(np.linalg.norm(sketched.sum(axis=0)), 1e-5)
        for t in (0, STEPS - 1):
            loss, g = gradient(unravel(jnp.asarray(x[t])), run.data.train)
            assert stored["losses"][replica, t] == pytest.approx(float(loss), rel=1e-5)
            # A ReLU close to its kink may be on the other side of it: 1e-5 of gradients up to 0.1.
            np.testing.assert_allclose(
                stored["gradients"][replica, t], signs * flat(g), rtol=1e-3, atol=1e-5
            )
    # And replicas are different draws.
    assert len({row.tobytes() for row in stored["displacements"][:, 0]}) == COUNT
    assert len({row.tobytes() for row in run.timeline.plan.read}) == COUNT


def test_a_smaller_sketch_adds_up_the_coordinates(config, values, recorded, tmp_path):
    """Coordinate i is added to number i mod q, of displacements and gradients alike."""
    q = 100
    record(config({**values, "replicas.subspace": q}), tmp_path)
    stored = arrays(tmp_path)
    for name in ("displacements", "gradients"):
        fine = recorded[1][name]
        padded = np.pad(fine, [(0, 0)] * (fine.ndim - 1) + [(0, -fine.shape[-1] % q)])
        coarse = padded.reshape(*fine.shape[:-1], -1, q).sum(-2)
        assert stored[name].shape[-1] == q
        # Sums of 80 float32 numbers below 1 in another order.
        np.testing.assert_allclose(stored[name], coarse, atol=1e-5)
    np.testing.assert_array_equal(stored["losses"], recorded[1]["losses"])


def test_inner_products_of_sketches_are_unbiased():
    """Over keys, E <S u, S v> = <u, v>; coordinates that share a number are its only variance."""
    p, q, keys = 50, 8, 4000
    u, v = np.random.default_rng(0).normal(size=(2, p)) + 0.5
    tree = {"a": jnp.zeros((p // 2,)), "b": jnp.zeros((5, p // 10))}
    _, unravel = jax.flatten_util.ravel_pytree(tree)

    def product(key):
        project = replicas.sketch(key, tree, q)
        return project(unravel(jnp.asarray(u))) @ project(unravel(jnp.asarray(v)))

    products = np.asarray(jax.vmap(product)(jax.random.split(jax.random.key(0), keys)))
    variance = 0.0
    for bucket in range(q):
        a, b = u[bucket::q], v[bucket::q]
        variance += (a @ a) * (b @ b) + (a @ b) ** 2 - 2 * (a**2 @ b**2)
    # Four standard errors of the mean.
    assert abs(products.mean() - u @ v) < 4 * np.sqrt(variance / keys)
    # And the sample variance of 4,000 draws, whose own deviation is some 3 %.
    assert products.var() == pytest.approx(variance, rel=0.2)


@pytest.mark.parametrize("examples", [7, 30])
def test_the_gradient_of_the_whole_objective_in_slices(config, values, monkeypatch, examples):
    """Slices of seven, the last of them not full, against one gradient of the mean loss."""
    monkeypatch.setattr(replicas, "SLICE", 7)
    run = trainer.prepare(config({**values, "data.train_examples": examples}))
    train_set = {name: jnp.asarray(leaf) for name, leaf in run.data.train.items()}
    loss, gradient = whole_gradient(run.program.problem, run.params, train_set)
    expected = jax.value_and_grad(run.program.problem.loss)(run.params, train_set)
    assert float(loss) == pytest.approx(float(expected[0]), rel=1e-6)
    # The same float32 sums in another order.
    np.testing.assert_allclose(flat(gradient), flat(expected[1]), rtol=1e-4, atol=1e-6)


SMALL = {
    "steps": STEPS,
    "data.replacement": True,
    "replicas.count": COUNT,
    "method.groups": 3,
    "cluster.nodes": 3,
}


@pytest.fixture(scope="module")
def small(config, tmp_path_factory):
    """Replicas of the quadratic, in one part."""
    workdir = tmp_path_factory.mktemp("small")
    record(config(SMALL), workdir)
    return arrays(workdir)


@pytest.mark.parametrize("block, part", [(1, 2), (2, 4), (16, 16)])
def test_blocks_and_parts_do_not_matter(config, small, tmp_path, monkeypatch, block, part):
    monkeypatch.setattr(replicas, "PART", part)
    record(config({**SMALL, "replicas.block": block}), tmp_path)
    stored = arrays(tmp_path)
    assert set(stored) == set(small)
    for name, array in stored.items():
        assert array.shape == small[name].shape
        if block == 1:  # the same program, called for other replicas
            np.testing.assert_array_equal(array, small[name])
        # A batched program rounds differently: some ulp (1e-7) of numbers about 1, twelve times.
        np.testing.assert_allclose(array, small[name], atol=1e-5)


def test_more_replicas_begin_with_the_fewer(config, small, tmp_path):
    record(config({**SMALL, "replicas.count": 2}), tmp_path)
    stored = arrays(tmp_path)
    for name in ("displacements", "gradients", "losses"):
        np.testing.assert_array_equal(stored[name], small[name][:2])


@pytest.mark.parametrize("stop", [1, 2])
def test_interrupted_and_resumed_is_whole(config, small, tmp_path, monkeypatch, stop):
    """Three parts on disk. Those that are there are not done again."""
    monkeypatch.setattr(replicas, "PART", 2)
    written = []
    write = replicas.write_npz

    def signalled(path, values):
        write(path, values)
        written.append(path.name)
        if len(written) == stop:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(replicas, "write_npz", signalled)
    summary = record(config(SMALL), tmp_path)
    assert summary == {"status": "interrupted", "signal": signal.SIGINT}
    assert print_ending(summary, tmp_path, "momentum") == 130
    assert len(written) == stop and not (tmp_path / "trajectories.npz").exists()
    assert record(config(SMALL), tmp_path)["status"] == "completed"
    assert len(written) == len(set(written)) == 4
    stored = arrays(tmp_path)
    for name, array in small.items():
        np.testing.assert_array_equal(stored[name], array)


def test_a_damaged_part_is_recorded_again(config, small, tmp_path, monkeypatch):
    monkeypatch.setattr(replicas, "PART", 2)
    write = replicas.write_npz

    def spoilt(path, values):
        write(path, values)
        whole, number = path.read_bytes(), len(list(path.parent.glob("*.npz")))
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        path.write_bytes([whole, b"", whole[:middle], flipped][number % 4])
        if number == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(replicas, "write_npz", spoilt)
        assert record(config(SMALL), tmp_path)["status"] == "interrupted"
    assert record(config(SMALL), tmp_path)["status"] == "completed"
    for name, array in arrays(tmp_path).items():
        np.testing.assert_array_equal(array, small[name])


def test_one_compilation_serves_all_replicas(config, small, tmp_path):
    chosen = config(
        {**SMALL, "seed": 3, "optimizer.learning_rate": 0.02, "cluster.speeds": (1, 2, 3)}
    )
    events = trainer.prepare(chosen, COUNT)
    recorder = replicas._recorder(events.program, 1, chosen.replicas.subspace)
    compilations = recorder._cache_size()
    record(chosen, tmp_path)
    assert compilations == recorder._cache_size()
    assert not np.array_equal(arrays(tmp_path)["losses"], small["losses"])


def test_replicas_that_diverge_say_so(config, tmp_path):
    chosen = config({**SMALL, "optimizer.learning_rate": 1e8})
    assert record(chosen, tmp_path)["status"] == "diverged"
