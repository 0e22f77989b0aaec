"""Newer optimizers under a delay of one update, by the config, against optax."""

import jax
import numpy as np
import optax
import pytest
from optax import contrib

import optdyn as od
from optdyn.train import loop, program, trainer
from optdyn.train.checks import check
from optdyn.train.run import batches_of

OPTIMIZERS = {
    "contrib.muon": (contrib.muon, {"consistent_rms": 0.2}),
    "contrib.schedule_free_sgd": (contrib.schedule_free_sgd, {"b1": 0.8}),
}
RATES = {"contrib.muon": 2e-2, "contrib.schedule_free_sgd": 1.0}
UPDATES = 5


def config(name):
    made = od.Experiment(
        model=od.ModernTransformer(blocks=1, width=16, attention_heads=2),
        data=od.KJV(sequence_length=16, train_evaluated=128, test_evaluated=128),
        optimizer=od.Optax(RATES[name], name=name, options=OPTIMIZERS[name][1]),
        method=od.Asynchronous(groups=2),
        cluster=od.Cluster(nodes=2, service=od.Constant()),
        batch_size=16,
        steps=UPDATES,
    )
    check(made)
    return made


def trained(run, updates):
    for chunk in loop.updates(run, loop.initial(run), 0, [updates]):
        chunk.make()
    return chunk.state.params


@pytest.mark.parametrize(  # Muon's program takes over ten seconds to compile twice
    "name",
    [pytest.param("contrib.muon", marks=pytest.mark.slow), "contrib.schedule_free_sgd"],
)
def test_is_optax_on_gradients_one_update_old(name):
    """x_{t+1} = x_t + optax(gradient at x_{t-1}), and at x_0 for the first two."""
    run = trainer.prepare(config(name))
    problem = program.problem_of(run.config, run.data.classes)
    batches = batches_of(run)(0, UPDATES)
    gradient = jax.jit(jax.grad(problem.loss))
    make, options = OPTIMIZERS[name]
    made = make(RATES[name], **options)
    xs, state = [run.params], made.init(run.params)
    update = jax.jit(made.update)
    for t, chosen in enumerate(batches):
        batch = {key: leaf[chosen] for key, leaf in run.data.train.items()}
        step, state = update(gradient(xs[max(t - 1, 0)], batch), state, xs[t])
        xs.append(optax.apply_updates(xs[t], step))
    found = trained(run, UPDATES)
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), xs[-1], xs[0])
    assert min(jax.tree.leaves(moved)) > 0
    # Programs of other shapes sum in other orders: float32 to 1e-6 of numbers of size 1.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2e-5), found, xs[-1])
