"""Transforms for late gradients: against NumPy, at their limits, and as a config asks for them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optdyn import optimizers
from optdyn.experiment import Config, ConfigError
from optdyn.methods import Event
from optdyn.optimizers import staleness
from optdyn.optimizers.kinds import SGD
from optdyn.train.checks import check
from tests.methods import composed
from tests.methods.test_asynchronous import DIMENSION, OPTIMA, QUADRATIC, H, arrivals

CHECKPOINT_EVERY = 20

NAMES = ("learning_rate", "momentum")
RATE, MU = 0.05, 0.3


def trained(made, chain):
    """(STEPS, DIMENSION) parameters after each update of SGD with momentum behind a chain."""
    optimizer = optimizers.optimizer("sgd", NAMES, {}, chain)
    method = composed.asynchronous(QUADRATIC.loss, optimizer, made.slots)
    steps = len(made.seconds)
    hyper = {"learning_rate": np.full(steps, RATE, np.float32)}
    hyper["momentum"] = np.full(steps, MU, np.float32)
    events = Event(made.plan, hyper, made.staleness)

    def body(state, inputs):
        state, _ = method.step(state, inputs[0], {"optimum": inputs[1]})
        return state, state.params["x"]["x"]

    start = method.init({"x": {"x": jnp.ones(DIMENSION)}})
    return np.asarray(
        jax.jit(lambda *inputs: jax.lax.scan(body, *inputs)[1])(start, (events, OPTIMA))
    )


def reference(made, changed):
    """The same in float64: `changed(g, x, x_read, tau)` of every version that there ever was."""
    versions, v = [np.ones(DIMENSION)], np.zeros(DIMENSION)
    for t, (tau, xi) in enumerate(zip(made.staleness, OPTIMA.astype(np.float64), strict=True)):
        read = versions[t - tau]
        v = changed(H * (read - xi.mean(0)), versions[t], read, tau) + MU * v
        versions.append(versions[t] - RATE * v)
    return np.array(versions[1:])


def compensated(lam, adaptive, decay):
    s = np.zeros(DIMENSION)

    def changed(g, x, read, tau):
        nonlocal s
        s = decay * s + (1 - decay) * g * g
        return g + (lam / np.sqrt(s + 1e-7) if adaptive else lam) * g * g * (x - read)

    return changed


@pytest.mark.parametrize(("lam", "adaptive"), [(0.5, False), (1.0, True)])
def test_delay_compensation_uses_what_the_group_itself_had_read(lam, adaptive):
    made = arrivals("memoryless")
    options = {"lam": lam, "adaptive": adaptive, "decay": 0.9}
    x = trained(made, [("delay_compensation", options)])
    # Float32 against float64, as in test_asynchronous.py.
    np.testing.assert_allclose(x, reference(made, compensated(**options)), atol=2e-5)
    assert np.abs(x - trained(made, [])).max() > 1e-2


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_error_feedback_adds_what_the_step_before_lacked(strength):
    """x_{t+1} = x_t + u_t + lambda (u_t - u_{t-1}), u heavy ball's: not what the gradients get."""
    made = arrivals("round robin")
    x = trained(made, [("error_feedback", {"strength": strength})])
    versions, v, last = [np.ones(DIMENSION)], np.zeros(DIMENSION), None
    for t, (tau, xi) in enumerate(zip(made.staleness, OPTIMA.astype(np.float64), strict=True)):
        v = H * (versions[t - tau] - xi.mean(0)) + MU * v
        u = -RATE * v
        versions.append(versions[t] + u + strength * (0 if last is None else u - last))
        last = u
    np.testing.assert_allclose(x, versions[1:], atol=2e-5)  # float32 against float64, as above
    assert np.abs(x - trained(made, [])).max() > 1e-2


def test_no_compensation_is_asynchronous_and_of_one_group_there_is_none_to_the_bit():
    made, alone = arrivals("memoryless"), arrivals("one group")
    none = [("delay_compensation", {"lam": 0.0})]
    np.testing.assert_array_equal(trained(made, none), trained(made, []))
    for options in ({"lam": 3.0}, {"lam": 3.0, "adaptive": True}):
        of_one = trained(alone, [("delay_compensation", options)])
        np.testing.assert_array_equal(of_one, trained(alone, []))


