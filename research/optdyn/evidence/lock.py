"""What a verdict depends on, and whether that is what was there before the run.

A folder of claims has a lock file, `claims.lock`: of every claim its rule, and the files that it is
made of. It is written before the claim is first measured, to be committed with the claim. What is
another rule or another file later is a *deviation*, and so is a claim that is gone. It is listed
beside the verdict, and the lock file stays as it is: a rule that is rewritten is a new claim.
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
JUDGING = "optdyn.evidence"  # ours that a verdict depends on: all that judges


def blobs(module: ModuleType, ours: bool = True) -> dict[str, str]:
    """The files that a claim is made of, by module, as git names their contents.

    They are its own, the user's that it imports and, with `ours`, those of this package that say
    what is measured and how it is judged. `git cat-file -p BLOB` shows one that was committed.
    """
    return {other.__name__: blob(path) for other, path in _maker_of(module, ours)}


def blob(file: Path) -> str:
    """What `git hash-object FILE` prints."""
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def lock(folder: Path, claims: Mapping[str, ModuleType]) -> dict[str, list[str]]:
    """The deviations of claims from the folder's lock file, by claim; {} if there are none.

    Claims that are new to it are written into it. Raises `WorkdirError` where it cannot be read.
    """
    held, now = read_json(folder / LOCK), {name: _entry(module) for name, module in claims.items()}
    try:
        found = deviations(held, now)
    except (KeyError, TypeError, AttributeError) as error:
        raise WorkdirError(f"{folder / LOCK}: is no lock file of claims") from error
    since = datetime.now(UTC).isoformat(timespec="seconds")
    if new := {name: {"since": since, **now[name]} for name in now if name not in held}:
        write_json(folder / LOCK, {**held, **new})
    return found


def deviations(held: Json, now: Json) -> dict[str, list[str]]:
    """What differs from what was locked, in words, by claim."""
    found = dict[str, list[str]]()
    for name, before in held.items():
        since = f"since it was locked at {before['since']}"
        if name not in now:
            found[name] = [f"the claim is gone {since}"]
            continue
        said, (old, new) = list[str](), (before["files"], now[name]["files"])
        if before["rule"] != now[name]["rule"]:
            said.append(f"the rule has changed {since}; it was {before['rule']!r}")
        for file in sorted(old.keys() | new.keys()):
            if old.get(file) != new.get(file):
                what = "has changed" if file in old and file in new else "is "
                what += "" if file in old and file in new else ("gone" if file in old else "new")
                said.append(f"the module {file} {what} {since}")
        if said:
            found[name] = said
    return found


def _entry(module: ModuleType) -> Json:
    return {"rule": module.CLAIM.rule, "files": blobs(module, ours=False)}


def _maker_of(module: ModuleType, ours: bool) -> Iterator[tuple[ModuleType, Path]]:
    """The modules that one is made of and their files, itself first."""
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
    """Names of what a module of a package imports, wherever, and of the packages of these."""
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
    return {".".join(of[:end]) for of in parts for end in range(1, len(of) + 1)}
