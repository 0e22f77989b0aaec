"""Trials in processes, one on a core, and their results on disk: no trial is run twice.

A trial is a line of `trials.jsonl` as soon as it ends, another measurement one of `measured.jsonl`.
"""

import hashlib
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import RLock, Thread
from typing import Any, NamedTuple, Self

from optdyn.base import lookup
from optdyn.base.files import append, read_rows, write
from optdyn.base.progress import Progress, end_line
from optdyn.base.trees import Json
from optdyn.evidence.trial import Curve, cut, trial
from optdyn.experiment import Config

TRIALS, MEASURED = "trials.jsonl", "measured.jsonl"
ARMS = 16  # tuned at a time: each waits for its trials


class Job(NamedTuple):
    config: Config
    target: float = -math.inf
    most: float = math.inf
    clock: str = "updates"


class Study:
    """Trials and measurements of one workdir; a context manager that ends its processes.

    `choose` are the seeds on which settings are chosen, `report` the others, for figures.
    """

    def __init__(
        self,
        workdir: Path,
        scale: str,
        choose: Sequence[int],
        report: Sequence[int],
        processes: int = 0,
    ):
        if set(choose) & set(report):
            raise ValueError("seeds that choose must not report")
        self.workdir, self.scale = workdir, scale
        self.choose, self.report = tuple(choose), tuple(report)
        self._trials = Lines(workdir / TRIALS)
        self._measured = Lines(workdir / MEASURED)
        self._processes = processes or cores()
        self._pool: ProcessPoolExecutor | None = None
        self._lock = RLock()
        self._line, self._ran, self._waiting = Progress(workdir.name, unit="trial"), 0, 0

    def trials(self, jobs: Iterable[Job]) -> list[Curve]:
        """Returns the curves, in order; trials that are not on disk are run."""
        jobs = [_with_code(job) for job in jobs]
        keys = [trial_key(job) for job in jobs]
        unknown = {k: job for k, job in zip(keys, jobs, strict=True) if not self._known(k, job)}
        running = {self._executor().submit(trial, *job): key for key, job in unknown.items()}
        self._tell(asked=len(running))
        for future in as_completed(running):  # so that a kill loses none that has ended
            key = running[future]
            self._trials.put(key, trial_line(unknown[key], future.result()))
            self._tell(ran=1)
        curves = []
        for key, job in zip(keys, jobs, strict=True):
            line = self._trials.at(key)
            curve = Curve(**{name: line[name] for name in Curve._fields if name in line})
            curves.append(cut(curve, job.most, job.clock))
        return curves

    def remember(self, key: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the first result of `function(*arguments)` under this key, in JSON values.

        The key must have all that the result depends on. The function runs in this process.
        """
        name = key_of([key])
        if self._measured.at(name) is None:
            self._measured.put(name, {"key": key, "value": function(*arguments)})
        return self._measured.at(name)["value"]

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> list[Any]:
        with ThreadPoolExecutor(ARMS) as threads:
            return list(threads.map(function, *items))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
        end_line()

    def _tell(self, asked: int = 0, ran: int = 0) -> None:
        with self._lock:
            self._ran += ran
            self._waiting += asked - ran
            if ran:
                self._line.show(self._ran, f"{self._waiting} more asked for")

    def _known(self, key: str, job: Job) -> bool:
        line = self._trials.at(key)
        if line is None or lookup.changed_files(line.get("code"), job.config.code):
            return False
        return bool(line["status"] != "ended" or line["most"] >= job.most)

    def _executor(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = pool_on_cores(self._processes)
            return self._pool


class Lines:
    """A dictionary in a file of JSON lines; the last line of a key counts."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._found = {row["id"]: row for row in read_rows(path)}
        self._path, self._lock = path, RLock()
        if path.exists() and not path.read_text().endswith("\n"):  # torn by a kill
            write(path, "".join(json.dumps(row) + "\n" for row in self._found.values()))

    def at(self, key: str) -> Any:
        found = self._found.get(key)
        return found and {k: v for k, v in found.items() if k != "id"}

    def put(self, key: str, value: Json) -> None:
        with self._lock:
            line = json.loads(json.dumps({"id": key, **value}))  # what a later run will read
            append(self._path, json.dumps(line) + "\n")
            self._found[key] = line


def cores() -> int:
    return len(affinity())


def affinity() -> list[int]:
    if hasattr(os, "sched_getaffinity"):  # Linux
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pool_on_cores(processes: int) -> ProcessPoolExecutor:
    """Returns a pool of processes, each bound to a core, which end with this one."""
    context = multiprocessing.get_context("spawn")
    numbers = context.Queue()
    for core in affinity()[:processes]:
        numbers.put(core)
    return ProcessPoolExecutor(processes, context, bind_to_core, (numbers,))


def bind_to_core(numbers: Any) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    core = numbers.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)


def _with_code(job: Job) -> Job:
    if not (code := lookup.fingerprint(job.config)):
        return job
    return job._replace(config=job.config.with_(code=code))


def trial_line(job: Job, curve: Curve) -> Json:
    """Returns the line of a trial: its job, with the config's changed keys, and its curve."""
    config, code = job.config.changed_keys(), job.config.code
    config.pop("code", None)
    about = {"config": config, "target": job.target, "clock": job.clock, "most": job.most}
    return {**about, **curve._asdict(), **({"code": code} if code else {})}


def trial_key(job: Job) -> str:
    """Returns the key of a trial; the user's code is not in it, but in the trial's line."""
    values = {name: value for name, value in job.config.to_dict().items() if name != "code"}
    return key_of([values, job.target, job.clock])


def key_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]
