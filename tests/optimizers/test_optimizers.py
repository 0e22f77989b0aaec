"""Hyperparameters as data: against NumPy, against optax with fixed numbers, and compiled once."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

import optdyn as od
from optdyn import optimizers
from optdyn.experiment import Config, ConfigError
from optdyn.optimizers import arguments, known, optimizer, takes_momentum
from optdyn.optimizers.kinds import SGD
from optdyn.optimizers.schedules import SCHEDULES, learning_rates
from optdyn.train import loop, program, trainer
from optdyn.train.checks import check
from optdyn.train.run import batches_of

SHAPE = (3, 4)
STEPS = 20
GRADS = np.random.default_rng(0).normal(size=(STEPS, *SHAPE)).astype(np.float32)
NAMES = ("sgd", "rmsprop", "adam", "lamb")  # two with a momentum, two without


def runner(made, traces=None):
    """Compiled function of the hyperparameters: what ones become under all gradients.

    `traces` is a list that grows by one at each compilation.
    """

    @jax.jit
    def run(hypers):
        if traces is not None:
            traces.append(made)

        def body(carry, inputs):
            params, state = carry
            grads, hyper = inputs
            updates, state = made.update(grads, state, params, **hyper)
            return (optax.apply_updates(params, updates), state), None

        params = {"w": jnp.ones(SHAPE)}
        (params, _), _ = jax.lax.scan(
            body, (params, made.init(params)), ({"w": jnp.asarray(GRADS)}, hypers)
        )
        return params["w"]

    return run


def descend(made, hypers):
    return runner(made)(hypers)


def constant(**values):
    return {name: jnp.full(STEPS, value, jnp.float32) for name, value in values.items()}


@pytest.mark.parametrize("sign", [1, -1])
def test_heavy_ball_with_other_numbers_at_every_update(sign):
    """v <- g + mu_t v, x <- x - alpha_t v, with momenta of either sign."""
    rng = np.random.default_rng(1)
    alpha, mu = rng.uniform(0.01, 0.2, STEPS), sign * rng.uniform(0, 0.9, STEPS)
    x, v = np.ones(SHAPE), np.zeros(SHAPE)
    for g, a, m in zip(GRADS, alpha, mu, strict=True):
        v = g + m * v
        x = x - a * v
    hypers = {
        "learning_rate": jnp.asarray(alpha, jnp.float32),
        "momentum": jnp.asarray(mu, jnp.float32),
    }
    result = descend(optimizer("sgd", ("learning_rate", "momentum")), hypers)
    # Float32 against float64 over 20 updates of numbers below 10.
    np.testing.assert_allclose(result, x, rtol=1e-5, atol=1e-5)


def test_no_momentum_is_momentum_zero():
    """To the bit: 0 v + g is g. Without the name, `optax.sgd` keeps its default None."""
    without = optimizer("sgd", ("learning_rate",))
    zero = optimizer("sgd", ("learning_rate", "momentum"))
    params = {"w": jnp.ones(SHAPE)}
    assert len(jax.tree.leaves(zero.init(params))) == 1  # the velocity
    assert not jax.tree.leaves(without.init(params))
    np.testing.assert_array_equal(
        descend(without, constant(learning_rate=0.1)),
        descend(zero, constant(learning_rate=0.1, momentum=0.0)),
    )


@pytest.mark.parametrize("name", NAMES)
def test_traced_numbers_equal_fixed_ones_and_compile_once(name):
    """The state made for numbers still unknown serves all of them."""
    names = ("learning_rate", "momentum") if takes_momentum(name) else ("learning_rate",)
    traces = []
    run = runner(optimizer(name, names), traces)
    for rate, momentum in ((0.01, 0.5), (0.1, -0.5), (0.3, 0.0)):
        values = dict(zip(names, (rate, momentum), strict=False))
        fixed = descend(optax.with_extra_args_support(getattr(optax, name)(**values)), constant())
        # The compiler folds fixed numbers into other orders of operations: float32 rounding, which
        # the division by small second moments can enlarge.
        np.testing.assert_allclose(run(constant(**values)), fixed, rtol=1e-4, atol=1e-5)
    assert len(traces) == 1


def test_options_are_fixed_and_passed_on():
    values = constant(learning_rate=0.01)
    made = optimizer("adam", ("learning_rate",), {"b1": 0.0, "eps": 0.1})
    fixed = optax.with_extra_args_support(optax.adam(0.01, b1=0.0, eps=0.1))
    # As above: the order of operations.
    np.testing.assert_allclose(
        descend(made, values), descend(fixed, constant()), rtol=1e-5, atol=1e-6
    )
    plain = descend(optimizer("adam", ("learning_rate",)), values)
    assert np.abs(plain - descend(made, values)).max() > 1e-2


def test_arguments():
    assert takes_momentum("sgd") and takes_momentum("rmsprop") and not takes_momentum("adam")
    assert arguments("adam")[:3] == ("learning_rate", "b1", "b2")
    for unknown in ("nosuch", "contrib", "Schedule", "__version__", ""):
        assert "learning_rate" not in arguments(unknown)


def closed_form(name, t, rate, length, decay_rate):
    part = min(t / length, 1)
    return (
        rate
        * {
            "constant": 1,
            "cosine": (1 + np.cos(np.pi * part)) / 2,
            "linear": 1 - part,
            "exponential": decay_rate ** (t / length),
            "piecewise": 0.05 if t >= 20 else 0.5 if t >= 3 else 1,
        }[name]
    )


SCALED = {"piecewise": {"boundaries": [3, 20], "scales": [0.5, 0.1]}}
HALVED = {"decay_rate": 0.5}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    ("steps", "warmup", "decay", "more"),
    [
        *((*of, HALVED) for of in ((50, 0, 0), (50, 7, 0), (50, 7, 20), (1, 0, 0), (5, 5, 0))),
        (40, 0, 30, {}),
    ],
)
def test_schedules_in_closed_form(name, steps, warmup, decay, more):
    """Linear from 0 over the warm-up, then the schedule's own start."""
    rate, options = 0.3, SCALED.get(name, {})
    lengths = {"warmup_steps": warmup, "decay_steps": decay}
    values = learning_rates(
        SGD(rate, schedule=name, schedule_options=options, **lengths, **more), steps
    )
    assert values.shape == (steps,) and values.dtype == np.float32
    of = {"rate": rate, "length": decay or max(steps - warmup, 1), "decay_rate": 0.1} | more
    expected = [
        rate * t / warmup if t < warmup else closed_form(name, t - warmup, **of)
        for t in range(steps)
    ]
    # Float32 in another order of operations, and near zero the rounding of pi t / T.
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("boundaries", "scales"),
    [
        *(((), ()), ((3, 2), (1, 1)), ((3, 3), (1, 1)), ((0,), (1,)), ((3.5,), (1,))),
        *(((3,), (1, 2)), ((3,), (-1,)), ((3,), (float("nan"),)), (3, 1), (("a",), (1,))),
    ],
)
def test_steps_that_are_none_are_one_line(boundaries, scales):
    with pytest.raises(ConfigError, match=r"schedule_options(: boundaries)? = ") as caught:
        options = {"boundaries": boundaries, "scales": scales}
        learning_rates(SGD(schedule="piecewise", schedule_options=options), 10)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "decay_steps", "depends"),
    [
        *(("constant", 0, False), ("piecewise", 0, False), ("exponential", 30, False)),
        *(("cosine", 0, True), ("linear", 0, True), ("exponential", 0, True)),
        *(("cosine", 30, False), ("linear", 30, False)),
        *((f"{__name__}:by_length", 0, True), (f"{__name__}:by_count", 0, False)),
    ],
)
@pytest.mark.parametrize("warmup", [0, 5])
def test_which_rates_depend_on_the_number_of_steps(schedule, decay_steps, depends, warmup):
    chosen = SGD(
        schedule=schedule,
        schedule_options=SCALED.get(schedule, {}),
        decay_steps=decay_steps,
        warmup_steps=warmup,
    )
    rates, longer = (learning_rates(chosen, steps) for steps in (40, 80))
    assert np.array_equal(rates, longer[:40]) != depends


