"""The compiled program of a run: the update rule looped over the events of the timeline.

Data, order of examples, arrivals, learning rates, momentum and number of updates are its
arguments, so one compilation serves all their values.
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
from optdyn.base.trees import Hyper, Tree, examples_in
from optdyn.core import Event, Info, Rule, ServedState, State
from optdyn.devices.layout import Layout
from optdyn.devices.simulated import NodeStates
from optdyn.experiment import Config
from optdyn.implicit_momentum.probes import PROBES
from optdyn.methods import compose, pieces
from optdyn.methods.kept import Keeping
from optdyn.methods.sync import Merged, cut, merged
from optdyn.optimizers import schedules
from optdyn.problem import losses, models, problem
from optdyn.problem.models import Model, Quadratic
from optdyn.problem.problem import Examples, Params, Problem, Traits
from optdyn.problem.shared_data import Parts
from optdyn.train import devices as parallel

PLAIN = Traits()
CHUNK = 256  # events handed to the device at a time; how many of them are run is an argument


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, as a key of caches
class Program:
    """Pure functions of one problem and one rule.

    `advance(state, examples, events, indices, n) -> (state, infos)` runs the first `n` of CHUNK
    events; `infos` are the rule's scalars of each update, (CHUNK,). `indices`, (CHUNK, C) int32,
    are the examples of each batch, device by device, C = B where parts are even, or (CHUNK, C, 2),
    with the seeds of their augmentation.
    `evaluate(variables, examples) -> (sum of losses, {metric: sum})` over all `examples`, with the
    parameters and the model's state (`Run.variables`).
    `extra_metrics(params, node_params, train, test) -> {name: scalar}`, at log points.
    """

    problem: Problem
    rule: Rule
    layout: Layout
    metered: Layout | None  # the same for pairs of batches, with infos for the momentum meter
    evaluate: Callable[..., tuple[jax.Array, dict[str, jax.Array]]]
    recomputed: Callable[[Params, Examples], Params]  # averages of batch norms
    extra_metrics: Callable[..., dict[str, jax.Array]] | None
    sums: tuple[str, ...] = ()  # names of infos whose sums are logged

    @property
    def advance(self) -> Callable[..., tuple[State, Info]]:
        return self.layout.advance

    @property
    def init(self) -> Callable[[Params], State]:
        return self.layout.init or self.rule.init


class UpdateHalves(NamedTuple):
    """A run's update in two compiled halves, for workers that race and the server they send to.

    `parameters_at(state, slot)` are those that a worker gets which reads a slot, without the fresh
    blocks of a `merged` server, with which the message is computed in two places.
    `work(parameters, hyper, examples, chosen) -> message` of the examples with the numbers
    `chosen`, (n, B) int32 or (n, B, 2); `update(state, event, message) -> (state, info)`.
    `metered`, whose info has what the momentum meter needs, also takes the examples and numbers of
    a second batch.
    """

    parameters_at: Callable[[Tree, int], Tree]  # of a `ServedState`
    work: Callable[..., Tree]
    update: Callable[..., tuple[State, Info]]
    metered: Callable[..., tuple[State, Info]]
    merged: Merged | None = None  # its functions take examples and the numbers of a batch, (B,)


class ProblemKey(NamedTuple):
    model: Model  # without the fields that only the data depend on, and `norm_examples`
    classes: int
    heads: tuple[str, ...]  # blocks with an auxiliary head
    pixels: problem.Pixels
    loss: str
    metrics: tuple[str, ...]
    norm_examples: int  # 0: a batch is not divided
    user_code: Key  # what the names of the user's code stand for


class ProgramKey(NamedTuple):
    optimizer: tuple[str, tuple[str, ...], Options, optimizers.Chain]  # arguments of `optimizer`
    layout: parallel.LayoutRequest
    slots: int
    meter: bool
    probes: tuple[str, ...]
    user_code: Key


def workers_of(config: Config) -> int:
    """Returns into how many parts, of a worker's pass each, the batch of an update goes."""
    methods, cluster, real = config.methods, config.cluster, config.parallel
    nodes, devices = methods.devices(config)
    if methods.plain and not real.api:  # the cluster is only its clock
        devices = cluster.worker_count
    if methods.stages and methods.gradient:
        nodes = methods.gradient.parts(nodes)
    return nodes * devices * real.accumulation * methods.get("arrivals", 1)


