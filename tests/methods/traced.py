"""The program of one device of a mesh, and what its collectives are given."""

import jax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P


def collectives(method, start, event, batch, nodes, local):
    """[(axes, branches of conditions, bytes)] of a step on `nodes` of so many `local` devices."""
    mesh = AbstractMesh((nodes, local), ("node", "data"), (AxisType.Auto,) * 2)
    specs = (P(), P(), P(("node", "data")))
    step = jax.shard_map(method.step, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    return list(_found(jax.make_jaxpr(step)(method.init(start), event, batch).jaxpr))


def _found(jaxpr, where=()):
    for equation in jaxpr.eqns:
        if equation.primitive.name.startswith(("psum", "all_gather")):
            axes = equation.params.get("axes", equation.params.get("axis_name"))
            size = sum(v.aval.size * v.aval.dtype.itemsize for v in equation.invars)
            yield tuple(axes) if isinstance(axes, (tuple, list)) else (axes,), where, size
        for i, inner in enumerate(equation.params.get("branches", ())):
            yield from _found(inner.jaxpr, (*where, "cond", i))
        for name in ("jaxpr", "call_jaxpr"):
            if name in equation.params:
                inner = equation.params[name]
                yield from _found(getattr(inner, "jaxpr", inner), where)
