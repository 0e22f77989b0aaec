"""Simulated seconds held against real ones over links of a known rate: `links.md` tells of them.

    python -m tests.benchmarks.links                # all rows, about 25 minutes on 2 quiet cores
    python -m tests.benchmarks.links --minutes=9    # as many as fit; the same command goes on

Every process is a node in a network namespace of its own, bound to a core, behind a link that `tc`
shapes (`shaped.py`). Of each row are measured, in turn and by all nodes at once:

    link       a plain TCP transfer around the ring, and a plain message of one byte
    step       updates of plain SGD on a node by itself, without a network
    own        updates of the method on a node by itself: with what it makes of its messages
    together   updates of the method on all nodes, over the links

The method's own clock says the seconds of as many updates on that cluster: a node computes as long
as `own` took it, and a link has the bandwidth of the plain transfer and the latency of the plain
message. Rows that the record has are skipped, unless `--again`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import pandas as pd
from jax.experimental import multihost_utils

from launch import cache
from optdyn import driver, processes, program, strategies, trainer
from optdyn.config import default
from optdyn.experiment import Experiment
from optdyn.run import Run
from optdyn.timeline.base import Timeline
from tests.benchmarks import shaped
from tests.benchmarks.record import publish
from tests.values import as_experiment

MARK = "found: "
ROW_SECONDS, START_SECONDS = 150, 90  # that a row and a job's start may take, or it is ended
PLAIN = 0.25  # seconds of the link's rate in a plain transfer
WANTED = {"median": 1.10, "worst": 1.25}


class Size(NamedTuple):
    """Of an MLP whose exchange over such a link takes about as long as its computing."""

    hidden: tuple[int, ...]
    batch: int  # examples of a node, of which there are 4,000 for all

    def of(self, nodes: int) -> int:
        return min(self.batch, 4000 // nodes)


SIZES = {
    20: Size((16,), 2000),
    100: Size((32, 32), 2000),
    1000: Size((512, 512), 128),
    5000: Size((1024, 1024), 64),
}


class Row(NamedTuple):
    method: str
    megabits: int  # a second, of each link in each direction
    period: int = 1  # updates; of DASO its batches
    nodes: int = 2

    @property
    def updates(self) -> int:
        return max(32, self.period)


# Its keys of config.strategy, and those that the period decides.
METHODS: Mapping[str, tuple[dict[str, Any], Callable[[int], dict[str, int]]]] = {
    "sync": ({"name": "sync"}, lambda h: {}),
    "local SGD": ({"name": "model_averaging"}, lambda h: {"period": h}),
    "DiLoCo": ({"name": "diloco"}, lambda h: {"period": h}),
    "streaming": (
        {"name": "diloco", "fragments": 4},
        lambda h: {"period": h, "delay": h // 8},
    ),
    "DASO": (
        {"name": "daso", "warmup_epochs": 0, "cooldown_epochs": 0},
        lambda h: {"max_batches": h, "wait": max(h // 4, 1)},
    ),
    "top-k": (
        {"name": "model_averaging", "compression": "top_k", "compression_share": 0.05},
        lambda h: {"period": h},
    ),
    "gossip": ({"name": "gossip", "graph": "complete", "gossip_order": "adapt"}, lambda h: {}),
}
APART = ("streaming", "DASO")  # whose exchange the hosts carry, beside the computing
PERIODS = {"sync": (1,), "gossip": (1,), "streaming": (8, 32, 128), "DASO": (2, 8, 32)}
USUAL = (1, 8, 128)


def all_rows() -> list[Row]:
    """Those of two nodes, a core each, and some of four, which share the cores."""
    pairs = [
        Row(method, megabits, period)
        for megabits in SIZES
        for method in METHODS
        for period in PERIODS.get(method, USUAL)
    ]
    four = [
        Row(method, megabits, period, nodes=4)
        for megabits in (100, 1000)
        for method, period in (("sync", 1), ("DiLoCo", 8), ("streaming", 8), ("gossip", 1))
    ]
    return pairs + four


def config_of(row: Row, nodes: int, api: str, plain: bool = False) -> Experiment:
    """The row's method on so many nodes, or plain SGD."""
    size, config = SIZES[row.megabits], default()
    config.steps = config.log_every = row.updates
    config.checkpoint_every = 0
    config.model.hidden = size.hidden
    config.batch_size = size.of(row.nodes) * nodes
    config.optimizer.learning_rate = 0.01
    config.cluster.nodes = nodes
    config.cluster.service = "constant"
    config.parallel.api = api
    keys, by_period = METHODS["sync" if plain else row.method]
    config.strategy.update(keys | by_period(row.period))
    return as_experiment(config)


