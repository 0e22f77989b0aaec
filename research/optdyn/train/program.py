"""The compiled program of a run: the update rule looped over the events of the timeline.

Everything that a study varies is an argument of it: data, order of examples, arrivals, learning
rates, momentum, number of updates. One compilation serves a whole grid of those.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn import optimizers
from optdyn.base import lookup
from optdyn.base.fields import Options
from optdyn.base.lookup import Key
from optdyn.base.trees import Hyper, Tree, bytes_of, examples_in
from optdyn.core import Event, Info, Rule, ServedState, State
from optdyn.devices.layout import Layout
from optdyn.devices.simulated import NodeStates
from optdyn.experiment import Config
from optdyn.methods import compose, pieces
from optdyn.methods.sync import Merged, cut, merged
from optdyn.momentum.probes import PROBES
from optdyn.optimizers import schedules
from optdyn.problem import losses, models, problem
from optdyn.problem.models import Model, Quadratic
from optdyn.problem.problem import Examples, Params, Problem
from optdyn.problem.shared_data import Parts
from optdyn.train import devices as parallel

CHUNK = 256  # events handed to the device at a time; how many of them are run is an argument


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, as a key of caches
class Program:
    """Pure functions of one problem and one rule.

    `advance(state, examples, events, indices, n) -> (state, infos)` runs the first `n` of CHUNK
    events on its devices, `infos` being what each step says of itself, (CHUNK,); `indices`,
    (CHUNK, C) int32, are the examples of each batch, device by device, C = B where parts are even,
    or (CHUNK, C, 2), with the seeds of their augmentation.
    `evaluate(params, examples) -> (sum of losses, {metric: sum})` over all `examples`.
    `extra_metrics(params, node_params, train, test) -> {name: scalar}` measures, at log points,
    the parameters and those of all nodes.
    """

    problem: Problem
    rule: Rule
    layout: Layout
    metered: Layout | None  # the same, of pairs of batches, saying what the momentum meter needs
    evaluate: Callable[..., tuple[jax.Array, dict[str, jax.Array]]]
    extra_metrics: Callable[..., dict[str, jax.Array]] | None
    sums: tuple[str, ...] = ()  # what updates say of themselves that the log sums up

    @property
    def advance(self) -> Callable[..., tuple[State, Info]]:
        """The compiled loop over events, as `Layout.advance`."""
        return self.layout.advance

    @property
    def init(self) -> Callable[[Params], State]:
        """The state that a run starts from."""
        return self.layout.init or self.rule.init


class Raced(NamedTuple):
    """A run's update in two compiled halves, for workers that race and the server they send to.

    `given(state, slot)` is what a worker gets that reads a slot, without the fresh blocks of a
    `merged` server, with which the message is made in two places. `work(given, hyper, examples,
    chosen) -> message` of batches of the examples with those numbers, (n, B) int32 or (n, B, 2);
    `update(state, event, message) -> (state, info)`. `metered`, which says what the momentum meter
    needs, also takes the examples and the numbers of a second batch.
    """

    given: Callable[[Tree, int], Tree]  # of a `ServedState`
    work: Callable[..., Tree]
    update: Callable[..., tuple[State, Info]]
    metered: Callable[..., tuple[State, Info]]
    merged: Merged | None = None  # of examples and the numbers, (B,) or (B, 2), of those of a batch


class ProblemKey(NamedTuple):
    """What a problem depends on, as a key of caches."""

    model: Model  # as made; what its data are like is not of it
    classes: int
    heads: tuple[str, ...]  # blocks with an auxiliary head
    pixels: problem.Pixels
    loss: str
    metrics: tuple[str, ...]
    own: Key  # what the names of the user's own stand for


class Static(NamedTuple):
    """What a program depends on besides its problem, as a key of caches."""

    optimizer: tuple[str, tuple[str, ...], Options, optimizers.Chain]  # arguments of `optimizer`
    layout: parallel.LayoutRequest
    slots: int
    meter: bool
    probes: tuple[str, ...]
    own: Key


def init(config: Config, classes: int, key: jax.Array, examples: Examples) -> Params:
    """x_0 of a config's model for examples like these, compiled once a model."""
    _, static_part = _problem(_model(config, classes))
    return static_part(key, examples)


