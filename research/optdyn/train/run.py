"""A run: all that its config determines before the first update, and what its updates are given."""

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
from optdyn.core import Event, Params
from optdyn.devices.first_process import run_on_first
from optdyn.experiment import Config, ConfigError, refuse_first
from optdyn.methods.setup import APIS
from optdyn.momentum.readings import steered
from optdyn.problem import problem, shared_data
from optdyn.problem.data import Dataset
from optdyn.problem.data.order import Batches, DataBlock, Feed, streamed, whole_set
from optdyn.train import memory_checks, program
from optdyn.train.checkpoints import fingerprint, parameters
from optdyn.train.checks import check, check_parts
from optdyn.train.program import CHUNK, Program


class Run(NamedTuple):
    """All that a config determines before the first update."""

    config: Config
    data: Dataset
    epoch: int  # updates that the timeline calls an epoch
    timeline: Timeline
    timeline_of: Callable[..., Timeline]  # (config, epochs) -> as far as their log decides it
    program: Program
    params: Params  # x_0
    report: Mapping[str, object]  # what its methods say of an update, for the summary
    hypers: Mapping[str, np.ndarray]  # (steps,) each
    columns: int = 0  # of a device, where the timeline's shares say whose examples are whose
    origin: Mapping[str, object] = MappingProxyType({})  # the run that x_0 is of, if it is of one
    shards: tuple[np.ndarray, ...] = ()  # the numbers of each node's examples, where it has its own
    code: str = ""  # checksums of the user's own (`lookup.fingerprint`)

    @property
    def examples(self) -> int:
        """Size of the training set."""
        return examples_in(self.data.train)