def line_of(run: Run, config: Experiment) -> Timeline:
    """The updates of a config by its method's clock, as one epoch; `run` has the same model."""
    size = program.parameter_bytes(run.params)
    network = strategies.Network(run.program.problem, run.params, run.data.train)
    return strategies.timeline_of(
        config, steps_per_epoch=config.steps, update_bytes=size, network=network
    )


def timer(run: Run, n: int) -> Callable[[], float]:
    """Seconds of the first n updates, called as the trainer calls them."""
    state, examples, events, indices, _ = driver.first(run, n)

    def padded(leaf: np.ndarray) -> np.ndarray:
        return np.concatenate([leaf, np.zeros((program.CHUNK - len(leaf), *leaf.shape[1:]), leaf.dtype)])

    events = events._replace(choice=jax.tree.map(padded, line_of(run, run.config).choice))

    def once() -> float:
        nonlocal state
        begun = time.perf_counter()
        state, infos = run.program.advance(state, examples, events, indices, n)
        assert np.isfinite(np.asarray(infos["loss"])[:n]).all()
        return time.perf_counter() - begun

    return once


def by_itself(row: Row, plain: bool = False) -> Run:
    """On this process's device alone, whatever job it is in."""
    with mock.patch.object(jax, "process_count", return_value=1):
        return trainer.prepare(config_of(row, 1, "", plain))


def of_nodes(value: Any) -> np.ndarray:
    """(nodes, ...) float64 of every process."""
    return np.asarray(multihost_utils.process_allgather(np.float32(value))).astype(float)


def measured(row: Row, ring: shaped.Neighbours, rounds: int) -> dict[str, Any]:
    """What the row's processes find; all must call this together."""
    run = trainer.prepare(config_of(row, row.nodes, "overlap" if row.method in APART else "shard_map"))
    n, size = row.updates, int(row.megabits * 1e6 / 8 * PLAIN)
    timers = {
        "step": timer(by_itself(row, plain=True), n),
        "own": timer(by_itself(row), n),
        "one": timer(by_itself(row, plain=True), 1),
        "together": timer(run, n),
    }
    found: dict[str, list[float]] = {name: [] for name in ("link", "turn", "sent", *timers)}
    for each in timers.values():
        each()  # compiles
    ring.turns(20)
    for _ in range(rounds):
        found["link"].append(size / ring.ring(size))
        found["turn"].append(ring.turns(50))
        for name, each in timers.items():
            multihost_utils.sync_global_devices("together")
            before = shaped.sent_bytes(f"node{jax.process_index()}")
            if name == "one":
                found[name] += [each() for _ in range(16)]
                continue
            found[name].append(each() / n)
            if name == "together":
                after = shaped.sent_bytes(f"node{jax.process_index()}")
                found["sent"].append((after - before) / n)
    together = {name: of_nodes(values).tolist() for name, values in found.items()}
    return together | {"parameter_bytes": program.parameter_bytes(run.params)}


def work(rows: Iterable[Row], rounds: int) -> None:
    """One process of the job of these rows."""
    shaped.preferred()
    cache.enable()
    processes.initialize()
    ring = shaped.neighbours(jax.process_index(), jax.process_count())
    for row in rows:
        found = measured(row, ring, rounds)
        if processes.is_writer():
            print(MARK + json.dumps(row._asdict() | found), flush=True)


if __name__ == "__main__":
    pass
