"""What ways of parallelising take in seconds, without training: `optdyn price --config=NAME`.

    optdyn price --parameters=124e6 --step_seconds=0.5 --methods=all --bandwidths=0.1,1,10,100

prints for each method, on each bandwidth between nodes, the share of the workers' time that
computes, and the Gbit/s that half of it and more would need. Seconds are those of the method's own
clock on `config.cluster`: simulated, with its stragglers. The model is that of the config, by its
shapes, or so many `--parameters`; a worker computes for its part of an update as the config says,
or so many `--step_seconds`. `--out=FILE` writes all figures as JSON.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from optdyn.experiment import Experiment
from optdyn.launch import app
from optdyn.values import ConfigError, InputError

SHARES = (0.5, 0.75, 0.9, 0.95, 0.99)
USUAL = "price"  # the config without a --config


def define() -> None:
    """The flags of this command besides those of all (`app.run`)."""
    flags.DEFINE_string("methods", "", "Names of methods, or 'all'; by default the config's.")
    flags.DEFINE_list("bandwidths", ["0.1", "1", "10", "100"], "Gbit/s between nodes.")
    flags.DEFINE_list(
        "periods", [], "Updates from one exchange to the next, where a method has it."
    )
    flags.DEFINE_float(
        "parameters", 0.0, "Parameters of a float32 model, in place of the config's."
    )
    flags.DEFINE_float("step_seconds", 0.0, "Seconds that a worker computes for an update.")
    flags.DEFINE_bool("needed", True, "Whether to find the Gbit/s for shares of computing.")
    flags.DEFINE_string("out", "", "JSON file of all figures.")


def rows(
    config: Experiment,
    shapes: Any,
    methods: Sequence[str],
    bandwidths: Sequence[float],
    periods: Sequence[int] = (),
    needed: bool = True,
) -> Iterator[dict[str, Any]]:
    """A row a method and period: prices by bandwidth, or in `refused` why it has none."""
    from optdyn import price, strategies
    from optdyn.timeline.base import TimelineError

    for name in methods:
        own = periods if strategies.owns(name, "period") and periods else (0,)
        for period in own:
            one = price.with_method(config, name, period)
            row: dict[str, Any] = {"method": name, "batch_size": one.batch_size}
            if strategies.owns(name, "period"):
                row["period"] = one.strategy.methods.get("period", 1)
            try:
                at = {b: one.with_({"cluster.bandwidth": b * price.GIGABIT}) for b in bandwidths}
                row["prices"] = {b: price.price(there, shapes)._asdict() for b, there in at.items()}
                if needed:
                    row["needed"] = {s: price.needed(one, shapes, s) for s in SHARES}
            except (ConfigError, TimelineError) as error:
                row["refused"] = str(error)
            yield row


def table(found: Sequence[dict[str, Any]], bandwidths: Sequence[float]) -> Iterator[str]:
    """The rows, as text."""
    priced = [row for row in found if "prices" in row]
    width = max([len(_named(row)) for row in priced], default=0)
    head = "".join(f"{b:>9g}" for b in bandwidths)
    more = "".join(f"{100 * share:>8g}%" for share in SHARES)
    yield f"{'':{width}}  computing, %, at Gbit/s".ljust(width + 2 + 9 * len(bandwidths)) + (
        "   sent, staleness   Gbit/s for computing"
    )
    yield f"{'':{width}}{head}   MB a step, updates{more}"
    for row in priced:
        prices = list(row["prices"].values())
        cells = "".join(f"{100 * p['computing']:>9.3g}" for p in prices)
        last = prices[-1]
        needed = "".join(f"{_speed(v):>9}" for v in row.get("needed", {}).values())
        sent = f"{last['sent_bytes'] / 1e6:>9.4g} {last['staleness']:>9.3g}"
        yield f"{_named(row):{width}}{cells}{sent}{needed}"
    for row in found:
        if "refused" in row:
            yield f"{row['method']}: {row['refused']}"


def main(config: Experiment, workdir: Path) -> int:
    from optdyn import price, strategies
    from optdyn.outputs.files import write_json

    app.one_run(config)
    given = flags.FLAGS
    bandwidths = [_number("bandwidths", text) for text in given.bandwidths]
    periods = [int(_number("periods", text)) for text in given.periods]
    names = given.methods.split(",") if given.methods else [config.strategy.name]
    if names == ["all"]:
        names = list(strategies.built_in())
    for name in names:
        strategies.chosen(name)
    shapes = price.of_parameters(given.parameters) if given.parameters else price.of_model(config)
    if given.step_seconds:
        config = price.step_of(config, given.step_seconds)
    cluster = config.cluster
    each = (
        config.batch_size
        * strategies.groups_of(config)
        / (cluster.nodes * cluster.devices_per_node)
    )
    print(
        f"{cluster.nodes:,} nodes of {cluster.devices_per_node:,}, {shapes.bytes:,} bytes of "
        f"parameters, {each * cluster.seconds_per_example:.3g} s a step, times {cluster.service}; "
        "simulated"
    )
    found = list(rows(config, shapes, names, bandwidths, periods, given.needed))
    print(*table(found, bandwidths), sep="\n")
    if given.out:
        write_json(Path(given.out), {"bytes": shapes.bytes, "rows": found})
    return 0


def _named(row: dict[str, Any]) -> str:
    return f"{row['method']} {row['period']}" if "period" in row else row["method"]


def _speed(gigabits: float) -> str:
    return "never" if gigabits == float("inf") else f"{gigabits:.3g}"


def _number(flag: str, text: str) -> float:
    try:
        if (value := float(text)) > 0:
            return value
    except ValueError:
        pass
    raise InputError(f"--{flag}: {text!r} must be a number above 0")


if __name__ == "__main__":
    if not any(argument.lstrip("-").startswith("config=") for argument in sys.argv[1:]):
        sys.argv.insert(1, f"--config={USUAL}")
    define()
    app.run(main, workdir=app.NONE)
