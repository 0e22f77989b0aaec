"""The compiled program of a run: the update rule looped over the events of the timeline.

Everything that a study varies is an argument of it: data, order of examples, arrivals, learning
rates, momentum, number of updates. One compilation serves a whole grid of those.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from research import models, optimizers, probes, problem
from research.config import ConfigError
from research.costs import Costs, block_costs, of_groups, of_stages
from research.models import base
from research.parallel import make as parallel
from research.parallel.layout import Layout
from research.problem import Examples, Params, Problem
from research.strategies.base import Event, State, Strategy
from research.strategies.local import Groups, groups, heads
from research.timeline.pipeline import Work

CHUNK = 256  # events handed to the device at a time; how many of them are run is an argument
EVALUATED = 1000  # examples evaluated at a time


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, as a key of caches
class Program:
    """Pure functions of one problem and one strategy.

    `advance(state, examples, events, indices, n) -> (state, losses)` runs the first `n` of
    CHUNK events on its devices; `indices`, (CHUNK, B) int32, are the examples of each batch, or
    (CHUNK, B, 2), with the seeds of their augmentation.
    `evaluate(params, examples) -> (sum of losses, {metric: sum})` over all `examples`.
    `probe(params, train, test) -> {name: scalar}`: what the log shows besides, if anything.
    """

    problem: Problem
    strategy: Strategy
    layout: Layout
    evaluate: Callable[..., tuple[jax.Array, dict[str, jax.Array]]]
    probe: Callable[..., dict[str, jax.Array]] | None

    @property
    def advance(self) -> Callable[..., tuple[State, jax.Array]]:
        return self.layout.advance


def init(config: ConfigDict, classes: int, key: jax.Array, examples: Examples) -> Params:
    """x_0 of a config's model for examples like these, compiled once a model.

    Raises `ConfigError` if one head cannot serve blocks that it is shared by.
    """
    whole, compiled = _problem(_model(config, classes))
    params = compiled(key, examples)
    if config.strategy.name == "local" and config.strategy.shared_heads:
        inputs = whole.input(examples)
        hs = jax.eval_shape(partial(base.activations, whole.blocks), params, inputs)[1:-1]
        if any(h.shape != hs[-1].shape for h in hs):
            raise ConfigError(
                "config.strategy.shared_heads: the blocks of this model have outputs of different "
                "shapes, which one head cannot take"
            )
    return params


def make(config: ConfigDict, classes: int, slots: int) -> Program:
    """The program of a config: the same object for configs that differ in traced numbers only."""
    optimizer = config.optimizer
    static = {
        "model": _model(config, classes),
        "optimizer": (optimizer.name, hyper_names(config), optimizers.options(config)),
        "strategy": _devices(config),
        "slots": slots,
    }
    return _make(json.dumps(static, sort_keys=True))


def costs(
    config: ConfigDict, classes: int, params: Params, examples: Examples
) -> tuple[Costs, Work]:
    """What an update of strategy 'local' costs, whole and on the stages of the cluster."""
    whole, _ = _problem(_model(config, classes))

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((config.batch_size, *leaf.shape[1:]), leaf.dtype)

    made = block_costs(whole, params, jax.tree.map(shape, dict(examples)))
    chosen, stages = groups_of(config), config.cluster.nodes
    cuts = [len(made.trunk) * i // stages for i in range(stages)]
    return of_groups(made, chosen, config.strategy.shared_heads), of_stages(made, chosen, cuts)


def _devices(config: ConfigDict) -> dict[str, Any]:
    """What `parallel.make` is to know of the strategy and its devices."""
    cluster, strategy, real = config.cluster, config.strategy, config.parallel
    shapes = {
        "sync": (real.devices or jax.device_count(),) if real.api else (),
        "asynchronous": (),
        "daso": (cluster.nodes, cluster.devices_per_node),
        "dynamic_batch": (cluster.nodes * cluster.devices_per_node,),
        "local": (cluster.nodes, cluster.devices_per_node),
    }
    return {
        "name": strategy.name,
        "api": real.api,
        "shape": shapes[strategy.name],
        "accumulation": real.accumulation,
        "shard_optimizer": real.shard_optimizer,
        "transfer_dtype": strategy.transfer_dtype,
        "micro_batch": strategy.micro_batch,
        "weights": strategy.weights,
        "fresh": sorted(strategy.fresh) if strategy.name == "asynchronous" else (),
        "groups": groups_of(config) if strategy.name == "local" else (),
        "shared_heads": strategy.shared_heads,
        "probes": strategy.probes and strategy.name == "local",
        "micro_batches": strategy.micro_batches,
    }


def _model(config: ConfigDict, classes: int) -> str:
    model = {key: value for key, value in config.model.to_dict().items() if key != "noise"}
    auxiliary: tuple[str, ...] = ()
    if config.strategy.name == "local":
        blocks = models.make(config.model, classes)
        auxiliary = heads(blocks, groups_of(config), config.strategy.shared_heads)
    pixels = {name: config.data[name] for name in problem.Pixels._fields}
    return json.dumps([model, classes, auxiliary, pixels], sort_keys=True)  # noise is of the data


def groups_of(config: ConfigDict) -> Groups:
    """The blocks of a config's model that learn together, of strategy 'local'.

    Raises ValueError, in one line, if there are no such groups.
    """
    strategy, blocks = config.strategy, len(models.make(config.model, classes=2)) - 1
    return groups(strategy.variant, blocks, strategy.window, strategy.chunks)


@lru_cache(maxsize=32)
def _problem(static: str) -> tuple[Problem, Callable[..., Params]]:
    model, classes, auxiliary, pixels = json.loads(static)
    whole = problem.make(ConfigDict(model), classes, tuple(auxiliary), problem.Pixels(**pixels))
    return whole, jax.jit(whole.init)


@lru_cache(maxsize=32)
def _make(static: str) -> Program:
    values = json.loads(static)
    name, names, options = values["optimizer"]
    whole, _ = _problem(values["model"])
    optimizer = optimizers.optimizer(name, tuple(names), options)
    strategy, layout = parallel.make(
        lambda strategy: partial(_advance, whole, strategy),
        values["strategy"],
        whole,
        optimizer,
        values["slots"],
    )
    probe = _probe(whole, values["strategy"]) if values["strategy"]["probes"] else None
    return Program(whole, strategy, layout, jax.jit(partial(_evaluate, whole)), probe)


def _probe(whole: Problem, strategy: dict[str, Any]) -> Callable[..., dict[str, jax.Array]]:
    groups = tuple((a, b) for a, b in strategy["groups"])
    cosine = probes.cosines(whole, groups, strategy["shared_heads"])
    linear = probes.linear_probe(whole)

    def probe(params: Params, train: Examples, test: Examples) -> dict[str, jax.Array]:
        found = {"cosine": cosine(params, train), "probe_accuracy": linear(params, train, test)}
        return {f"{name}_{block}": v for name, each in found.items() for block, v in each.items()}

    return jax.jit(probe)


def _advance(
    problem: Problem,
    strategy: Strategy,
    state: State,
    examples: Examples,
    events: Event,
    indices: jax.Array,
    n: jax.Array,
) -> tuple[State, jax.Array]:
    def body(i: jax.Array, carry: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        state, losses = carry
        event = jax.tree.map(lambda leaf: leaf[i], events)
        batch = problem.batch(examples, indices[i])
        state, loss = strategy.step(state, event, batch)
        return state, losses.at[i].set(loss)

    return jax.lax.fori_loop(0, n, body, (state, jnp.zeros(len(indices), jnp.float32)))


def _evaluate(
    problem: Problem, params: Params, examples: Examples
) -> tuple[jax.Array, dict[str, jax.Array]]:
    outputs = problem.outputs(params, examples)
    metrics = {name: metric(outputs, examples).sum() for name, metric in problem.metrics.items()}
    return problem.losses(outputs, examples).sum(), metrics


def hyper_names(config: ConfigDict) -> tuple[str, ...]:
    """The optimizer's arguments that arrive with every event."""
    momentum = optimizers.takes_momentum(config.optimizer.name)
    return ("learning_rate", "momentum") if momentum else ("learning_rate",)


