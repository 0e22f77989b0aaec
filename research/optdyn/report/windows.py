"""The momentum meter's recorded windows, fitted again: each run's, and all seeds' of a setting."""

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


class MeteredRun(NamedTuple):
    """The records of a run, or of several seeds of one setting."""

    name: str
    config: dict[str, Any]
    windows: list[Window]
    rate: float  # learning rate of the last update
    explicit: float  # momentum of the optimizer; of steered runs the last


def load(folder: Path) -> MeteredRun:
    """Returns the windows that have ended; raises `TableError`."""
    (point,) = tables.points(folder)
    try:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        parsed, step, last = read(config, path, CLOCK), point.summary["step"], point.log[-1]
        # The epochs that a run has gone through say how many examples there are.
        examples = round(last["step"] * config["batch_size"] / last["epoch"]) if step else 1
        rows = np.load(folder / SKETCHES, mmap_mode="r")
        recorded = arrivals.arrivals(point)
        worker = recorded[0] if recorded else None
        windows = meter.read(rows, parsed, examples, worker, 0, step)
        rate = meter.rate(parsed, step)
        explicit = float(last.get("explicit_momentum", parsed.optimizer.momentum))
    except (OSError, EOFError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise TableError(f"{folder}: its recorded windows cannot be read ({error})") from error
    return MeteredRun(folder.resolve().name, config, windows, rate, explicit)


def pooled(runs: Sequence[MeteredRun]) -> list[MeteredRun]:
    """Returns the seeds of each setting that has several, as one run."""
    settings: dict[str, list[MeteredRun]] = {}
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


def fit(
    run: MeteredRun, lags: int | None = None, gradient_lags: int | None = None
) -> dict[str, Any]:
    """Returns `readings.figures` of all windows, and the momentum by theory, if there is one.

    With `lags` or `gradient_lags` (0 where only one is set) also a `polynomial`: that of the
    parameters' steps for heavy-ball SGD, else that of the raw ones.
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
    """Returns a row a result of `fit`: momenta, 95 % intervals and p-values of the model."""
    rows = [
        {
            "run": result["run"],
            "groups": result["groups"],
            "explicit": result["explicit_momentum"],
            "theory": tables.shown(result["theory_momentum"]),
            "implicit": _with_interval(result, "implicit_momentum"),
            "p": tables.shown(result.get("implicit_momentum_p")),
            "phi_1": _with_interval(result, "fitted_momentum"),
            "p of phi_1": tables.shown(result.get("fitted_momentum_p")),
            "rate": tables.shown(result.get("effective_learning_rate")),
            "alpha/g": tables.shown(result["theory_learning_rate"]),
            "refused": result.get("implicit_momentum_refused", ""),
        }
        for result in fits
    ]
    return pd.DataFrame(rows)


def coefficients(fits: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Returns a row a coefficient of a `polynomial`, and one its equivalent momentum and J test."""
    rows = [
        {"run": result["run"], **row}
        for result in fits
        if "polynomial" in result
        for row in _rows(result["polynomial"])
    ]
    return pd.DataFrame(rows).fillna("")


def _lags(run: MeteredRun) -> int:
    """Returns the terms of the run's parameter steps; 0 where its explicit momentum was steered."""
    return 0 if run.config["probes"]["steer"] else meter.lags(read(run.config, run.name, CLOCK))


def _polynomial(run: MeteredRun, lags: int, gradient_lags: int) -> dict[str, Any]:
    own_steps = _lags(run) > 0
    plain = {"learning_rate": run.rate, "momentum": 0.0}
    expected = theory(run.config if own_steps else run.config | {"optimizer": plain})
    truth = float(equivalent_momentum(*map(np.array, expected))) if expected else None
    found = {
        "steps": "own" if own_steps else "raw",
        "theory_phi": expected and expected.phi,
        "theory_eta": expected and expected.eta,
        "theory_momentum": truth,
    }
    try:
        result = readings.fitted(run.windows, lags, gradient_lags, raw=not own_steps)
    except NotIdentified as error:
        return found | {"refused": str(error)}
    return found | {
        "phi": result.phi.tolist(),
        "phi_interval": result.phi_interval.tolist(),
        "eta": (run.rate * result.eta).tolist(),
        "eta_interval": (run.rate * result.eta_interval).tolist(),
        "momentum": result.momentum,
        "momentum_interval": result.momentum_interval,
        "J": result.hansen,
        "freedom": result.freedom,
        "p": readings.chance(result, run.windows, gradient_lags),
    }


def _rows(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if "refused" in result:
        yield {"steps": result["steps"], "refused": result["refused"]}
        return
    for name, first in (("phi", 1), ("eta", 0)):
        truths = result[f"theory_{name}"]
        for k, value in enumerate(result[name]):
            truth = None if truths is None else truths[k] if k < len(truths) else 0.0
            yield {
                "steps": result["steps"],
                "coefficient": f"{name}_{k + first}",
                "fitted": tables.shown(value, result[f"{name}_interval"][k]),
                "theory": tables.shown(truth),
            }
    yield {
        "steps": result["steps"],
        "coefficient": "momentum",
        "fitted": tables.shown(result["momentum"], result["momentum_interval"]),
        "theory": tables.shown(result["theory_momentum"]),
        "J": f"{result['J']:.3g} of {result['freedom']}",
        "p": tables.shown(result["p"]),
    }


def _with_interval(result: Mapping[str, Any], name: str) -> str:
    if result.get(name) is None:
        return ""
    return tables.shown(result[name], (result[f"{name}_low"], result[f"{name}_high"]))
