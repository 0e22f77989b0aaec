"""The lock file of claims, `claims.lock`: the rule and the files of each claim, to be committed.

It is written before a claim is first measured and never changed. Another rule or file later is a
*deviation*, and so is a claim that is gone.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from optdyn.base import lookup
from optdyn.base.files import WorkdirError, read_json, write_json
from optdyn.base.trees import Json

LOCK = "claims.lock"
JUDGING = "optdyn.evidence"  # the modules of this package that a verdict depends on


def blobs(module: ModuleType, ours: bool = True) -> dict[str, str]:
    """Returns git's hashes of the files that a claim depends on, by module.

    They are its file, the user's files that it imports and, with `ours`, those of this package that
    judge.
    """
    return {other.__name__: blob(path) for other, path in _sources(module, ours)}


def blob(file: Path) -> str:
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def lock(folder: Path, claims: Mapping[str, ModuleType]) -> dict[str, list[str]]:
    """Returns the deviations of claims from the folder's lock file, by claim; {} without any.

    Writes new claims into the file. Raises `WorkdirError` where it cannot be read.
    """
    locked = read_json(folder / LOCK)
    now = {name: _entry(module) for name, module in claims.items()}
    try:
        found = deviations(locked, now)
    except (KeyError, TypeError, AttributeError) as error:
        raise WorkdirError(f"{folder / LOCK}: must be a lock file of claims") from error
    since = datetime.now(UTC).isoformat(timespec="seconds")
    if new := {name: {"since": since, **now[name]} for name in now if name not in locked}:
        write_json(folder / LOCK, {**locked, **new})
    return found


def deviations(locked: Json, now: Json) -> dict[str, list[str]]:
    """Returns lines on the differences from the locked claims, by claim."""
    found = dict[str, list[str]]()
    for name, before in locked.items():
        since = f"since it was locked at {before['since']}"
        if name not in now:
            found[name] = [f"the claim is gone {since}"]
            continue
        lines, (old, new) = list[str](), (before["files"], now[name]["files"])
        if before["rule"] != now[name]["rule"]:
            lines.append(f"the rule has changed {since}; it was {before['rule']!r}")
        for file in sorted(old.keys() | new.keys()):
            if old.get(file) != new.get(file):
                change = "has changed" if file in old else "is new"
                change = change if file in new else "is gone"
                lines.append(f"the module {file} {change} {since}")
        if lines:
            found[name] = lines
    return found


def _entry(module: ModuleType) -> Json:
    return {"rule": module.CLAIM.rule, "files": blobs(module, ours=False)}


def _sources(module: ModuleType, ours: bool) -> Iterator[tuple[ModuleType, Path]]:
    left, seen = [module], set[str]()
    while left:
        one = left.pop()
        path, name = lookup.file_of(one), one.__name__
        is_ours = name.partition(".")[0] == "optdyn"
        counts = ours and name.startswith(JUDGING) if is_ours else lookup.is_user_file(str(path))
        if path and name not in seen and (counts or one is module):
            seen.add(name)
            yield one, path
            package = (one.__spec__.parent if one.__spec__ else "") or ""
            names = _imports_of(path.read_bytes(), package)
            left += [sys.modules[other] for other in names if other in sys.modules]


def _imports_of(content: bytes, package: str) -> set[str]:
    found = set[str]()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # it was edited since it was imported
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            start = ".".join(filter(None, (above, node.module)))
            found |= {f"{start}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in found]
    return {".".join(names[:end]) for names in parts for end in range(1, len(names) + 1)}
