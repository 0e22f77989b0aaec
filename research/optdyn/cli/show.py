"""Prints a config as JSON: `optdyn config --config=NAME [--config.KEY=VALUE]`.

`--changed` prints only keys that differ from the defaults, by their dotted names. A grid is printed
as its base and its points. Nothing is checked, run or written.

`optdyn config DIR1 DIR2` prints the keys in which the configs of two workdirs differ.
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


def config_dict(config: Config | Grid, changed: bool) -> dict[str, Any]:
    """Returns a config as a nested dict, or with `changed` the changed keys by dotted name."""
    if isinstance(config, Grid):
        points = list(config.points)
        return {"base": config_dict(config.base, changed), "note": config.note, "points": points}
    return config.changed_keys() if changed else json.loads(to_json(config))


def difference_lines(one: Path, other: Path) -> Iterator[str]:
    """Yields a line a key in which the configs of two workdirs differ. Raises `InputError`."""
    first, second = (_read_config(workdir / "config.json") for workdir in (one, other))
    check_whole(first, second, one / "config.json")
    check_whole(second, first, other / "config.json")
    codes = [hashes_of(config.pop("code")) for config in (first, second)]
    for name in differences(first, second):
        yield f"{name}: {_json_at(first, *name.split('.'))} -> {_json_at(second, *name.split('.'))}"
    for name in differences(codes[0], codes[1]):
        yield f"code.{name}: {_json_at(codes[0], name)} -> {_json_at(codes[1], name)}"


def _read_config(path: Path) -> dict[str, Any]:
    if not (config := read_json(path)):
        raise InputError(f"{path}: cannot be read (there is none)")
    return config


def _json_at(value: Any, *parts: str) -> str:
    for part in parts:
        value = value.get(part) if isinstance(value, Mapping) else None
    return "none" if value is None else json.dumps(value)


def main(config: Config | Grid, workdir: Path) -> int:
    print(json.dumps(config_dict(config, flags.FLAGS.changed), indent=2, default=repr))
    return 0


if __name__ == "__main__":
    folders = sys.argv[1:]
    if len(folders) == 2 and not any(name.startswith("-") for name in folders):
        with app.one_line_errors():
            lines = list(difference_lines(*map(Path, folders)))
        print(*(lines or ["the configs are the same"]), sep="\n")
        sys.exit()
    flags.DEFINE_bool("changed", False, "Print only keys that differ from the defaults.")
    app.run(main, workdir=app.NO_WORKDIR)
