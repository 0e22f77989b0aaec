"""The page of the studies, made of `claims.toml`: `python -m analysis.studies._page`."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

FOLDER = Path(__file__).parent
PAGE = FOLDER / "README.md"
RUN = """<!-- not run: all: a quarter of an hour -->
```
optdyn papers --workdir=workdirs/papers --only=waiting
```"""
HOW = """*n* seeds report it; brackets are 95 % intervals. The last column has the commit of the
rule and what completes `optdyn papers --workdir=DIR` in an installed checkout of commit 2e47dab,
which has the code and the records of all rows but the first: its are here."""


def read() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "claims.toml").read_text())


def row(question: Mapping[str, Any]) -> str:
    study = f" [`{question['study']}`]({question['study']}.py)" if "study" in question else ""
    cells = (
        ", ".join(map(str, question["asked"])),
        f"{question['question']}{study} ({question['source']})",
        f"**{question['verdict']}**: {question['answer']}",
        str(question["n"]),
        question["not_said"],
        f"{question['commit']}, `{question['command'].split(maxsplit=3)[3]}`",
    )
    return f"| {' | '.join(cells)} |"


def page(claims: Mapping[str, Any]) -> str:
    questions = claims["question"]
    words = Counter(question["verdict"] for question in questions)
    counts = ", ".join(f"{words[word]} {word}" for word in ("confirmed", "refuted", "open"))
    asked = sum(len(question["asked"]) for question in questions)
    return "\n".join(
        [
            "# Studies",
            "",
            claims["about"].strip(),
            "",
            RUN,
            "",
            claims["own"].strip(),
            "",
            "## What was found",
            "",
            *(fill(f"- {finding}", 120, subsequent_indent="  ") for finding in claims["findings"]),
            "",
            "## All questions",
            "",
            fill(
                f"{len(questions)} questions were asked {asked} times. A row has the last answer: "
                f"{counts}. {HOW}",
                120,
            ),
            "",
            "| asked as | question | last answer | n | what it does not say | rule, run |",
            "|---|---|---|---|---|---|",
            *map(row, questions),
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(read()))
