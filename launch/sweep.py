"""A grid of runs: `python -m launch.sweep --config=configs/grids/NAME.py --workdir=DIR`.

Points run one after the other in this process, so that those which share shapes share one
compilation; each has a workdir of its own, `DIR/points/NAME`, as `launch.train` would leave it. The
same command resumes, and runs what a grown grid has new. At the end implicit momentum is fitted to
recorded replicas and `results.csv` and `report.html` are written.
"""

import sys
from pathlib import Path

from ml_collections import ConfigDict

from analysis import implicit_momentum, report, tables
from launch import app
from launch.train import run
from research.grid import runs


def main(config: ConfigDict, workdir: Path) -> int:
    points = runs(config)
    for number, (name, point) in enumerate(points.items(), start=1):
        print(f"[{number}/{len(points)}] {name}", file=sys.stderr, flush=True)
        folder = workdir / "points" / name
        summary = run(point, folder)
        if summary["status"] == "interrupted":
            return app.exit_code(summary)
        if point.replicas.count:
            implicit_momentum.fit_workdir(folder)
    swept = dict.fromkeys(key for point in config.points for key in point if key != "name")
    tables.write_results(workdir, tuple(swept))
    print(report.write(workdir))
    return 0


if __name__ == "__main__":
    app.run(main)
