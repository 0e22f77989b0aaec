"""One run: the strategy's update rule over the cluster's timeline, logged, saved and resumed."""

import math
import platform
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from research import data as datasets
from research import problem, program, seeds, timeline
from research.checks import check
from research.config import ConfigError
from research.costs import Costs
from research.parallel.agreement import agreed, own
from research.parallel.layout import APIS
from research.parallel.processes import is_writer
from research.program import CHUNK, Program
from research.progress import Progress, stoppable
from research.strategies.base import Event, Params, State
from research.timeline import Timeline
from research.timeline.trace import Recorder
from research.workdir import Checkpoints, Metrics, claim, fingerprint, read_json, write_json

MEASURED = 8  # updates at the end of an epoch that workers are timed over


class Run(NamedTuple):
    """All that a config determines before the first update."""

    config: ConfigDict
    data: datasets.Data
    epoch: int  # updates that the timeline calls an epoch
    timeline: Timeline
    timeline_of: Callable[..., Timeline]  # (epochs) -> as far as their log decides it
    program: Program
    params: Params  # x_0
    costs: Costs | None  # of an update, of strategy 'local'
    hypers: Mapping[str, np.ndarray]  # (steps,) each

    @property
    def examples(self) -> int:
        """Size of the training set."""
        return len(next(iter(self.data.train.values())))


