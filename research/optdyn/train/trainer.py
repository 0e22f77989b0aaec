"""One run: the methods' update rule over the cluster's timeline, logged, saved and resumed.

It is a generator of chunks of updates (`loop.py`), with the hooks of a run (`hooks.py`). `train`
computes them on the run's own devices, `batched_runs.py` those of many runs in one program.
"""

import math
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from optdyn.base import lookup
from optdyn.base.files import read_json, sync
from optdyn.base.progress import Watch, say, watch_or_default
from optdyn.base.trees import Json, Params, numbers_in
from optdyn.base.workdir_lock import check_writable
from optdyn.clock.timeline import Arrival, plan_of
from optdyn.core import State
from optdyn.devices.first_process import from_first, hold_workdir, run_on_first
from optdyn.experiment import Config
from optdyn.problem import shared_data
from optdyn.train import history, hooks
from optdyn.train.checkpoints import Checkpoints, bytes_in, saving
from optdyn.train.loop import Chunk, Hook, Training, run_to_end, updates, with_hooks
from optdyn.train.meter import Meter
from optdyn.train.recorder import Recorder
from optdyn.train.resuming import finished_summary, has_checkpoint, start_or_resume
from optdyn.train.run import Run, feed_of, prepare, seconds_after
from optdyn.train.workdir import (
    LOG,
    SKETCHES,
    TRACE,
    Metrics,
    claim,
    damaged,
    free_keys,
    is_finished,
)

WORSE = 100  # times the first loss: a run that ends above is marked `worse`
ABSURD = 1e6  # times max(first loss, 1): a run that ends above has diverged


@lookup.files_read_once()
def train(config: Config, workdir: str | Path, hooks: Sequence[Hook] = ()) -> Json:
    """Runs the config in the workdir, or resumes the run that is there, and returns its summary.

    `status` is `completed`, `diverged` or `interrupted` (by SIGINT, SIGTERM or SIGHUP; the number
    is `signal`, and the same call resumes to the same floats). SIGUSR1 saves a checkpoint. Signals
    are heeded in the main thread only. A run diverges at the first loss that is not finite, or if
    its last loss is over a million times the first and 1; `worse` is True if it is over 100 times
    the first.

    A finished run's summary is returned as it is, unless `config.steps` is more than it has done
    and its loss is finite: then it goes on. A run whose user code has changed goes on only if
    `config.code` is 'any'. `hooks` are called with the run's own; not for a finished run. Raises
    what `prepare` raises, `WorkdirError` and `DiskFull`.
    """
    folder = Path(workdir)
    run_on_first(lambda: check_writable(folder))
    run = prepare(config, resumed=has_checkpoint(folder))
    return run_to_end(training(run, folder, user_hooks=hooks))


class RunResult(NamedTuple):
    """The result of a run without a workdir."""

    summary: Json
    log: list[Json]
    params: Params | None  # None: it has diverged
    variables: Mapping[str, Params]  # `Run.evaluated`, but of a run that has diverged


class Record(NamedTuple):
    rows: list[Json]  # of the log
    log: Hook
    sums: dict[str, float]  # of the updates' infos so far, by name
    meter: Meter | None
    starts: Callable[[], Json]  # the fields of the summary about its starts
    final_hooks: Sequence[Hook] = ()


def training(
    run: Run, workdir: Path, watch: Watch | None = None, user_hooks: Sequence[Hook] = ()
) -> Training[Json]:
    """Yields the run's chunks, in its workdir; no `watch`: it heeds signals and shows progress."""
    config = run.config
    tell: Callable[[str], None] = (lambda text: None) if watch else say
    with hold_workdir(workdir) as folder, saving(folder):
        stored = run_on_first(lambda: claim(folder, config, free_keys(config), run.code))
        old_summary = from_first(read_json(folder / "summary.json"))
        if is_finished(old_summary, config.steps) and not from_first(damaged(folder)):
            changed = lookup.changed_files(stored["code"], run.code)
            other = f", with other code of {changed}" if changed else ""
            tell(f"already finished at {old_summary['step']:,}{other}: {workdir}")
            return finished_summary(folder, config, stored, old_summary)
        with Checkpoints(folder) as checkpoints:
            fresh = run.program.init(run.start)
            step, state = from_first(checkpoints.restore(fresh) or (0, fresh))
            run_on_first(
                lambda: start_or_resume(folder, run, stored, checkpoints, old_summary, tell)
            )
            about = {"steps": config.steps, "starts": from_first(history.starts(folder))}
            checkpoints.record = lambda: {"files": {}, **about}
            if step == 0 and run.origin:  # its workdir may change
                checkpoints.save(0, jax.device_get(fresh))
            state = run.program.layout.put_state(state)
            del fresh  # a state may fill the memory
            with Metrics(folder, bytes_in(checkpoints.recorded(), LOG)) as metrics:
                metrics.rows[:] = from_first(metrics.rows)
                record = _of_workdir(run, folder, metrics, checkpoints, about)
                watching = watch_or_default(workdir.name, config.steps, step, watch)
                summary, _ = yield from _train(run, step, state, record, watching, user_hooks)
        if summary["status"] == "interrupted":
            tell(f"saved at {summary['step']:,}: the same command goes on")
    return summary


