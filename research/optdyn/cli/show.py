"""A config as it is resolved: `optdyn config --config=NAME [--config.KEY=VALUE]`, as JSON.

`--changed` prints only the keys that differ from the defaults, by their dotted names. Of a grid the
base is printed, and the points. Nothing is checked, run or written.

`optdyn config DIR1 DIR2` prints in which keys the configs of two workdirs differ.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from optdyn.base.errors import InputError
from optdyn.base.files import read_json
from optdyn.base.lookup import entries
from optdyn.cli import app
from optdyn.experiment import Experiment, check_whole, differences, to_json
from optdyn.train.grid import Grid


def shown(config: Experiment | Grid, changed: bool) -> dict[str, Any]:
    """What is printed of a config; `changed`: {dotted name: value} of what is not the default."""
    if isinstance(config, Grid):
        points = list(config.points)
        return {"base": shown(config.base, changed), "note": config.note, "points": points}
    return config.changed_keys() if changed else json.loads(to_json(config))


def between(one: Path, other: Path) -> Iterator[str]:
    """A line for every key in which the configs of two workdirs differ. Raises `InputError`."""
    held = [_config(workdir) for workdir in (one, other)]
    check_whole(held[0], held[1], one / "config.json")
    check_whole(held[1], held[0], other / "config.json")
    files = [entries(config.pop("code")) for config in held]
    names = differences(held[0], held[1])
    first, second = (dict(_values(config, names)) for config in held)
    for name in names:
        yield f"{name}: {_text(first.get(name))} -> {_text(second.get(name))}"
    for name in differences(files[0], files[1]):
        yield f"code.{name}: {_text(files[0].get(name))} -> {_text(files[1].get(name))}"


def main(config: Experiment | Grid, workdir: Path) -> int:
    print(json.dumps(shown(config, flags.FLAGS.changed), indent=2, default=repr))
    return 0


def _values(config: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        value: Any = config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        yield name, value


def _text(value: Any) -> str:
    return "none" if value is None else json.dumps(value)


def _config(workdir: Path) -> dict[str, Any]:
    path = workdir / "config.json"
    if not (held := read_json(path)):
        raise InputError(f"{path}: cannot be read (there is none)")
    return held


def _compared(folders: Sequence[str]) -> int:
    with app.failing():
        lines = list(between(*map(Path, folders)))
    print(*(lines or ["the configs are the same"]), sep="\n")
    return 0


if __name__ == "__main__":
    folders = sys.argv[1:]
    if len(folders) == 2 and not any(name.startswith("-") for name in folders):
        sys.exit(_compared(folders))
    flags.DEFINE_bool("changed", False, "Print only what is not the default.")
    app.run(main, workdir=app.NONE)
