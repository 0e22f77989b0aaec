"""Draws the momentum meter's two pictures: `python -m analysis.implicit_momentum`.

Of each cell of `benchmarks/meter_coverage.py` the set of its run of seed 0 beside what is true; and
how often sets have the truth, from the tenth of all runs that say least to that which says most.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from optdyn.implicit_momentum.moments import Reading

HERE = Path(__file__).parent
KINDS = ("cover", "widths", "terms", "methods", "laws", "races")


def record(kind: str) -> dict[str, Any]:
    path = HERE / "benchmarks" / "records" / f"meter_coverage_{kind}_cpu.json"
    return json.loads(path.read_text())


def readings() -> plt.Figure:
    cells = {}
    for kind in KINDS:
        cells |= {name: its["implicit"] for name, its in record(kind)["first"].items()}
    figure, axes = plt.subplots(figsize=(8, 0.28 * len(cells) + 0.8), layout="constrained")
    for row, it in enumerate(cells.values()):
        reading = Reading.from_json(it)
        axes.plot(it["truth"], row, "o", color="black", markersize=4, zorder=3)
        for low, high in () if reading.rejected else reading.pieces:
            axes.plot([low, high], [row, row], color="#0072B2", linewidth=4, alpha=0.7)
        if reading.rejected:
            axes.text(0.02, row, "no single term fits", va="center", color="#D55E00", fontsize=8)
    axes.set_yticks(range(len(cells)), list(cells), fontsize=8)
    axes.set(xlim=(-0.02, 1.02), xlabel="implicit momentum: 95 % set of one run, and the truth")
    axes.invert_yaxis()
    return figure


def coverage() -> plt.Figure:
    rows = record("cover")["by_strength"]
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    axes.axhline(95, color="0.6", linewidth=1)
    axes.plot([row["strength"] for row in rows], [100 * row["covered"] for row in rows], "o-")
    axes.set(xscale="log", ylim=(80, 101), ylabel="% of a tenth of all sets\nthat have the truth")
    axes.set_xticks([10, 30, 100, 300], ["10", "30", "100", "300"])
    axes.minorticks_off()
    axes.set_xlabel("strength: the squared ratio of 1 − μ to its standard error")
    return figure


def main() -> None:
    plt.rcParams |= {"svg.hashsalt": "optdyn", "svg.fonttype": "none"}
    for name, figure in (("sets", readings()), ("coverage", coverage())):
        figure.savefig(HERE / "pictures" / f"meter-{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
