"""All methods, their settings and all pairs against the plain reference; and pairs do train.

The battery has each pair at its limits, where periods are equal or groups are one. Here they are
unlike: two groups in every node, with periods of 2 and of 3 where both can be set.
"""

import itertools
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple

import jax
import numpy as np
import pytest

from optdyn import methods
from optdyn.clock.service import Exponential
from optdyn.clock.timeline import Shares, entries_at, plan_of
from optdyn.methods import Event
from optdyn.train import program
from tests.clock.recorded import config_of, network_of
from tests.methods import reference
from tests.methods import test_battery as battery

STEPS, WINDOW = 960, 24
NODES, DEVICES = 2, 2
VALUES = {
    "method.groups": 2,
    "method.period": 2,
    "method.fragments": 1,
    "method.steps_by_speed": False,
    "method.elasticity": 1.6,
    "method.outer_learning_rate": 0.7,
    "method.outer_momentum": 0.3,
    "method.slow_momentum": 0.3,
    "method.compression_share": 0.4,  # no two numbers are equal where it cuts
    "method.compression_block": 5,
    "method.error_decay": 0.9,
    "method.averaged_share": 0.6,
    "method.momentum_decay": 0.9,
    "method.chunk": 4,
    "method.coefficients": 8,
    "method.signed": False,  # a sign of what is nearly 0 is that of its rounding
    "method.first_moment_meetings": 2,
    "method.waiting": "k_batch_async",
    "method.arrivals": 3,
    "method.delay_bound": 2,
    "method.allotted": 1.5,
    "method.warmup_epochs": 1,
    "method.cooldown_epochs": 0,
    "method.max_batches": 2,
    "method.wait": 1,
    "method.graph": "ring",
    "method.variant": "greedy",
}
# Of workers inside of nodes, which have keys of the same names.
INSIDE = {"period": 3, "outer_momentum": 0.6, "outer_learning_rate": 0.5, "graph": "complete"}
NAMES = [name for name in battery.OTHERS if name != "stale_pipeline"]
PAIRS = [
    pair for pair in map("+".join, itertools.combinations(NAMES, 2)) if battery.go_together(pair)
]
THREE = ("daso+asynchronous+local", "diloco+async_local_sgd+local", "gossip+buffered+local")

FOUR = {"cluster.nodes": 4, "cluster.devices_per_node": 1, "cluster.speeds": (1.0, 3.0, 2.0, 2.0)}
GROUPS = {"method.groups": 4}
AWAY = {"cluster.presence": 0.03, "cluster.absence": 0.02}
LATE = {"method.groups": 4, "method.outer_momentum": 0.9, "method.outer_learning_rate": 0.4}
MEETING = {"method.period": 6, "method.fragments": 3, "method.delay": 1}
COMPRESSED = {
    "top_k": {"compression": "top_k"},
    "sign": {"compression": "sign"},
    "powersgd": {"compression": "powersgd", "compression_rank": 1},
    "powersgd of rank 2": {"compression": "powersgd", "compression_rank": 2},
    "4 bits": {"compression_bits": 4},
    "3 bits": {"compression_bits": 3},
    "top_k of 2 bits": {"compression": "top_k", "compression_bits": 2},
}


@dataclass(frozen=True, eq=False)  # a key of `trained`
class Variant:
    """A method with keys that make another rule of it, or let it be seen from another side."""

    name: str
    values: dict = field(default_factory=dict)
    optimizer: str = "sgd"
    atol: float = 1e-5  # float32 against float64: 24 updates of numbers of about one, 1e-7 each


def keys(**values):
    return {f"method.{key}": value for key, value in values.items()}


