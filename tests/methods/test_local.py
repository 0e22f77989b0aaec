"""Local parallelism: groups, heads, gradients against one `jax.grad` of stopped losses, limits."""

from functools import cache, partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn import optimizers
from optdyn.methods import Event
from optdyn.methods.local_losses import VARIANTS, gradients, groups, heads
from optdyn.problem import models, problem
from optdyn.problem.models import MLP, base
from tests.methods.composed import by_groups

BATCH, WIDTH, CLASSES, K, STEPS = 6, 5, 4, 3, 4
MODEL = MLP(hidden=(WIDTH,) * K)
TRUNK = [f"hidden{j}" for j in range(K)]
HYPER = {"sgd": {"learning_rate": 0.3, "momentum": 0.7}, "adam": {"learning_rate": 0.03}}

# Side by side, overlapping, and of unequal sizes.
CASES = {
    "greedy": groups("greedy", K, 0, 0),
    "overlapping": groups("overlapping", K, 2, 0),
    "chunked": groups("chunked", K, 0, 2),
}
GREEDY, OVERLAPPING, BACKPROP = CASES["greedy"], CASES["overlapping"], ((0, K),)
every_case = pytest.mark.parametrize("case", CASES)
either_head = pytest.mark.parametrize("shared", [False, True])


@cache
def make(groups, shared=False):
    """A network with the heads that groups need."""
    return problem.make(MODEL, CLASSES, heads(models.make(MODEL, CLASSES), groups, shared))


def examples(seed=0):
    # As many pixels as the network is wide, so that all its blocks are alike.
    rng = np.random.default_rng(seed)
    return {
        "image": jnp.asarray(rng.integers(0, 256, (BATCH, WIDTH, 1, 1), dtype=np.uint8)),
        "label": jnp.asarray(rng.integers(0, CLASSES, BATCH), jnp.int32),
    }


def some(made, seed=0):
    """Parameters far from any symmetry; biases that keep most units of a ReLU alive."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0.2, 0.5, leaf.shape), leaf.dtype), shapes(made.heads)
    )


@cache
def shapes(heads):
    made = problem.make(MODEL, CLASSES, heads)
    return jax.eval_shape(made.init, jax.random.key(0), examples())


@cache  # one program a set of groups, for all tests
def static_part(groups, shared=False):
    """`(params, batch) -> (grads, h_b, loss)`."""
    made = make(groups, shared)
    local_gradients = gradients(made, groups, shared)
    return jax.jit(lambda params, batch: local_gradients(params, made.input(batch), batch))


def event(optimizer, **changed):
    hyper = {name: jnp.float32(value) for name, value in (HYPER[optimizer] | changed).items()}
    return Event((), hyper)


def rule(optimizer):
    return optimizers.optimizer(optimizer, tuple(HYPER[optimizer]))


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def assert_close(one, other):
    # The same float32 sums of at most six products, in another order: some ulp (1e-7) of numbers
    # about one, and a few ulp more for what goes through four layers.
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)


def dense(params, h):
    return h @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]


def cross_entropy(logits, labels):
    return -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels].mean()


def stopped_losses(params, batch, chosen, shared):
    """Sum of the groups' losses, each of its own forward pass with the gradient stopped at h_a."""
    total = 0.0
    for a, b in chosen:
        h = batch["image"].reshape(BATCH, -1) / 255
        for j in range(b):
            h = jax.lax.stop_gradient(h) if j == a else h
            h = jax.nn.relu(dense(params[f"hidden{j}"], h))
        head = "classifier" if shared or b == K else f"hidden{b - 1}_head"
        total += cross_entropy(dense(params[head], h), batch["label"])
    return total


@every_case
@either_head
def test_gradients_are_those_of_the_sum_of_stopped_losses(case, shared):
    """Which with a shared head sums that head's gradient over all groups."""
    chosen = CASES[case]
    made, batch = make(chosen, shared), examples()
    params = some(made)
    grads, h, loss = static_part(chosen, shared)(params, batch)
    expected = jax.jit(jax.grad(lambda p: stopped_losses(p, batch, chosen, shared)))(params)
    assert_close(grads, expected)
    # None of them is trivially equal, and the last group's loss and output are the model's.
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(expected))
    assert_close(loss, made.loss(params, batch))
    assert_close(h, base.apply(made.blocks[:K], params, made.input(batch)))


def test_one_group_of_all_blocks_is_backpropagation():
    """Also where there are auxiliary heads, which have no part in it."""
    made = problem.make(MODEL, CLASSES, ("hidden0", "hidden1"))
    params, batch = some(made), examples()
    grads, _, loss = static_part(BACKPROP)(params, batch)
    value, expected = jax.jit(jax.value_and_grad(made.loss))(params, batch)
    assert set(grads) == {*TRUNK, "classifier"}
    assert_close(grads, {name: expected[name] for name in grads})
    assert_close(loss, value)
    method = by_groups(made, rule("sgd"), BACKPROP)
    state = method.init(params)
    after, _ = jax.jit(method.step)(state, event("sgd"), batch)
    for head in ("hidden0_head", "hidden1_head"):
        assert_same(after.params[head], params[head])
        assert_same(after.opt_state[head], state.opt_state[head])


