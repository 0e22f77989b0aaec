"""Where a run starts: from the beginning, from its checkpoint, or with more steps from its end.

A run may be given more steps if one that always had as many would have come to the same state: the
timeline of as many steps must begin with the updates that are done.
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
from optdyn.train.checkpoints import Checkpoints, bytes_in, latest
from optdyn.train.run import Run, extend_timeline
from optdyn.train.workdir import LOG, text_of, too_few_steps, write_checksums


def has_checkpoint(workdir: Path) -> bool:
    """Returns whether the run has a checkpoint to go on from."""
    return from_first(latest(workdir) is not None)


def finished_summary(folder: Path, config: Config, stored: Json, summary: Json) -> Json:
    """Returns a finished run's summary; if it diverged, with the new `steps`, which are written."""
    if summary["status"] == "diverged" and stored["steps"] != config.steps and is_writer():
        summary = {**summary, "steps": config.steps}
        write_checksums(folder, summary)
        write_json(folder / "summary.json", summary)
        write(folder / "config.json", text_of(config, stored["code"]))
    return summary


def start_or_resume(
    folder: Path,
    run: Run,
    stored: Json,
    checkpoints: Checkpoints,
    old_summary: Json,
    tell: Callable[[str], None],
) -> None:
    """Tells where the run starts, adds the start to the history and writes the new config.

    `stored` is the workdir's config so far. Raises `WorkdirError`, and changes nothing, if the new
    config would not have come to the state of the latest checkpoint.
    """
    config, step, record = run.config, checkpoints.latest() or 0, checkpoints.recorded()
    planned = record.get("steps", config.steps)
    ended = old_summary.get("status") in ("completed", "diverged")
    missing = f"its {old_summary.get('step') or 0:,} steps to go on from; give another --workdir"
    refusals = (
        too_few_steps(folder, config.steps, step),
        (ended and not step, f"workdir {folder} has no checkpoint of {missing}"),
    )
    WorkdirError.refuse(refusals)
    changed: Json = {}
    if planned != config.steps and step:
        past = read_rows(folder / LOG, bytes_in(record, LOG))
        changed = {"of": planned} | resume_diff(folder, run, planned, step, past)
    about = {"init_from": run.origin, "own_code": run.code}
    more = changed | {k: v for k, v in about.items() if v}
    history.record_start(folder, step, config.steps, record.get("starts", ()), **more)
    if (text := text_of(config, run.code)) != (folder / "config.json").read_text():
        write(folder / "config.json", text)
    if checkpoints.why_not_later:
        tell(checkpoints.why_not_later)
    if step:
        steps = f", for {config.steps:,} steps in place of {planned:,}" if changed else ""
        tell(f"resuming at {step:,}{steps}")
    elif (folder / LOG).exists():
        tell("there is no checkpoint to go on from: it starts again")
    if "schedule" in changed:
        tell(f"learning rates: {changed['schedule']}")
    if other := lookup.changed_files(stored["code"], run.code):
        tell(f"other code from here on: {other}")


def resume_diff(
    folder: Path,
    run: Run,
    planned: int,
    step: int,
    logged: list[Json],
) -> Json:
    """Returns how a run that began with `planned` steps differs from one of `config.steps` steps.

    {} if it does not, {"schedule": text} if its later learning rates do. Raises `WorkdirError` if
    its first `step` updates would have been others, as where a run's end averages all nodes.
    """
    config = run.config
    earlier = config.with_(steps=planned)
    hypers = program.hypers(earlier)
    past = run._replace(config=earlier, timeline=run.timeline_of(earlier), hypers=hypers)
    lines = [extend_timeline(one, step - 1, logged).timeline for one in (run, past)]
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
            f"since {why} ends a run of {planned:,} steps differently; give another --workdir"
        )
    if all(np.array_equal(run.hypers[name][:step], hypers[name][:step]) for name in hypers):
        return {}
    return {
        "schedule": f"{config.optimizer.schedule!r} of {config.steps:,} steps from update {step:,} "
        f"on, before that of {planned:,}"
    }
