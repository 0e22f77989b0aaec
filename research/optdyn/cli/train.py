"""Trains one run: `python -m launch.train --config=configs/quickstart.py --workdir=DIR`.

The same command resumes an interrupted or killed run and leaves a finished one as it is. Ctrl-C,
SIGTERM and SIGHUP save the run and end it; SIGUSR1 saves it, and it goes on.
`--config.replicas.count=N` records the trajectories of N replicas instead, for `optdyn momentum`.
`--dry_run` checks everything, measures a few updates, and prints the memory, the updates and epochs
and the time of the run. It writes nothing.
"""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from absl import flags

from optdyn.base.flag_parser import invocation
from optdyn.base.processes import is_writer
from optdyn.base.progress import clock, number
from optdyn.base.streams import tell
from optdyn.base.trees import bytes_of
from optdyn.cli import app
from optdyn.experiment import Config, ConfigError
from optdyn.implicit_momentum.readings import from_row
from optdyn.problem import shared_data
from optdyn.train import batched_runs, memory_checks, program, trainer
from optdyn.train.checks import check
from optdyn.train.loop import initial_state, updates
from optdyn.train.replicas import record
from optdyn.train.trainer import train

LOSSES = {"train_loss": "training loss", "test_loss": "test loss"}
TIMED_SECONDS = 0.5  # of updates that a dry run times, at least
Main = Callable[[Config, Path], int]


def main(config: Config, workdir: Path) -> int:
    app.check_kind(config)
    reader = "momentum" if config.replicas.count else "report"
    return print_ending(run(config, workdir), workdir, reader)


def run(config: Config, workdir: Path) -> dict[str, Any]:
    check(config)
    app.warn(config)
    return record(config, workdir) if config.replicas.count else train(config, workdir)


def print_ending(summary: Mapping[str, Any], workdir: Path, then: str) -> int:
    """Prints how a run ended, and the command `then` that reads it; returns the exit code."""
    if is_writer():
        tell(*ending_lines(summary, workdir, then))
    return 128 + summary["signal"] if summary["status"] == "interrupted" else 0


def ending_lines(summary: Mapping[str, Any], workdir: Path, then: str) -> Iterator[str]:
    done = []
    if replicas := summary.get("replicas"):
        done.append(f"{replicas:,} replicas of {summary['step']:,} updates")
    elif "step" in summary:
        total = f" of {summary['steps']:,}" * (summary["step"] != summary["steps"])
        done.append(f"{summary['step']:,}{total} updates")
    if not replicas and (seconds := summary.get("simulated_seconds")):
        done.append(f"{number(seconds)} {'real' if then == 'reality' else 'simulated'} seconds")
    yield f"{summary['status']}: {', '.join(done) or 'no update'}"
    stopped = summary["status"] == "interrupted"
    if figures := list(_figures(summary)):
        yield "at the last log point: " * stopped + ", ".join(figures)
    if stopped:
        yield f"{workdir}: the same command goes on"
    else:
        folder = "" if then == "momentum" else "--workdir="
        yield f"next: {invocation(then)} {folder}{shlex.quote(str(workdir))}"


def _figures(summary: Mapping[str, Any]) -> Iterator[str]:
    for key, value in summary.items():
        if (key in LOSSES or key.startswith("test_")) and isinstance(value, (int, float)):
            yield f"{LOSSES.get(key, key.replace('_', ' '))} {value:.4g}"
    if summary.get("worse"):
        yield "far above the first"
    if reading := from_row(summary):
        its = "" if reading.estimate is None else f" {reading.estimate:.3g}"
        yield f"implicit momentum{its} (95 %: {reading})"


def define_flags() -> None:
    flags.DEFINE_bool("dry_run", False, "Print what it would take; write nothing.")


def with_dry_run(main: Main, dry_run_lines: Callable[[Config], Iterator[str]]) -> Main:
    """Returns `main` with a flag `--dry_run`, which prints these lines instead."""
    define_flags()

    def run(config: Config, workdir: Path) -> int:
        if not flags.FLAGS.dry_run:
            return main(config, workdir)
        app.check_kind(config)
        lines = list(dry_run_lines(config))
        app.warn(config)
        if is_writer():
            tell(*lines)
        return 0

    return run


def dry_run_lines(config: Config) -> Iterator[str]:
    """Yields lines on a run's size, memory and time. Raises what `trainer.prepare` raises."""
    if config.replicas.count:
        raise ConfigError("config.replicas.count: --dry_run is of runs; recordings have none")
    run = trainer.prepare(config)
    parameters, size = trainer.provenance(run)["parameters"], bytes_of(run.params)
    state = bytes_of(jax.eval_shape(run.program.rule.init, run.params))
    need = memory_checks.need_of(config, run.program.rule, run.params)
    epochs = config.steps * config.batch_size / run.examples
    yield f"parameters      {parameters:,}, {size:,} bytes"
    yield f"state           {state:,} bytes: versions of the parameters and the optimizer's"
    yield f"memory          {need.device:,} bytes of arrays at least" + (
        f", and {need.host:,} of the host's" * bool(need.host)
    )
    if batched_runs.is_one_program(config):
        yield f"program         {batched_runs.memory(run):,} bytes besides the examples, by XLA"
    seconds, evaluation = seconds_per_update(run), seconds_per_evaluation(run)
    logged = config.steps // config.log_every + 1
    yield f"updates         {config.steps:,}, {epochs:.3g} epochs of {run.examples:,} examples"
    yield f"an update       {number(seconds)} s, {number(1 / seconds)} updates/s"
    yield f"a log point     {number(evaluation)} s, {logged:,} of them"
    yield f"in all          about {clock(config.steps * seconds + logged * evaluation)}"


def seconds_per_update(run: trainer.Run) -> float:
    length, done, seconds = 1, 0, 0.0
    while seconds < TIMED_SECONDS:
        for chunk in updates(run, initial_state(run), 0, [len(run.timeline.seconds)]):
            chunk.compute(length)
            if chunk.n:
                length, done = 2 * length, done + chunk.step - chunk.start
                seconds += time.monotonic() - chunk.requested
            if seconds >= TIMED_SECONDS:
                break
    return seconds / done


def seconds_per_evaluation(run: trainer.Run) -> float:
    """Returns the seconds of a log point's figures, measured at the second time."""
    _, sample, test = shared_data.put_on_devices(
        run.data, run.program.layout.put_examples, run.config
    )
    variables = run.variables(run.params, run.state)
    for _ in range(2):
        begun = time.monotonic()
        for examples in (sample, test):
            program.evaluate(run.program, variables, examples)
        seconds = time.monotonic() - begun
    return seconds


if __name__ == "__main__":
    app.run(with_dry_run(main, dry_run_lines))
