"""Which name was meant where another was given: mistyped, cut off, abbreviated, in another case.

It needs the standard library only: typing errors are answered before anything else is imported.
"""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

LEAST = 0.65  # likeness from which on a name may have been meant
NEAR = 0.03  # names that are less like it than the best by more than this are not told
CUT, SHORT = 0.94, 0.9  # likeness of a name that was cut off, and of its initials


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
    return re.split(r"[./]", name.lower().lstrip("-"))[-1]


def _likeness(one: str, other: str) -> float:
    """From 0 to 1, the same."""
    if one == other:
        return 1.0
    words = re.findall(r"[^\W_]+", other)
    if len(words) > 1 and one == "".join(word[0] for word in words):
        return SHORT
    ratio = SequenceMatcher(None, one, other).ratio()
    return max(ratio, CUT) if len(one) > 2 and other.startswith(one) else ratio