def passes_of(config: Config) -> int:
    """Returns into how many parts the batch of an update goes on the devices that compute it.

    A simulated worker computes with the others of its group, whose examples are one array.
    """
    methods, real = config.methods, config.parallel
    divided = methods.mix or methods.reduces_itself or real.api not in ("", "jit")
    parts = real.accumulation * methods.get("arrivals", 1)
    return workers_of(config) if divided else parts


def norm_examples(config: Config, traits: Traits) -> int:
    """Returns how many examples a norm over the batch takes together; 0: all that are computed.

    By default they are those of one worker's pass, if the model has a state or draws.
    """
    methods = config.methods
    if config.model.norm_examples or not (traits.state or traits.draws):
        return config.model.norm_examples
    if methods.reduces_itself:
        return int(methods.get("micro_batch", 0))
    return max(config.batch_size // workers_of(config), 1)


def init(config: Config, classes: int, key: jax.Array, examples: Examples) -> Params:
    """Returns x_0 of a config's model for examples like these; compiled once a model."""
    return _problem(_problem_key(config, classes))[1](key, examples)


def shapes(config: Config, classes: int, key: jax.Array, examples: Examples) -> Params:
    """Returns the shapes of what `init` returns; nothing is computed."""
    return jax.eval_shape(_problem(_problem_key(config, classes))[1], key, examples)


def problem_of(config: Config, classes: int) -> Problem:
    """Returns the problem that is trained: the same object for configs of one model."""
    return _problem(_problem_key(config, classes))[0]


def check(config: Config, classes: int, examples: Examples) -> Traits:
    """Returns the traits of a config's model.

    Raises `ConfigError` where its model, loss or metrics do not fit the examples.
    """
    shapes = ((name, leaf.shape, leaf.dtype) for name, leaf in examples.items())
    return _check(_problem_key(config, classes), tuple(shapes))


def initial_state(config: Config, classes: int, key: jax.Array, examples: Examples) -> Params:
    """Returns the model's state that goes with `init`; compiled once a model."""
    return _initial_state(_problem_key(config, classes))(key, examples)


def reads_state(
    config: Config, classes: int, params: Params, state: Params, examples: Examples
) -> bool:
    """Returns whether outputs in training depend on the model's state, as with a spectral norm."""
    outputs = _outputs(_problem_key(config, classes))

    def at(value: float) -> jax.Array:
        return outputs(
            params, jax.tree.map(lambda leaf: jnp.full_like(leaf, value), state), examples
        )

    first, *others = map(at, (0.0, 1.0, 1e6))  # of counters, too
    return not all(np.array_equal(first, y, equal_nan=True) for y in others)


def is_blind(
    config: Config, classes: int, params: Params, state: Params, examples: Examples
) -> bool:
    """Returns whether all examples have the same outputs in training, as of a norm over one."""
    outputs = _outputs(_problem_key(config, classes, norm_examples=1))
    other = {name: np.roll(leaf, 1, axis=0) for name, leaf in examples.items()}
    return np.array_equal(outputs(params, state, examples), outputs(params, state, other))


def mixes(
    config: Config, classes: int, variables: Params, examples: Examples, evaluated: bool = False
) -> bool:
    """Returns whether the loss of an example depends on its batch, as with batch norm."""
    first_loss = _first_loss(_problem_key(config, classes), evaluated)
    copies = {name: np.repeat(leaf[:1], len(leaf), axis=0) for name, leaf in examples.items()}
    pair = first_loss(variables, examples), first_loss(variables, copies)
    return not np.isclose(*pair, rtol=1e-4, equal_nan=True)  # one program, so equal if not


def make(config: Config, classes: int, slots: int, traits: Traits = PLAIN) -> Program:
    """Returns the program of a config: one for configs that differ in traced numbers only."""
    size = norm_examples(config, traits)
    return _make(_problem_key(config, classes, size), _program_key(config, slots, traits))


def make_halves(config: Config, classes: int, slots: int, traits: Traits) -> UpdateHalves:
    size = norm_examples(config, traits)
    return _make_halves(_problem_key(config, classes, size), _program_key(config, slots, traits))


def _program_key(config: Config, slots: int, traits: Traits) -> ProgramKey:
    groups = config.methods.groups
    options, chain = optimizers.options(config, groups), optimizers.chain(config)
    return ProgramKey(
        (config.optimizer.name, hyper_names(config), options, chain),
        _layout_request(config, traits),
        slots,
        config.probes.momentum,
        tuple(name for name in PROBES if getattr(config.probes, name)),
        lookup.user_objects(config, (*lookup.OPTIMIZER, *lookup.METHOD)),
    )


def _layout_request(config: Config, traits: Traits = PLAIN) -> parallel.LayoutRequest:
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
        keeping_of(config, traits),
    )


