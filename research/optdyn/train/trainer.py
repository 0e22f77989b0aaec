"""One run: the methods' update rule over the cluster's timeline, logged, saved and resumed.

It is a generator that asks for chunks of updates (`loop.py`), with the hooks of a run (`hooks.py`).
`train` makes them on the run's own devices, `batched_runs.py` those of many runs in one program.
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
from optdyn.train.checkpoints import Checkpoints, held_in, saving
from optdyn.train.loop import Hook, Training, hooked, run_to_end, updates
from optdyn.train.meter import Meter
from optdyn.train.recorder import Recorder
from optdyn.train.resuming import begun, finished_summary, start_or_resume
from optdyn.train.run import Run, feed_of, prepare
from optdyn.train.workdir import (
    LOG,
    SKETCHES,
    TRACE,
    Metrics,
    claim,
    damaged,
    free,
    is_finished,
)

WORSE = 100  # times the first logged loss: the mark `worse` in a summary
ABSURD = 1e6  # times the first logged loss, at least 1: a run that ends above it has diverged


@lookup.files_read_once()
def train(config: Config, workdir: str | Path, hooks: Sequence[Hook] = ()) -> Json:
    """Runs the config in the workdir, or goes on with it, and returns its summary.

    `status` is `completed`, `diverged` or `interrupted` (SIGINT, SIGTERM or SIGHUP, `signal` says
    which; the same call resumes to the same floats). SIGUSR1 has it saved there and then. A loss
    that is no longer finite ends a run as diverged. One that is finite may come down again, so it
    is judged at the end only: `worse`: True is there where it is over 100 times the first, and it
    has diverged where it is over a million times the first and 1. A finished run is returned as it
    is, unless `config.steps` is more than it has done: then it goes on, if its loss was finite.
    With other code of the user's own than it was started with it goes on only if `config.code` is
    'any'. `hooks` are those of the user's own; a finished run tells them nothing. Raises what
    `prepare` raises, `WorkdirError` and `DiskFull`. In a thread that is not the main one no signal
    is heeded.
    """
    folder = Path(workdir)
    run_on_first(lambda: check_writable(folder))
    return run_to_end(training(prepare(config, begun=begun(folder)), folder, more=hooks))


class Kept(NamedTuple):
    """What is left of a run without a workdir."""

    summary: Json
    log: list[Json]
    params: Params | None  # None: it has diverged


class Before(NamedTuple):
    """What a run has recorded before it starts, to which it adds."""

    rows: list[Json]  # of the log
    log: Hook
    sums: dict[str, float]  # over the updates so far of what they say of themselves, by name
    meter: Meter | None
    told: Callable[[], Json]  # what the summary has of its starts


def training(
    run: Run, workdir: Path, watch: Watch | None = None, more: Sequence[Hook] = ()
) -> Training[Json]:
    """The run in its workdir; without a `watch` it heeds signals and says how it goes itself."""
    config = run.config
    tell: Callable[[str], None] = (lambda text: None) if watch else say
    with hold_workdir(workdir) as folder, saving(folder):
        held = run_on_first(lambda: claim(folder, config, free(config), run.code))
        before = from_first(read_json(folder / "summary.json"))
        if is_finished(before, config.steps) and not from_first(damaged(folder)):
            said = lookup.changed_files(held["code"], run.code)
            other = f", with other code of {said}" if said else ""
            tell(f"already finished at {before['step']:,}{other}: {workdir}")
            return finished_summary(folder, config, held, before)
        with Checkpoints(folder) as checkpoints:
            fresh = run.program.init(run.params)
            step, state = from_first(checkpoints.restore(fresh) or (0, fresh))
            run_on_first(lambda: start_or_resume(folder, run, held, checkpoints, before, tell))
            about = {"steps": config.steps, "starts": from_first(history.starts(folder))}
            checkpoints.record = lambda: {"files": {}, **about}
            if step == 0 and run.origin:  # it may have moved on, or away, when this is resumed
                checkpoints.save(0, jax.device_get(fresh))
            state = run.program.layout.put_state(state)
            del fresh  # a state may fill the memory
            with Metrics(folder, held_in(checkpoints.recorded(), LOG)) as metrics:
                metrics.rows[:] = from_first(metrics.rows)
                so_far, last = _of_workdir(run, folder, metrics, checkpoints, about)
                watching = watch_or_default(workdir.name, config.steps, step, watch)
                summary = yield from _trained(run, step, state, so_far, watching, more, last)
        if summary["status"] == "interrupted":
            tell(f"saved at {summary['step']:,}: the same command goes on")
    return summary


def in_memory(run: Run, watch: Watch | None = None, more: Sequence[Hook] = ()) -> Training[Kept]:
    """The run without a workdir, of which no file is left."""
    config, program, rows, params = run.config, run.program, list[Json](), hooks.LastParams()
    meter = Meter(run, rows) if config.probes.momentum else None
    sums = dict.fromkeys(program.sums, 0.0)
    told = {"init_from": run.origin} if run.origin else {}
    before = Before(rows, hooks.Log(rows), sums, meter, lambda: told)
    watching = watch_or_default(re.sub(r"\W+", "-", config.methods.name), config.steps, 0, watch)
    state = program.layout.put_state(program.init(run.params))
    summary = yield from _trained(run, 0, state, before, watching, more, [params])
    return Kept(summary, rows, params.found)


def _of_workdir(
    run: Run, folder: Path, metrics: Metrics, checkpoints: Checkpoints, about: Json
) -> tuple[Before, list[Hook]]:
    """What the workdir has, and the hooks that write into it."""
    config, before = run.config, checkpoints.recorded()
    recorder, meter = Recorder(folder / TRACE, held_in(before, TRACE)), None
    if config.probes.momentum:
        meter = Meter(run, metrics.rows, folder / SKETCHES, held_in(before, SKETCHES))
    sums = dict.fromkeys(run.program.sums, 0.0) | from_first(before.get("sums", {}))

    def record() -> Json:
        files = {LOG: metrics.synced(), TRACE: recorder.synced()}
        files |= {SKETCHES: meter.synced()} if meter else {}
        sync(folder)
        return {"files": files, "sums": sums, **about}

    checkpoints.record = record

    def told() -> Json:
        return from_first(history.told(folder))

    writing: list[Hook] = [hooks.Saves(checkpoints), hooks.Ends(folder, metrics)]
    if config.parallel.api or config.cluster.service.name == "race":
        writing.insert(0, recorder)
    return Before(metrics.rows, metrics, sums, meter, told), writing


def _trained(
    run: Run,
    step: int,
    state: State,
    before: Before,
    watching: AbstractContextManager[Watch],
    more: Sequence[Hook],
    last: Sequence[Hook],
) -> Training[Json]:
    """The run from a state on, with the hooks that every run has, `more`, and the `last` ones."""
    config, steps, every, feed = run.config, run.config.steps, run.config.log_every, feed_of(run)
    rows, meter = before.rows, before.meter
    windows = meter.windows if meter else None
    _, sample, test_set = shared_data.put_on_devices(
        run.data, run.program.layout.put_examples, config
    )
    begun = time.monotonic() - (rows[-1]["wall_seconds"] if rows else 0.0)
    with ExitStack() as stack:
        watch = cache(partial(stack.enter_context, watching))  # when all is compiled
        all_hooks = [
            hooks.Losses(sample, test_set, begun, watch),
            hooks.ProbeHook(sample, test_set),
            hooks.Sums(before.sums),
            *([meter] if meter else ()),
            *([hooks.Steering()] if config.probes.steer else ()),
            *([hooks.WorkerSeconds(feed)] if config.cluster.service.name == "measured" else ()),
            *more,
            before.log,
            hooks.Stops(watch, rows),
            hooks.ProgressLine(watch, rows),
            *last,
        ]
        stops = [*range(every, steps, every), steps]
        chunks = updates(run, state, step, stops, rows, windows, feed)
        del state  # a state may fill the memory
        chunk = yield from hooked(chunks, all_hooks, rows)
        summary = _summary(chunk.run, chunk.status, chunk.good, rows) | before.told()
        for hook in all_hooks:
            hook.end(chunk, summary)
    return summary


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
