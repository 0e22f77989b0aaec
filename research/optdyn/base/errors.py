"""Errors that a command answers in one line with exit code 2, and the words of that line.

It needs the standard library only: typing errors are answered before anything else is imported.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from difflib import SequenceMatcher
from typing import Any, NamedTuple, NoReturn, TypeVar

from optdyn.base.streams import put

T = TypeVar("T")
Check = tuple[object, str]  # whether something is wrong, and the line that says so
MOST_CHARACTERS = 80  # of a value in a message
LEAST_SIMILAR = 0.65  # similarity from which on a name is suggested
NEAR_BEST = 0.03  # names that are less similar than the best by more than this are not suggested
PREFIX, INITIALS = 0.94, 0.9  # similarity of a name that was cut off, and of a name's initials


class InputError(ValueError):
    """Bad input. The message is one line: what is wrong, where, and what would do."""

    @classmethod
    def refuse(cls, checks: Iterable[Check]) -> None:
        """Raises the line of the first check that is wrong; those after it are not computed."""
        for wrong, line in checks:
            if wrong:
                raise cls(line)

    @classmethod
    @contextmanager
    def at(cls, where: str, *kinds: type[Exception], then: str = "") -> Iterator[None]:
        """Turns errors of other classes into `WHERE: MESSAGE THEN` of this one."""
        try:
            yield
        except cls:
            raise
        except kinds as error:
            raise cls(f"{where}: {first_line(error)}{then}") from error


class ConfigError(InputError):
    """A configuration that cannot run."""


class Join(NamedTuple):
    """A check of several keys together: the key that is refused, whether it is, and the message."""

    key: str
    wrong: object
    message: str


def passes(is_valid: Callable[[Any], object], value: object) -> bool:
    """Returns whether the test holds of the value; False for a type that it cannot test."""
    try:
        return bool(is_valid(value))
    except TypeError:
        return False


def refuse(*checks: Check) -> None:
    ConfigError.refuse(checks)


def one_of(name: str, value: object, values: Sequence[str]) -> None:
    if value not in values:
        raise ConfigError(f"{name} = {short_repr(value)}: must be {one_of_these(value, values)}")


def one_of_these(value: object, values: Sequence[str]) -> str:
    """Returns `one of 'a', 'b'` and, if the value is similar to one, `; did you mean a?`."""
    hint = did_you_mean(value, values) if isinstance(value, str) else ""
    return f"one of {', '.join(map(repr, values))}{hint}"


def and_list(names: Sequence[str]) -> str:
    """Returns `one, two and three`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def config_variant(table: Mapping[str, T], name: str) -> T:
    """Returns the entry that `--config=FILE:NAME` names. Raises `ConfigError`."""
    if name not in table:
        known = ", ".join(map(repr, filter(None, table))) + ", or left out" * ("" in table)
        raise ConfigError(
            f"config argument {short_repr(name)}: must be one of {known}{did_you_mean(name, table)}"
        )
    return table[name]


def short_repr(value: object) -> str:
    """Returns the value in one line, dataclasses and functions by their names."""
    if is_dataclass(value) or callable(value):
        return getattr(value, "__name__", f"{type(value).__name__}(...)")
    if hasattr(value, "keys"):
        return "a dict"
    try:
        if isinstance(value, (list, tuple)):
            inner = ", ".join(map(short_repr, value[:MOST_CHARACTERS]))
            text = f"({inner}{',' * (len(value) == 1)})"
        else:
            text = repr(value)
    except (ValueError, RecursionError):  # a number of more digits than Python writes out
        text = f"a value of type {type(value).__name__}"
    return one_line(text, MOST_CHARACTERS)


def one_line(text: object, most: int = sys.maxsize) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[: most - 3] + "..."


def first_line(error: BaseException) -> str:
    """Returns the first line of the message, of an `OSError` without the file; or the class."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0]


def print_error(error: object) -> int:
    """Prints an error in one line on standard error; returns 2, the exit code of bad input."""
    put(f"error: {one_line(error)}\n")
    return 2


def fail(message: str, code: int = 2) -> NoReturn:
    """Ends the program with one line on standard error and the exit code; 2 is of bad input."""
    print_error(message)
    sys.exit(code)


def closest(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Returns the names whose last parts are most similar to that of `name`, the best first.

    Parts end at a dot or a slash: `learning_rate` and `lr` match `optimizer.learning_rate`.
    """
    similar = {other: _similarity(_last_part(name), _last_part(other)) for other in names}
    least = max([LEAST_SIMILAR, *(value - NEAR_BEST for value in similar.values())])
    found = [other for other, value in similar.items() if value >= least]
    whole = {other: round(SequenceMatcher(None, name, other).ratio(), 1) for other in found}
    return sorted(found, key=lambda other: (-similar[other], -whole[other]))[:most]


def did_you_mean(name: str, names: Iterable[str], most: int = 3) -> str:
    """Returns `; did you mean this or that?` with similar names; '' if there is none."""
    found = closest(name, names, most)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _last_part(name: str) -> str:
    return re.split(r"[./]", str(name).lower().lstrip("-"))[-1]


def _similarity(one: str, other: str) -> float:
    if one == other:
        return 1.0
    words = re.findall(r"[^\W_]+", other)
    if len(words) > 1 and one == "".join(word[0] for word in words):
        return INITIALS
    ratio = SequenceMatcher(None, one, other).ratio()
    return max(ratio, PREFIX) if len(one) > 2 and other.startswith(one) else ratio
