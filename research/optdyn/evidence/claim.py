"""A claim of a paper: a sentence, a measurement against an opponent, and the rule of the verdict.

Each is a file of `analysis/studies/`, or of a folder that `optdyn papers --claims` names, with

    CLAIM              a `Claim`; None of a file that is no claim
    measure(study)     runs all trials through the study; returns JSON values
    verdict(result)    the rule as code, a pure function, committed before the run that counts
    picture(result, figure)  draws on a matplotlib figure
    SEEDS              {scale: how many seeds choose and report}, if not the default
    LONG               True if it takes hours: it is judged only by name
"""

from collections.abc import Sequence
from typing import NamedTuple

WORDS = ("confirmed", "refuted", "open")


class Claim(NamedTuple):
    number: int  # on the scoreboard
    sentence: str  # as the paper has it
    source: str
    measured: str  # quantity, model, size of the data, simulated or real
    opponent: str  # with how it was tuned
    rule: str  # of the verdict, in words


class Verdict(NamedTuple):
    word: str  # of WORDS
    by: str  # by how much, in one sentence


def below(found: Sequence[float], bound: float) -> str:
    """Returns the word of the claim that an estimate, (value, low, high), is below a bound."""
    _, low, high = found
    return "confirmed" if high < bound else "refuted" if low > bound else "open"


def above(found: Sequence[float], bound: float) -> str:
    """Returns the word of the claim that an estimate, (value, low, high), is above a bound."""
    value, low, high = found
    return below((-value, -high, -low), -bound)
