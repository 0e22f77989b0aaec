"""Blocks on stages against the same updates on one device.

`python -m tests.devices.test_stages FOLDER NAME...` is what the tests start where there are
devices enough: it leaves `FOLDER/NAME.npz` for each name of a run.
"""

import sys
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from jax.flatten_util import ravel_pytree
from jax.sharding import AbstractMesh

from optdyn import optimizers
from optdyn.base import processes
from optdyn.core import Event
from optdyn.devices import layout
from optdyn.methods.local_losses import heads
from optdyn.methods.stages import form_of, ravel, stages, unravel
from optdyn.problem import problem
from optdyn.problem.models import CNN, MLP
from optdyn.train.program import _loop
from tests.devices.started import start as run_all
from tests.methods.composed import by_groups

CHUNK, BATCH, CLASSES, EXAMPLES = 16, 8, 5, 64
CALLS = (7, 1, 0, 12, 10)  # 30 updates; the pipeline fills and drains in each call
EVERY = range(len(CALLS))
AXES = ("stage", "data")

GREEDY, CHUNKS, BACKPROP = ((0, 1), (1, 2), (2, 3), (3, 4)), ((0, 2), (2, 4)), ((0, 4),)
MODELS = {  # of 4 trunk blocks, no two of one width
    "mlp": MLP(hidden=(9, 6, 8, 7)),
    "cnn": CNN(channels=(2, 3), hidden=(9, 7)),
}

# Between devices a sum over 8 examples is made in another order: a relative 2^-24 sqrt(8) of a
# gradient, 2e-7. Adam divides by gradients' sizes, so it is that of an update of 5e-3 too, and 30
# of random sign make 5e-9; SGD's updates are 10 times as long. The parameters themselves are
# rounded to 2^-25, 3e-8, 30 times: 2e-7. Measured: 1.2e-7. What differs by design: 1e-2.
CLOSE = {"rtol": 0, "atol": 1e-6}


class StageCase(NamedTuple):
    groups: tuple
    mesh: tuple = ()  # stages, and devices of each; (): one device, without stages
    optimizer: str = "sgd"
    micro_batches: int = 1
    model: str = "mlp"
    counted: bool = False  # whether to count how often a local loss is computed

    @property
    def alone(self):
        return self._replace(mesh=(), micro_batches=1, counted=False)


CASES = {
    "greedy": StageCase(GREEDY, (4, 2), "adam"),
    "chunks": StageCase(CHUNKS, (2, 2)),
    "one-stage": StageCase(CHUNKS, (1, 2)),
    "gpipe": StageCase(BACKPROP, (4, 1), "adam", 4),
    "gpipe-data": StageCase(BACKPROP, (2, 2), "adam", 2),
    "cnn": StageCase(GREEDY, (4, 1), model="cnn", counted=True),
}
STILL = ("greedy", "gpipe")
COUNTED = []  # one entry a loss


def make_problem(case):
    model = MODELS[case.model]
    blocks = problem.make(model, CLASSES).blocks
    made = problem.make(model, CLASSES, heads(blocks, case.groups, False))

    def losses(outputs, batch):
        jax.debug.callback(COUNTED.append, 1)
        return made.losses(outputs, batch)

    return made._replace(losses=losses) if case.counted else made


def make_optimizer(case):
    names = ("learning_rate", "momentum") if case.optimizer == "sgd" else ("learning_rate",)
    return optimizers.optimizer(case.optimizer, names)


@cache  # compiled once
def make_layout(case):
    made, optimizer = make_problem(case), make_optimizer(case)
    if case.mesh:
        mesh = layout.mesh(AXES, case.mesh)
        return stages(made, optimizer, case.groups, mesh, case.micro_batches)
    return layout.one_device(partial(_loop, made.batch, by_groups(made, optimizer, case.groups)))


def examples():
    rng = np.random.default_rng(0)
    return {
        "image": rng.integers(0, 256, (EXAMPLES, 16, 16, 1), dtype=np.uint8),
        "label": rng.integers(0, CLASSES, EXAMPLES, dtype=np.int32),
    }


def start(case):
    """The same values wherever a block or head is part of the case."""

    def draw(path, leaf):
        rng = np.random.default_rng(list(jax.tree_util.keystr(path).encode()))
        return rng.normal(0, 0.3, leaf.shape).astype(leaf.dtype)

    made = make_problem(case)
    shapes = jax.eval_shape(made.init, jax.random.key(0), examples())
    params = jax.tree_util.tree_map_with_path(draw, shapes)
    return jax.device_get(by_groups(made, make_optimizer(case), case.groups).init(params))


def run(case, state, calls=EVERY):
    """The state after those calls of `advance`, and their losses. No two updates are alike."""
    laid, losses = make_layout(case), []
    state, held = laid.put_state(state), laid.put_examples(examples())
    for number in calls:
        rng = np.random.default_rng(number)
        size = 0.005 if case.optimizer == "adam" else 0.05
        hyper = {
            "learning_rate": rng.uniform(size / 5, size, CHUNK).astype(np.float32),
            "momentum": rng.uniform(0, 0.9, CHUNK).astype(np.float32),
        }
        if case.optimizer == "adam":
            del hyper["momentum"]
        indices = rng.integers(0, EXAMPLES, (CHUNK, BATCH), np.int32)
        state, each = laid.advance(state, held, Event((), hyper), indices, CALLS[number])
        losses.append(np.asarray(each["loss"]))
    return jax.device_get(laid.get(state)), np.array(losses)


def moved():
    """A run that goes from one mesh to another, between two calls."""
    state, before = run(CASES["chunks"], start(CASES["chunks"]), range(3))
    state, after = run(CASES["one-stage"], state, range(3, len(CALLS)))
    return state, np.concatenate([before, after])