def keeping_of(config: Config, traits: Traits) -> Keeping:
    its = config.evaluation
    carries = traits.state and its.statistics != "recomputed"
    last = its.last if its.average == "lawa" else 1
    return Keeping(carries, its.statistics != "local", its.average, last)


def _problem_key(config: Config, classes: int, norm_examples: int = 0) -> ProblemKey:
    gradient, heads = config.methods.gradient, tuple[str, ...]()
    if gradient:
        heads = tuple(gradient.heads(models.make(config.model, classes)))
    pixels = problem.Pixels(config.data.mean, config.data.std, config.data.augment)
    user_code = lookup.user_objects(config, lookup.MODEL)
    model = config.model
    if isinstance(model, Quadratic):
        model = model.with_(noise=0.0, spread=0.0)  # the data's, not the program's
    model, named = model.with_(norm_examples=0), (config.loss, config.metrics)
    return ProblemKey(model, classes, heads, pixels, *named, norm_examples, user_code)


@lru_cache(maxsize=32)
def _problem(key: ProblemKey) -> tuple[Problem, Callable[..., Params]]:
    found = problem.make(*key[:-1])
    return found, jax.jit(found.init)


@lru_cache(maxsize=32)
def _initial_state(key: ProblemKey) -> Callable[[jax.Array, Examples], Params]:
    return jax.jit(_problem(key)[0].initial_state)


@lru_cache(maxsize=32)
def _outputs(key: ProblemKey) -> Callable[[Params, Params, Examples], jax.Array]:
    """Returns `(parameters, the model's state, examples) ->` the outputs in training."""
    problem = _problem(key)[0]

    def outputs(params: Params, state: Params, examples: Examples) -> jax.Array:
        return problem.carrying(state).outputs(params, examples)

    return jax.jit(outputs)


@lru_cache(maxsize=32)
def _check(key: ProblemKey, shapes: Sequence[tuple[str, tuple[int, ...], np.dtype]]) -> Traits:
    examples = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in shapes}
    classes = key.classes if losses.has_class_outputs(key.loss, examples) else 0
    return problem.check(_problem(key)[0], examples, classes)


@lru_cache(maxsize=32)
def _first_loss(key: ProblemKey, evaluated: bool) -> Callable[[Params, Examples], jax.Array]:
    problem, noise_key = _problem(key)[0], jax.random.key(0)

    def first_loss(variables: Params, batch: Examples) -> jax.Array:
        def perturbed(leaf: jax.Array) -> jax.Array:  # a layer of zeros would hide it
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                return leaf
            return leaf + 0.1 * jax.random.normal(noise_key, leaf.shape)

        outputs = problem.evaluated if evaluated else problem.outputs
        return problem.losses(outputs(jax.tree.map(perturbed, variables), batch), batch)[0]

    return jax.jit(first_loss)


@lru_cache(maxsize=32)
def _make(problem_key: ProblemKey, key: ProgramKey) -> Program:
    problem, _ = _problem(problem_key)
    arguments = key.layout, problem, optimizers.optimizer(*key.optimizer), key.slots
    rule, layout = parallel.make(lambda one: partial(_loop, problem.batch, one), *arguments)
    rule = rule._replace(init=jax.jit(rule.init))  # one program, not one a leaf
    metered = None
    if key.meter:

        def pair(examples: Sequence[Examples], chosen: Sequence[jax.Array]) -> Tree:
            return tuple(map(problem.batch, examples, chosen))

        _, metered = parallel.make(lambda one: partial(_loop, pair, one), *arguments, meter=True)
    methods = key.layout.methods
    measures = [method.extra_metrics(problem) for method in methods.members]
    return Program(
        problem,
        rule,
        layout,
        metered,
        jax.jit(partial(_evaluate, problem)),
        jax.jit(problem.recomputed),
        _extra_metrics(problem, [measure for measure in measures if measure], key.probes),
        tuple(name for method in methods.members for name in method.info),
    )


