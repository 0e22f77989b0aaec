"""One run: the methods' update rule over the cluster's timeline, logged, saved and resumed.

A run is a generator that asks for chunks of updates (`driver.py`), logs and saves. `train` makes
them on the run's own devices, `batched_runs.py` those of many runs in one program.
"""

import contextlib
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from optdyn import methods, optimizers
from optdyn.base import lookup, seeds
from optdyn.base.errors import Join, refused_at
from optdyn.base.files import WorkdirError, read_json, sync, write_json
from optdyn.base.hold import writable
from optdyn.base.processes import is_writer
from optdyn.base.progress import Watch, say, watched
from optdyn.base.trees import Json, bytes_of, examples_in, head, numbers_in
from optdyn.clock.timeline import Arrival, Timeline, plan_of
from optdyn.clock.trace import SERVED
from optdyn.core import Params, State
from optdyn.devices.first_process import agreed, own, verdict
from optdyn.experiment import ConfigError, Experiment, refuse_first
from optdyn.methods.compose import METERED
from optdyn.methods.setup import APIS
from optdyn.problem import problem, shared_data
from optdyn.problem.data.feed import Feed
from optdyn.train import history, memory_checks, program
from optdyn.train.checkpoints import Checkpoints, fingerprint, held_in, parameters, saving
from optdyn.train.checks import check, check_parts
from optdyn.train.driver import Training, drive, run_to_end
from optdyn.train.meter import Meter, in_place
from optdyn.train.recorder import Recorder
from optdyn.train.resuming import begun, finished_summary, go_on
from optdyn.train.run import Run, batches_of, columns_of, events_of, feed_of, momenta
from optdyn.train.workdir import (
    LOG,
    SKETCHES,
    TRACE,
    Metrics,
    claim,
    damaged,
    free,
    is_finished,
    vouch,
)

WORSE = 100  # times the first logged loss: the mark `worse` in a summary
ABSURD = 1e6  # times the first logged loss, at least 1: a run that ends above it has diverged
MEASURED = 8  # updates at the end of an epoch that workers are timed over