SETTINGS = {
    "one group": Variant("asynchronous", keys(groups=1)),
    "in turn": Variant("asynchronous", GROUPS | {"cluster.service.name": "constant"}),
    "ring of versions": Variant("asynchronous", GROUPS | {"cluster.service.name": "geometric"}),
    "adam": Variant("asynchronous", GROUPS, "adam"),
    "one fresh": Variant("asynchronous", GROUPS | keys(fresh=("classifier",))),
    "two fresh": Variant(
        "asynchronous",
        GROUPS | keys(fresh=("classifier", "hidden0")) | {"model.hidden": (7, 6)},
    ),
    "top_k groups": Variant("asynchronous", GROUPS | keys(compression="top_k")),
    "sign groups": Variant("asynchronous", GROUPS | keys(compression="sign")),
    "k_async": Variant("buffered", GROUPS | keys(waiting="k_async")),
    "k_sync": Variant("buffered", GROUPS | keys(waiting="k_sync")),
    "unlike groups": Variant("ringleader", GROUPS | {"cluster.speeds": (1.0, 4.0, 2.0, 2.0)}),
    "ring": Variant("ad_psgd", GROUPS),
    "complete": Variant("ad_psgd", GROUPS | keys(graph="complete")),
    "delayed momentum": Variant(
        "async_local_sgd", LATE | keys(momentum_delay=2, momentum_part=0.5)
    ),
    "aged": Variant("async_local_sgd", LATE | keys(age_decay=0.5, age_cutoff=3.0)),
    "aged adam": Variant(
        "async_local_sgd",
        LATE | keys(server="adam", age_decay=0.5, outer_learning_rate=0.05),
        atol=3e-5,  # where gradients are small Adam divides their rounding by them
    ),
    **{
        f"heloco {aligned}": Variant(
            "async_local_sgd", LATE | keys(server="heloco", aligned=aligned, correction=k)
        )
        for aligned, k in ((0.9, 0.7), (1.0, 5.0), (-1.0, 0.7))
    },
    **{
        f"quorum {quorum}": Variant(
            "decoupled", GROUPS | keys(period=3, fragments=2, quorum=quorum, grace=grace)
        )
        for quorum, grace in ((2, 0.01), (1, 0.0))
    },
    "dropped": Variant("decoupled", keys(quorum=1) | {"cluster.bandwidth": 6e4}),
    **{
        f"{state} {name}": Variant(name, keys(inner_state=state))
        for state in ("averaged", "reset")
        for name in ("model_averaging", "slowmo", "diloco+elastic", "diloco+asynchronous")
    },
    "streaming averages": Variant("model_averaging", MEETING | keys(mixing=0.3)),
    "streaming diloco": Variant("diloco", MEETING | keys(mixing=0.3)),
    "late diloco": Variant("diloco", keys(period=6, delay=3)),
    "correcting averages": Variant("model_averaging", MEETING | keys(merging="correct")),
    "correcting diloco": Variant("diloco", keys(period=4, delay=2, merging="correct")),
    **{f"{name} with absences": Variant(name, FOUR | AWAY) for name in ("diloco", "slowmo")},
    **{f"diloco of {kind}": Variant("diloco", keys(**one)) for kind, one in COMPRESSED.items()},
    "slowmo of top_k": Variant("slowmo", keys(compression="top_k")),
    "late messages": Variant("diloco", MEETING | keys(compression="top_k", mixing=0.3)),
    "sparseloco of 2 bits": Variant("sparseloco", keys(compression_bits=2)),
    "adam's moments": Variant(
        "des_loc", keys(first_moment_meetings=3, second_moment_meetings=2), "adam"
    ),
    "long daso": Variant("daso", FOUR | keys(max_batches=4, wait=2)),
    **{
        f"{order} {graph}": Variant("gossip", FOUR | keys(graph=graph, gossip_order=order))
        for order in ("combine", "adapt")
        for graph in ("ring", "one_peer", "random", "push")
    },
    **{
        f"{graph} with absences": Variant("gossip", FOUR | AWAY | keys(graph=graph))
        for graph in ("ring", "random")
    },
    "choco": Variant(
        "gossip",
        FOUR | keys(gossip_order="adapt", consensus_rate=0.4, compression="top_k"),
        atol=5e-5,  # errors add up in what is known of a node
    ),
    **{f"gasloc {g}": Variant("gasloc", FOUR | keys(graph=g)) for g in ("one_peer", "random")},
    "noloco": Variant("slowmo+gossip", FOUR | keys(graph="random")),
    **{
        f"{kind} pipeline": Variant(
            "stale_pipeline",
            keys(pipeline=kind, micro_batches=3)
            | {"cluster.nodes": 3, "cluster.speeds": (), "model.hidden": (6, 4, 5)}
            | {"cluster.devices_per_node": 1, "cluster.service.name": "constant"},
        )
        for kind in ("stash", "2bw", "no_stash", "predict")
    },
}