def shapes(config: Config, classes: int, key: jax.Array, examples: Examples) -> Params:
    """The shapes of what `init` makes; nothing is computed."""
    _, static_part = _problem(_model(config, classes))
    return jax.eval_shape(static_part, key, examples)


def problem_of(config: Config, classes: int) -> Problem:
    """What is minimized, the same object for configs of one model."""
    return _problem(_model(config, classes))[0]


def check(config: Config, classes: int, examples: Examples) -> None:
    """Raises `ConfigError` where a config's model, loss or metrics cannot be used on the examples.

    `problem.check`, once for all configs of one model.
    """
    shapes = ((name, leaf.shape, leaf.dtype) for name, leaf in examples.items())
    _checked(_model(config, classes), tuple(shapes))


def mixes(config: Config, classes: int, params: Params, examples: Examples) -> bool:
    """Whether the loss of an example depends on the others of its batch, as a norm over it does.

    Tried of the first of these examples, beside the others and beside copies of itself.
    """
    first = _first_loss(_model(config, classes))
    copies = {name: np.repeat(leaf[:1], len(leaf), axis=0) for name, leaf in examples.items()}
    found = first(params, examples), first(params, copies)
    return not np.isclose(*found, rtol=1e-4, equal_nan=True)  # the same program, so equal if not


def make(config: Config, classes: int, slots: int) -> Program:
    """The program of a config: the same object for configs that differ in traced numbers only."""
    return _make(_model(config, classes), _rest(config, slots))


def raced(config: Config, classes: int, slots: int) -> Raced:
    """The two halves of the update that `make` makes one program of."""
    return _raced(_model(config, classes), _rest(config, slots))


def _rest(config: Config, slots: int) -> Static:
    """What a program depends on besides its problem."""
    name = config.optimizer.name
    return Static(
        (
            name,
            hyper_names(config),
            optimizers.options(config, config.methods.groups),
            optimizers.chain(config),
        ),
        _layout(config),
        slots,
        config.probes.momentum,
        tuple(name for name in PROBES if getattr(config.probes, name)),
        lookup.user_objects(config, (*lookup.OPTIMIZER, *lookup.METHOD)),
    )


def _layout(config: Config) -> parallel.LayoutRequest:
    """What `parallel.make` is to know of the methods, their devices and the examples on these."""
    methods, real = config.methods, config.parallel
    nodes, devices = 1, 1
    if real.api or methods.mix or methods.reduces_itself:
        nodes, devices = config.methods.devices(config)
    return parallel.LayoutRequest(
        methods.static_part,
        real.api,
        nodes,
        devices,
        real.accumulation,
        real.shard_optimizer,
        real.shard_snapshots,
        bool(real.api) and config.data.streaming,
    )


def _model(config: Config, classes: int) -> ProblemKey:
    gradient, heads = config.methods.gradient, tuple[str, ...]()
    if gradient:
        heads = tuple(gradient.heads(models.make(config.model, classes)))
    pixels = problem.Pixels(config.data.mean, config.data.std, config.data.augment)
    own = lookup.user_objects(config, lookup.MODEL)
    model = config.model
    if isinstance(model, Quadratic):
        model = model.with_(noise=0.0, spread=0.0)  # which are of the data
    return ProblemKey(model, classes, heads, pixels, config.loss, config.metrics, own)


@lru_cache(maxsize=32)
def _problem(of: ProblemKey) -> tuple[Problem, Callable[..., Params]]:
    whole = problem.make(of.model, of.classes, of.heads, of.pixels, of.loss, of.metrics)
    return whole, jax.jit(whole.init)