def hypers(config: ConfigDict) -> dict[str, np.ndarray]:
    """Every update's hyperparameters, (steps,) float32 each."""
    optimizer = config.optimizer
    values = {
        "learning_rate": optimizers.learning_rates(
            optimizer.schedule,
            optimizer.learning_rate,
            config.steps,
            warmup_steps=optimizer.warmup_steps,
            decay_steps=optimizer.decay_steps,
            decay_rate=optimizer.decay_rate,
        ),
        "momentum": np.full(config.steps, optimizer.momentum, np.float32),
    }
    return {name: values[name] for name in hyper_names(config)}


def evaluate(program: Program, params: Params, examples: Examples) -> dict[str, float]:
    """Mean loss and metrics over the examples, a thousand at a time."""
    count = len(next(iter(examples.values())))
    totals: dict[str, float] = {}
    for start in range(0, count, EVALUATED):
        part = {name: leaf[start : start + EVALUATED] for name, leaf in examples.items()}
        loss, metrics = jax.device_get(program.evaluate(params, part))
        for name, value in {"loss": loss, **metrics}.items():
            totals[name] = totals.get(name, 0.0) + float(value) / count
    return totals


def probe(program: Program, params: Params, train: Examples, test: Examples) -> dict[str, float]:
    """What the program's `probe` finds on a thousand examples of each, or nothing."""
    if program.probe is None:
        return {}
    some = [{name: leaf[:EVALUATED] for name, leaf in split.items()} for split in (train, test)]
    return {name: float(v) for name, v in jax.device_get(program.probe(params, *some)).items()}


def parameter_bytes(params: Any) -> int:
    """Size of a pytree of arrays, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
