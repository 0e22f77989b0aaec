"""The tuner's journal: each attempt and each decision is a line of `decisions.jsonl`.

Tuning is deterministic, so a killed tuner resumes by taking all decisions again; attempts that have
a line return what it has, without running.
"""

import json
import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from optdyn.base.files import WorkdirError, append, read_rows, write
from optdyn.base.progress import number, say
from optdyn.base.trees import Json
from optdyn.train.checkpoints import Checkpoints
from optdyn.tune import bench
from optdyn.tune.bench import Checkpoint, SimulatedCluster
from optdyn.tune.choice import Choice, EpochPoint, Measures, Outcome


class Journal:
    """`journal(line, compute)`: the line with the fields of `compute()`, from the file if there.

    Opening drops the first line whose `checkpoint` is later than `latest`, and all after it: the
    tuner was killed before that state was written.
    """

    def __init__(self, path: Path, latest: int, seconds: float):
        before = read_rows(path)
        lost = [n for n, line in enumerate(before) if line.get("checkpoint", 0) > latest]
        self.lines = before[: lost[0] if lost else None]
        self.path, self._done, self._seconds = path, 0, seconds
        write(path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def __call__(self, line: Json, compute: Callable[[], Json] = dict) -> Json:
        """Raises `WorkdirError` if the file has another line here."""
        if self._done == len(self.lines):
            whole = line | compute()
            append(self.path, json.dumps(whole) + "\n")
            self.lines.append(whole)
            say(_shown(whole) + self._trained(whole))
        whole = self.lines[self._done]
        self._done += 1
        if line.items() <= whole.items():
            return whole
        raise WorkdirError(f"{self.path}: line {self._done} is not the decision made there")

    def _trained(self, line: Json) -> str:
        if line["what"] != "train":
            return ""
        done = sum(other["seconds"] for other in self.lines if other["what"] == "train")
        return f"; trained {number(done)} of {number(self._seconds)} s at most"


class Bench:
    """Settings tried on a simulated cluster, each a line of the journal."""

    def __init__(
        self, cluster: SimulatedCluster, journal: Journal, target: float, checkpoints: Checkpoints
    ):
        self._cluster, self._target = cluster, target
        self._journal, self._checkpoints = journal, checkpoints
        self._current: tuple[EpochPoint, Checkpoint] | None = None
        self.pace = cache(partial(bench.seconds_per_update, cluster))  # HE(g), seconds an update

    def start(self, point: EpochPoint) -> float:
        """Returns the loss that a first epoch has to beat: of the initialization, or of chance."""
        return bench.start_loss(self._cluster, self._state(point))

    def measure(self, point: EpochPoint) -> Measures:
        """Measures what limits steps at a point, which takes simulated seconds."""
        line = {"what": "limits", **point._asdict()}
        found = self._journal(line, lambda: bench.measure(self._cluster, self._state(point)))
        groups = self._cluster.groups
        return Measures(
            found["step"], found["momentum"], dict(zip(groups, found["penalties"], strict=True))
        )

    def note(self, what: str, setting: Choice) -> None:
        self._journal({"what": what, **setting._asdict()})

    def probe(self, point: EpochPoint, seconds: float, setting: Choice) -> Outcome:
        """Runs a setting from the point for so many seconds, and does not keep the state."""
        return self._attempt("probe", point, seconds, setting)[0]

    def train(
        self, point: EpochPoint, seconds: float, setting: Choice, loss: float, settle: bool = False
    ) -> Outcome:
        """Trains an epoch from the point; keeps the state if the loss is below `loss`."""
        outcome, kept = self._attempt("train", point, seconds, setting, loss, settle)
        if kept:
            after = point._replace(epoch=point.epoch + 1)
            self._checkpoints.save(after.epoch, kept)
            self._current = after, kept
        return outcome

    def _attempt(
        self,
        what: str,
        point: EpochPoint,
        seconds: float,
        setting: Choice,
        loss: float = -math.inf,
        settle: bool = False,
    ) -> tuple[Outcome, Checkpoint | None]:
        """Returns the outcome, and the state to keep if it was run now."""
        kept = None

        def run() -> Json:
            nonlocal kept
            target: Json = {}
            if what == "train":
                target = {"target": self._target, "lower": loss, "settle": settle}
            state, outcome = bench.attempt(
                self._cluster, self._state(point), setting, seconds, **target
            )
            line = outcome._asdict()
            if not math.isfinite(outcome.loss):
                line["loss"] = None
            if outcome.loss < loss:
                line["checkpoint"], kept = point.epoch + 1, state
            return line

        line = {"what": what, **point._asdict(), **setting._asdict()}
        whole = self._journal(line, run)
        values = {name: whole[name] for name in Outcome._fields if name in whole}
        if values["loss"] is None:
            values["loss"] = math.nan
        return Outcome(**values), kept

    def _state(self, point: EpochPoint) -> Checkpoint:
        if self._current is None or self._current[0] != point:
            state = bench.start(self._cluster, point.seed)
            if point.epoch:  # resumed: it is the latest, or its line would have been dropped
                restored = self._checkpoints.restore(state)
                if not restored or restored[0] != point.epoch:
                    raise WorkdirError(
                        f"{self._journal.path}: lines of epochs that were saved are missing; put "
                        f"that file back, or move {self._journal.path.parent} away to start again"
                    )
                state = restored[1]
            self._current = point, state
        return self._current[1]


def _shown(line: Json) -> str:
    if line["what"] == "limits":
        return "limits  noise scale {noise_scale:.3g}, sharpness {sharpness:.3g}".format(**line)
    text = "{what}  g {groups}, momentum {momentum:.3g}, learning rate {learning_rate:.3g}"
    outcome = "  loss {loss}, {updates} updates in {seconds:.3g} s" if "loss" in line else ""
    return (text + outcome).format(**line)
