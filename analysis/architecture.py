"""Draws the folders of the package from its imports: `python -m analysis.architecture`.

A folder stands right below the lowest that uses it. An arrow is left out where others lead to the
same folder.
"""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "research" / "optdyn"
PICTURE = ROOT / "analysis" / "pictures" / "architecture.svg"
WIDTH, HEIGHT, COLUMN, ROW = 176, 42, 192, 70  # of a box; from box to box and row to row: pixels
ABOUT = {
    "cli": "commands, import optdyn",
    "report": "pages, tables, figures",
    "tune": "chosen while training",
    "plan": "chosen from lemmas",
    "price": "seconds without training",
    "evidence": "comparisons and claims",
    "race": "real workers",
    "train": "program, loop, hooks",
    "experiment": "what determines a run",
    "implicit_momentum": "the meter's equations",
    "methods": "rules, a family a file",
    "problem": "models, data, losses",
    "optimizers": "optimizers, schedules",
    "devices": "axes, simulated or real",
    "clock": "cluster, laws, timelines",
    "core": "Event, Rule, State",
    "base": "values, errors, files",
}


def uses() -> dict[str, set[str]]:
    """Returns the folders and single modules of the package that each of them imports."""
    found = {name: set[str]() for name in ABOUT}
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if here == "__init__":  # public names, each imported when it is asked for
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            found[here] |= {name.split(".")[1] for name in names if name.startswith("optdyn.")}
        found[here].discard(here)
    return found


def drawing(uses: dict[str, set[str]]) -> str:
    """Returns the SVG. Raises `graphlib.CycleError` where folders use each other."""
    order = [*TopologicalSorter(uses).static_order()]
    reach: dict[str, set[str]] = {}
    for name in order:
        reach[name] = uses[name].union(*(reach[below] for below in uses[name]))
    row = dict.fromkeys(uses, 0)  # from the top
    for name in reversed(order):
        row |= {below: max(row[below], row[name] + 1) for below in uses[name]}
    rows = [[name for name in uses if row[name] == n] for n in range(max(row.values()) + 1)]
    width = COLUMN * max(map(len, rows))
    middle = {
        name: (width / 2 + COLUMN * (i - (len(names) - 1) / 2), ROW * n + ROW / 2)
        for n, names in enumerate(rows)
        for i, name in enumerate(names)
    }
    lines, boxes, texts = [], [], []
    for name, below in uses.items():
        for other in sorted(below - set().union(*(reach[between] for between in below))):
            (x, y), (to_x, to_y) = middle[name], middle[other]
            ends = f'y1="{y + HEIGHT / 2:g}" y2="{to_y - HEIGHT / 2 - 4:g}"'
            lines.append(f'<line x1="{x:g}" x2="{to_x:g}" {ends} marker-end="url(#tip)"/>')
    for name, (x, y) in middle.items():
        corner = f'x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}"'
        boxes.append(f'<rect {corner} width="{WIDTH}" height="{HEIGHT}" rx="5"/>')
        texts.append(f'<text x="{x:g}" y="{y - 3:g}" font-weight="bold">{name}</text>')
        texts.append(f'<text x="{x:g}" y="{y + 13:g}">{ABOUT[name]}</text>')
    size = f'viewBox="0 0 {width} {ROW * len(rows)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#888"/></marker>',
        '<g stroke="#888">',
        *lines,
        '</g>\n<g fill="#eef3fa" stroke="#4466bb">',
        *boxes,
        '</g>\n<g fill="#112233" font-family="sans-serif" font-size="13" text-anchor="middle">',
        *texts,
        "</g>\n</svg>\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    PICTURE.write_text(drawing(uses()))