def test_no_pair_is_left_out():
    """Those of a pipeline's stages go with nothing; all others that go together are run."""
    pairs = map("+".join, itertools.combinations(battery.OTHERS, 2))
    assert {pair for pair in pairs if battery.go_together(pair)} == set(PAIRS)
    reads, mixes = (len(known) for known in (reference.READS, reference.MIXES))
    over_a_graph = len(reference.JOINED)
    assert len(PAIRS) == reads * mixes + reads + 2 * mixes + over_a_graph  # groups, blocks, shares


def examples():
    """Images whose labels a linear teacher gives: 96 of them, so that they can be learned."""
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (96, 3, 3, 1), dtype=np.uint8)
    teacher = rng.normal(size=(9, battery.CLASSES))
    return images, np.argmax((images.reshape(96, 9) / 255 - 0.5) @ teacher, axis=1).astype(np.int32)


def inside(parts):
    """Keys of the method of workers, if it is joined with one of nodes."""
    (*reads,) = set(parts) & set(reference.READS)
    if not reads or not set(parts) & set(reference.MIXES):
        return {}
    known = methods.load(reads[0]).field_table()
    return {f"method.{reads[0]}.{key}": v for key, v in INSIDE.items() if key in known}


class EquationRun(NamedTuple):
    config: object
    line: object  # the timeline
    hyper: dict  # (steps,) each
    params: dict  # at the start
    order: np.ndarray  # (steps, batch) numbers of examples


