"""A race of real workers, held against theory: `python -m launch.reality --workdir=DIR`.

Prints what `report/reality.py` reckons. The law of service times comes from the race itself, or
from another with --from=DIR1, of any number of workers; only that is a prediction. The flags of the
whole simulated run are printed, and with --against=DIR2, that run, the loss curves are compared. Of
a metered race there is the implicit momentum too. Reads `config.json`, `trace.csv`, `metrics.jsonl`
and `sketches.npy`; writes `race.json`.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from optdyn.base.arguments import Parser
from optdyn.base.errors import InputError, print_error
from optdyn.base.files import write_json
from optdyn.report.raced import load, only
from optdyn.report.reality import summarize, workers
from optdyn.report.tables import shown


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 2 and one line on standard error for input it cannot use."""
    parser = Parser(
        prog="optdyn reality", description="A race of real workers, held against theory."
    )
    parser.add_argument("--workdir", type=Path, required=True, help="of a race")
    parser.add_argument("--from", dest="source", type=Path, help="workdir the law is taken from")
    parser.add_argument("--against", type=Path, help="workdir of the simulated run")
    parser.add_argument(
        "--cores",
        type=float,
        help="that the workers and the server share; with --from=DIR1, of one worker",
    )
    flags = parser.read(arguments)
    try:
        race = load(flags.workdir)
        source = load(flags.source) if flags.source else None
        against = only(flags.against) if flags.against else None
        found = summarize(race, source, against, flags.cores)
        write_json(flags.workdir / "race.json", found)
    except (InputError, OSError) as error:
        return print_error(error)
    _print(found)
    return 0


def _print(found: Mapping[str, Any]) -> None:
    drawn, exact = found["simulated"], found["geometric"]
    middle, low, high = drawn["updates_a_second"]
    who = workers(found["groups"])
    print(f"{found['updates']} updates of {who}, away from {found['stops']} stops:\n")
    print(pd.DataFrame(found["workers"]).to_string(index=False, float_format="{:.4g}".format))
    correlation, error = found["serial_correlation"]
    print(f"\ncorrelation of a worker's services in a row: {correlation:.3f} (chance {error:.2g})")
    of = f" of {found['law_from']}" if found["law_from"] else ""
    least = found["laws"][0]["aic"]
    rows = [
        {
            "law" + of: law["name"],
            "variation": shown(law["variation"], law["interval"] if law["aic"] else None),
            "AIC over the best": f"{law['aic'] - least:.1f}" if np.isfinite(least) else "",
            "KS distance": f"{law['distance']:.3g}",
            "p": f"{law['p']:.2g}",
        }
        for law in found["laws"]
    ]
    print("\n" + pd.DataFrame(rows).to_string(index=False))
    parts = np.array(drawn["tenths"])
    slow, fast = np.sort(parts.min(axis=1)), np.sort(parts.max(axis=1))
    rows = [
        _row("updates a second", found["updates_a_second"], middle, low, high),
        _row("with its stops", found["updates_a_second_with_stops"], middle, low, high),
        _row("in the slowest tenth", min(found["tenths"]), np.median(slow), slow[0], slow[-1]),
        _row("in the fastest tenth", max(found["tenths"]), np.median(fast), fast[0], fast[-1]),
    ]
    if shared := found["shared"]:
        name = f"updates a second, {shared['cores']:g} cores shared"
        rows.append(_row(name, found["updates_a_second"], *shared["updates_a_second"]))
    print("\n" + pd.DataFrame(rows).to_string(index=False))
    print(f"(simulated: median, least and most of {drawn['seeds']} seeds)")
    print(
        f"\nmean staleness {found['staleness_mean']:.4g}, simulated {drawn['staleness_mean']:.4g}"
    )
    print(f"staleness against the geometric law: total variation {exact['distance']:.3f}", end="")
    if exact["p"] is not None:
        print(f", chi-squared {exact['chi_square']:.4g} of {exact['freedom']}", end="")
        print(f", p = {exact['p']:.2g}", end="")
    print(f"\nstaleness against the simulated: total variation {drawn['distance']:.3f}", end="")
    print(f" (one seed against the others: {drawn['chance']:.3f})\n")
    _print_momentum(found["momentum"])
    if found["against"]:
        _print_losses(found["against"])
    print("\n".join(found["notes"]))
    print(f"\nThe whole simulated run, for --against:\n\n{drawn['command']}")


def _row(name: str, real: float, middle: float, low: float, high: float) -> dict[str, str]:
    off = f"{100 * (middle / real - 1):+.2g} %"
    return {"": name, "race": shown(real), "simulated": shown(middle, (low, high)), "off by": off}


def _print_momentum(found: Mapping[str, Any]) -> None:
    meter = found["meter"] or {}
    row = {
        "1 - 1/g": shown(found["memoryless"]),
        "of the staleness": shown(found["of_staleness"]),
        "from one term": shown(found["distance"]),
    }
    if "implicit_momentum" in meter:
        value, low, high, p = (
            meter[f"implicit_momentum{end}"] for end in ("", "_low", "_high", "_p")
        )
        row |= {"meter": shown(value, (low, high)), "p": shown(p)}
    elif meter:
        row["meter"] = f"refused: {meter['implicit_momentum_refused']}"
    print("implicit momentum\n" + pd.DataFrame([row]).to_string(index=False) + "\n")


def _print_losses(found: Mapping[str, Any]) -> None:
    rows = [
        {
            "at equal": name,
            "points": its["points"],
            "largest difference": shown(its["largest"]),
            "at": f"{its[unit]:.4g}",
            "where the loss is": shown(its["train_loss"]),
            "at the end": shown(its["last"]),
        }
        for name, its, unit in (
            ("updates", found["by_update"], "step"),
            ("seconds", found["by_second"], "seconds"),
        )
    ]
    print(f"training loss, race less {found['workdir']}")
    print(pd.DataFrame(rows).to_string(index=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
