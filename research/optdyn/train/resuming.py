"""Where a run starts: from the beginning, from where it was saved, or with more steps from its end.

A run that is given more steps goes on if one that always had as many would have come to the same
step as it is. Whether it would is not known by a table of methods and laws, but looked at: the
timeline of as many steps must begin with what was done.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from optdyn.base import lookup
from optdyn.base.files import WorkdirError, read_rows, write, write_json
from optdyn.base.processes import is_writer
from optdyn.base.trees import Json
from optdyn.devices.first_process import from_first
from optdyn.experiment import Config
from optdyn.train import history, program
from optdyn.train.checkpoints import Checkpoints, held_in, latest
from optdyn.train.run import Run, extended
from optdyn.train.workdir import LOG, text_of, too_few, vouch


def begun(workdir: Path) -> bool:
    """Whether the run has a checkpoint to go on from."""
    return from_first(latest(workdir) is not None)


def finished_summary(folder: Path, config: Config, held: Json, summary: Json) -> Json:
    """The summary of a finished run; one that diverged gets the new `steps`, written too."""
    if summary["status"] == "diverged" and held["steps"] != config.steps and is_writer():
        summary = {**summary, "steps": config.steps}
        vouch(folder, summary)
        write_json(folder / "summary.json", summary)
        write(folder / "config.json", text_of(config, held["code"]))
    return summary


def start_or_resume(
    folder: Path,
    run: Run,
    held: Json,
    checkpoints: Checkpoints,
    before: Json,
    tell: Callable[[str], None],
) -> None:
    """Says where the run starts, and makes the workdir that of its config.

    Raises `WorkdirError` if the run that its config asks for would not have come to the step of its
    latest checkpoint as it is, and changes nothing.
    """
    config, step, record = run.config, checkpoints.latest() or 0, checkpoints.recorded()
    planned = record.get("steps", config.steps)
    ended = before.get("status") in ("completed", "diverged")
    said = f"its {before.get('step') or 0:,} steps to go on from; give another --workdir"
    rows_of = (
        too_few(folder, config.steps, step),
        (ended and not step, f"workdir {folder} has no checkpoint of {said}"),
    )
    WorkdirError.refuse(rows_of)
    changed: Json = {}
    if planned != config.steps and step:
        past = read_rows(folder / LOG, held_in(record, LOG))
        changed = {"of": planned} | resume_diff(folder, run, planned, step, past)
    about = {"init_from": run.origin, "own_code": run.code}
    more = changed | {k: v for k, v in about.items() if v}
    history.started(folder, step, config.steps, record.get("starts", ()), **more)
    if (text := text_of(config, run.code)) != (folder / "config.json").read_text():
        write(folder / "config.json", text)
    if checkpoints.passed:
        tell(checkpoints.passed)
    if step:
        of = f", for {config.steps:,} steps in place of {planned:,}" if changed else ""
        tell(f"resuming at {step:,}{of}")
    elif (folder / LOG).exists():
        tell("there is no checkpoint to go on from: it starts again")
    if "schedule" in changed:
        tell(f"learning rates: {changed['schedule']}")
    if said := lookup.changed_files(held["code"], run.code):
        tell(f"other code from here on: {said}")


def resume_diff(
    folder: Path,
    run: Run,
    planned: int,
    step: int,
    logged: list[Json],
) -> Json:
    """How the run differs, from update `step` on, from one that had `config.steps` from the start.

    It was begun with `planned` steps. {} if it does not differ, else {"schedule": words} where its
    learning rates do. Raises `WorkdirError` if updates that are done already would have been other
    ones, as where an exchange of all nodes ends a run.
    """
    config = run.config
    earlier = config.with_(steps=planned)
    hypers = program.hypers(earlier)
    past = run._replace(config=earlier, timeline=run.timeline_of(earlier), hypers=hypers)
    lines = [extended(each, step - 1, logged).timeline for each in (run, past)]
    arrays = [jax.tree.leaves(line._replace(slots=0)) for line in lines]
    same = lines[0].slots == lines[1].slots and all(
        np.array_equal(np.asarray(a)[:step], np.asarray(b)[:step])
        for a, b in zip(*arrays, strict=True)
        if np.ndim(a)
    )
    read_at_end = config.probes.steer and step == planned
    if not same or read_at_end:
        why = "config.probes.steer" if read_at_end else f"method {config.method.name!r}"
        raise WorkdirError(
            f"workdir {folder}: its {step:,} updates are not the first of {config.steps:,} steps, "
            f"since {why} ends a run of {planned:,} in a way of its own; give another --workdir"
        )
    if all(np.array_equal(run.hypers[name][:step], hypers[name][:step]) for name in hypers):
        return {}
    return {
        "schedule": f"{config.optimizer.schedule!r} of {config.steps:,} steps from update {step:,} "
        f"on, before that of {planned:,}"
    }
