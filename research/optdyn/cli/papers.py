"""Judges the papers' claims: `python -m launch.papers --workdir=DIR [--only=CLAIM,...]`.

A claim is a file of a folder, by default `analysis/studies` below the current one: a sentence, a
measurement against a tuned opponent, and the rule of the verdict, which is committed before the run
that counts. Settings are chosen with some seeds and judged with others; `--seed=N` changes both.
`--scale=full` measures more and longer. Writes `scoreboard.json`, and `scoreboard.html` and
`scoreboard.md` with a picture a claim. Claims that are `LONG` are judged only if they are named.
After an interrupt or a kill the same command goes on; trials that ended are remembered.

`--claims=FOLDER` judges your claims in a folder. Their rules and files are written into
`FOLDER/claims.lock` before the run, and later differences are listed (`evidence/lock.py`).
"""

import importlib
import json
import pkgutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
from absl import app as absl_app
from absl import flags, logging
from matplotlib.figure import Figure

from optdyn.base import lookup, processes
from optdyn.base.errors import ConfigError, InputError, did_you_mean
from optdyn.base.files import (
    WorkdirError,
    disk_full_errors,
    permission_errors,
    read_json,
    write_json,
)
from optdyn.base.progress import say
from optdyn.base.streams import tell
from optdyn.base.workdir_lock import check_writable, locked
from optdyn.cli import app, interruptible
from optdyn.evidence import lock
from optdyn.evidence.claim import WORDS, Claim, Verdict
from optdyn.evidence.study import Study
from optdyn.report import figures, scoreboard
from optdyn.report.tables import replace

STUDIES = Path("analysis/studies")  # the project's claims in a checkout, which have no lock
SCALES = {"small": (2, 5), "full": (3, 10)}  # numbers of seeds that choose and that report
SEED_STRIDE = 1000  # between the seeds of one --seed and the next


def claims(folder: Path) -> dict[str, ModuleType]:
    """Returns the modules of the claims by name, as on the scoreboard. Raises `InputError`."""
    files = [module.name for module in pkgutil.iter_modules([str(folder)])]
    modules = {name: load(name, folder) for name in files if not name.startswith("_")}
    found = {name: module for name, module in modules.items() if module.CLAIM is not None}
    return dict(sorted(found.items(), key=lambda claim: int(claim[1].CLAIM.number)))


def quick(modules: Mapping[str, ModuleType]) -> list[str]:
    return [name for name, module in modules.items() if not getattr(module, "LONG", False)]


def load(name: str, folder: Path) -> ModuleType:
    file = folder.resolve() / f"{name}.py"
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # for processes that measure, too
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise InputError(f"{file}: cannot be imported ({lookup.describe_error(error)})") from error
    InputError.refuse(_claim_checks(module, file))
    return module


def _claim_checks(module: ModuleType, file: Path) -> Iterator[tuple[object, str]]:
    hidden = lookup.file_of(module) != file
    yield hidden, f"{file}: another module is called {file.stem!r}; it needs another name"
    claim = getattr(module, "CLAIM", "")
    if claim is None:
        return
    for part in ("measure", "verdict", "picture"):
        missing = not callable(getattr(module, part, None))
        yield missing, f"{file}: has no function {part!r} (optdyn.evidence.claim)"
    is_claim = isinstance(claim, Claim) and isinstance(claim.number, int)
    line = f"{file}: has no CLAIM that is an optdyn.evidence.claim.Claim of a number"
    yield not is_claim, line


def is_locked(folder: Path) -> bool:
    """Returns whether a folder's claims have a lock file, as all but the project's have."""
    return folder.resolve() != STUDIES.resolve()


def study_of(module: ModuleType, workdir: Path, scale: str, seed: int) -> Study:
    """Returns the study of a claim; studies of different `seed` have no common seeds."""
    scales = getattr(module, "SEEDS", SCALES)
    if scale not in scales:
        raise InputError(f"{module.__name__}: has no --scale={scale}, but {', '.join(scales)}")
    choose, report = scales[scale]
    first = SEED_STRIDE * seed
    choosing = range(first + 500, first + 500 + choose)
    return Study(workdir, scale, choosing, range(first, first + report))