@lru_cache(maxsize=32)
def _make_halves(problem_key: ProblemKey, key: ProgramKey) -> UpdateHalves:
    problem, _ = _problem(problem_key)
    methods = key.layout.methods
    optimizer = optimizers.optimizer(*key.optimizer)
    assert methods.read and methods.read.message
    message_of = methods.read.message(*pieces(methods, problem, optimizer))

    def work(parameters: Tree, hyper: Hyper, examples: Examples, chosen: jax.Array) -> Tree:
        return message_of(parameters, hyper, partial(problem.batch, examples), chosen)

    def step_of(meter: bool) -> Callable[..., tuple[State, Info]]:
        return compose(methods, problem, optimizer, key.slots, None, meter=meter, race=True).step

    def update(state: State, event: Event, message: Tree) -> tuple[State, Info]:
        return step_of(meter=False)(state, event, message)

    def metered(
        state: State, event: Event, message: Tree, examples: Examples, second: jax.Array
    ) -> tuple[State, Info]:
        return step_of(meter=True)(state, event, (message, problem.batch(examples, second)))

    fresh = methods.get("fresh", ())

    def parameters_at(state: ServedState, slot: int) -> Tree:
        blocks = state.read_slot(slot)
        if not fresh:
            return blocks
        return {name: block for name, block in blocks.items() if name not in fresh}

    return UpdateHalves(
        parameters_at,
        jax.jit(work),
        jax.jit(update, donate_argnums=0),
        jax.jit(metered, donate_argnums=0),
        _merged(problem, fresh) if fresh else None,
    )


def _merged(problem: Problem, fresh: Sequence[str]) -> Merged:
    front, serve = merged(problem, cut([name for name, _ in problem.blocks], fresh))

    def group(x: Params, examples: Examples, chosen: jax.Array) -> Tree:
        return front(x, problem.batch(examples, chosen))

    def server(y: Params, h: jax.Array, examples: Examples, chosen: jax.Array) -> Tree:
        return serve(y, h, problem.batch(examples, chosen))

    return Merged(jax.jit(group), jax.jit(server))


def _extra_metrics(
    problem: Problem, measures: Sequence[Callable[..., Tree]], probes: Sequence[str]
) -> Callable[..., dict[str, jax.Array]] | None:
    def extra_metrics(
        params: Params, node_params: Params, train: Examples, test: Examples
    ) -> dict[str, jax.Array]:
        found = [measure(params, train, test) for measure in measures]
        found += [PROBES[name](problem, params, node_params, train) for name in probes]
        return {name: value for values in found for name, value in values.items()}

    return jax.jit(extra_metrics) if measures or probes else None


def _loop(
    batch: Callable[..., Tree],  # (examples, numbers) -> the batch of an update
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
        state, infos = carry
        state, info = step(state, i)
        return state, jax.tree.map(lambda leaf, one: leaf.at[i].set(one), infos, info)

    _, info = jax.eval_shape(step, state, 0)
    size = len(jax.tree.leaves(events)[0])
    zeros = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), jnp.float32), info)
    return jax.lax.fori_loop(0, n, body, (state, zeros))


def _evaluate(
    problem: Problem, variables: Params, examples: Examples
) -> tuple[jax.Array, dict[str, jax.Array]]:
    outputs = problem.evaluated(variables, examples)
    metrics = {name: values.sum() for name, values in problem.metrics(outputs, examples).items()}
    return problem.losses(outputs, examples).sum(), metrics


def hyper_names(config: Config) -> tuple[str, ...]:
    """Returns the optimizer's arguments that arrive with all events."""
    momentum = optimizers.takes_momentum(config.optimizer.name)
    return ("learning_rate", "momentum") if momentum else ("learning_rate",)


def hypers(config: Config) -> dict[str, np.ndarray]:
    """Returns the hyperparameters of all updates by name, (steps,) float32."""
    values = {
        "learning_rate": schedules.learning_rates(config.optimizer, config.steps),
        "momentum": np.full(config.steps, config.optimizer.momentum, np.float32),
    }
    return {name: values[name] for name in hyper_names(config)}


def evaluate(program: Program, variables: Params, parts: Parts) -> dict[str, float]:
    """Returns the mean loss and metrics over the examples of all parts, of `Run.variables`."""
    count = sum(map(examples_in, parts))
    totals: dict[str, float] = {}
    for part in parts:  # one after the other, or all would need their memory at a time
        loss, metrics = jax.device_get(program.evaluate(variables, part))
        for name, value in {"loss": loss, **metrics}.items():
            totals[name] = totals.get(name, 0.0) + float(value) / count
    return totals


def extra_metrics(program: Program, state: State, train: Parts, test: Parts) -> dict[str, float]:
    """Returns the program's `extra_metrics` on the first part of each; {} where it has none."""
    if program.extra_metrics is None:
        return {}
    node_params = state.node_params if isinstance(state, NodeStates) else state.params
    found = program.extra_metrics(state.params, node_params, train[0], test[0])
    return {name: float(value) for name, value in jax.device_get(found).items()}
