"""A run: all that its config determines before the first update, and the inputs of its updates."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from optdyn import methods, optimizers
from optdyn.base import lookup, seeds
from optdyn.base.errors import Join
from optdyn.base.files import WorkdirError
from optdyn.base.trees import Json, bytes_of, examples_in, head
from optdyn.clock.timeline import Shares, Timeline, entries_at, padded_share, plan_of, split_batches
from optdyn.core import Event, Params, State
from optdyn.devices.first_process import run_on_first
from optdyn.experiment import Config, ConfigError, refuse_first
from optdyn.implicit_momentum.readings import steered
from optdyn.methods.kept import Averaging, average_of, carried_in
from optdyn.methods.setup import APIS
from optdyn.problem import problem, shared_data
from optdyn.problem.data import Dataset
from optdyn.problem.data.order import Batches, DataBlock, Feed, streamed, whole_set
from optdyn.problem.problem import STATE, Examples, Traits
from optdyn.train import memory_checks, program
from optdyn.train.checkpoints import arrays_by_name, fingerprint, parameters
from optdyn.train.checks import check, check_traits
from optdyn.train.program import CHUNK, Program


class Run(NamedTuple):
    """All that a config determines before the first update."""

    config: Config
    data: Dataset
    epoch: int  # updates of an epoch, as the timeline counts
    timeline: Timeline
    timeline_of: Callable[..., Timeline]  # (config, epochs) -> as far as the epochs' log decides it
    program: Program
    params: Params  # x_0
    report: Mapping[str, object]  # figures of an update by its methods, for the summary
    hypers: Mapping[str, np.ndarray]  # (steps,) each
    padded_share: int = 0  # examples a device, where the timeline divides batches; else 0
    origin: Mapping[str, object] = MappingProxyType({})  # the run that x_0 is from, if any
    shards: tuple[np.ndarray, ...] = ()  # the numbers of each node's examples, if nodes have shards
    code: str = ""  # checksums of the user's code (`lookup.fingerprint`)
    traits: Traits = Traits()  # of the model
    state: Params | None = None  # of the model, at the start, where it is carried along
    norm_batches: Examples | None = None  # (k, n, ...), that `variables` are recomputed from

    @property
    def examples(self) -> int:
        """Returns the size of the training set."""
        return examples_in(self.data.train)

    @property
    def start(self) -> Params:
        """Returns what a rule starts from: x_0, with the model's state where it is carried."""
        return self.params if self.state is None else self.params | {STATE: self.state}

    def variables(self, params: Params, carried: Params | None = None) -> Params:
        """Returns what is evaluated: parameters, and as `STATE` the model's state if it has one.

        That is the state that the run has `carried`, or what is recomputed for these parameters.
        """
        if carried is not None:
            return params | {STATE: carried}
        if self.norm_batches is None:
            return params
        return params | {STATE: self.program.recomputed(params, self.norm_batches)}

    def evaluated(self, state: State) -> dict[str, Params]:
        """Returns the variables that are evaluated, by the prefix of their names in the log."""
        kind, found = self.config.evaluation.average, {"": state.params}
        if not kind and self.state is None:
            return {"": self.variables(state.params)}
        node = getattr(state, "first", state)
        if isinstance(node, Averaging):
            found[f"{kind}_"] = average_of(node, kind) if int(node.updates) else state.params
        carried = carried_in(node, self.config.methods)
        return {prefix: self.variables(params, carried) for prefix, params in found.items()}


