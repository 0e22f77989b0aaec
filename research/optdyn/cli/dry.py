"""What a command would take, measured before it: `--dry_run`. Nothing is written."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
from absl import flags

from optdyn.base.processes import is_writer
from optdyn.base.progress import clock, number
from optdyn.base.streams import tell
from optdyn.base.trees import bytes_of
from optdyn.cli import app
from optdyn.experiment import ConfigError, Experiment
from optdyn.problem import shared_data
from optdyn.train import batched_runs, memory_checks, program, trainer
from optdyn.train.loop import initial, updates

SECONDS = 0.5  # of updates that are timed, at least
Main = Callable[[Experiment, Path], int]


def define() -> None:
    """The flag that a command has besides those of `app.run`."""
    flags.DEFINE_bool("dry_run", False, "Only say what it would take; write nothing.")


def asked(main: Main, said: Callable[[Experiment], Iterator[str]]) -> Main:
    """`main`, or with `--dry_run` the lines that say what it would take."""
    define()

    def run(config: Experiment, workdir: Path) -> int:
        if not flags.FLAGS.dry_run:
            return main(config, workdir)
        app.check_kind(config)
        lines = list(said(config))
        app.warn(config)
        if is_writer():
            tell(*lines)
        return 0

    return run


def described(config: Experiment) -> Iterator[str]:
    """Lines on a run's size, memory and time. Raises what `trainer.prepare` raises."""
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
    each, evaluation = seconds_per_update(run), seconds_per_evaluation(run)
    logged = config.steps // config.log_every + 1
    yield f"updates         {config.steps:,}, {epochs:.3g} epochs of {run.examples:,} examples"
    yield f"an update       {number(each)} s, {number(1 / each)} updates/s"
    yield f"a log point     {number(evaluation)} s, {logged:,} of them"
    yield f"in all          about {clock(config.steps * each + logged * evaluation)}"


def seconds_per_update(run: trainer.Run) -> float:
    """Measured over the first ones, after what is compiled at the first call."""
    length, done, taken = 1, 0, 0.0
    while taken < SECONDS:
        for chunk in updates(run, initial(run), 0, [len(run.timeline.seconds)]):
            chunk.make(length)
            if chunk.n:
                length, done = 2 * length, done + chunk.step - chunk.start
                taken += time.monotonic() - chunk.begun
            if taken >= SECONDS:
                break
    return taken / done


def seconds_per_evaluation(run: trainer.Run) -> float:
    """The seconds of a log point's figures, measured at the second time."""
    _, sample, test = shared_data.put(run.data, run.program.layout.put_examples, run.config)
    taken = 0.0
    for _ in range(2):
        begun = time.monotonic()
        for examples in (sample, test):
            program.evaluate(run.program, run.params, examples)
        taken = time.monotonic() - begun
    return taken
