"""Grids of runs: a base config and the points at which it is changed.

A grid's config file returns `grid(base, points)`; a point is a flat dict of dotted keys, and of
`name`, the folder of its run, if it wants one of its own. On the command line
`--config.base.KEY=VALUE` changes what all points share. Points are listed one by one, or made of
axes:

    product(
        {"optimizer.momentum": [0.0, 0.9], "optimizer.learning_rate": log_range(1e-3, 1, 7)},
        {"seed": seeds(3)},
    )

is 2 x 7 x 3 points, of which the last axis changes first. Points are made when they are asked for;
a grid has `MOST` at most.
"""

import contextlib
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from optdyn.base.errors import InputError, one_line, refuse, refused_at, shown
from optdyn.experiment import ConfigError, Experiment, parse
from optdyn.train.checks import check

MOST = 100_000  # points of a grid

Point = Mapping[str, Any]
Axes = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Points:
    """So many points, made anew each time that they are gone through."""

    count: int
    make: Callable[[], Iterable[Point]]

    def __iter__(self) -> Iterator[Point]:
        return iter(self.make())


def grid(base: ConfigDict, points: Iterable[Point], note: str = "") -> ConfigDict:
    """The config of a grid; `note` says on top of its report what it asks.

    Raises `ConfigError` if there are no points, or more than `MOST`.
    """
    if not isinstance(points, Points):
        listed = list(itertools.islice(points, MOST + 1))
        points = Points(len(listed), lambda: listed)
    if points.count > MOST:
        raise ConfigError(f"grid: {points.count:,} points or more; {MOST:,} is the most")
    config = ConfigDict({"base": base})
    config.points = points
    config.note = note
    return config


def product(*parts: Axes | Points) -> Points:
    """Every combination of the values of axes, and of points of other sets."""
    factors = [factor for part in parts for factor in _factors(part)]

    def make() -> Iterator[Point]:
        for combination in itertools.product(*factors):
            point = {key: value for part in combination for key, value in part.items()}
            if len(point) < sum(map(len, combination)):
                twice = [key for key in point if sum(key in part for part in combination) > 1]
                raise ConfigError(f"grid: {twice[0]} is on two axes of a product")
            yield point

    return Points(math.prod(factor.count for factor in factors), make)


def log_range(first: float, last: float, count: int) -> list[float]:
    """`count` numbers from first to last in equal ratios, to six digits."""
    numbers = all(isinstance(end, (int, float)) for end in (first, last)) and isinstance(count, int)
    if not (numbers and 0 < first < math.inf and 0 < last < math.inf and 2 <= count <= MOST):
        raise ConfigError(
            f"grid: log_range({shown(first)}, {shown(last)}, {shown(count)}): must go from one "
            f"number above 0 to another, in 2 to {MOST:,} numbers"
        )
    return [float(f"{value:.6g}") for value in np.geomspace(first, last, count)]


def seeds(count: int, first: int = 0) -> range:
    """`count` seeds from the first."""
    return range(first, first + count)


def named(config: ConfigDict) -> Iterator[tuple[str, Point]]:
    """Every point by its name; `ConfigError` if the grid has none, or one twice."""
    base, points = config.get("base"), config.get("points")
    refuse(
        (
            "base" not in config or "points" not in config,
            "config: a grid needs the keys base and points (optdyn.train.grid.grid)",
        ),
        (
            not isinstance(base, ConfigDict),
            "config.base: must hold the keys of a run, as optdyn.experiment.default()",
        ),
        (
            not isinstance(points, Iterable),
            f"grid: config.points = {shown(points)}: must be a list of dicts",
        ),
    )
    names: set[str] = set()
    values: dict[str, str] = {}
    for point in config.points:
        if not (isinstance(point, Mapping) and all(isinstance(key, str) for key in point)):
            raise ConfigError(f"grid: {shown(point)} is no point: must be a dict of dotted keys")
        with refused_at(f"grid: {list(point)} of a point", ValueError):
            name = point_name(point)
            text = json.dumps({**point, "name": ""}, sort_keys=True, default=repr)
        refuse(
            (
                not name.strip("."),
                f"grid: a point is called {name!r}, which cannot be a folder's name",
            ),
            (name in names, f"grid: point {name} occurs twice"),
            (text in values, f"grid: points {values.get(text)} and {name} are the same"),
        )
        names.add(name)
        values[text] = name
        yield name, point
    if not names:
        raise ConfigError("grid: config.points is empty")


def resolve(config: ConfigDict, name: str, point: Point) -> Experiment:
    """The checked experiment of the point; `ConfigError` says which point is bad and why."""
    with of_point(name):
        values = {k: v for k, v in point.items() if k != "name"}
        resolved = parse(changed(config.base, values))
        check(resolved)
    return resolved


def changed(base: ConfigDict, values: Mapping[str, object]) -> ConfigDict:
    """A copy with these values of dotted keys, which is not checked further.

    Raises `ConfigError` where there is no such key, or it is of another type.
    """
    config = base.copy_and_resolve_references()
    try:
        config.update_from_flattened_dict(dict(values))
    except KeyError as error:
        what, _, hint = str(error.args[0]).partition(" Other fields present")
        meant = hint.rpartition("\n")[2] if "Did you mean" in hint else ""
        raise ConfigError(f"{what} {meant}".strip()) from error
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(one_line(error)) from error
    return config


@contextlib.contextmanager
def of_point(name: str) -> Iterator[None]:
    """Inside, an error about what was given becomes a `ConfigError` that names the point."""
    try:
        yield
    except InputError as error:
        raise ConfigError(f"grid: point {name}: {error}") from error


def point_name(point: Point) -> str:
    """A folder name that says what is special about the point, whatever else is in the grid."""
    swept = ",".join(f"{key}={value}" for key, value in point.items()) or "base"
    text = str(point.get("name", swept))
    safe = re.sub(r"[^\w.,=+-]+", "_", text)
    checksum = zlib.crc32(text.encode(errors="backslashreplace"))
    return safe if len(safe) <= 120 else f"{safe[:110]}~{checksum:08x}"


def _factors(part: Axes | Points) -> list[Points]:
    """A set of points for every axis."""
    if isinstance(part, Points):
        return [part]
    return [
        Points(len(_values(key, values)), partial(_along, key, values))
        for key, values in part.items()
    ]


def _along(key: str, values: Sequence[object]) -> Iterator[Point]:
    return ({key: value} for value in values)


def _values(key: str, values: object) -> Sequence[object]:
    """The values of an axis; `ConfigError` if they are none."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(f"grid: axis {key} = {shown(values)}: must be a list of values")
    if not values:
        raise ConfigError(f"grid: axis {key} is empty")
    return values
