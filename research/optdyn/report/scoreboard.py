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
    """The verdicts in Markdown."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---|"]
    for row in rows:
        verdict = row["verdict"] + DEVIATES * (row["claim"] in deviations)
        cells = (f"{row['number']}. {row['sentence']}", verdict, row["by"])
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
    return "\n".join(lines) + "\n"


def markdown(rows: Sequence[Mapping[str, Any]], deviations: Deviations) -> str:
    """The page in Markdown: the verdicts, then every claim with its picture, `NAME.svg` beside."""
    text = f"# Claims, judged\n\n{SIMULATED}\n\n{table(rows, deviations)}"
    if deviations:
        said = "".join(f"- {line}\n" for line in _deviations(deviations))
        text += f"\n## {DEVIATIONS}\n\n{said}"
    for row in rows:
        terms = "".join(f"- {term.capitalize()}: {row[term]}\n" for term in TERMS)
        text += (
            f"\n## {row['number']}. {row['sentence']}\n\n**{row['verdict'].capitalize()}**: "
            f"{row['by']}.\n\n![What was measured for claim {row['number']}]({row['claim']}.svg)"
            f"\n\n{terms}- Run: {_run(row)}\n"
        )
    return text


def html(workdir: Path, rows: Sequence[Mapping[str, Any]], deviations: Deviations) -> str:
    """One offline page; the pictures are `workdir`'s, one a claim."""
    verdicts = [
        {
            "claim": page.Cell(f"{row['number']}. {row['sentence']}", row["number"]),
            "verdict": page.cell(row["verdict"] + DEVIATES * (row["claim"] in deviations)),
            "by how much": page.cell(row["by"]),
        }
        for row in rows
    ]
    sections = [page.Section("Verdicts", table=page.table("Verdicts", verdicts, HEADINGS))]
    if deviations:
        sections.append(page.Section(DEVIATIONS, points=_deviations(deviations)))
    for row in rows:
        picture = (workdir / f"{row['claim']}.svg").read_bytes()
        sections.append(
            page.Section(
                f"{row['number']}. {row['verdict'].capitalize()}: {row['sentence']}",
                points=[row["by"], *(f"{term.capitalize()}: {row[term]}" for term in TERMS)],
                pictures=[
                    page.Picture(page.uri(picture), f"What was measured for claim {row['number']}")
                ],
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


def _deviations(deviations: Deviations) -> list[str]:
    return [f"{name}: {'; '.join(said)}." for name, said in deviations.items()]


def _run(row: Mapping[str, Any]) -> str:
    seeds = row["seeds"]
    return (
        f"scale {row['scale']}; chosen on seeds {', '.join(map(str, seeds['choose']))}, judged on "
        f"{', '.join(map(str, seeds['report']))}; {row['minutes']:.1f} min; rule committed in "
        f"{row['commit'] or 'no repository'}"
    )
