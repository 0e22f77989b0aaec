"""The errors that a command answers in one line, and the words of that line.

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
Wrong = tuple[object, str]  # whether something is wrong, and the line that says so
LONGEST = 80  # characters of a value that a message shows
LEAST = 0.65  # likeness from which on a name may have been meant
NEAR = 0.03  # names that are less like it than the best by more than this are not told
CUT, SHORT = 0.94, 0.9  # likeness of a name that was cut off, and of its initials


class InputError(ValueError):
    """Something that was given cannot be used; the message is one line: what, where, what would do.

    A command prints it and exits with code 2.
    """

    @classmethod
    def refuse(cls, wrongs: Iterable[Wrong]) -> None:
        """Raises the line of the first that is wrong; those that follow are not looked at."""
        for wrong, line in wrongs:
            if wrong:
                raise cls(line)

    @classmethod
    @contextmanager
    def at(cls, where: str, *kinds: type[Exception], then: str = "") -> Iterator[None]:
        """Inside, an error of these kinds becomes one of this class, from `where` to `then`.

        One of this class stays what it is.
        """
        try:
            yield
        except cls:
            raise
        except kinds as error:
            raise cls(f"{where}: {first_line(error)}{then}") from error


class ConfigError(InputError):
    """A configuration that cannot run; the message is one line: what, where, what would do."""


class Join(NamedTuple):
    """Two values that may not go together: a key, whether it is wrong here, what is said of it."""

    key: str
    wrong: object
    said: str


def passes(is_valid: Callable[[Any], object], value: object) -> bool:
    """Whether the test holds of a value; a value that it cannot be asked of is not as wanted."""
    try:
        return bool(is_valid(value))
    except TypeError:
        return False


def refuse(*wrongs: Wrong) -> None:
    """Raises `ConfigError` with the line of the first that is wrong."""
    ConfigError.refuse(wrongs)


refused_at = ConfigError.at


def one_of(name: str, value: object, values: Sequence[str]) -> None:
    """Raises `ConfigError` unless the value is one of these."""
    if value not in values:
        raise ConfigError(f"{name} = {shown(value)}: must be {one_of_these(value, values)}")


def one_of_these(value: object, values: Sequence[str]) -> str:
    """The words for what a value must be, where it is none of these."""
    hint = meant(value, values) if isinstance(value, str) else ""
    return f"one of {', '.join(map(repr, values))}{hint}"


def and_(names: Sequence[str]) -> str:
    """`one, two and three`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def entry(table: Mapping[str, T], name: str) -> T:
    """What a config file's argument names, `--config=FILE:NAME`.

    Raises `ConfigError`, which lists the names, if it is none of the table's.
    """
    if name not in table:
        known = ", ".join(map(repr, filter(None, table))) + ", or left out" * ("" in table)
        raise ConfigError(
            f"config argument {shown(name)}: must be one of {known}{meant(name, table)}"
        )
    return table[name]


def shown(value: object) -> str:
    """The value in one line of at most `LONGEST` characters, whatever it is."""
    if is_dataclass(value) or callable(value):  # whose texts are long, or say where they lie
        return getattr(value, "__name__", f"{type(value).__name__}(...)")
    if hasattr(value, "keys"):
        return "a dict"
    try:
        if isinstance(value, (list, tuple)):
            inner = ", ".join(map(shown, value[:LONGEST]))
            text = f"({inner}{',' * (len(value) == 1)})"
        else:
            text = repr(value)
    except (ValueError, RecursionError):  # a number of more digits than Python writes out
        text = f"a value of type {type(value).__name__}"
    return one_line(text, LONGEST)


def one_line(said: object, most: int = sys.maxsize) -> str:
    """The text of an error, or any other, without line breaks and of at most so many characters."""
    text = " ".join(str(said).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, of an `OSError` what is wrong, or its name."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0]


def print_error(error: object) -> int:
    """Prints an error in one line on standard error; returns 2, the exit code of bad input."""
    put(f"error: {one_line(error)}\n")
    return 2


def fail(message: str, code: int = 2) -> NoReturn:
    """Ends the program with one line on standard error and that exit code; 2 is of bad input."""
    print_error(message)
    sys.exit(code)


def closest(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """The names that are most like it, by their last parts, the likest first.

    Parts end at a dot or a slash. `learning_rate` is like `optimizer.learning_rate`, `lr` too.
    """
    alike = {other: _likeness(_last(name), _last(other)) for other in names}
    least = max([LEAST, *(value - NEAR for value in alike.values())])
    found = [other for other, value in alike.items() if value >= least]
    whole = {other: round(SequenceMatcher(None, name, other).ratio(), 1) for other in found}
    return sorted(found, key=lambda other: (-alike[other], -whole[other]))[:most]


def meant(name: str, names: Iterable[str], most: int = 3) -> str:
    """`; did you mean this or that?`, the end of a line that refuses a name; '' if none is like it.

    The names are as they are to be shown.
    """
    found = closest(name, names, most)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _last(name: str) -> str:
    return re.split(r"[./]", str(name).lower().lstrip("-"))[-1]


def _likeness(one: str, other: str) -> float:
    """From 0 to 1, the same."""
    if one == other:
        return 1.0
    words = re.findall(r"[^\W_]+", other)
    if len(words) > 1 and one == "".join(word[0] for word in words):
        return SHORT
    ratio = SequenceMatcher(None, one, other).ratio()
    return max(ratio, CUT) if len(one) > 2 and other.startswith(one) else ratio