def run_of(inputs, steps):
    name = inputs.name
    cluster = {"nodes": NODES, "devices_per_node": DEVICES, "speeds": (1.0, 3.0, 2.0, 2.0)}
    cluster |= {"service": Exponential()} if "daso" in name.split("+") else {}
    values = VALUES | {f"cluster.{key}": value for key, value in cluster.items()}
    values |= {"model.hidden": (7,)} if inputs.values else {}  # two blocks are enough
    config = config_of(name, **values | inside(name.split("+")) | inputs.values, steps=steps)
    model_info = network_of(program.problem_of(config, battery.CLASSES))
    rng = np.random.default_rng(0)
    params = jax.tree_util.tree_map_with_path(drawn, model_info.params)
    if inputs.optimizer == "adam":  # it would divide by the squares of units that hardly live
        params |= {n: jax.tree.map(lambda x: x + (x.ndim == 1), params[n]) for n in params}
    ends = [{"train_loss": 1.0}] * (steps // battery.EPOCH)
    known = {"steps_per_epoch": battery.EPOCH, "update_bytes": 1000, "epochs": ends}
    line = config.timeline(model_info=model_info, **known)
    order = np.stack([rng.permutation(96)[: battery.BATCH] for _ in range(steps)])
    largest = 0.3 if inputs.optimizer == "sgd" else 0.03
    hyper = {
        "learning_rate": rng.uniform(largest / 3, largest, steps).astype(np.float32),
        "momentum": rng.uniform(-0.2, 0.4, steps).astype(np.float32),
    }
    hyper = {name: hyper[name] for name in battery.OPTIMIZERS[inputs.optimizer]}
    return EquationRun(config, line, hyper, params, order)


def drawn(path, leaf):
    """The same values wherever a block or head is."""
    rng = np.random.default_rng([0, *jax.tree_util.keystr(path).encode()])
    return rng.normal(0, 0.5, leaf.shape).astype(leaf.dtype)


def plain(losses, outputs, batch):
    return losses(outputs, batch)


@partial(jax.jit, static_argnums=0)
def window_of(rule, state, events, batches):
    def body(state, inputs):
        state, info = rule.step(state, *inputs)
        return state, (
            info["loss"],
            state.node_params if hasattr(state, "node_params") else state.params,
        )

    return jax.lax.scan(body, state, (events, batches))


@partial(jax.jit, static_argnums=0)
def first_window(rule, params, events, batches):
    return window_of(rule, rule.init(params), events, batches)


@cache
def trained(inputs, steps=WINDOW):
    """(steps,) losses and (WINDOW, ...) parameters of the first updates, and the run."""
    run = run_of(inputs, steps)
    line, problem = run.line, program.problem_of(run.config, battery.CLASSES)
    images, labels = examples()
    order, divided = run.order, plan_of(line, Shares)
    if divided:  # each device is given its own
        order = battery.split_batches(order, divided.shares, battery.padded_share(divided.shares))
    asked = program._layout_request(run.config)
    rule = battery.make_rule(asked, problem, inputs.optimizer, line.slots, plain)
    state, losses = run.params, []
    for start in range(0, steps, WINDOW):
        part = slice(start, start + WINDOW)
        events = Event(
            entries_at(line.plan, part), entries_at(run.hyper, part), line.staleness[part]
        )
        batches = {"image": images[order[part]], "label": labels[order[part]]}
        advance = window_of if losses else first_window
        state, (loss, params) = advance(rule, state, events, batches)
        if not losses:
            first = jax.device_get(params)
        losses.append(np.asarray(loss))
    return np.concatenate(losses), first, run


def short(params):
    """The arrays of each block by their own names, as the reference has them."""
    return {name: block.get("Dense_0", block) for name, block in params.items()}


CASES = {name: Variant(name) for name in (*NAMES, *PAIRS, *THREE)} | SETTINGS


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_its_equations_say(case):
    """The parameters of all nodes and the loss, of each of the first 24 updates."""
    inputs = CASES[case]
    losses, found, run = trained(inputs)
    cluster, methods = run.config.cluster, run.config.methods
    updates = [
        reference.NumpyUpdate(
            entries_at(run.line.plan, t),
            run.line.staleness[t],
            {name: float(values[t]) for name, values in run.hyper.items()},
        )
        for t in range(WINDOW)
    ]
    images, labels = (data[run.order] for data in examples())
    shape = cluster.nodes, cluster.devices_per_node
    history = reference.run(
        inputs.name,
        short(run.params),
        updates,
        images,
        labels,
        *shape,
        run.config.method.to_dict(),
        inputs.optimizer,
    )
    params, expected = zip(*history, strict=True)
    params = [nodes if methods.mix else nodes[0] for nodes in params]
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *map(as_stacked, params))
    close = partial(np.testing.assert_allclose, rtol=0, atol=inputs.atol)
    jax.tree.map(close, short(found), params)
    if not cluster.presence:  # who is away has a loss, which is of no update
        np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=inputs.atol)


def as_stacked(nodes):
    """Parameters of one node, or those of several with a first axis of the nodes."""
    if isinstance(nodes, dict):
        return nodes
    return jax.tree.map(lambda *leaves: np.stack(leaves), *nodes)


@pytest.mark.parametrize("name", [*PAIRS, *THREE])
def test_a_pair_trains_to_what_its_better_parent_reaches(name):
    """It may take four times the updates, as its delays and its rare meetings are those of both.

    The loss is 1.6 where nothing is learned, and that of the better parents is 0.5 to 0.9 by then.
    Where the slower parent is not there after four times the updates (`elastic`, 0.76 against the
    0.73 of `demo`), it is enough for a pair to be ahead of that parent.
    """
    quarter = STEPS // 4
    parents = [trained(CASES[parent], STEPS)[0] for parent in name.split("+")]
    better = min(losses[quarter - WINDOW : quarter].mean() for losses in parents)
    slower = max(losses[-WINDOW:].mean() for losses in parents)
    assert trained(CASES[name], STEPS)[0][-WINDOW:].mean() < max(better, slower) < 0.9
