"""The momentum meter's recorded windows, fitted again: runs by themselves and seeds together.

Reads workdirs of runs with `config.probes.momentum`, for `python -m launch.momentum`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from optdyn.base.lookup import CLOCK
from optdyn.experiment import read
from optdyn.momentum import readings
from optdyn.momentum.lags import groups_of, memoryless, theory
from optdyn.momentum.moments import NotIdentified, equivalent_momentum
from optdyn.momentum.readings import Window
from optdyn.report import arrivals, tables
from optdyn.report.tables import TableError
from optdyn.train import meter
from optdyn.train.workdir import SKETCHES


class Metered(NamedTuple):
    """What a run, or several seeds of one setting, recorded."""

    name: str
    config: dict[str, Any]
    windows: list[Window]
    rate: float  # learning rate of the last update
    explicit: float  # momentum of the optimizer; of steered runs the last


def load(folder: Path) -> Metered:
    """The windows that have ended; raises `TableError`."""
    (point,) = tables.points(folder)
    try:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        of, step, last = read(config, path, CLOCK), point.summary["step"], point.log[-1]
        # The epochs that a run has gone through say how many examples there are.
        examples = round(last["step"] * config["batch_size"] / last["epoch"]) if step else 1
        rows = np.load(folder / SKETCHES, mmap_mode="r")
        arrived = arrivals.arrivals(point)
        worker = arrived[0] if arrived else None
        windows = meter.read(rows, of, examples, worker, 0, step)
        rate = meter.rate(of, step)
        explicit = float(last.get("explicit_momentum", of.optimizer.momentum))
    except (OSError, EOFError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise TableError(f"{folder}: its recorded windows cannot be read ({error})") from error
    return Metered(folder.resolve().name, config, windows, rate, explicit)


def pooled(runs: Sequence[Metered]) -> list[Metered]:
    """All seeds of each setting that has several, as one."""
    settings: dict[str, list[Metered]] = {}
    for run in runs:
        key = json.dumps(run.config | {"seed": None}, sort_keys=True)
        settings.setdefault(key, []).append(run)
    return [
        first._replace(
            name=f"{first.name} and {len(rest)} more",
            windows=sum((run.windows for run in rest), first.windows),
            explicit=float(np.mean([run.explicit for run in (first, *rest)])),
        )
        for first, *rest in settings.values()
        if rest
    ]


def fit(run: Metered, lags: int | None = None, gradient_lags: int | None = None) -> dict[str, Any]:
    """What `readings.figures` says of all windows, and what it should be by theory, if at all.

    With `lags` or `gradient_lags` (0 where only the other is given) also a `polynomial`: of heavy-
    ball SGD that of its own steps, else of the raw ones.
    """
    config, groups = read(run.config, run.name, CLOCK), groups_of(run.config)
    expected = memoryless(run.config)
    found = {
        "run": run.name,
        "groups": groups,
        "explicit_momentum": run.explicit,
        "theory_momentum": 1 - 1 / groups if expected else None,
        "theory_learning_rate": run.rate / groups if expected else None,
        **readings.figures(run.windows, _lags(run), meter.is_plain(config), run.rate),
    }
    if lags is None and gradient_lags is None:
        return found
    return found | {"polynomial": _polynomial(run, lags or 0, gradient_lags or 0)}


def table(fits: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a result of `fit`: momenta with their 95 % intervals and p-values of the model."""
    rows = [
        {
            "run": it["run"],
            "groups": it["groups"],
            "explicit": it["explicit_momentum"],
            "theory": tables.shown(it["theory_momentum"]),
            "implicit": _with_interval(it, "implicit_momentum"),
            "p": tables.shown(it.get("implicit_momentum_p")),
            "phi_1": _with_interval(it, "fitted_momentum"),
            "p of phi_1": tables.shown(it.get("fitted_momentum_p")),
            "rate": tables.shown(it.get("effective_learning_rate")),
            "alpha/g": tables.shown(it["theory_learning_rate"]),
            "refused": it.get("implicit_momentum_refused", ""),
        }
        for it in fits
    ]
    return pd.DataFrame(rows)


def coefficients(fits: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a coefficient of a `polynomial`, and one its equivalent momentum and J test."""
    rows = [
        {"run": it["run"], **row}
        for it in fits
        if "polynomial" in it
        for row in _rows(it["polynomial"])
    ]
    return pd.DataFrame(rows).fillna("")


def _lags(run: Metered) -> int:
    """Terms of the run's own steps; 0 where its explicit momentum was steered, so no polynomial."""
    return 0 if run.config["probes"]["steer"] else meter.lags(read(run.config, run.name, CLOCK))


def _polynomial(run: Metered, lags: int, gradient_lags: int) -> dict[str, Any]:
    own = _lags(run) > 0
    plain = {"learning_rate": run.rate, "momentum": 0.0}
    expected = theory(run.config if own else run.config | {"optimizer": plain})
    truth = float(equivalent_momentum(*map(np.array, expected))) if expected else None
    found = {
        "steps": "own" if own else "raw",
        "theory_phi": expected and expected.phi,
        "theory_eta": expected and expected.eta,
        "theory_momentum": truth,
    }
    try:
        it = readings.fitted(run.windows, lags, gradient_lags, raw=not own)
    except NotIdentified as error:
        return found | {"refused": str(error)}
    return found | {
        "phi": it.phi.tolist(),
        "phi_interval": it.phi_interval.tolist(),
        "eta": (run.rate * it.eta).tolist(),
        "eta_interval": (run.rate * it.eta_interval).tolist(),
        "momentum": it.momentum,
        "momentum_interval": it.momentum_interval,
        "J": it.hansen,
        "freedom": it.freedom,
        "p": readings.chance(it, run.windows, gradient_lags),
    }


def _rows(it: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if "refused" in it:
        yield {"steps": it["steps"], "refused": it["refused"]}
        return
    for name, first in (("phi", 1), ("eta", 0)):
        truths = it[f"theory_{name}"]
        for k, value in enumerate(it[name]):
            truth = None if truths is None else truths[k] if k < len(truths) else 0.0
            yield {
                "steps": it["steps"],
                "coefficient": f"{name}_{k + first}",
                "fitted": tables.shown(value, it[f"{name}_interval"][k]),
                "theory": tables.shown(truth),
            }
    yield {
        "steps": it["steps"],
        "coefficient": "momentum",
        "fitted": tables.shown(it["momentum"], it["momentum_interval"]),
        "theory": tables.shown(it["theory_momentum"]),
        "J": f"{it['J']:.3g} of {it['freedom']}",
        "p": tables.shown(it["p"]),
    }


def _with_interval(it: Mapping[str, Any], name: str) -> str:
    if it.get(name) is None:
        return ""
    return tables.shown(it[name], (it[f"{name}_low"], it[f"{name}_high"]))
