"""The code blocks of the pages: what a reader types, saves or runs, in the order of the page.

A block without a language is typed in a shell; one of Python is run, or saved where its fence names
a file. Of a block that takes too long here, or needs what is not here, a mark above it, which no
page shows, says which commands are not run, by words that are in them, and why:

    <!-- not run: sweep, momentum: 12 minutes -->
    <!-- not run: all: needs Ray -->
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = ("research", "launch", "analysis", "configs", "docs", "tests")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
)
MARK = re.compile(r"<!-- not run: .*? -->\n")
FENCED = re.compile(
    r"^(?:<!-- not run: (?P<which>[^:\n]+): (?P<why>[^\n]+) -->\n)?"
    r"```(?P<language>\w*) ?(?P<file>[^\n]*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)


class PageCommand(NamedTuple):
    """A line of a shell: what it sets in the environment, a module of ours, and its arguments."""

    line: str
    environ: dict[str, str]
    module: str  # 'optdyn' is the command of that name
    arguments: list[str]


class CodeBlock(NamedTuple):
    """What is between two fences."""

    which: list[str]  # words of commands that are not run; 'all' of all
    language: str
    file: str  # where it is saved; '' if it is run
    text: str

    def runs(self, line: str) -> bool:
        """Whether a line of it can be run."""
        return not any(word == "all" or word in line for word in self.which)

    @property
    def commands(self) -> list[PageCommand]:
        """The lines that call optdyn or a module of ours, if a shell is to have it."""
        if self.language:
            return []
        lines = re.split(r"\n| && ", self.text.replace("\\\n", " "))
        return [command(line) for line in lines if re.search(r"(^|[ /])(optdyn|python -m) ", line)]


def command(line: str) -> PageCommand:
    """Raises StopIteration if the line calls none."""
    words = shlex.split(line, comments=True)
    place = next(i for i, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
    environ = dict(word.split("=", 1) for word in words[:place])
    if words[place] == "optdyn":
        return PageCommand(line, environ, "optdyn", words[place + 1 :])
    return PageCommand(line, environ, words[place + 2], words[place + 3 :])


def blocks(page: Path) -> Iterator[CodeBlock]:
    """The blocks of a page, in its order."""
    for found in FENCED.finditer(page.read_text()):
        which = [word.strip() for word in (found["which"] or "").split(",") if word.strip()]
        yield CodeBlock(which, found["language"], found["file"], found["text"])