@lookup.files_read_once()
def prepare(
    config: Config,
    replicas: int = 0,
    resumed: bool = False,
    race: bool = False,
    timeline_of: Callable[..., Timeline] = Config.timeline,
) -> Run:
    """Checks the config, loads data, draws the timeline and the initial parameters.

    With `replicas` > 0 the timeline is (replicas, steps). A run that is `resumed` does not look for
    the run that it started from. The timeline of a `race` is still empty. `timeline_of` draws the
    timeline, or returns a cached one. Raises `ConfigError`, `DataError` or `TimelineError`.
    """
    check(config)
    refuse_first(config, _processes(config, race))
    data = shared_data.load(config)
    one = head(data.train, 1)
    with shared_data.COMPILE_LOCK:
        traits = program.check(config, data.classes, one)
    memory_checks.check_data(config, data)
    shards = problem.shards(config, config.cluster.nodes, data)
    with shared_data.COMPILE_LOCK:
        key = seeds.key(config.seed, "init")
        params = program.init(config, data.classes, key, one)
        state = program.initial_state(config, data.classes, key, one) if traits.state else None
        check_traits(config, data, params, state, traits)
    origin: Json = {}
    if config.init_from and not resumed:
        params, origin = run_on_first(lambda: _parameters_from(config.init_from, params))
    epoch = max(examples_in(data.train) // config.batch_size, 1)
    size = bytes_of(params)
    model = methods.ModelInfo(program.problem_of(config, data.classes), params, one)
    report: Json = {}
    for method in config.methods.members:
        report |= method.report(config, model)
    draw = partial(timeline_of, steps_per_epoch=epoch, update_bytes=size, model_info=model)
    line = draw(config, replicas=replicas)
    with shared_data.COMPILE_LOCK:
        compiled = program.make(config, data.classes, line.slots, traits)
    by_block = config.methods.servers(model.problem)
    for part in params.values() if by_block else (params,):
        optimizers.check(config, config.methods.groups, part)
    batches = None
    if state and not program.keeping_of(config, traits).carries:  # which is recomputed
        state, batches = None, fixed_batches(config, data, program.norm_examples(config, traits))
    run = Run(
        config,
        data,
        epoch,
        line,
        draw,
        compiled,
        params,
        report,
        program.hypers(config),
        padded_share=padded_share_of(line),
        origin=origin,
        shards=shards,
        code=lookup.fingerprint(config),
        traits=traits,
        state=state,
        norm_batches=batches,
    )
    memory_checks.check_state(config, compiled.rule, run.start, line.slots)
    return run


def fixed_batches(config: Config, data: Dataset, size: int) -> Examples:
    """Returns the training examples that averages of norms are recomputed from, (k, n, ...)."""
    count, batches = examples_in(data.train), config.evaluation.batches
    rng = np.random.default_rng(0)  # the same for all seeds, methods and parameters
    chosen = rng.permutation(np.resize(rng.permutation(count), batches * size))
    rows = {name: leaf[chosen] for name, leaf in data.train.items()}
    return {
        name: jnp.asarray(leaf.reshape(batches, size, *leaf.shape[1:]))
        for name, leaf in rows.items()
    }


def _processes(config: Config, race: bool) -> Iterator[Join]:
    raced = config.cluster.service.name == "race" and not race
    expected = "must be a law that is simulated; `optdyn race` (python -m launch.race) starts real "
    yield Join("cluster.service.name", raced, f"{expected}workers")
    several = jax.process_count() > 1 and not config.parallel.api
    expected = f"must be one of {', '.join(APIS)} in {jax.process_count()} processes, or each "
    yield Join("parallel.api", several, f"{expected}would be a run by itself")


def _parameters_from(workdir: str, drawn: Params) -> tuple[Params, Json]:
    with ConfigError.at(f"config.init_from = {workdir!r}", WorkdirError):
        step, found = parameters(Path(workdir))

    theirs, ours = (
        {".".join(k): f"{x.dtype}{list(x.shape)}" for k, x in arrays_by_name(tree).items()}
        for tree in (found, drawn)
    )
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            raise ConfigError(
                f"config.init_from = {workdir!r}: must be of the same model; {name} is "
                f"{theirs.get(name, 'not there')}, this model's is {ours.get(name, 'not there')}"
            )
    origin = {"workdir": workdir, "step": step, "parameters_crc32": fingerprint(found)}
    return jax.tree.map(jnp.asarray, found), origin


def extend_timeline(run: Run, step: int, rows: list[Json]) -> Run:
    """Returns the run with as much timeline beyond `step`, and momentum, as the log decides."""
    if changes := steered_momenta(run, rows):
        momentum = np.zeros(run.config.steps, np.float32)
        for since, explicit in changes:
            momentum[since:] = explicit
        run = run._replace(hypers={**run.hypers, "momentum": momentum})
    if step < len(run.timeline.seconds) or step == run.config.steps:
        return run
    ends = range(run.epoch, step + 1, run.epoch)
    logged = {row["step"]: row for row in rows}
    line = run.timeline_of(run.config, epochs=[logged[end] for end in ends])
    return run._replace(timeline=line, padded_share=padded_share_of(line))


def steered_momenta(run: Run, rows: list[Json]) -> list[tuple[int, float]]:
    """Returns (step, explicit momentum from then on) where the meter steers it; else []."""
    return steered(rows, run.config.optimizer.momentum) if run.config.probes.steer else []


def seconds_after(line: Timeline, updates: int) -> float:
    """Returns the simulated seconds when so many updates have committed; 0 before the first."""
    return float(line.seconds[updates - 1]) if updates else 0.0


def padded_share_of(line: Timeline) -> int:
    """Returns the examples a device where the timeline divides batches; else 0."""
    plan = plan_of(line, Shares)
    return padded_share(np.asarray(plan.shares)) if plan else 0


def feed_of(run: Run) -> Feed:
    """Returns the feed of training examples to the run's devices: all of them, or as needed."""
    config, layout = run.config, run.program.layout
    if config.data.streaming:
        put = layout.put_rows or (lambda rows: layout.put_examples(rows(0)))
        return streamed(run.data.train, put, layout.devices, config.batch_size, CHUNK)
    return whole_set(shared_data.put_on_devices(run.data, layout.put_examples, config).train)


def batches_of(run: Run, independent: bool = False) -> Batches:
    """Returns `(start, stop) -> numbers` of the examples of these updates' batches, (n, C) each.

    They go device by device. With `independent` they are the momentum meter's second batches.
    """
    drawn = partial(
        problem.batches,
        run.config,
        run.examples,
        independent=independent,
        shards=run.shards,
        draws=run.traits.draws,
    )
    methods, batch = run.config.methods, run.timeline.batch
    if run.shards and methods.read and not methods.mix:
        return partial(drawn, worker=run.timeline.worker)
    if batch is not None:  # a group takes a batch before its update has a number
        return lambda start, stop: batches_by_number(drawn, batch[start:stop])
    plan = plan_of(run.timeline, Shares)
    if not plan:
        return drawn
    shares = np.asarray(plan.shares)

    def batches(start: int, stop: int) -> np.ndarray:
        rows = shares[start:stop]
        return split_batches(drawn(start, start + len(rows)), rows, run.padded_share)

    return batches


def batches_by_number(batches: Batches, numbers: np.ndarray) -> np.ndarray:
    """Returns the batches with those numbers, (n,), or those joined from K parts each, (n, K)."""
    if numbers.ndim == 2:
        return join_parts(batch_parts(batches, numbers.ravel(), numbers.shape[1]), numbers.shape[1])
    first, last = (int(numbers.min()), int(numbers.max()) + 1) if len(numbers) else (0, 0)
    return batches(first, last)[numbers - first]


def batch_parts(batches: Batches, numbers: np.ndarray, count: int) -> np.ndarray:
    """Returns parts of batches, cut into `count` each: (n, B / count), or (n, B / count, 2).

    Example i of batch b is in part b count + i mod count.
    """
    rows = batches_by_number(batches, numbers // count)
    n, size, *rest = rows.shape
    parts = rows.reshape(n, size // count, count, *rest)
    return parts[np.arange(n), :, numbers % count]


def join_parts(parts: np.ndarray, count: int) -> np.ndarray:
    """Returns the whole batches of `count` consecutive parts each."""
    n, size, *rest = parts.shape
    rows = parts.reshape(n // count, count, size, *rest).swapaxes(1, 2)
    return rows.reshape(n // count, count * size, *rest)


def events_of(
    run: Run, step: int, block: DataBlock, n: int, chunk: int = CHUNK
) -> tuple[Event, np.ndarray]:
    """Returns the events of updates step..step+n-1 and their examples, padded to `chunk` rows."""
    window, indices = slice(step, step + n), block.batches(step, step + n)
    hypers = {name: values[window] for name, values in run.hypers.items()}
    line, kept = run.timeline, run.config.evaluation
    decay = np.full(n, kept.decay, np.float32) if kept.average == "ema" else None
    events = Event(entries_at(line.plan, window), hypers, line.staleness[window], decay)

    def pad(leaf: np.ndarray) -> np.ndarray:
        return np.concatenate([leaf, np.zeros((chunk - n, *leaf.shape[1:]), leaf.dtype)])

    return jax.tree.map(pad, (events, indices))