def prepare(config: ConfigDict, replicas: int = 0) -> Run:
    """Checks the config, loads data, draws the timeline and the initial parameters.

    Raises `ConfigError`, `DataError` or `TimelineError`; touches no workdir. With `replicas` > 0
    the timeline is (replicas, steps).
    """
    check(config)
    if jax.process_count() > 1 and not config.parallel.api:
        raise ConfigError(
            f"config.parallel.api is empty: {jax.process_count()} processes need one of "
            f"{', '.join(APIS)}, or each would be a run of its own"
        )
    data = problem.load_data(config)
    one = {name: leaf[:1] for name, leaf in data.train.items()}
    params = program.init(config, data.classes, seeds.key(config.seed, "init"), one)
    epoch = max(len(next(iter(data.train.values()))) // config.batch_size, 1)
    size = program.parameter_bytes(params)
    events = partial(timeline.of_config, config, steps_per_epoch=epoch, update_bytes=size)
    cost = None
    if config.strategy.name == "local":
        cost, work = program.costs(config, data.classes, params, one)
        events = partial(events, work=work)
    first = events(replicas=replicas)
    compiled = program.make(config, data.classes, first.slots)
    return Run(config, data, epoch, first, events, compiled, params, cost, program.hypers(config))


def train(config: ConfigDict, workdir: Path) -> dict[str, Any]:
    """Runs the config in the workdir, or goes on with it, and returns its summary.

    `status` is `completed`, `diverged` (a loss is no longer finite) or `interrupted` (SIGINT or
    SIGTERM, `signal` says which; the same call resumes to the same floats). A finished run is
    returned as it is. Raises what `prepare` raises, and `WorkdirError`.
    """
    run = prepare(config)
    with own(workdir) as folder:
        claim(folder, config)
        finished = agreed(read_json(folder / "summary.json"))
        if finished.get("status") in ("completed", "diverged"):
            return finished
        with Checkpoints(folder) as checkpoints:
            fresh = run.program.strategy.init(run.params)
            step, state = agreed(checkpoints.restore(fresh) or (0, fresh))
            with Metrics(folder, step) as metrics:
                metrics.rows[:] = agreed(metrics.rows)
                recorder = Recorder(folder / "trace.csv", step)
                summary = _loop(run, step, state, metrics, checkpoints, recorder, workdir.name)
        write_json(folder / "summary.json", summary)
    return summary


def _loop(
    run: Run,
    step: int,
    state: State,
    metrics: Metrics,
    checkpoints: Checkpoints,
    recorder: Recorder,
    name: str,
) -> dict[str, Any]:
    config, steps, layout = run.config, run.config.steps, run.program.layout
    test_set = _sample(run.data.test, config.data.test_evaluated)
    sample = _sample(run.data.train, config.data.train_evaluated)
    train_set, state = layout.put_examples(run.data.train), layout.put_state(state)
    before = metrics.rows[-1]["wall_seconds"] if metrics.rows else 0.0
    begun = time.monotonic() - before

    def log() -> None:
        if metrics.rows and metrics.rows[-1]["step"] == step:  # by the run that is resumed
            return
        params = layout.get(state).params
        train_loss = program.evaluate(run.program, params, sample)["loss"]
        test = program.evaluate(run.program, params, test_set)
        row = {**_clock(run, step), "wall_seconds": time.monotonic() - begun}
        row |= {"train_loss": train_loss} | {f"test_{k}": v for k, v in test.items()}
        row |= program.probe(run.program, params, sample, test_set)
        metrics.append(row | measured())

    def measured() -> dict[str, list[float]]:
        if config.cluster.service != "measured" or not step or step % run.epoch:
            return {}
        assert layout.measure
        n = min(run.epoch, MEASURED)
        seconds = layout.measure(state, train_set, *_events(run, step - n, n), n)
        return {"worker_seconds": seconds.tolist()}

    chunk, status, number = 1, "", 0
    state, _ = run.program.advance(state, train_set, *_events(run, step, 0), 0)  # compiles
    with stoppable() as stopped:
        if not metrics.rows or step % config.log_every == 0:
            log()
        progress = Progress(name, steps, step)
        while not status:
            run = _extended(run, step, metrics.rows)
            until = min(step - step % config.log_every + config.log_every, len(run.timeline.read))
            n = min(until - step, chunk)
            called = time.monotonic()
            state, losses = run.program.advance(state, train_set, *_events(run, step, n), n)
            good = np.isfinite(losses)[:n]
            if config.parallel.api:
                recorder.append(run.timeline, slice(step, step + n), time.monotonic() - called)
            # About a second of updates at a time, so that a signal is heeded soon.
            rate = n / max(time.monotonic() - called, 1e-9)
            chunk = int(np.clip(rate, 1, min(2 * chunk, CHUNK)))
            if not good.all():
                step, status = step + int(good.argmin()), "diverged"
                break
            step += n
            if step == until:
                log()
            finite = math.isfinite(metrics.rows[-1]["train_loss"])
            chunk, number, finite = agreed((chunk, stopped(), finite))
            status = "" if finite else "diverged"
            if step == steps and finite:
                status = "completed"
            elif number and finite:
                status = "interrupted"
            every = config.checkpoint_every
            if finite and (status or (every and step % every == 0)):
                checkpoints.save(step, layout.get(state))
            if is_writer():
                progress.show(step, f"loss {metrics.rows[-1]['train_loss']:.4g}")
    summary = _summary(run, status, step, metrics.rows)
    if status == "diverged":
        return summary | {"kept_checkpoint": checkpoints.latest()}
    summary["parameters_crc32"] = fingerprint(layout.get(state).params)
    return summary | ({"signal": number} if status == "interrupted" else {})


def _sample(examples: dict[str, np.ndarray], most: int) -> dict[str, jax.Array]:
    """So many of the examples, evenly spread, or all of them."""
    count = len(next(iter(examples.values())))
    chosen = np.linspace(0, count - 1, min(most or count, count)).astype(np.int32)
    return {name: jnp.asarray(leaf[chosen]) for name, leaf in examples.items()}


def _extended(run: Run, step: int, rows: list[dict[str, Any]]) -> Run:
    """The run with as much of its timeline as the log decides: to beyond `step`, or to the end."""
    if step < len(run.timeline.read) or step == run.config.steps:
        return run
    ends = range(run.epoch, step + 1, run.epoch)
    logged = {row["step"]: row for row in rows}
    return run._replace(timeline=run.timeline_of(epochs=[logged[end] for end in ends]))


def _events(run: Run, step: int, n: int) -> tuple[Event, np.ndarray]:
    """Updates step..step+n-1 and the examples of their batches, padded to CHUNK."""
    config, window = run.config, slice(step, step + n)
    order = int(seeds.generator(config.seed, "batches").integers(2**63))
    indices = datasets.batches(
        order, step, step + n, config.batch_size, run.examples, config.data.replacement
    )
    hypers = {name: values[window] for name, values in run.hypers.items()}
    control = {name: values[window] for name, values in (run.timeline.control or {}).items()}
    events = Event(run.timeline.read[window], run.timeline.write[window], hypers, control)

    def pad(leaf: np.ndarray) -> np.ndarray:
        return np.concatenate([leaf, np.zeros((CHUNK - n, *leaf.shape[1:]), leaf.dtype)])

    return jax.tree.map(pad, (events, indices))


def _clock(run: Run, step: int) -> dict[str, Any]:
    """What the timeline and the schedules say at a log point."""
    config, done = run.config, max(step - 1, 0)
    since = done - done % config.log_every
    return {
        "step": step,
        "epoch": step * config.batch_size / run.examples,
        "simulated_seconds": float(run.timeline.seconds[done]) if step else 0.0,
        "learning_rate": float(str(run.hypers["learning_rate"][done])),
        "momentum": float(config.optimizer.momentum),
        "staleness_mean": float(run.timeline.staleness[since:step].mean()) if step else 0.0,
    }


def _summary(run: Run, status: str, step: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The last finite log point, if any, the timeline's law, and what produced them."""
    last = next((row for row in reversed(rows) if math.isfinite(row["train_loss"])), rows[0])
    staleness = run.timeline.staleness[:step]
    return {
        **last,
        "status": status,
        "logged_step": last["step"],
        "step": step,
        "steps": run.config.steps,
        "simulated_seconds_per_step": float(run.timeline.seconds[step - 1]) / step if step else 0.0,
        "staleness_mean": float(staleness.mean()) if step else 0.0,
        "staleness_histogram": np.bincount(staleness).tolist(),
        **_costs(run),
        **provenance(run),
    }


def _costs(run: Run) -> dict[str, Any]:
    if run.costs is None:
        return {}
    return {
        "total_flops": run.costs.total,
        "sequential_flops": run.costs.sequential,
        "latency_flops": run.costs.latency,
        "communicated_bytes": run.costs.communicated,
        "group_memory_bytes": list(run.costs.memory),
    }


def provenance(run: Run) -> dict[str, Any]:
    """What a run's floats depend on besides its config."""
    devices = jax.devices()
    libraries = ("jax", "jaxlib", "flax", "optax", "numpy")
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(run.params)),
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in libraries},
        "device": {
            "platform": devices[0].platform,
            "kind": devices[0].device_kind,
            "count": len(devices),
        },
    }
