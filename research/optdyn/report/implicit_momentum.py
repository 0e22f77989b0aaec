"""The momentum that asynchrony brings: `python -m launch.momentum --workdir=DIR`.

    E d_t = sum_{k=1..K} phi_k E d_{t-k} - sum_{m=0..Mg} eta_m E G_{t-m}

with d_t = x_{t+1} - x_t and G_t the gradient of the whole objective at x_t (arXiv 1605.09774). One
lag and no past gradients is the theorem for memoryless workers: phi_1 = 1 - 1/g, eta_0 = alpha/g.
Fits recorded replicas into `implicit_momentum.json`, and the momentum meter's records, by run and
for all seeds of a setting, into `momentum_meter.json`.
"""

import json
import math
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from optdyn.base.errors import InputError, print_error
from optdyn.base.files import as_json, finite, write_json
from optdyn.base.flag_parser import Parser
from optdyn.momentum import estimators
from optdyn.momentum.lags import (
    compared,
    equivalent_momentum,
    geometric_distance,
    groups_of,
    theory,
)
from optdyn.report import windows
from optdyn.report.tables import TableError, folders_with, replace, shown
from optdyn.train.workdir import SKETCHES

MOMENTA, MATCHED = "matching_momenta", "matching_displacements"
MIN_REPLICAS = 4
MAX_CONDITION = 1e8  # float32 trajectories know the normal equations to about 1e-14
MIN_STRENGTH = 10.0  # the usual bound for instruments (Staiger and Stock, 1997)

Interval = tuple[float, float]


class AnalysisError(InputError):
    """Input that cannot be analysed; the message is one line."""


class MomentumFit(NamedTuple):
    """Split-replica instrumental variables, intervals of 95 %; NaN and `reason` where not `ok`."""

    ok: bool
    reason: str
    replicas: int
    steps: int
    phi: tuple[float, ...]  # phi_1 .. phi_K
    phi_interval: tuple[Interval, ...]
    eta: tuple[float, ...]  # eta_0 .. eta_Mg
    eta_interval: tuple[Interval, ...]
    momentum: float  # phi_1, or that of the one-lag recursion with the same mean lag
    momentum_interval: Interval
    learning_rate: float  # sum of eta: the effective learning rate
    learning_rate_interval: Interval
    geometric_distance: float  # of the impulse response from that of one term of momentum
    instrument_strength: float  # F; below 10 the fit is refused
    least_squares: tuple[float, ...]  # phi, then eta, of the regression of mean on mean
    least_squares_momentum: float


def fit(
    displacements: np.ndarray,
    gradients: np.ndarray,
    lags: int = 1,
    gradient_lags: int = 0,
    bootstrap: int = 500,
    seed: int = 0,
) -> MomentumFit:
    """Fits the recursion to (R, T, q) displacements and gradients, from the first update on.

    `lags` = K and `gradient_lags` = Mg; `bootstrap` draws of replicas give the intervals. An
    ill-posed fit is refused (`ok`, `reason`); raises `AnalysisError` for unusable arguments.
    """
    if displacements.ndim != 3 or displacements.shape != gradients.shape:
        raise AnalysisError(
            f"displacements {displacements.shape} and gradients {gradients.shape}: must both be "
            "(replicas, steps, coordinates)"
        )
    if lags < 0 or gradient_lags < 0 or bootstrap < 2:
        values = f"lags {lags}, gradient lags {gradient_lags}, bootstrap {bootstrap}"
        raise AnalysisError(f"{values}: must be at least 0, 0 and 2")
    shape, nothing = displacements.shape, np.full(lags + gradient_lags + 1, math.nan)
    if reason := _unfit(displacements, gradients, lags, gradient_lags):
        return _result(reason, shape, lags, nothing, nothing[None], nothing)
    xi = estimators.weights(np.random.default_rng(seed), len(displacements), bootstrap) - 1
    moments = estimators.moments(displacements, gradients, lags, gradient_lags, xi)
    condition = estimators.condition(moments)
    if math.isnan(condition):
        reason = "no excitation: the mean displacements or gradients are all zero"
    elif condition > MAX_CONDITION:
        reason = f"collinear regressors (condition number {condition:.1e})"
    if reason:
        return _result(reason, shape, lags, nothing, nothing[None], nothing)
    drawn = estimators.bootstrap(moments)
    strength = estimators.instrument_strength(moments, drawn)
    theta, draws = estimators.solve(estimators.split_replica(moments)), estimators.solve(drawn)
    if strength < MIN_STRENGTH:
        reason = f"weak instruments (F = {strength:.2g}, below {MIN_STRENGTH:g})"
        theta, draws = nothing, nothing[None]
    squares = estimators.solve(moments.mean)
    return _result(reason, shape, lags, theta, draws, squares, strength)