@lru_cache(maxsize=32)
def _checked(of: ProblemKey, shapes: Sequence[tuple[str, tuple[int, ...], np.dtype]]) -> None:
    examples = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in shapes}
    classes = of.classes if losses.has_class_outputs(of.loss, examples) else 0
    problem.check(_problem(of)[0], examples, classes)


@lru_cache(maxsize=32)
def _first_loss(of: ProblemKey) -> Callable[[Params, Examples], jax.Array]:
    whole, key = _problem(of)[0], jax.random.key(0)

    def first(params: Params, batch: Examples) -> jax.Array:
        def beside(leaf: jax.Array) -> jax.Array:  # of a layer of zeros nothing would be seen
            return leaf + 0.1 * jax.random.normal(key, leaf.shape)

        return whole.each_loss(jax.tree.map(beside, params), batch)[0]

    return jax.jit(first)


@lru_cache(maxsize=32)
def _make(model: ProblemKey, rest: Static) -> Program:
    whole, _ = _problem(model)
    asked = rest.layout, whole, optimizers.optimizer(*rest.optimizer), rest.slots
    rule, layout = parallel.make(lambda one: partial(_loop, whole.batch, one), *asked)
    rule = rule._replace(init=jax.jit(rule.init))  # one program, not one a leaf
    metered = None
    if rest.meter:
        pairs = partial(_pair, whole)
        _, metered = parallel.make(lambda one: partial(_loop, pairs, one), *asked, meter=True)
    methods = rest.layout.methods
    own = [method.extra_metrics(whole) for method in methods.members]
    extra_metrics = _probe(whole, [each for each in own if each], rest.probes)
    sums = tuple(name for method in methods.members for name in method.info)
    return Program(
        whole, rule, layout, metered, jax.jit(partial(_evaluate, whole)), extra_metrics, sums
    )


@lru_cache(maxsize=32)
def _raced(model: ProblemKey, rest: Static) -> Raced:
    whole, _ = _problem(model)
    methods = rest.layout.methods
    optimizer = optimizers.optimizer(*rest.optimizer)
    asked = methods, whole, optimizer, rest.slots, None
    assert methods.read and methods.read.message
    of = methods.read.message(*pieces(methods, whole, optimizer))

    def work(given: Tree, hyper: Hyper, examples: Examples, chosen: jax.Array) -> Tree:
        return of(given, hyper, partial(whole.batch, examples), chosen)

    def step_of(meter: bool) -> Callable[..., tuple[State, Info]]:
        return compose(*asked, meter=meter, race=True).step

    def update(state: State, event: Event, message: Tree) -> tuple[State, Info]:
        return step_of(meter=False)(state, event, message)

    def metered(
        state: State, event: Event, message: Tree, examples: Examples, second: jax.Array
    ) -> tuple[State, Info]:
        return step_of(meter=True)(state, event, (message, whole.batch(examples, second)))

    fresh = methods.get("fresh", ())

    def given(state: ServedState, slot: int) -> Tree:
        seen = state.at(slot)
        return {name: own for name, own in seen.items() if name not in fresh} if fresh else seen

    return Raced(
        given,
        jax.jit(work),
        jax.jit(update, donate_argnums=0),
        jax.jit(metered, donate_argnums=0),
        _merged(whole, fresh) if fresh else None,
    )


def _merged(whole: Problem, fresh: Sequence[str]) -> Merged:
    front, serve = merged(whole, cut([name for name, _ in whole.blocks], fresh))

    def group(x: Params, examples: Examples, chosen: jax.Array) -> Tree:
        return front(x, whole.batch(examples, chosen))

    def server(y: Params, h: jax.Array, examples: Examples, chosen: jax.Array) -> Tree:
        return serve(y, h, whole.batch(examples, chosen))

    return Merged(jax.jit(group), jax.jit(server))