@every_case
def test_a_block_learns_from_the_heads_of_its_own_groups_only(case):
    """d (grad theta_j) / d (head at the end of a group) is zero, exactly, unless it holds j."""
    chosen = CASES[case]
    made, batch = make(chosen), examples()
    params = some(made)
    ends = {"classifier" if b == K else f"hidden{b - 1}_head": (a, b) for a, b in chosen}

    def of_heads(own):
        grads, _, _ = gradients(made, chosen)(params | own, made.input(batch), batch)
        return [grads[name]["Dense_0"]["kernel"] for name in TRUNK]

    jacobian = jax.jit(jax.jacobian(of_heads))({head: params[head] for head in ends})
    for j, by_head in enumerate(jacobian):
        for head, (a, b) in ends.items():
            largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(by_head[head]))
            assert (largest > 1e-3) if a <= j < b else (largest == 0)


@every_case
def test_a_block_learns_nothing_of_the_blocks_after_its_groups(case):
    """Its gradient keeps its bits whatever those are, and only as long as it is those."""
    chosen = CASES[case]
    made, batch = make(chosen), examples()
    params, other = some(made), some(made, seed=1)
    before, _, _ = static_part(chosen)(params, batch)
    for j, name in enumerate(TRUNK):
        end = max(b for a, b in chosen if a <= j < b)
        beyond = {later: other[later] for later in TRUNK[end:]}
        after, _, _ = static_part(chosen)(params | beyond, batch)
        assert_same(after[name], before[name])
        last = TRUNK[end - 1]
        after, _, _ = static_part(chosen)(params | {last: other[last]}, batch)
        kernels = after[name]["Dense_0"]["kernel"], before[name]["Dense_0"]["kernel"]
        assert not np.array_equal(*kernels)


@pytest.mark.parametrize("case", ["greedy", "chunked"])
def test_groups_in_parts_are_the_whole(case):
    """Each part from the activations that the one before returned: all that passes between them."""
    chosen = CASES[case]
    made, batch = make(chosen), examples()
    params = some(made)
    whole, h_out, loss = static_part(chosen)(params, batch)
    parts, h = {}, made.input(batch)
    for part in (chosen[:1], chosen[1:]):
        a, b = part[0][0], part[-1][1]
        names = [*TRUNK[a:b], *(f"{name}_head" for name in TRUNK[a:b])]
        own = {name: params[name] for name in (*names, "classifier") if name in params}
        grads, h, value = jax.jit(gradients(made, part))(own, h, batch)
        assert not set(parts) & set(grads)
        parts |= grads
    assert_close(parts, whole)
    assert_close((h, value), (h_out, loss))


@pytest.mark.parametrize("optimizer", HYPER)
def test_every_block_has_an_optimizer_of_its_own(optimizer):
    """Each key's steps are those of an optimizer that never saw another key."""
    alone, method = rule(optimizer), by_groups(make(OVERLAPPING), rule(optimizer), OVERLAPPING)
    state, step = method.init(some(make(OVERLAPPING))), jax.jit(method.step)
    update = jax.jit(alone.update)
    assert set(state.opt_state) == set(state.params)
    name, hyper = "hidden1_head", event(optimizer).hyper
    own = state.params[name]
    own_state = alone.init(own)
    for t in range(STEPS):
        grads, _, _ = static_part(OVERLAPPING)(state.params, examples(t))
        updates, own_state = update(grads[name], own_state, own, **hyper)
        own = jax.tree.map(jnp.add, own, updates)
        state, _ = step(state, event(optimizer), examples(t))
        assert jax.tree.structure(state.opt_state[name]) == jax.tree.structure(own_state)
    # As above, for Adam.
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=3e-5)
    jax.tree.map(close, (state.params[name], state.opt_state[name]), (own, own_state))


@either_head
def test_one_shared_head_learns_from_every_group(shared):
    """It is the model's own, and there is no other; alone, it learns from the last group only."""
    made, batch = make(GREEDY, shared), examples()
    params = some(made)
    grads, _, _ = static_part(GREEDY, shared)(params, batch)
    assert (set(params) == {*TRUNK, "classifier"}) == shared
    last = {name: params[name] for name in (*TRUNK, "classifier")}
    hs = base.activations(made.blocks[:K], last, made.input(batch))[1:]

    def of_head(own, h):
        return cross_entropy(dense(own, h), batch["label"])

    gradient = jax.jit(jax.grad(of_head))
    terms = [gradient(params["classifier"], h) for h in (hs if shared else hs[-1:])]
    assert_close(grads["classifier"], jax.tree.map(lambda *leaves: sum(leaves), *terms))


