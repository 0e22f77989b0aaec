"""What nodes ask of one another: collectives of many arrays at once are those of each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.methods.messages import AS_ONE_MESSAGE, SIMULATED, Collectives


def trees(nodes: int) -> dict:
    """Arrays of several shapes and types, also one of no axis, of each node."""
    rng = np.random.default_rng(0)
    return {
        "w": jnp.asarray(rng.normal(size=(nodes, 3, 4)), jnp.float32),
        "b": jnp.asarray(rng.normal(size=nodes), jnp.float32),
        "short": jnp.asarray(rng.normal(size=(nodes, 5)), jnp.bfloat16),
        "where": jnp.asarray(rng.integers(-(2**31), 2**31, (nodes, 2)), jnp.int32),
        "bits": jnp.asarray(rng.integers(0, 256, (nodes, 7)), jnp.uint8),
    }


@pytest.mark.parametrize("kind", ("sums", "gather"))
@pytest.mark.parametrize("names", (("w", "b"), ("w", "b", "short"), ("w", "where", "bits", "b")))
def test_all_arrays_at_once_are_each_by_itself(kind, names):
    tree = {name: leaf for name, leaf in trees(3).items() if name in names}
    one_by_one, at_once = (
        jax.vmap(getattr(collectives, kind), axis_name="node")(tree)
        for collectives in (SIMULATED, AS_ONE_MESSAGE)
    )
    for name in names:
        assert at_once[name].dtype == tree[name].dtype
        np.testing.assert_array_equal(at_once[name], one_by_one[name])


@pytest.mark.parametrize("kind, of", [("sums", "psum"), ("gather", "all_gather")])
def test_they_are_one_message(kind, of):
    """Floats, and where nothing is added up also numbers of other types beside them."""
    names = ("w", "b") if kind == "sums" else ("w", "where", "b")
    tree = {name: trees(2)[name][0] for name in names}

    def messages(collectives: Collectives) -> int:
        traced = jax.make_jaxpr(getattr(collectives, kind), axis_env=[("node", 2)])(tree)
        return sum(each.primitive.name.startswith(of) for each in traced.jaxpr.eqns)

    assert messages(AS_ONE_MESSAGE) == 1
    assert messages(SIMULATED) > 1
