"""Where trials run, a process a core, and are remembered: what has been run is never run again.

Every trial is a line of `trials.jsonl` as soon as it ends, every other measurement one of
`measured.jsonl`. A killed study goes on where it was when it is run again.
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
ARMS = 16  # that are tuned at a time: each waits for its own trials


class Job(NamedTuple):
    """The arguments of `trial`."""

    config: Config
    target: float = -math.inf
    most: float = math.inf
    clock: str = "updates"


class Study:
    """Trials and measurements of one workdir; a context, as it holds processes.

    `choose` are the seeds that settings are chosen by, `report` the others, that figures are of.
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
        """The curves, in order; those that are not remembered run as processes become free."""
        every = [_with_code(job) for job in jobs]
        keys = [of_job(job) for job in every]
        unknown = {
            key: job for key, job in zip(keys, every, strict=True) if not self._known(key, job)
        }
        asked = {self._executor().submit(trial, *job): key for key, job in unknown.items()}
        self._tell(asked=len(asked))
        for future in as_completed(asked):  # so that a kill loses none that has ended
            key = asked[future]
            self._trials.put(key, line_of(unknown[key], future.result()))
            self._tell(ran=1)
        return [
            cut(curve_of(self._trials.at(key)), job.most, job.clock)
            for key, job in zip(keys, every, strict=True)
        ]

    def remember(self, key: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What `function(*arguments)` returned when it was first called by this key; JSON values.

        The key has to say all that the result depends on. It runs here, and not beside trials of
        this thread.
        """
        name = key_of([key])
        if self._measured.at(name) is None:
            self._measured.put(name, {"key": key, "value": function(*arguments)})
        return self._measured.at(name)["value"]

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> list[Any]:
        """`function` of every item, several at a time, so that the processes always have work."""
        with ThreadPoolExecutor(ARMS) as threads:
            return list(threads.map(function, *items))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
        end_line()

    def _tell(self, asked: int = 0, ran: int = 0) -> None:
        """Shows how many trials this process has run; how many there will be a search decides."""
        with self._lock:
            self._ran += ran
            self._waiting += asked - ran
            if ran:
                self._line.show(self._ran, f"{self._waiting} more asked for")

    def _known(self, key: str, job: Job) -> bool:
        """Whether what is remembered says all that the job asks for."""
        line = self._trials.at(key)
        if line is None or lookup.changed_files(line.get("code"), job.config.code):
            return False
        return reaches(line, job.most)

    def _executor(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = a_core_each(self._processes)
            return self._pool


class Lines:
    """A dictionary that is a file of lines, the last of a key counting."""

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
    """Cores that this process may use."""
    return len(affinity())


def affinity() -> list[int]:
    """Numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def a_core_each(processes: int) -> ProcessPoolExecutor:
    """So many processes, each bound to a core, which end with this one."""
    context = multiprocessing.get_context("spawn")
    numbers = context.Queue()
    for core in affinity()[:processes]:
        numbers.put(core)
    return ProcessPoolExecutor(processes, context, alone, (numbers,))


def alone(numbers: Any) -> None:
    """A process to a core, which ends with its parent: threads that share cores take far longer."""
    Thread(target=_end_with_parent, daemon=True).start()
    core = numbers.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def _end_with_parent() -> None:
    """Else a killed study would leave its processes waiting for work for ever."""
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)


def _with_code(job: Job) -> Job:
    """The job, of the user's code that there is now, whichever process runs it."""
    if not (code := lookup.fingerprint(job.config)):
        return job
    return job._replace(config=job.config.with_(code=code))


def reaches(line: Json, most: float) -> bool:
    """Whether a trial that is remembered went as far as one that may take `most`."""
    return bool(line["status"] != "ended" or line["most"] >= most)


def curve_of(line: Json) -> Curve:
    """The curve of a trial that is remembered."""
    return Curve(**{name: line[name] for name in Curve._fields if name in line})


def line_of(job: Job, curve: Curve) -> Json:
    """A trial as it is remembered, with all that it is of: `config` has what is no default."""
    config, code = job.config.changed_keys(), job.config.code
    config.pop("code", None)
    of = {"config": config, "target": job.target, "clock": job.clock, "most": job.most}
    return {**of, **curve._asdict(), **({"code": code} if code else {})}


def of_job(job: Job) -> str:
    """The key of a trial; that of the user's code is not in it, but in the trial's line."""
    values = {name: value for name, value in job.config.to_dict().items() if name != "code"}
    return key_of([values, job.target, job.clock])


def key_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]
