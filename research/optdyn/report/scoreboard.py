"""The scoreboard of the papers' claims: a page with a picture a claim, and a table of verdicts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optdyn.report import page

HEADINGS = ("claim", "verdict", "by how much")
TERMS = ("source", "measured", "opponent", "rule")
DEVIATIONS = "Deviations from what was locked before the run"
SIMULATED = (
    "Gradients are real. Seconds are simulated where a claim says so, and otherwise those of the "
    "machine below. Settings are chosen on some seeds and judged on others; intervals are 95 %, "
    "from drawing the judged seeds again in pairs."
)
DEVIATES = " (deviates)"
Deviations = Mapping[str, Sequence[str]]  # by claim, from its lock file (`evidence/lock.py`)


def table(rows: Sequence[Mapping[str, Any]], deviations: Deviations) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---|"]
    for row in rows:
        cells = (text.replace("|", "\\|") for text in _verdict(row, deviations))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def markdown(rows: Sequence[Mapping[str, Any]], deviations: Deviations) -> str:
    """Returns the page in Markdown, whose pictures are `NAME.svg` beside it, one a claim."""
    text = f"# Claims, judged\n\n{SIMULATED}\n\n{table(rows, deviations)}"
    if deviations:
        lines = "".join(f"- {line}\n" for line in _deviations(deviations))
        text += f"\n## {DEVIATIONS}\n\n{lines}"
    for row in rows:
        terms = "".join(f"- {line}\n" for line in (*_terms(row), f"Run: {_run(row)}"))
        text += (
            f"\n## {row['number']}. {row['sentence']}\n\n**{row['verdict'].capitalize()}**: "
            f"{row['by']}.\n\n![{_alt(row)}]({row['claim']}.svg)\n\n{terms}"
        )
    return text


def html(workdir: Path, rows: Sequence[Mapping[str, Any]], deviations: Deviations) -> str:
    """Returns one offline page; the pictures are `workdir`'s, one a claim."""
    verdicts = []
    for row in rows:
        cells = map(page.cell, _verdict(row, deviations))
        verdict = dict(zip(HEADINGS, cells, strict=True))
        verdicts.append(verdict | {"claim": verdict["claim"]._replace(sort=row["number"])})
    sections = [page.Section("Verdicts", table=page.table("Verdicts", verdicts, HEADINGS))]
    if deviations:
        sections.append(page.Section(DEVIATIONS, points=_deviations(deviations)))
    for row in rows:
        picture = page.uri((workdir / f"{row['claim']}.svg").read_bytes())
        sections.append(
            page.Section(
                f"{row['number']}. {row['verdict'].capitalize()}: {row['sentence']}",
                points=[row["by"], *_terms(row)],
                pictures=[page.Picture(picture, _alt(row))],
                notes=[_run(row)],
            )
        )
    return page.render(
        title="The papers' claims, judged",
        notes=[],
        sections=sections,
        simulated=SIMULATED,
        provenance=[(row["claim"], _run(row)) for row in rows],
        shared=[],
    )


def _verdict(row: Mapping[str, Any], deviations: Deviations) -> tuple[str, str, str]:
    verdict = row["verdict"] + DEVIATES * (row["claim"] in deviations)
    return f"{row['number']}. {row['sentence']}", verdict, row["by"]


def _deviations(deviations: Deviations) -> list[str]:
    return [f"{name}: {'; '.join(lines)}." for name, lines in deviations.items()]


def _terms(row: Mapping[str, Any]) -> list[str]:
    return [f"{term.capitalize()}: {row[term]}" for term in TERMS]


def _alt(row: Mapping[str, Any]) -> str:
    return f"What was measured for claim {row['number']}"


def _run(row: Mapping[str, Any]) -> str:
    seeds = row["seeds"]
    return (
        f"scale {row['scale']}; chosen on seeds {', '.join(map(str, seeds['choose']))}, judged on "
        f"{', '.join(map(str, seeds['report']))}; {row['minutes']:.1f} min; rule committed in "
        f"{row['commit'] or 'no repository'}"
    )