@lookup.files_read_once()
def variables_in(config: Config, folder: Path) -> Mapping[str, Params]:
    """Returns `Run.evaluated` of a workdir's last checkpoint; {} if it has none."""
    run = prepare(config, resumed=True)
    with Checkpoints(folder) as checkpoints:
        found = checkpoints.restore(run.program.init(run.start))
    return jax.device_get(run.evaluated(found[1])) if found else {}


def in_memory(
    run: Run, watch: Watch | None = None, user_hooks: Sequence[Hook] = ()
) -> Training[RunResult]:
    """Yields the chunks of the run without a workdir; writes no file."""
    config, program, rows = run.config, run.program, list[Json]()
    meter = Meter(run, rows) if config.probes.momentum else None
    sums = dict.fromkeys(program.sums, 0.0)
    origin = {"init_from": run.origin} if run.origin else {}
    record = Record(rows, hooks.LogHook(rows), sums, meter, lambda: origin)
    watching = watch_or_default(re.sub(r"\W+", "-", config.methods.name), config.steps, 0, watch)
    state = program.layout.put_state(program.init(run.start))
    summary, last = yield from _train(run, 0, state, record, watching, user_hooks)
    if last.status == "diverged":
        return RunResult(summary, rows, None, {})
    variables = jax.device_get(run.evaluated(last.full_state))
    return RunResult(summary, rows, jax.device_get(last.params), variables)


def _of_workdir(
    run: Run, folder: Path, metrics: Metrics, checkpoints: Checkpoints, about: Json
) -> Record:
    config, saved = run.config, checkpoints.recorded()
    recorder, meter = Recorder(folder / TRACE, bytes_in(saved, TRACE)), None
    if config.probes.momentum:
        meter = Meter(run, metrics.rows, folder / SKETCHES, bytes_in(saved, SKETCHES))
    sums = dict.fromkeys(run.program.sums, 0.0) | from_first(saved.get("sums", {}))

    def record() -> Json:
        files = {LOG: metrics.synced(), TRACE: recorder.synced()}
        files |= {SKETCHES: meter.synced()} if meter else {}
        sync(folder)
        return {"files": files, "sums": sums, **about}

    checkpoints.record = record
    writers: list[Hook] = [hooks.SaveHook(checkpoints), hooks.SummaryHook(folder, metrics)]
    if config.parallel.api or config.cluster.service.name == "race":
        writers.insert(0, recorder)
    starts = partial(history.summary_fields, folder)
    return Record(metrics.rows, metrics, sums, meter, lambda: from_first(starts()), writers)


def _train(
    run: Run,
    step: int,
    state: State,
    record: Record,
    watching: AbstractContextManager[Watch],
    user_hooks: Sequence[Hook],
) -> Training[tuple[Json, Chunk]]:
    config, steps, log_every = run.config, run.config.steps, run.config.log_every
    rows, meter, feed = record.rows, record.meter, feed_of(run)
    windows = meter.windows if meter else None
    _, sample, test_set = shared_data.put_on_devices(
        run.data, run.program.layout.put_examples, config
    )
    started = time.monotonic() - (rows[-1]["wall_seconds"] if rows else 0.0)
    with ExitStack() as stack:
        watch = cache(partial(stack.enter_context, watching))  # entered once all is compiled
        all_hooks = [
            hooks.LossHook(sample, test_set, started, watch),
            hooks.ProbeHook(sample, test_set),
            hooks.SumHook(record.sums),
            *([meter] if meter else ()),
            *([hooks.SteeringHook()] if config.probes.steer else ()),
            *([hooks.WorkerTimeHook(feed)] if config.cluster.service.name == "measured" else ()),
            *user_hooks,
            record.log,
            hooks.StopHook(watch, rows),
            hooks.ProgressHook(watch, rows),
            *record.final_hooks,
        ]
        stops = [*range(log_every, steps, log_every), steps]
        chunks = updates(run, state, step, stops, rows, windows, feed)
        del state  # a state may fill the memory
        chunk = yield from with_hooks(chunks, all_hooks, rows)
        summary = _summary(chunk.run, chunk.status, chunk.finite_step, rows) | record.starts()
        for hook in all_hooks:
            hook.end(chunk, summary)
    return summary, chunk


def _summary(run: Run, status: str, step: int, rows: list[Json]) -> Json:
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
        "simulated_seconds_per_step": seconds_after(run.timeline, step) / max(step, 1),
        "staleness_mean": float(staleness.mean()) if step else 0.0,
        "staleness_histogram": np.bincount(staleness.ravel()).tolist(),
        **({} if dropped is None else {"dropped_arrivals": int(dropped[:step].sum())}),
        **run.report,
        **provenance(run),
    }


def provenance(run: Run) -> Json:
    """Returns what a run's floats depend on besides its config: sizes, versions, device."""
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
