"""A config as it is resolved: `optdyn config --config=NAME [--config.KEY=VALUE]`, as JSON.

`--changed` prints only the keys that differ from the defaults, by their dotted names. Of a grid the
base is printed, and the points. Nothing is checked, run or written.

`optdyn config DIR1 DIR2` prints in which keys the configs of two workdirs differ.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from absl import flags

from optdyn.base.errors import InputError
from optdyn.base.files import read_json
from optdyn.base.lookup import hashes_of
from optdyn.cli import app
from optdyn.experiment import Config, check_whole, differences, to_json
from optdyn.train.grid import Grid


def shown(config: Config | Grid, changed: bool) -> dict[str, Any]:
    """What is printed of a config; `changed`: {dotted name: value} of what is not the default."""
    if isinstance(config, Grid):
        points = list(config.points)
        return {"base": shown(config.base, changed), "note": config.note, "points": points}
    return config.changed_keys() if changed else json.loads(to_json(config))


def between(one: Path, other: Path) -> Iterator[str]:
    """A line for every key in which the configs of two workdirs differ. Raises `InputError`."""
    first, second = (_held(workdir / "config.json") for workdir in (one, other))
    check_whole(first, second, one / "config.json")
    check_whole(second, first, other / "config.json")
    ours, theirs = (hashes_of(config.pop("code")) for config in (first, second))
    for name in differences(first, second):
        yield f"{name}: {_text(first, *name.split('.'))} -> {_text(second, *name.split('.'))}"
    for name in differences(ours, theirs):
        yield f"code.{name}: {_text(ours, name)} -> {_text(theirs, name)}"


def _held(path: Path) -> dict[str, Any]:
    if not (held := read_json(path)):
        raise InputError(f"{path}: cannot be read (there is none)")
    return held


def _text(value: Any, *parts: str) -> str:
    """What a nested dict holds, as JSON; `none` where it holds nothing."""
    for part in parts:
        value = value.get(part) if isinstance(value, Mapping) else None
    return "none" if value is None else json.dumps(value)


def main(config: Config | Grid, workdir: Path) -> int:
    print(json.dumps(shown(config, flags.FLAGS.changed), indent=2, default=repr))
    return 0


if __name__ == "__main__":
    folders = sys.argv[1:]
    if len(folders) == 2 and not any(name.startswith("-") for name in folders):
        with app.failing():
            lines = list(between(*map(Path, folders)))
        print(*(lines or ["the configs are the same"]), sep="\n")
        sys.exit()
    flags.DEFINE_bool("changed", False, "Print only what is not the default.")
    app.run(main, workdir=app.NONE)
