"""The one loop over updates: cut up anyhow it makes the same ones, and it ends where it is to."""

import jax
import numpy as np
import pytest

from optdyn.implicit_momentum.readings import Windows
from optdyn.methods.compose import METERED
from optdyn.train import single
from optdyn.train.loop import CHUNK, METERED_CHUNK, initial_state, next_length, updates
from optdyn.train.trainer import prepare

STEPS = 60


def made(run, stops, lengths, **more):
    """All chunks, each of as many updates as its length says, their losses, and the state."""
    chunks = []
    for chunk in updates(run, initial_state(run), 0, stops, **more):
        chunk.compute(next(lengths))
        chunks.append(chunk)
    return chunks, np.concatenate([chunk.infos["loss"] for chunk in chunks]), chunk.state


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(one), jax.device_get(other))


@pytest.mark.parametrize("streaming", [False, True])
def test_floats_do_not_depend_on_chunks(config, streaming):
    run, rng = prepare(config({"data.streaming": streaming})), np.random.default_rng(0)
    _, losses, state = made(run, [STEPS], iter(lambda: 256, None))
    assert len(losses) == STEPS
    for _ in range(3):
        stops = sorted({*rng.integers(1, STEPS, size=4).tolist(), STEPS})
        chunks, again, ended = made(run, stops, iter(lambda: int(rng.integers(0, 9)), None))
        np.testing.assert_array_equal(again, losses)
        assert_same(ended, state)
        assert [c.step for c in chunks if c.n and c.step == c.next_stop] == stops
        assert chunks[0].n == 0
        assert [c.start for c in chunks[1:]] == [c.step for c in chunks[:-1]]


def test_a_chunk_takes_about_a_second_and_is_twice_the_last_at_most():
    lengths = [next_length(n, n, seconds) for n, seconds in ((4, 8.0), (4, 1.0), (4, 0.1), (1, 9))]
    assert lengths == [1, 4, 8, 1] and next_length(CHUNK, CHUNK, 0.0) == CHUNK
    assert next_length(CHUNK, 0, 1.0) == CHUNK  # an empty chunk says nothing of the seconds


def test_who_stops_has_the_state_of_that_step_and_can_go_on(config):
    run = prepare(config())
    _, losses, state = made(run, [STEPS], iter(lambda: 256, None))
    for chunk in updates(run, initial_state(run), 0, [7, 23, STEPS]):
        chunk.compute()
        if chunk.step == 23:
            break
    assert_same(chunk.state, made(run, [23], iter(lambda: 256, None))[2])
    begun, later = chunk.state, []
    for chunk in updates(run, begun, 23, [STEPS]):
        chunk.compute(5)
        later.append(chunk.infos["loss"])
    np.testing.assert_array_equal(np.concatenate(later), losses[23:])
    assert_same(chunk.state, state)
    compiled, empty = updates(run, chunk.state, STEPS, [STEPS])  # at its end there is nothing left
    assert (compiled.n, empty.n, empty.start, empty.next_stop) == (0, 0, STEPS, STEPS)


def test_windows_are_metered_and_nothing_else_is(config):
    chosen = config({"steps": 200, "probes.momentum": True})
    run, windows = prepare(chosen), Windows(every=90, window=70, steps=200)
    chunks, losses, _ = made(run, [200], iter(lambda: 256, None), windows=windows)
    spans = [(c.start, c.step, c.metered) for c in chunks if c.n]
    cuts = [0, METERED_CHUNK, 70, 90, 90 + METERED_CHUNK, 160, 180, 200]
    metered = [True, True, False, True, True, False, True]
    assert spans == list(zip(cuts[:-1], cuts[1:], metered, strict=True))
    # Two compilations of the same sums: some ulp (1e-7) of numbers up to 1 an update, 200 updates.
    whole, close = single.record(chosen), {"rtol": 1e-3, "atol": 1e-5}
    np.testing.assert_allclose(losses, whole.losses, **close)
    for chunk in chunks:
        assert METERED[0] in chunk.infos or not chunk.metered
        for name, expected in zip(METERED, whole, strict=False):
            if chunk.metered:
                window = expected[chunk.start : chunk.step]
                np.testing.assert_allclose(chunk.infos[name], window, **close)
            else:
                assert name not in chunk.infos


def test_what_is_not_compiled_makes_the_same_updates(config):
    """JAX_DISABLE_JIT=1, to look into a model; to rounding, as XLA joins operations."""

    run = prepare(config({"steps": 2}))
    *_, compiled = made(run, [2], iter(lambda: 2, None))
    with jax.disable_jit():
        *_, found = made(run, [2], iter(lambda: 2, None))
    np.testing.assert_allclose(found.params["x"]["x"], compiled.params["x"]["x"], rtol=1e-5)