@lookup.files_read_once()
def prepare(
    config: Config,
    replicas: int = 0,
    begun: bool = False,
    race: bool = False,
    timeline_of: Callable[..., Timeline] = Config.timeline,
) -> Run:
    """Checks the config, loads data, draws the timeline and the initial parameters.

    Raises `ConfigError`, `DataError` or `TimelineError`; touches no workdir. With `replicas` > 0
    the timeline is (replicas, steps). Of a run that has `begun`, whose checkpoint has all of it,
    the run that it was started from is not looked for. A `race` has a timeline that is empty yet.
    `timeline_of` draws the timeline, or has it from before.
    """
    check(config)
    refuse_first(config, _here(config, race))
    data = shared_data.load(config)
    one = head(data.train, 1)
    with shared_data.COMPILE_LOCK:
        program.check(config, data.classes, one)
    memory_checks.of_data(config, data)
    shards = problem.shards(config, config.cluster.nodes, data)
    with shared_data.COMPILE_LOCK:
        params = program.init(config, data.classes, seeds.key(config.seed, "init"), one)
        check_parts(config, data, params)
    origin: Json = {}
    if config.init_from and not begun:
        params, origin = run_on_first(lambda: _given(config.init_from, params))
    epoch = max(examples_in(data.train) // config.batch_size, 1)
    size = bytes_of(params)
    network = methods.ModelInfo(program.problem_of(config, data.classes), params, one)
    report: Json = {}
    for method in config.methods.members:
        report |= method.report(config, network)
    events = partial(timeline_of, steps_per_epoch=epoch, update_bytes=size, network=network)
    first = events(config, replicas=replicas)
    with shared_data.COMPILE_LOCK:
        static_part = program.make(config, data.classes, first.slots)
    alone = config.methods.servers(network.problem)  # blocks, each with an optimizer
    for part in params.values() if alone else (params,):
        optimizers.check(config, config.methods.groups, part)
    memory_checks.of_state(config, static_part.rule, params, first.slots)
    hypers = program.hypers(config)
    run = Run(config, data, epoch, first, events, static_part, params, report, hypers)
    code = lookup.fingerprint(config)
    return run._replace(columns=columns_of(first), origin=origin, shards=shards, code=code)


def _here(config: Config, race: bool) -> Iterator[Join]:
    """These processes are those of the run."""
    raced = config.cluster.service.name == "race" and not race
    said = "of real workers, which `optdyn race` (python -m launch.race) starts; here it must be a "
    yield Join("cluster.service.name", raced, f"{said}law that is simulated")
    several = jax.process_count() > 1 and not config.parallel.api
    said = f"{jax.process_count()} processes need one of {', '.join(APIS)}, or each would be a run "
    yield Join("parallel.api", several, f"{said}of its own")


def _given(workdir: str, drawn: Params) -> tuple[Params, Json]:
    """The parameters of another run, and which they are. Raises `ConfigError`.

    They must have the names, shapes and types of those that are `drawn`.
    """
    with ConfigError.at(f"config.init_from = {workdir!r}", WorkdirError):
        step, found = parameters(Path(workdir))

    def shapes(tree: Params) -> dict[str, str]:
        leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
        name = partial(jax.tree_util.keystr, simple=True, separator=".")
        return {name(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}

    theirs, own = shapes(found), shapes(drawn)
    for name in sorted(theirs.keys() | own.keys()):
        if theirs.get(name) != own.get(name):
            raise ConfigError(
                f"config.init_from = {workdir!r}: {name} is {theirs.get(name, 'not there')}, this "
                f"model's is {own.get(name, 'not there')}; the models must be the same"
            )
    origin = {"workdir": workdir, "step": step, "parameters_crc32": fingerprint(found)}
    return jax.tree.map(jnp.asarray, found), origin


def extended(run: Run, step: int, rows: list[Json]) -> Run:
    """The run with as much of its timeline as the log decides: to beyond `step`, or to the end.

    And with the momentum that the log's readings steer to.
    """
    if changes := momenta(run, rows):
        momentum = np.zeros(run.config.steps, np.float32)
        for since, explicit in changes:
            momentum[since:] = explicit
        run = run._replace(hypers={**run.hypers, "momentum": momentum})
    if step < len(run.timeline.seconds) or step == run.config.steps:
        return run
    ends = range(run.epoch, step + 1, run.epoch)
    logged = {row["step"]: row for row in rows}
    line = run.timeline_of(run.config, epochs=[logged[end] for end in ends])
    return run._replace(timeline=line, columns=columns_of(line))


def momenta(run: Run, rows: list[Json]) -> list[tuple[int, float]]:
    """(step, explicit momentum from then on), where the meter steers it; else []."""
    return steered(rows, run.config.optimizer.momentum) if run.config.probes.steer else []


def columns_of(line: Timeline) -> int:
    """Examples a device, where the timeline divides batches; else 0."""
    divided = plan_of(line, Shares)
    return padded_share(np.asarray(divided.shares)) if divided else 0


def feed_of(run: Run) -> Feed:
    """The training set on the run's devices, or what is needed of it."""
    config, layout = run.config, run.program.layout
    if config.data.streaming:
        put = layout.put_rows or (lambda of: layout.put_examples(of(0)))
        return streamed(run.data.train, put, layout.devices, config.batch_size, CHUNK)
    return whole_set(shared_data.put_on_devices(run.data, layout.put_examples, config).train)


def batches_of(run: Run, independent: bool = False) -> Batches:
    """The numbers of the examples of every batch, as devices divide it: `(start, stop) -> numbers`.

    Devices have even parts, or such as the timeline's shares say. With `independent` it is the
    second batch of every update, of which the momentum meter takes a gradient.
    """
    every = partial(
        problem.batches, run.config, run.examples, independent=independent, shards=run.shards
    )
    methods, batch = run.config.methods, run.timeline.batch
    if run.shards and methods.read and not methods.mix:
        return partial(every, worker=run.timeline.worker)
    if batch is not None:  # a batch goes to who reads next, before its update has a number
        return lambda start, stop: by_number(every, batch[start:stop])
    divided = plan_of(run.timeline, Shares)
    if not divided:
        return every
    shares = np.asarray(divided.shares)

    def batches(start: int, stop: int) -> np.ndarray:
        own = shares[start:stop]
        return split_batches(every(start, start + len(own)), own, run.columns)

    return batches


def by_number(every: Batches, numbers: np.ndarray) -> np.ndarray:
    """The batches with those numbers, (n,), or those put together of K parts each, (n, K)."""
    if numbers.ndim == 2:
        return joined(parted(every, numbers.ravel(), numbers.shape[1]), numbers.shape[1])
    first, last = (int(numbers.min()), int(numbers.max()) + 1) if len(numbers) else (0, 0)
    return every(first, last)[numbers - first]


def parted(every: Batches, numbers: np.ndarray, count: int) -> np.ndarray:
    """Parts of batches, each cut into `count` in the order of examples: (n, B / count) and so on.

    Example i of batch b is in part b count + i mod count.
    """
    whole_set = by_number(every, numbers // count)
    n, size, *rest = whole_set.shape
    cut = whole_set.reshape(n, size // count, count, *rest)
    return cut[np.arange(n), :, numbers % count]


def joined(parts: np.ndarray, count: int) -> np.ndarray:
    """The batches of which `count` parts each lie in a row."""
    n, size, *rest = parts.shape
    rows = parts.reshape(n // count, count, size, *rest).swapaxes(1, 2)
    return rows.reshape(n // count, count * size, *rest)


def events_of(
    run: Run, step: int, block: DataBlock, n: int, chunk: int = CHUNK
) -> tuple[Event, np.ndarray]:
    """Updates step..step+n-1 and the examples of their batches, padded to `chunk`."""
    window, indices = slice(step, step + n), block.batches(step, step + n)
    hypers = {name: values[window] for name, values in run.hypers.items()}
    line = run.timeline
    events = Event(entries_at(line.plan, window), hypers, line.staleness[window])

    def pad(leaf: np.ndarray) -> np.ndarray:
        return np.concatenate([leaf, np.zeros((chunk - n, *leaf.shape[1:]), leaf.dtype)])

    return jax.tree.map(pad, (events, indices))