def test_nothing_recompiles_over_events():
    """Numbers of events and batches are inputs; a trace takes one loss a group."""
    made, traces = make(GREEDY), []

    def losses(outputs, batch):
        traces.append(outputs.shape)
        return made.losses(outputs, batch)

    method = by_groups(made._replace(losses=losses), rule("sgd"), GREEDY)
    state, step = method.init(some(made)), jax.jit(method.step)
    shapes = jax.eval_shape(lambda: state)
    for t in range(STEPS):
        now = event("sgd", learning_rate=0.1 / (t + 1), momentum=0.1 * t)
        state, info = step(state, now._replace(staleness=jnp.int32(t)), examples(t))
    assert len(traces) == len(GREEDY)
    # And the state can be carried by a scan.
    assert jax.eval_shape(lambda: state) == shapes
    assert (info["loss"].shape, info["loss"].dtype) == ((), jnp.float32)


@given(st.data())
def test_groups_cover_the_blocks_in_order(data):
    blocks = data.draw(st.integers(1, 12))
    window, chunks = data.draw(st.integers(1, blocks)), data.draw(st.integers(1, blocks))
    for variant in VARIANTS:
        made = groups(variant, blocks, window, chunks)
        sizes = [b - a for a, b in made]
        # From the first block to the last, each group further on, no block left between two.
        assert made[0][0] == 0 and made[-1][1] == blocks and min(sizes) > 0
        for (a, b), (c, d) in pairwise(made):
            assert a < c <= b < d
            assert (c == a + 1) if variant == "overlapping" else (c == b)
        expected = {
            "greedy": (blocks, 1),
            "overlapping": (blocks - window + 1, window),
            "chunked": (chunks, -(-blocks // chunks)),
            "backprop": (1, blocks),
        }
        assert (len(made), max(sizes)) == expected[variant]
        assert max(sizes) - min(sizes) <= 1
    # The family meets at its ends.
    assert groups("overlapping", blocks, 1, chunks) == groups("greedy", blocks, window, chunks)
    assert groups("chunked", blocks, window, blocks) == groups("greedy", blocks, window, chunks)
    assert groups("chunked", blocks, window, 1) == groups("backprop", blocks, window, chunks)


@given(st.integers(1, 8), st.integers(1, 8))
def test_heads_are_on_the_blocks_that_end_a_group_before_the_last(blocks, window):
    made = models.make(MODEL.with_(hidden=(WIDTH,) * blocks), CLASSES)
    window = min(window, blocks)
    overlapping = groups("overlapping", blocks, window, 0)
    assert heads(made, overlapping, False) == tuple(
        f"hidden{j}" for j in range(window - 1, blocks - 1)
    )
    assert heads(made, overlapping, True) == ()
    assert heads(made, groups("backprop", blocks, 0, 0), False) == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nosuch", 3, 1, 1), "'nosuch': one of greedy, overlapping, chunked, backprop"),
        (("greedy", 0, 1, 1), "needs a model with a block before its last"),
        (("overlapping", 3, 4, 1), "window 4: 1 to 3"),
        (("overlapping", 3, 0, 1), "window 0: 1 to 3"),
        (("chunked", 3, 1, 4), "chunks 4: 1 to 3"),
        (("chunked", 3, 1, 0), "chunks 0: 1 to 3"),
    ],
)
def test_groups_that_do_not_exist_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        groups(*arguments)


def test_heads_leave_the_initial_parameters_of_the_model_as_they_are():
    key = jax.random.key(3)
    plain, one, all_heads = (
        problem.make(MODEL, CLASSES, chosen).init(key, examples())
        for chosen in ((), ("hidden1",), tuple(TRUNK))
    )
    assert set(all_heads) - set(plain) == {f"{name}_head" for name in TRUNK}
    assert set(one) - set(plain) == {"hidden1_head"}
    for made in (one, all_heads):
        same = {name: made[name] for name in plain}
        jax.tree.map(np.testing.assert_array_equal, same, plain)
    jax.tree.map(np.testing.assert_array_equal, one["hidden1_head"], all_heads["hidden1_head"])
    # And every head starts somewhere of its own.
    kernels = [
        np.asarray(all_heads[name]["Dense_0"]["kernel"])
        for name in (*(f"{name}_head" for name in TRUNK), "classifier")
    ]
    assert len({kernel.tobytes() for kernel in kernels}) == K + 1
    assert {kernel.shape for kernel in kernels} == {(WIDTH, CLASSES)}


@pytest.mark.parametrize("name", ["classifier", "nosuch"])
def test_heads_of_no_trunk_block_are_refused(name):
    with pytest.raises(ValueError, match=f"{name!r}: blocks before the last are hidden0, hidden1"):
        problem.make(MODEL, CLASSES, (name,)).init(jax.random.key(0), examples())
