"""Draws test accuracies of `benchmarks/batch_norm.py`: `python -m analysis.batch_norm`."""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from optdyn.base.files import read_json
from optdyn.report.figures import OKABE_ITO

HERE = Path(__file__).parent
EVALUATED = {
    "carried": "last parameters, running averages",
    "recomputed": "last parameters, averages recomputed",
    "averaged": "EMA of the parameters, averages recomputed",
}


def rows(name: str) -> pd.DataFrame:
    return pd.DataFrame(read_json(HERE / "benchmarks" / "records" / f"{name}.json")["rows"])


def draw(axes: plt.Axes, groups: pd.Series, table: pd.DataFrame) -> None:
    """Draws a point a run, beside each other by what is evaluated."""
    names = list(dict.fromkeys(groups))
    for i, (column, label) in enumerate(EVALUATED.items()):
        at = [names.index(name) + 0.22 * (i - 1) for name in groups]
        axes.plot(at, 100 * table[column], "o", markersize=4, color=OKABE_ITO[i], label=label)
    axes.set_xticks(range(len(names)), names, fontsize=8)


def main() -> None:
    plt.rcParams |= {"svg.hashsalt": "optdyn", "svg.fonttype": "none"}
    figure, (one, other) = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained", sharey=True)
    table = rows("batch_norm_cpu")
    table = table[table["network"] == "residual net"]
    draw(one, table["method"], table)
    one.set(ylabel="test accuracy, %", title="methods, norms over 16 examples")
    table = rows("batch_norm_cpu_norms")
    cells = table["workers"].str.replace(", ", ",\n") + "\nnorm " + table["norm"].astype(str)
    draw(other, cells, table)
    other.legend(fontsize=8)
    other.set(title="how often workers average, and the size of a norm")
    figure.savefig(HERE / "pictures" / "batch-norm.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
