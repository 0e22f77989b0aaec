"""The papers' claims, with verdicts: `python -m launch.papers --workdir=DIR [--only=CLAIM,...]`.

Every claim is a file of `configs/papers/`: a sentence, what is measured against which tuned
opponent, and the rule of the verdict, which is committed before the run that counts. Settings are
chosen on some seeds and judged on others; `--seed=N` takes other seeds for both. `--scale=full`
measures more and longer. Writes `scoreboard.json`, and as pages with a picture a claim
`scoreboard.html` and `scoreboard.md`. Claims that are `LONG` are judged only where they are named.
Interrupted or killed, the same command goes on: trials that ended are remembered.
"""

import importlib
import pkgutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
from absl import app as absl_app
from absl import flags, logging
from matplotlib.figure import Figure

from optdyn.analysis import figures, scoreboard
from optdyn.analysis.tables import replace
from optdyn.basics import processes
from optdyn.basics.errors import meant
from optdyn.basics.files import DiskFull, WorkdirError, permitted, read_json, write_json, writing
from optdyn.basics.hold import held, writable
from optdyn.configs import papers as claims
from optdyn.evidence.claim import WORDS, Verdict
from optdyn.evidence.study import Study
from optdyn.launch import app, interruptible

SCALES = {"small": (2, 5), "full": (3, 10)}  # seeds that choose and that report
BETWEEN = 1000  # seeds of one --seed and the next


def names() -> list[str]:
    """The names of all claims, in the order of the scoreboard."""
    found = [module.name for module in pkgutil.iter_modules(claims.__path__)]
    return sorted(found, key=lambda name: load(name).CLAIM.number)


def usual() -> list[str]:
    """Names of those that do not take hours."""
    return [name for name in names() if not getattr(load(name), "LONG", False)]


def load(name: str) -> ModuleType:
    return importlib.import_module(f"{claims.__name__}.{name}")


def study_of(workdir: Path, scale: str, seed: int, name: str) -> Study:
    """The study of a claim; seeds of different `seed` have nothing in common."""
    choose, report = getattr(load(name), "SEEDS", SCALES)[scale]
    first = BETWEEN * seed
    return Study(
        workdir,
        scale,
        range(first + 500, first + 500 + choose),
        range(first, first + report),
    )


def judge(name: str, study: Study) -> dict[str, Any]:
    """Measures a claim and judges it: its row of the scoreboard."""
    module, begun = load(name), time.monotonic()
    result = module.measure(study)
    verdict: Verdict = module.verdict(result)
    if verdict.word not in WORDS:
        raise ValueError(f"{name}: the verdict {verdict.word!r} is none of {WORDS}")
    with matplotlib.rc_context(figures.STYLE):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        module.picture(result, figure)
        replace(study.workdir / f"{name}.svg", figures.svg(figure))
    return {
        "claim": name,
        **module.CLAIM._asdict(),
        "verdict": verdict.word,
        "by": verdict.by,
        "scale": study.scale,
        "seeds": {"choose": study.choose, "report": study.report},
        "minutes": (time.monotonic() - begun) / 60,
        "commit": committed(Path(str(module.__file__))),
        "result": result,
    }


def committed(file: Path) -> str:
    """The commit that a claim's file was last changed in, with '+' if it has changed since."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", file.name)
        return git("log", "-1", "--format=%h", "--", file.name) + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def run(workdir: Path, chosen: Sequence[str], scale: str, seed: int) -> dict[str, Any]:
    """The scoreboard with the chosen claims judged; those that are in it already stay."""
    board = opened(workdir, scale, seed)
    for name in chosen:
        if name not in board["claims"]:
            print(f"{name}: {load(name).CLAIM.sentence}", file=sys.stderr, flush=True)
            with study_of(workdir, scale, seed, name) as study:
                board["claims"][name] = judge(name, study)
            row = board["claims"][name]
            print(f"  {row['verdict']}: {row['by']}", file=sys.stderr, flush=True)
        write_json(workdir / "scoreboard.json", board)
    ordered = [board["claims"][name] for name in names() if name in board["claims"]]
    replace(workdir / "scoreboard.html", scoreboard.html(workdir, ordered))
    replace(workdir / "scoreboard.md", scoreboard.markdown(ordered))
    return board


def opened(workdir: Path, scale: str, seed: int) -> dict[str, Any]:
    """The scoreboard of a workdir; `WorkdirError` if it is of another scale or seed."""
    workdir.mkdir(parents=True, exist_ok=True)
    board = read_json(workdir / "scoreboard.json")
    if not board:
        return {"scale": scale, "seed": seed, "claims": {}}
    if (board["scale"], board["seed"]) != (scale, seed):
        raise WorkdirError(
            f"workdir {workdir} has --scale={board['scale']} --seed={board['seed']}; "
            "take another workdir for others"
        )
    return board


def main(_: Sequence[str]) -> int:
    interruptible()
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    given = flags.FLAGS
    every = names()
    chosen = given.only or usual()
    for name in chosen:
        if name not in every:
            hint = meant(name, every) or f"; there are {', '.join(every)}"
            app.fail(f"--only={name}: no such claim{hint}")
    try:
        processes.devices()
        writable(Path(given.workdir))
        with held(Path(given.workdir)), writing(), permitted():
            board = run(Path(given.workdir), chosen, given.scale, given.seed)
    except app.InputError as error:
        app.fail(str(error))
    except DiskFull as error:
        app.fail(str(error), code=1)
    except KeyboardInterrupt:
        print("stopped: the same command goes on", file=sys.stderr)
        return 130
    ordered = [board["claims"][name] for name in every if name in board["claims"]]
    print(scoreboard.table(ordered))
    return 0


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Folder to write to and to resume from.")
    flags.DEFINE_list("only", None, "Claims to judge; by default all that do not take hours.")
    flags.DEFINE_enum("scale", "small", list(SCALES), "How much is measured.")
    flags.DEFINE_integer("seed", 0, "Which seeds: those of two numbers have none in common.")
    flags.mark_flag_as_required("workdir")
    absl_app.run(main, flags_parser=app.parse)