def still(case):
    """A call that makes no update."""
    return run(case, start(case), [CALLS.index(0)])


RUNS = {
    **{name: lambda case=case: run(case, start(case)) for name, case in CASES.items()},
    **{f"{name}-alone": lambda case=case: alone(case.alone) for name, case in CASES.items()},
    **{f"{name}-still": lambda name=name: still(CASES[name]) for name in STILL},
    "moved": moved,
}


@cache
def alone(case):
    return run(case, start(case))


def main(folder, *names):
    processes.initialize()
    for name in names:
        COUNTED.clear()
        state, losses = RUNS[name]()
        jax.effects_barrier()
        if processes.is_writer():
            params, opt_state = (ravel_pytree(tree)[0] for tree in state)
            written = {"params": params, "opt_state": opt_state, "losses": losses}
            np.savez(Path(folder) / name, **written, counted=len(COUNTED))


def started(folder, names, *launcher, devices=8):
    """What those runs leave, from a program of so many devices or what the launcher makes of it."""
    # Compilation is what takes time here: LLVM is to optimize nothing.
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    run_all("tests.devices.test_stages", [str(folder), *names], launcher, flags)
    return {name: dict(np.load(folder / f"{name}.npz")) for name in names}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return started(tmp_path_factory.mktemp("stages"), list(RUNS))


@pytest.mark.parametrize("name", CASES)
def test_stages_make_the_updates_of_one_device(found, name):
    for what in ("params", "opt_state", "losses"):
        np.testing.assert_allclose(found[name][what], found[f"{name}-alone"][what], **CLOSE)


def test_a_run_moves_between_meshes(found):
    for what in ("params", "opt_state", "losses"):
        np.testing.assert_allclose(found["moved"][what], found["chunks-alone"][what], **CLOSE)


@pytest.mark.parametrize(("one", "other"), [("greedy", "gpipe"), ("chunks", "gpipe")])
def test_groups_start_alike_and_part(found, one, other):
    one, other = found[one]["losses"], found[other]["losses"]
    np.testing.assert_allclose(one[0, 0], other[0, 0], **CLOSE)
    # That the others agree is no matter of updates too small to be seen.
    assert np.abs(one[-1] - other[-1]).max() > 1e-2


@pytest.mark.parametrize("name", STILL)
def test_no_update_leaves_the_state_to_the_bit(found, name):
    before = start(CASES[name])
    for what, tree in zip(("params", "opt_state"), before, strict=True):
        np.testing.assert_array_equal(found[f"{name}-still"][what], ravel_pytree(tree)[0])
    np.testing.assert_array_equal(found[f"{name}-still"]["losses"], 0)


def test_stages_that_have_no_update_compute_nothing(found):
    # One group a stage. Had the idle ticks of fill and drain computed, it would be 3 more a call;
    # had every stage computed what all do, and selected afterwards, 4 times as many.
    assert found["cnn"]["counted"] == sum(CALLS) * len(GREEDY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "names"),
    [(1, ("chunks", "gpipe", "gpipe-data", "cnn")), (2, ("greedy",))],
)
def test_processes_agree_with_one(tmp_path, found, devices, names):
    launcher = [sys.executable, "-m", "launch.local", "--processes=4"]
    launcher += [f"--devices_per_process={devices}", "--"]
    for name, leaves in started(tmp_path, names, *launcher).items():
        for what in ("params", "opt_state", "losses"):
            np.testing.assert_allclose(leaves[what], found[f"{name}-alone"][what], **CLOSE)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            StageCase(((0, 2), (1, 3), (2, 4)), (2, 1)),
            r"group \(1, 3\) .* end of stage 0 at block 2",
        ),
        (StageCase(((0, 1), (1, 4)), (4, 1)), r"group \(1, 4\) .* end of stage 1 at block 2"),
        (StageCase(GREEDY, (3, 1)), "4 trunk blocks do not divide evenly over 3 stages"),
        (StageCase(GREEDY, (2, 1), micro_batches=2), "must be 1 without backprop on stages"),
    ],
)
def test_what_stages_cannot_hold_is_refused(case, message):
    mesh = AbstractMesh(case.mesh, AXES)
    with pytest.raises(ValueError, match=f"^.*{message}.*$") as raised:
        stages(make_problem(case), make_optimizer(case), case.groups, mesh, case.micro_batches)
    assert "\n" not in str(raised.value)


def test_a_batch_that_is_no_whole_number_of_micro_batches_is_refused():
    case = StageCase(BACKPROP, (1, 1), micro_batches=3)
    with pytest.raises(
        ValueError, match="8 examples a device: must be a multiple of 3 micro-batches"
    ):
        run(case, start(case))


FLOATS = st.floats(-1e3, 1e3, width=32)
BFLOAT16 = partial(np.asarray, dtype=jnp.bfloat16)


@given(
    st.lists(
        arrays(np.float32, array_shapes(min_dims=0, min_side=0), elements=FLOATS)
        | arrays(np.int32, array_shapes(min_dims=0), elements=st.integers(-(2**24), 2**24))
        | arrays(np.float32, array_shapes(), elements=FLOATS).map(BFLOAT16)
    ),
    st.integers(0, 5),
)
def test_a_tree_is_its_vector_to_the_bit(leaves, padding):
    tree = {"leaves": leaves, "none": ()}
    form = form_of(tree)
    flat = ravel(tree, form.size + padding)
    again = unravel(form, flat)
    assert flat.dtype == np.float32 and not flat[form.size :].any()
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    for before, after in zip(leaves, again["leaves"], strict=True):
        assert after.dtype == before.dtype
        np.testing.assert_array_equal(after, before)


if __name__ == "__main__":
    with processes.leaving_on_failure():
        main(*sys.argv[1:])