@lookup.once()
def prepare(
    config: Experiment,
    replicas: int = 0,
    begun: bool = False,
    race: bool = False,
    timeline_of: Callable[..., Timeline] = Experiment.timeline,
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
        params, origin = verdict(lambda: _given(config.init_from, params))
    epoch = max(examples_in(data.train) // config.batch_size, 1)
    size = bytes_of(params)
    network = methods.ModelInfo(program.problem_of(config, data.classes), params, one)
    report: Json = {}
    for method in config.methods.every:
        report |= method.report(config, network)
    events = partial(timeline_of, steps_per_epoch=epoch, update_bytes=size, network=network)
    first = events(config, replicas=replicas)
    with shared_data.COMPILE_LOCK:
        compiled = program.make(config, data.classes, first.slots)
    alone = config.methods.servers(network.problem)  # blocks, each with an optimizer
    for part in params.values() if alone else (params,):
        optimizers.check(config, config.methods.groups, part)
    memory_checks.of_state(config, compiled.rule, params, first.slots)
    hypers = program.hypers(config)
    run = Run(config, data, epoch, first, events, compiled, params, report, hypers)
    code = lookup.fingerprint(config)
    return run._replace(columns=columns_of(first), origin=origin, shards=shards, code=code)


def _here(config: Experiment, race: bool) -> Iterator[Join]:
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
    with refused_at(f"config.init_from = {workdir!r}", WorkdirError):
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


@lookup.once()
def train(config: Experiment, workdir: str | Path) -> Json:
    """Runs the config in the workdir, or goes on with it, and returns its summary.

    `status` is `completed`, `diverged` or `interrupted` (SIGINT, SIGTERM or SIGHUP, `signal` says
    which; the same call resumes to the same floats). SIGUSR1 has it saved there and then. A loss
    that is no longer finite ends a run as diverged. One that is finite may come down again, so it
    is judged at the end only: `worse`: True is there where it is over 100 times the first, and it
    has diverged where it is over a million times the first and 1. A finished run is returned as it
    is, unless `config.steps` is more than it has done: then it goes on, if its loss was finite.
    With other code of the user's own than it was started with it goes on only if `config.code` is
    'any'. Raises what `prepare` raises, `WorkdirError` and `DiskFull`. In a thread that is not the
    main one no signal is heeded.
    """
    folder = Path(workdir)
    verdict(lambda: writable(folder))
    return run_to_end(training(prepare(config, begun=begun(folder)), folder))


def training(run: Run, workdir: Path, watch: Watch | None = None) -> Training:
    """The run in its workdir; without a `watch` it heeds signals and says how it goes itself."""
    config = run.config
    tell: Callable[[str], None] = (lambda text: None) if watch else say
    with own(workdir) as folder, saving(folder):
        held = verdict(lambda: claim(folder, config, free(config), run.code))
        before = agreed(read_json(folder / "summary.json"))
        if is_finished(before, config.steps) and not agreed(damaged(folder)):
            said = lookup.changed(held["code"], run.code)
            other = f", with other code of {said}" if said else ""
            tell(f"already finished at {before['step']:,}{other}: {workdir}")
            return finished_summary(folder, config, held, before)
        with Checkpoints(folder) as checkpoints:
            fresh = run.program.init(run.params)
            step, state = agreed(checkpoints.restore(fresh) or (0, fresh))
            verdict(lambda: go_on(folder, run, held, checkpoints, before, tell))
            about = {"steps": config.steps, "starts": agreed(history.starts(folder))}
            checkpoints.record = lambda: {"files": {}, **about}
            if step == 0 and run.origin:  # it may have moved on, or away, when this is resumed
                checkpoints.save(0, jax.device_get(fresh))
            state = run.program.layout.put_state(state)
            del fresh  # a state may fill the memory
            with Metrics(folder, held_in(checkpoints.recorded(), LOG)) as metrics:
                metrics.rows[:] = agreed(metrics.rows)
                watching = watched(workdir.name, config.steps, step, watch)
                summary = yield from _loop(
                    run, folder, step, state, metrics, checkpoints, watching, about
                )
        if summary["status"] == "interrupted":
            tell(f"saved at {summary['step']:,}: the same command goes on")
    return summary


def _loop(
    run: Run,
    folder: Path,
    step: int,
    state: State,
    metrics: Metrics,
    checkpoints: Checkpoints,
    watching: contextlib.AbstractContextManager[Watch],
    about: Json,
) -> Training:
    config, steps, layout = run.config, run.config.steps, run.program.layout
    _, sample, test_set = shared_data.put(run.data, layout.put_examples, config)
    feed, every, before = feed_of(run), config.log_every, checkpoints.recorded()
    recorder, meter = Recorder(folder / TRACE, held_in(before, TRACE)), None
    if config.probes.momentum:
        held = held_in(before, SKETCHES)
        meter = Meter(folder, config, numbers_in(run.params), run.examples, held)
    begun = time.monotonic() - (metrics.rows[-1]["wall_seconds"] if metrics.rows else 0.0)
    # Over the updates so far of what they say of themselves, by name, as the log has them.
    sums = dict.fromkeys(run.program.sums, 0.0) | agreed(before.get("sums", {}))

    def record() -> Json:
        files = {LOG: metrics.synced(), TRACE: recorder.synced()}
        files |= {SKETCHES: meter.synced()} if meter else {}
        sync(folder)
        return {"files": files, "sums": sums, **about}

    checkpoints.record = record

    def log() -> None:
        if metrics.rows and metrics.rows[-1]["step"] == step:  # by the run that is resumed
            return
        kept = layout.get(chunk.state)
        params = kept.params
        with watch.during("evaluating"):
            train_loss = program.evaluate(run.program, params, sample)["loss"]
            test = program.evaluate(run.program, params, test_set)
        row = {**_clock(run, step), "wall_seconds": time.monotonic() - begun}
        row |= {"train_loss": train_loss} | {f"test_{k}": v for k, v in test.items()}
        row |= program.probe(run.program, kept, sample, test_set) | optimizers.logged(kept)
        row |= sums | (kept.logged() if hasattr(kept, "logged") else {})
        if meter:
            since = metrics.rows[-1]["step"] if metrics.rows else 0
            row |= agreed(meter.logged(run.timeline.worker, since, step) if is_writer() else {})
        if config.probes.steer:
            row |= {"explicit_momentum": float(run.hypers["momentum"][max(step - 1, 0)])}
        if config.cluster.service.name == "measured" and step and step % run.epoch == 0:
            row["worker_seconds"] = _worker_seconds(run, chunk.state, step, feed).tolist()
        metrics.append(row)

    status, number = "", 0
    stops = [*range(every, steps, every), steps]
    chunks = drive(run, state, step, stops, metrics.rows, meter.windows if meter else None, feed)
    del state  # a state may fill the memory
    chunk = next(chunks)
    run = chunk.run
    yield chunk
    with watching as watch:
        asked = watch.asked()
        if not metrics.rows or step % every == 0:
            log()
        for chunk in chunks:
            yield chunk
            run, step, made = chunk.run, chunk.step, slice(chunk.start, chunk.step)
            good = np.isfinite(chunk.infos["loss"])
            if meter and chunk.metered and len(good):
                meter.append(chunk.start, chunk.infos)
            for name in chunk.infos.keys() - {"loss", SERVED, *METERED}:
                sums[name] = sums.get(name, 0.0) + float(chunk.infos[name].sum(dtype=np.float64))
            if config.cluster.service.name == "race":
                recorder.raced(run.timeline, made, chunk.infos[SERVED])
            elif config.parallel.api:
                recorder.append(run.timeline, made, time.monotonic() - chunk.begun)
            if not good.all():
                step, status = chunk.start + int(good.argmin()), "diverged"
                break
            if step == chunk.until:
                log()
            finite = math.isfinite(metrics.rows[-1]["train_loss"])
            asked, before_asked = watch.asked(), asked
            number, finite, save = agreed((watch.stopped(), finite, asked > before_asked))
            status = _status(step == steps, number, finite)
            if finite and (status or save or is_due(step, every, config.checkpoint_every)):
                checkpoints.save(step, layout.get(chunk.state))
            if is_writer():
                watch.show(step, f"loss {metrics.rows[-1]['train_loss']:.4g}")
            if status:
                break
        summary = _summary(run, status, step, metrics.rows) | agreed(history.told(folder))
        if meter and is_writer():
            since = next((at for at, _ in momenta(run, metrics.rows)[1:]), 0)
            summary = in_place(summary, meter.logged(run.timeline.worker, since, step))
        if status == "interrupted":
            summary |= {"signal": number}
        if status == "diverged":  # it has no finite state
            summary |= {"kept_checkpoint": checkpoints.latest()}
        else:
            summary |= {"parameters_crc32": fingerprint(layout.get(chunk.state).params)}
        if is_finished(summary, steps):
            metrics.end(config, summary)
            vouch(folder, summary)
        write_json(folder / "summary.json", summary)
    return summary


def _worker_seconds(run: Run, state: State, step: int, feed: Feed) -> np.ndarray:
    """(workers,) seconds of an update, timed on the last MEASURED of the epoch that has ended."""
    layout, since = run.program.layout, step - min(run.epoch, MEASURED)
    assert layout.measure
    block = feed(since, batches_of(run))
    n = min(step, block.stop) - since
    return layout.measure(state, block.examples, *events_of(run, since, block, n), n)


def _status(at_end: bool, signal: int, finite: bool) -> str:
    """What becomes of a run at a stop: a status with which it ends, or '' if it goes on.

    `signal` is the number of the signal that stops it, or 0. `finite` says whether the loss that
    was logged last is finite.
    """
    if not finite:
        return "diverged"
    if at_end:
        return "completed"
    return "interrupted" if signal else ""


def is_due(step: int, log_every: int, checkpoint_every: int) -> bool:
    """Whether a checkpoint is: the first log point from a multiple of `checkpoint_every` on has it.

    There the log's sums are those of the checkpoint. `checkpoint_every` 0: never.
    """
    if not checkpoint_every or step % log_every:
        return False
    return step // checkpoint_every > (step - log_every) // checkpoint_every


def _clock(run: Run, step: int) -> Json:
    """What the timeline and the schedules say at a log point."""
    config, done = run.config, max(step - 1, 0)
    since = done - done % config.log_every
    fixed = optimizers.is_fixed(config.optimizer.name)
    return {
        "step": step,
        "epoch": step * config.batch_size / run.examples,
        "simulated_seconds": float(run.timeline.seconds[done]) if step else 0.0,
        "learning_rate": None if fixed else float(str(run.hypers["learning_rate"][done])),
        "momentum": None if fixed else float(config.optimizer.momentum),
        "staleness_mean": float(run.timeline.staleness[since:step].mean()) if step else 0.0,
    }


def _summary(run: Run, status: str, step: int, rows: list[Json]) -> Json:
    """The last finite log point, if any, the timeline's law, and what produced them."""
    last = next((row for row in reversed(rows) if math.isfinite(row["train_loss"])), rows[0])
    staleness, first = run.timeline.staleness[:step], rows[0]["train_loss"]
    dropped = getattr(plan_of(run.timeline, Arrival), "dropped", None)
    absurd = status == "completed" and last["train_loss"] > ABSURD * max(first, 1.0)
    worse = absurd or (status != "diverged" and last["train_loss"] > WORSE * first > 0)
    return {
        **last,
        "status": "diverged" if absurd else status,
        **({"worse": True} if worse else {}),
        "logged_step": last["step"],
        "step": step,
        "steps": run.config.steps,
        "simulated_seconds_per_step": float(run.timeline.seconds[step - 1]) / step if step else 0.0,
        "staleness_mean": float(staleness.mean()) if step else 0.0,
        "staleness_histogram": np.bincount(staleness.ravel()).tolist(),
        **({} if dropped is None else {"dropped_arrivals": int(dropped[:step].sum())}),
        **run.report,
        **provenance(run),
    }


def provenance(run: Run) -> Json:
    """What a run's floats depend on besides its config."""
    devices = jax.devices()
    return {
        "parameters": numbers_in(run.params),
        "versions": dict(_versions()),
        "device": {
            "platform": devices[0].platform,
            "kind": devices[0].device_kind,
            "count": len(devices),
        },
    }


@cache
def _versions() -> Mapping[str, str]:
    libraries = ("jax", "jaxlib", "flax", "optax", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in libraries}