def _probe(
    problem: Problem, own: Sequence[Callable[..., Tree]], asked: Sequence[str]
) -> Callable[..., dict[str, jax.Array]] | None:
    """The methods' probes, and those of `config.probes` that are asked for."""

    def extra_metrics(
        params: Params, every: Params, train: Examples, test: Examples
    ) -> dict[str, jax.Array]:
        found = [measure(params, train, test) for measure in own]
        found += [PROBES[name](problem, params, every, train) for name in asked]
        return {name: value for each in found for name, value in each.items()}

    return jax.jit(extra_metrics) if own or asked else None


def _pair(problem: Problem, examples: Sequence[Examples], chosen: Sequence[jax.Array]) -> Tree:
    return tuple(map(problem.batch, examples, chosen))


def _loop(
    batch: Callable[..., Tree],  # (examples, numbers) -> of an update
    rule: Rule,
    state: State,
    examples: Tree,
    events: Event,
    indices: Tree,
    n: jax.Array,
) -> tuple[State, Info]:
    # With JAX_DISABLE_JIT=1 they are NumPy's still, which `i` cannot index.
    examples, events, indices = jax.tree.map(jnp.asarray, (examples, events, indices))

    def step(state: State, i: jax.Array) -> tuple[State, Info]:
        event, chosen = jax.tree.map(lambda leaf: leaf[i], (events, indices))
        return rule.step(state, event, batch(examples, chosen))

    def body(i: jax.Array, carry: tuple[State, Info]) -> tuple[State, Info]:
        state, every = carry
        state, info = step(state, i)
        return state, jax.tree.map(lambda leaf, one: leaf.at[i].set(one), every, info)

    _, info = jax.eval_shape(step, state, 0)
    size = len(jax.tree.leaves(events)[0])
    nothing = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), jnp.float32), info)
    return jax.lax.fori_loop(0, n, body, (state, nothing))


def _evaluate(
    problem: Problem, params: Params, examples: Examples
) -> tuple[jax.Array, dict[str, jax.Array]]:
    outputs = problem.outputs(params, examples)
    measured = problem.metrics(outputs, examples)
    metrics = {name: each.sum() for name, each in measured.items()}
    return problem.losses(outputs, examples).sum(), metrics


def hyper_names(config: Config) -> tuple[str, ...]:
    """The optimizer's arguments that arrive with every event."""
    momentum = optimizers.takes_momentum(config.optimizer.name)
    return ("learning_rate", "momentum") if momentum else ("learning_rate",)


def hypers(config: Config) -> dict[str, np.ndarray]:
    """Every update's hyperparameters, (steps,) float32 each."""
    values = {
        "learning_rate": schedules.learning_rates(config.optimizer, config.steps),
        "momentum": np.full(config.steps, config.optimizer.momentum, np.float32),
    }
    return {name: values[name] for name in hyper_names(config)}


def evaluate(program: Program, params: Params, parts: Parts) -> dict[str, float]:
    """Mean loss and metrics over the examples of all parts."""
    count = sum(map(examples_in, parts))
    totals: dict[str, float] = {}
    for part in parts:  # one after the other, or all would need their memory at a time
        loss, metrics = jax.device_get(program.evaluate(params, part))
        for name, value in {"loss": loss, **metrics}.items():
            totals[name] = totals.get(name, 0.0) + float(value) / count
    return totals


def extra_metrics(program: Program, state: State, train: Parts, test: Parts) -> dict[str, float]:
    """What the program's `extra_metrics` finds on the first part of each, or nothing."""
    if program.extra_metrics is None:
        return {}
    every = state.every if isinstance(state, NodeStates) else state.params
    found = program.extra_metrics(state.params, every, train[0], test[0])
    return {name: float(value) for name, value in jax.device_get(found).items()}


parameter_bytes = bytes_of  # as the studies of `evidence/` and `configs/` call it
