"""When, where, by what command and of which code a run was started, and what it went on from.

`history.json` has an entry a start; `summary.json` repeats them.
"""

import os
import shlex
import socket
import subprocess
import sys
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from optdyn.base.files import WorkdirError, read_json, write, write_json
from optdyn.base.trees import Json

ROOT = Path(__file__).parents[3]  # of the checkout, if this is one
SMALL = 2**16  # most characters of a difference that is kept


def record_start(
    folder: Path, at: int, steps: int, known: Sequence[Json] = (), **more: object
) -> None:
    """Appends the start of this process at update `at`, with `more` fields, to the history.

    The history begins with the `known` starts, whatever the file has.
    """
    entry = {
        "at": at,
        "steps": steps,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "command": shlex.join(sys.orig_argv),
        **{key: value for key, value in code().items() if key != "diff"},
        **more,
    }
    if diff := code().get("diff"):
        path = folder / "code.diff"
        if path.exists() and path.read_bytes() != diff.encode():
            path = folder / f"code.{zlib.crc32(diff.encode()):08x}.diff"
        write(path, diff)
        entry["diff"] = path.name
    later = starts(folder)[len(known) :]
    write_json(folder / "history.json", {"starts": [*known, *later, entry]})


def starts(folder: Path) -> list[Json]:
    """Returns the entries, [] if the run has not started. Raises `WorkdirError`."""
    path = folder / "history.json"
    found = read_json(path).get("starts", [])
    if not (isinstance(found, list) and all(map(_is_start, found))):
        raise WorkdirError(f"{path}: starts: must be as a run writes them; move that file away")
    return found


def _is_start(entry: object) -> bool:
    numbers = ("at", "steps", "of")
    return isinstance(entry, dict) and all(isinstance(entry.get(n, 0), int) for n in numbers)


def summary_fields(folder: Path) -> Json:
    """Returns the summary's `starts`, and if any `init_from` and `continued`, the changed ones."""
    entries = starts(folder)
    origin = [{"init_from": entry["init_from"]} for entry in entries if "init_from" in entry]
    names = ("at", "of", "steps", "schedule")
    changed = {
        (entry.get("at"), entry.get("steps")): {key: entry[key] for key in names if key in entry}
        for entry in entries
        if "of" in entry
    }
    return {
        **(origin[0] if origin else {}),
        **({"continued": list(changed.values())} if changed else {}),
        "starts": entries,
    }


@cache
def code() -> Json:
    """Returns `commit`, whether tracked files are `dirty`, and a small `diff`; {} outside git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment, errors="replace"
        )
        return done.stdout

    try:
        if Path(git("rev-parse", "--show-toplevel").strip()) != ROOT.resolve():
            return {}
        diff = git("diff", "HEAD")
        found = {"commit": git("rev-parse", "HEAD").strip(), "dirty": bool(diff)}
        return {**found, "diff": diff} if diff and len(diff) <= SMALL else found
    except (OSError, subprocess.CalledProcessError):
        return {}