def judge(module: ModuleType, study: Study, files: Mapping[str, str]) -> dict[str, Any]:
    """Measures and judges a claim; returns its row of the scoreboard, with its `files`."""
    name, begun = module.__name__, time.monotonic()
    result = module.measure(study)
    with ConfigError.at(f"{module.__file__}: measure() must return JSON values", TypeError):
        json.dumps(result)
    verdict = Verdict(*module.verdict(result))
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
        **({"files": files} if files else {}),
        "result": result,
    }


def committed(file: Path) -> str:
    """Returns the last commit of a claim's file, with '+' if it has changed since; else ''."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", file.name)
        return git("log", "-1", "--format=%h", "--", file.name) + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def run(
    workdir: Path, chosen: Sequence[str], scale: str, seed: int, folder: Path
) -> dict[str, Any]:
    """Judges the chosen claims that the scoreboard lacks; returns and writes the scoreboard."""
    board, modules = read_board(workdir, scale, seed), claims(folder)
    if is_locked(folder):
        board["deviations"] = lock.lock(folder, modules)
        for name, deviations in board["deviations"].items():
            say(f"{name}: {'; '.join(deviations)}")
    for name in chosen:
        module, row = modules[name], board["claims"].get(name)
        if row is None:
            say(f"{name}: {module.CLAIM.sentence}")
            files = lock.blobs(module) if is_locked(folder) else {}
            with study_of(module, workdir, scale, seed) as study:
                row = board["claims"][name] = judge(module, study, files)
            say(f"  {row['verdict']}: {row['by']}")
        elif row.get("files") not in (None, lock.blobs(module)):
            say(f"{name}: was judged by other files than there are; another --workdir judges anew")
        write_json(workdir / "scoreboard.json", board)
    ordered, other = rows(board), board.get("deviations", {})
    replace(workdir / "scoreboard.html", scoreboard.html(workdir, ordered, other))
    replace(workdir / "scoreboard.md", scoreboard.markdown(ordered, other))
    return board


def rows(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    return sorted(board["claims"].values(), key=lambda row: int(row["number"]))


def read_board(workdir: Path, scale: str, seed: int) -> dict[str, Any]:
    """Returns a workdir's scoreboard. Raises `WorkdirError` if it has another scale or seed."""
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


def _choice_checks(
    folder: Path, known: Sequence[str], chosen: Sequence[str]
) -> Iterator[tuple[object, str]]:
    names = ", ".join(known)
    line = f"--claims={folder}: has no claims; a claim is a file there (evidence/claim.py)"
    yield not known, line
    yield not chosen, f"--only is empty, and all claims take hours: {names}; name some"
    for name in chosen:
        hint = did_you_mean(name, known) or f"; there are {names}"
        yield name not in known, f"--only={name}: no such claim{hint}"


def main(_: Sequence[str]) -> int:
    interruptible()
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    values = flags.FLAGS
    workdir, folder = Path(values.workdir), Path(values.claims or STUDIES)
    try:
        with app.one_line_errors():
            if not folder.is_dir():
                line = f"--claims={folder}: no such folder"
                if not values.claims:
                    line += ", which is the default and lies in the project's checkout; "
                    line += "name claims of yours"
                raise InputError(line)
            modules = claims(folder)
            chosen = values.only or quick(modules)
            InputError.refuse(_choice_checks(folder, [*modules], chosen))
            processes.devices()
            check_writable(workdir)
            with locked(workdir), disk_full_errors(), permission_errors():
                board = run(workdir, chosen, values.scale, values.seed, folder)
    except KeyboardInterrupt:
        say("stopped: the same command goes on")
        return 130
    tell(scoreboard.table(rows(board), board.get("deviations", {})))
    return 0


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Folder to write to and to resume from.")
    flags.DEFINE_list("only", None, "Claims to judge; by default all that do not take hours.")
    flags.DEFINE_enum("scale", "small", list(SCALES), "How much is measured.")
    flags.DEFINE_integer("seed", 0, "Set of seeds; two sets have none in common.")
    flags.DEFINE_string("claims", "", "Folder of claims; by default analysis/studies below here.")
    flags.mark_flag_as_required("workdir")
    absl_app.run(main, flags_parser=app.parse_flags)