def fit_workdir(
    path: str | Path,
    lags: int | None = None,
    gradient_lags: int | None = None,
    bootstrap: int = 500,
    steps: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """Fits the recorded replicas in a workdir; writes and returns `implicit_momentum.json`.

    `lags` and `gradient_lags` are by default those of the theory; without a theory there is a past
    gradient, as one-term momentum alone cannot tell that it does not hold. `steps` > 0: the first
    so many updates only. Raises `AnalysisError`.
    """
    folder = Path(path)
    config, arrays = _read(folder)
    try:
        expected = theory(config)
        groups, optimizer = groups_of(config), config["optimizer"]
        rate, explicit = optimizer["learning_rate"], optimizer.get("momentum", 0.0)
    except (KeyError, TypeError, AttributeError) as error:
        raise AnalysisError(f"{folder / 'config.json'}: is no config of a run ({error})") from error
    if lags is None:
        lags = len(expected.phi) if expected else 2 if explicit and groups > 1 else 1
        if gradient_lags is None:
            gradient_lags = len(expected.eta) - 1 if expected else 1
    d, g = (arrays[name][:, : steps or None] for name in ("displacements", "gradients"))
    fitted = fit(d, g, lags, gradient_lags or 0, bootstrap, seed)
    found = {
        "workdir": folder.resolve().name,
        "groups": groups,
        "explicit_momentum": explicit,
        "config_learning_rate": rate,
        "lags": lags,
        "gradient_lags": gradient_lags or 0,
        **fitted._asdict(),
        **compared(expected, fitted._asdict()),
        "yellowfin": estimators.yellowfin(d[0], g[0], rate) if len(d) else math.nan,
        "matching": None,
    }
    if MOMENTA in arrays:
        others = arrays[MATCHED][:, :, : steps or None]
        matched = estimators.matching(d, arrays[MOMENTA], others, bootstrap, seed)
        found["matching"] = matched._asdict()
    result: dict[str, Any] = finite(found)
    write_json(folder / "implicit_momentum.json", result)
    return result


def table(results: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    unmatched: dict[str, Any] = {"momentum": None, "interval": None, "reason": ""}
    for r in results:
        matched = r["matching"] or unmatched
        rows.append(
            {
                "point": r["workdir"],
                "groups": r["groups"],
                "explicit": r["explicit_momentum"],
                "theory": shown(r["theory_momentum"]),
                "IV": shown(r["momentum"], r["momentum_interval"]),
                "F": shown(r["instrument_strength"]),
                "least squares": shown(r["least_squares_momentum"]),
                "YellowFin": shown(r["yellowfin"]),
                "matching": shown(matched["momentum"], matched["interval"]),
                "rate": shown(r["learning_rate"], r["learning_rate_interval"]),
                "alpha/g": shown(r["config_learning_rate"] / r["groups"]),
                "from one term": shown(r["geometric_distance"]),
                "refused": "; ".join(filter(None, (r["reason"], matched["reason"]))),
            }
        )
    return pd.DataFrame(rows)


def coefficients(results: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Returns a row a coefficient of the results whose recursion has several lags."""
    rows = []
    for r in results:
        for name in ("phi", "eta"):
            truths = r[f"theory_{name}"] or []
            several = r["ok"] and r["lags"] + r["gradient_lags"] > 1
            for k, value in enumerate(r[name] if several else ()):
                rows.append(
                    {
                        "point": r["workdir"],
                        "coefficient": f"{name}_{k + (name == 'phi')}",
                        "IV": shown(value, r[f"{name}_interval"][k]),
                        "theory": shown(truths[k]) if k < len(truths) else "",
                    }
                )
    return pd.DataFrame(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 2, after a line on standard error, for unusable input."""
    parser = Parser(prog="optdyn momentum", description="The momentum that asynchrony brings.")
    parser.add_argument(
        "--workdir",
        type=Path,
        required=True,
        help="of recorded replicas, of a metered run, or of a sweep",
    )
    parser.add_argument(
        "--lags", type=int, help="past displacements, K; by default those of the theory"
    )
    parser.add_argument(
        "--gradient_lags", type=int, help="past gradients; by default those of the theory"
    )
    parser.add_argument(
        "--bootstrap", type=int, default=500, help="draws of replicas behind their intervals; 500"
    )
    parser.add_argument(
        "--steps", type=int, default=0, help="only replicas' first so many updates; 0: all"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = vars(parser.read(arguments))
    workdir, in_json = options.pop("workdir"), options.pop("json")
    terms = {name: options[name] for name in ("lags", "gradient_lags")}
    try:
        if any((value or 0) < 0 for value in terms.values()):
            raise AnalysisError("--lags and --gradient_lags must not be negative")
        if options["steps"] < 0:
            raise AnalysisError("--steps must not be negative")
        replicas, metered = _found(workdir)
        results = [fit_workdir(folder, **options) for folder in replicas]
        runs = [windows.load(folder) for folder in metered]
        fits = [finite(windows.fit(run, **terms)) for run in [*runs, *windows.pooled(runs)]]
        if fits:
            replace(workdir / "momentum_meter.json", json.dumps(fits, indent=2) + "\n")
    except (AnalysisError, TableError, OSError) as error:
        return print_error(error)
    if in_json:
        print(as_json({"recordings": results, "meters": fits}))
        return 0
    tables = [table(results), coefficients(results)]
    tables += [windows.table(fits), windows.coefficients(fits)]
    print("\n\n".join(it.to_string(index=False) for it in tables if len(it)))
    return 0


def _found(workdir: Path) -> tuple[list[Path], list[Path]]:
    if not workdir.is_dir():
        raise AnalysisError(f"{workdir}: no such folder")
    found = folders_with(workdir, "trajectories.npz"), folders_with(workdir, SKETCHES)
    if not any(found):
        raise AnalysisError(
            f"{workdir}: no trajectories.npz and no sketches.npy in it or in its points; record "
            "them with config.replicas.count > 0 or with config.probes.momentum"
        )
    return found


def _unfit(d: np.ndarray, g: np.ndarray, lags: int, gradient_lags: int) -> str:
    """Returns the reason why no estimator applies to these trajectories, or ''."""
    replicas, steps, size = d.shape
    if replicas < MIN_REPLICAS:
        return f"too few replicas ({replicas}, at least {MIN_REPLICAS} are needed)"
    equations = (steps - estimators.first_row(lags, gradient_lags)) * size
    if equations <= lags + gradient_lags + 1:
        return f"too few updates ({steps}) for {lags} lags and {gradient_lags} gradient lags"
    finite = np.isfinite(d).all(axis=(1, 2)) & np.isfinite(g).all(axis=(1, 2))
    if not finite.all():
        return f"{replicas - finite.sum()} of {replicas} trajectories are not finite (diverged)"
    return ""


def _result(
    reason: str,
    shape: tuple[int, ...],
    lags: int,
    theta: np.ndarray,
    draws: np.ndarray,
    squares: np.ndarray,
    strength: float = math.nan,
) -> MomentumFit:
    phi, eta = theta[:lags], theta[lags:]
    return MomentumFit(
        ok=not reason,
        reason=reason,
        replicas=shape[0],
        steps=shape[1],
        phi=tuple(phi.tolist()),
        phi_interval=tuple(map(_interval, draws.T[:lags])),
        eta=tuple(eta.tolist()),
        eta_interval=tuple(map(_interval, draws.T[lags:])),
        momentum=float(equivalent_momentum(phi, eta)),
        momentum_interval=_interval(equivalent_momentum(draws[:, :lags], draws[:, lags:])),
        learning_rate=float(eta.sum()),
        learning_rate_interval=_interval(draws[:, lags:].sum(axis=1)),
        geometric_distance=geometric_distance(phi, eta),
        instrument_strength=strength,
        least_squares=tuple(squares.tolist()),
        least_squares_momentum=float(equivalent_momentum(squares[:lags], squares[lags:])),
    )


def _interval(draws: np.ndarray) -> Interval:
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        path = folder / "trajectories.npz"
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise AnalysisError(f"{path}: cannot be read ({error})") from error
    needed = {"displacements", "gradients"}
    missing = (needed | ({MATCHED} if MOMENTA in arrays else set())) - arrays.keys()
    if missing:
        raise AnalysisError(f"{path}: has no {' and no '.join(sorted(missing))}")
    return config, arrays


if __name__ == "__main__":
    sys.exit(main())
