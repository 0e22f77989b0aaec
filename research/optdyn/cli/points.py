"""The points of a grid before they run: their state, their compilations and their cost."""

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

from optdyn.base.trees import Json
from optdyn.experiment import ConfigError
from optdyn.train import batched_runs
from optdyn.train.grid import Grid, Point, named, resolve
from optdyn.train.workdir import claim, damaged, free_keys, summary_of

DONE = ("completed", "diverged")
MOST_SHOWN = 12  # points of a compilation that a dry run names
UNFINISHED = "to go on"  # ended with fewer steps than the grid has now, or with damaged files


class PlannedPoint(NamedTuple):
    """A point of the grid before it runs."""

    name: str
    point: Point
    compilation: Hashable  # equal for points that share compiled programs
    log_every: int
    updates: int  # of all replicas together
    left: int  # of these, not made yet
    examples: int  # an update
    batched: bool  # can share a program with other points
    threaded: bool  # can run beside others; else it occupies all devices, or is a recording
    status: str  # of its summary, or UNFINISHED; '' without a summary
    seconds_per_update: float  # wall-clock, of a finished point


def plan(config: Grid, workdir: Path | None, shard: str = "0/1") -> list[PlannedPoint]:
    """Returns the checked points of a shard of the grid, ordered by compilation; writes nothing.

    Raises `ConfigError`, and `WorkdirError` if a point's folder has another run.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not match or int(match[1]) >= int(match[2]):
        raise ConfigError(f"--shard={shard}: must be i/n, number i from 0 to n - 1 of n shards")
    points = islice(list(named(config)), int(match[1]), None, int(match[2]))
    entries = [_entry(config, workdir, name, point) for name, point in points]
    first = {entry.compilation: i for i, entry in reversed(list(enumerate(entries)))}
    return sorted(entries, key=lambda entry: first[entry.compilation])


def folder_of(workdir: Path, name: str) -> Path:
    return workdir / "points" / name


def compilations(entries: Sequence[PlannedPoint]) -> list[list[PlannedPoint]]:
    return [list(group) for _, group in groupby(entries, lambda entry: entry.compilation)]


def dry_run_lines(entries: Sequence[PlannedPoint], at_a_time: int) -> Iterator[str]:
    groups = compilations(entries)
    statuses = Counter(entry.status or "new" for entry in entries)
    counted = ", ".join(f"{count} {status}" for status, count in statuses.items())
    yield f"{len(entries)} points, {len(groups)} compilations: {counted}"
    for number, group in enumerate(groups, start=1):
        yield f"compilation {number}: {len(group)} points, {_cost(group, at_a_time)}"
        for entry in group[:MOST_SHOWN]:
            updates = f"{entry.updates:,} updates of {entry.examples:,} examples"
            yield f"  {entry.name}  {updates}  {entry.status or 'new'}"
        if len(group) > MOST_SHOWN:
            yield f"  and {len(group) - MOST_SHOWN:,} more"
    yield f"in all: {_cost(entries, at_a_time)}"


def _cost(entries: Sequence[PlannedPoint], at_a_time: int) -> str:
    left = [entry for entry in entries if entry.status not in DONE]
    examples = sum(entry.left * entry.examples for entry in left)
    text = f"{sum(entry.left for entry in left):,} updates to run, on {examples:,} examples"
    seconds = [_seconds(group) for group in compilations(entries)]
    if left and None not in seconds:
        total = sum(filter(None, seconds)) / at_a_time
        text += f", about {total / 60:.0f} minutes" if total > 120 else f", about {total:.0f} s"
    return text


def _seconds(group: Sequence[PlannedPoint]) -> float | None:
    left = sum(entry.left for entry in group if entry.status not in DONE)
    known = [e.seconds_per_update for e in group if e.status in DONE and e.seconds_per_update]
    if not left:
        return 0.0
    return left * sum(known) / len(known) if known else None


def _entry(config: Grid, workdir: Path | None, name: str, point: Point) -> PlannedPoint:
    resolved = resolve(config, name, point)
    summary, status = Json(), ""
    if workdir:
        folder = folder_of(workdir, name)
        if (folder / "config.json").exists():
            claim(folder, resolved, free_keys(resolved))
        summary = summary_of(folder)
        status = summary.get("status") or ""
        is_short = summary.get("steps", resolved.steps) != resolved.steps
        if status in DONE and (is_short or damaged(folder)):
            status = UNFINISHED
    replicas = resolved.replicas.count
    return PlannedPoint(
        name=name,
        point=point,
        compilation=batched_runs.compilation(resolved),
        log_every=resolved.log_every,
        updates=resolved.steps * max(replicas, 1),
        left=max(resolved.steps - (summary.get("step") or 0), 0) * max(replicas, 1),
        examples=resolved.batch_size,
        batched=batched_runs.is_batched(resolved),
        threaded=batched_runs.is_one_program(resolved),
        status=status,
        seconds_per_update=(summary.get("wall_seconds") or 0.0) / max(summary.get("step") or 0, 1),
    )
