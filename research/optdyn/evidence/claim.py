"""A claim of a paper: one sentence, what is measured against whom, and the verdict's rule.

Each is a file of `analysis/studies/`, or of a folder that `optdyn papers --claims` names, with

    CLAIM              what is claimed, and how it is judged; None of a file that is no claim
    measure(study)     the runs, all through the study; returns JSON values
    verdict(result)    the rule as code, a pure function, committed before the run that counts
    picture(result, figure)  on a matplotlib figure
    SEEDS              {scale: how many seeds choose and report}, if not those of all claims
    LONG               True if it takes hours, so that it is judged only where it is named
"""

from collections.abc import Sequence
from typing import NamedTuple

WORDS = ("confirmed", "refuted", "open")


class Claim(NamedTuple):
    number: int  # its place on the scoreboard
    sentence: str  # as the paper has it
    source: str
    measured: str  # what, of which model, on how much data, simulated or real
    opponent: str  # and how it was tuned
    rule: str  # of the verdict, in words


class Verdict(NamedTuple):
    word: str  # of WORDS
    by: str  # by how much, in one sentence


def below(found: Sequence[float], bound: float) -> str:
    """The word of a claim that an estimate, (value, low, high), is below a bound."""
    _, low, high = found
    return "confirmed" if high < bound else "refuted" if low > bound else "open"


def above(found: Sequence[float], bound: float) -> str:
    """The word of a claim that an estimate, (value, low, high), is above a bound."""
    value, low, high = found
    return below((-value, -high, -low), -bound)
