"""Grids of runs: a base config and the points at which it is changed.

A grid's config file returns `grid(base, points)`; a point is a flat dict of dotted keys, and of
`name`, the folder of its run, if it wants one of its own. On the command line
`--config.base.KEY=VALUE` changes what all points share.
"""

import itertools
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from research.checks import check
from research.config import ConfigError

Point = Mapping[str, Any]


def grid(base: ConfigDict, points: Iterable[Point]) -> ConfigDict:
    """The config of a grid."""
    config = ConfigDict({"base": base})
    config.points = [dict(point) for point in points]
    return config


def product(axes: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Every combination of the axes' values."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def runs(config: ConfigDict) -> dict[str, ConfigDict]:
    """The checked config of every point by its name; `ConfigError` names the first bad point."""
    if "base" not in config or "points" not in config:
        raise ConfigError("config: a grid needs the keys base and points (research.grid.grid)")
    named: dict[str, ConfigDict] = {}
    for point in config.points:
        name = point_name(point)
        if name in named:
            raise ConfigError(f"grid: point {name} occurs twice")
        resolved = config.base.copy_and_resolve_references()
        try:
            resolved.update_from_flattened_dict({k: v for k, v in point.items() if k != "name"})
            check(resolved)
        except (KeyError, AttributeError, TypeError, ConfigError) as error:
            raise ConfigError(f"grid: point {name}: {error}") from error
        named[name] = resolved
    if not named:
        raise ConfigError("grid: config.points is empty")
    return named


def point_name(point: Point) -> str:
    """A folder name that says what is special about the point, whatever else is in the grid."""
    swept = ",".join(f"{key}={value}" for key, value in point.items()) or "base"
    text = str(point.get("name", swept))
    safe = re.sub(r"[^\w.,=+-]+", "_", text)
    return safe if len(safe) <= 120 else f"{safe[:110]}~{zlib.crc32(text.encode()):08x}"