def test_compensation_is_exact_on_a_parabola_where_lambda_g_g_is_its_curvature():
    rng = np.random.default_rng(0)
    for h, x, read, xi in rng.uniform(0.5, 2, (20, 4)).astype(np.float32):
        g = h * (read - xi)
        made = staleness.delay_compensation(float(h / g**2))
        found, _ = made.update(g, made.init(x), x, read_params=read)
        np.testing.assert_allclose(found, h * (x - xi), rtol=2e-5, atol=2e-6)  # float32


def factors(delays, **options):
    """Of gradients that are so late, one after the other."""
    made = staleness.staleness_rate(**options)
    state, found = made.init(0.0), []
    for tau in delays:
        g, state = made.update(jnp.float32(1), state, staleness=jnp.int32(tau))
        found.append(float(g))
    return np.array(found)


TAU = np.random.default_rng(1).geometric(0.3, 50) - 1
MEANS = np.cumsum(TAU) / np.arange(1, 51)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"law": "inverse"}, 1 / np.maximum(TAU, 1)),
        ({"law": "bounded", "k": 2.0}, 2 / np.maximum(2, TAU)),
        ({"law": "bounded"}, np.where(TAU > MEANS, MEANS / np.maximum(TAU, 1), 1)),
        ({"law": "power", "k": 2.0, "power": 0.7}, ((1 + TAU) / 3) ** -0.7),
        ({"law": "power"}, ((1 + TAU) / (1 + MEANS)) ** -0.5),
        (
            {"law": "annealed", "updates": 20},
            np.maximum(TAU, 1.0) ** -(1 - np.minimum(np.arange(50) / 20, 1)),
        ),
    ],
)
def test_laws_of_rates(options, expected):
    np.testing.assert_allclose(factors(TAU, **options), expected, rtol=1e-5)  # float32


def test_rates_by_staleness_in_a_run():
    made = arrivals("memoryless")
    x = trained(made, [("staleness_rate", {"law": "power", "k": 4.0})])
    late = reference(made, lambda g, x, read, tau: g * ((1 + tau) / 5) ** -0.5)
    np.testing.assert_allclose(x, late, atol=2e-5)  # as above


def chained(names, **options):
    return Config(optimizer=SGD(chain=names, chain_options=options))


def halved(by=0.5):
    return optax.scale(by)


def test_what_can_be_chained():
    """Ours, optax's and one's own, each with its own options."""
    both = ("delay_compensation", "staleness_rate", "clip_by_global_norm", f"{__name__}:halved")
    config = chained(both, lam=2.0, adaptive=True, law="power", max_norm=1.0, by=0.25)
    check(config)
    made = optimizers.chain(config)
    assert [options for _, options in made] == [
        {"lam": 2.0, "adaptive": True},
        {"law": "power"},
        {"max_norm": 1.0},
        {"by": 0.25},
    ]
    one = optimizers.optimizer("sgd", ("learning_rate",), {}, made[2:])
    g, _ = one.update(
        {"x": jnp.array([3.0, 4.0])}, one.init({"x": jnp.zeros(2)}), learning_rate=1.0
    )
    np.testing.assert_allclose(g["x"], [-0.15, -0.2], rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (chained(("nosuch",)), "config.optimizer.chain = 'nosuch': must be one of delay_comp"),
        (chained(("l2_loss",)), "config.optimizer: optax.sgd after l2_loss cannot be used"),
        (chained(("clip",)), "config.optimizer: optax.sgd after clip cannot be used"),
        (chained(("clip", "clip_by_block_rms")), "cannot be used"),
        (chained(("staleness_rate",), law="nosuch"), "law 'nosuch': one of inverse, bounded"),
        (chained(("staleness_rate",), power=-1.0), "must be at least 0"),
        (
            chained(("delay_compensation", "delay_compensation"), lam=1.0),
            "chain_options.lam: must be an argument of one transform, and is of 2 of",
        ),
    ],
)
def test_what_cannot_is_one_line(config, message):
    with pytest.raises(ConfigError, match=message) as caught:
        check(config)
    assert "\n" not in str(caught.value)