def by_length(learning_rate, steps):
    return lambda count: learning_rate * (1 - count / steps)


def by_count(learning_rate, steps):
    return lambda count: learning_rate / (1 + count)


# Those that an update gives too little, or whose state no checkpoint holds; all others run, as
# `known` was run through whole runs when optax 0.2.8 was current.
REFUSED = {
    "lbfgs": "value_fn",
    "contrib.dpsgd": "l2_norm_clip",
    "contrib.galore": "checkpoints cannot hold",
    "contrib.momo": "'value'",
    "contrib.momo_adam": "'value'",
    "contrib.schedule_free": "base_optimizer",
    "contrib.sophia": "obj_fn",
}


@pytest.mark.parametrize("name", [name for name in known() if "." in name or name in REFUSED])
def test_every_optimizer_of_contrib_can_be_used_or_is_refused_in_a_line(name):
    config = Config().with_({"optimizer.name": name})
    params = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
    if name in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[name]) as caught:
            optimizers.check(config, 1, params)
        assert "\n" not in str(caught.value)
        return
    optimizers.check(config, 1, params)
    made = optimizer(name, ("learning_rate",))
    # Every array is its own, so that all can be given up to a program.
    leaves = jax.tree.leaves((params, made.init(params)))
    assert len({leaf.unsafe_buffer_pointer() for leaf in map(jnp.asarray, leaves)}) == len(leaves)


# Newer optimizers under a delay of one update, by the config, against optax.


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
    for chunk in loop.updates(run, loop.initial_state(run), 0, [updates]):
        chunk.compute()
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
