"""Prices parallel methods in seconds, without training: `optdyn price`.

    optdyn price --parameters=124e6 --step_seconds=0.5 --methods=all --periods=1,32,128

is for 64 nodes with 1 Gbit/s between them and stragglers (`configs/price.py`). The first table is
for the first of the `--bandwidths`, the fastest method on top: seconds an update, examples a
second, shares of the workers' time, bytes a node and a link, and staleness. The second has the
share of computing time on all networks, and the Gbit/s for half of the time and more.

Seconds are simulated by the method's clock on `config.cluster`, with its stragglers. The model is
that of `--config`, by its shapes, or one of so many float32 `--parameters`; a worker's part of an
update takes as long as the config says, or `--step_seconds`. All other keys are the config's, such
as `--config.cluster.service.variation=0.5`. Methods combine, `--methods=diloco+async_local_sgd`;
`--nodes`, `--periods` and `--compression` take lists. `--out=FILE` writes all figures as JSON.

    optdyn price --penalty=WORKDIR --parameters=124e6 --step_seconds=0.5 --methods=all

says which method is best: updates to a training loss (`--target`) over those of tuned synchronous
training, from the finished runs of sweeps, a list of workdirs, times the seconds of an update on
this cluster. `--where=KEY=VALUE` selects among runs of several problems.
`--noise_scale=B`, in examples, says where DiLoCo and top-k pay (`price/who_pays.py`).
`--page=FILE.html` writes an offline page with sliders for bandwidth, nodes, stragglers and period,
from some thousand prices in a minute or two.
"""

import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from optdyn.base.errors import ConfigError, InputError, Join, and_list, one_of
from optdyn.base.files import as_json, write, write_json
from optdyn.cli import app
from optdyn.experiment import Config, refuse_first
from optdyn.methods import MethodStack, built_in
from optdyn.methods.messages import COMPRESSIONS
from optdyn.price import price, who_pays
from optdyn.price.shapes import Shapes, model_shapes, parameter_shapes

DEFAULT_CONFIG = "price"
MOST_PERIOD = 10_000  # updates of a period
MOST_NODES = 2**20
WIDE = 100  # characters of a line of notes
NONE = "none"  # in a list of compressions
# Defaults of a page with sliders: curves, and nodes over those of the cluster.
METHODS = ("sync", "asynchronous", "diloco", "async_local_sgd")
PERIODS = ("8", "32", "128")
SIZES = (0.125, 0.25, 0.5, 1, 2)
VARIED = {"lognormal": "log-normal", "gamma": "gamma"}
UNITS = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
Rows = Sequence[dict[str, Any]]


def define_flags() -> None:
    flags.DEFINE_list("methods", [], "Names of methods, or 'all'; by default the config's.")
    flags.DEFINE_list("bandwidths", ["1", "0.1", "10", "100"], "Gbit/s between nodes.")
    flags.DEFINE_list("periods", [], "Updates between exchanges, for methods with a period.")
    flags.DEFINE_list("compression", [], "Message compressions, or 'none', for methods with one.")
    flags.DEFINE_list("nodes", [], "Numbers of nodes; by default the config's.")
    flags.DEFINE_string(
        "parameters",
        None,
        "Parameters of a float32 model, as 124e6 or 124M; by default the config's.",
    )
    flags.DEFINE_float("step_seconds", None, "Seconds of a worker's computation for an update.")
    flags.DEFINE_bool("json", False, "Print all figures as JSON in place of the tables.")
    flags.DEFINE_string("out", "", "JSON file of all figures.")
    flags.DEFINE_string("page", "", "HTML file with sliders for the cluster.")
    flags.DEFINE_list("penalty", [], "Workdirs of sweeps that measured updates to a loss.")
    flags.DEFINE_float("target", None, "Training loss to which updates of --penalty are counted.")
    flags.DEFINE_float("noise_scale", None, "Gradient noise scale of the problem, in examples.")
    flags.DEFINE_list("where", [], "KEY=VALUE that selects runs of --penalty.")


def main(config: Config, workdir: Path) -> int:
    app.check_kind(config)
    price.check_prices(config)
    values = flags.FLAGS
    InputError.refuse(_flag_checks(values))
    penalties = _penalties(values) if values.penalty else None
    noise_scale = values.noise_scale
    if noise_scale is not None:
        _number("noise_scale", noise_scale)
    measured = [arm.name for arm in penalties.arms] if penalties else []
    default = METHODS if values.page else [config.method.name]
    names = _methods(values.methods or measured or default)
    bandwidths = [_number("bandwidths", text) for text in values.bandwidths]
    keys = _keys(values.periods or list(PERIODS) * bool(values.page), values.compression)
    clusters, shapes = _clusters(config, values.nodes, values.parameters, values.step_seconds)
    rows = [row for one in clusters for row in price.rows(one, shapes, names, bandwidths, keys)]
    if not any("prices" in row for row in rows):
        raise ConfigError(f"no price of {rows[0]['method']}: {rows[0]['refused']}")
    is_model = values.parameters is None
    assumed = not is_model and values.step_seconds is None
    headings = [heading(one, shapes, is_model) for one in clusters]
    lines = [*headings, "", *table(rows, bandwidths), "", *notes(clusters[0], rows, assumed)]
    figures: dict[str, Any] = {"bytes": shapes.bytes, "rows": rows}
    if noise_scale is not None:
        figures["who_pays"] = list[Any]()
        for one in clusters:
            paid = who_pays.pays(one, shapes.bytes, noise_scale, bandwidths)
            lines += ["", *pays_table(paid, noise_scale)]
            figures["who_pays"] += [{"nodes": one.cluster.nodes, **row} for row in paid]
    if penalties:
        figures["which"] = []
        for one in clusters:
            text, answers = _which(one, shapes, penalties, bandwidths, rows)
            lines += ["", *text]
            figures["which"] += answers
    if values.out:
        write_json(Path(values.out), figures)
    if values.page:
        page = _page(clusters, shapes, penalties, names, keys, bandwidths[0], lines)
        write(Path(values.page), page)
    print(*([as_json(figures)] if app.in_json() else lines), sep="\n")
    if values.page:
        stream = sys.stderr if app.in_json() else None
        print(f"\n{Path(values.page)}: the page with sliders", file=stream)
    return 0


def _flag_checks(values: flags.FlagValues) -> Iterator[tuple[object, str]]:
    for flag, is_set in (("target", values.target is not None), ("where", values.where)):
        yield is_set and not values.penalty, f"--{flag}: needs --penalty"
    for source in map(Path, values.penalty):
        yield not source.exists(), f"--penalty: there is no {str(source)!r}"
    yield not values.bandwidths, "--bandwidths is empty; name a number of Gbit/s"
    for flag, name in (("out", values.out), ("page", values.page)):
        wrong = name and (not Path(name).parent.is_dir() or Path(name).is_dir())
        yield wrong, f"--{flag}: {name!r} must be a file in a folder that is there"


def _penalties(values: flags.FlagValues) -> Any:
    from optdyn.report import penalties  # here, for it takes long

    target = math.nan if values.target is None else values.target
    return penalties.measured(list(map(Path, values.penalty)), target, values.where)


def _methods(names: Sequence[str]) -> list[str]:
    methods = [method for name in names for method in (built_in() if name == "all" else [name])]
    for method in methods:
        MethodStack.named(method)
    return list(dict.fromkeys(methods))


def _keys(periods: Sequence[str], compressions: Sequence[str]) -> list[dict[str, Any]]:
    keys: list[dict[str, Any]] = [{}]
    if periods:
        keys = [{"period": int(_number("periods", text, MOST_PERIOD))} for text in periods]
    for name in compressions:
        one_of("--compression", name, (NONE, *filter(None, COMPRESSIONS)))
    if compressions:
        others = [{"compression": "" if name == NONE else name} for name in compressions]
        keys = [one | other for one in keys for other in others]
    return keys


def _clusters(
    config: Config, nodes: Sequence[str], parameters: str | None, step_seconds: float | None
) -> tuple[list[Config], Shapes]:
    numbers = [int(_number("nodes", text, MOST_NODES)) for text in nodes] or [config.cluster.nodes]
    count = 0.0
    if parameters is not None:  # as 124e6, 124M or 1.3B
        unit = UNITS.get(parameters[-1:].upper(), 0.0)
        digits = parameters[:-1] if unit else parameters
        count = _number("parameters", digits) * (unit or 1)
    if step_seconds is not None:
        _number("step_seconds", step_seconds)
    line = "must be (), for --bandwidths says all links"
    refuse_first(config, [Join("cluster.bandwidths", config.cluster.bandwidths, line)])
    clusters = [price.with_nodes(config, number) for number in dict.fromkeys(numbers)]
    shapes = parameter_shapes(count) if count else model_shapes(config)
    if step_seconds is not None:
        clusters = [price.with_step_seconds(one, step_seconds) for one in clusters]
    return clusters, shapes


def _number(flag: str, text: Any, whole_to: int = 0) -> float:
    value, expected = math.nan, "a finite number above 0"
    with suppress(ValueError):
        value = float(text)
    good = 0 < value < math.inf
    if whole_to:
        good = 1 <= value <= whole_to and value % 1 == 0
        expected = f"a whole number from 1 to {whole_to:,}"
    if not good:
        raise InputError(f"--{flag}: {text!r} must be {expected}")
    return value


def heading(config: Config, shapes: Shapes, is_model: bool) -> str:
    """Returns a sentence on the cluster, the model and a step."""
    cluster = config.cluster
    nodes = f"{cluster.nodes:,} nodes of {cluster.devices_per_node:,} devices"
    nodes = nodes.removesuffix(" of 1 devices")
    examples = price.examples_of_worker(config)
    law = f"{VARIED.get(cluster.service.name, cluster.service.name)} times"
    if spread := getattr(cluster.service, "variation", 0.0):
        law += f" ({spread:.0%})"
    model = f" of {config.model.name}" if is_model else ""
    text = (
        f"{nodes}, {shapes.bytes // 4:,} parameters{model} in {shapes.bytes / 1e6:,.0f} MB, "
        f"{examples * cluster.seconds_per_example:.3g} s a step of {examples:g} examples, {law}."
    )
    return textwrap.fill(text, WIDE)


def _percent(share: float) -> str:
    return f"{round(100 * share, 3) + 0.0:.3g}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.4g}" if size < 1e10 else f"{size / 1e6:,.0f}"


class PriceColumn(NamedTuple):
    above: str
    below: str
    width: int
    key: str
    text: Callable[[float], str]


DIGITS = "{:.4g}".format
COLUMNS = (
    PriceColumn("seconds", "an update", 11, "seconds", DIGITS),
    PriceColumn("examples", "a second", 10, "examples_per_second", DIGITS),
    PriceColumn("seconds", "an epoch", 10, "epoch_seconds", DIGITS),
    PriceColumn("% of time", "computing", 11, "computing", _percent),
    PriceColumn("", "waiting", 9, "waiting", _percent),
    PriceColumn("", "exchange", 10, "exchange", _percent),
    PriceColumn("MB a", "node", 10, "network_bytes", _megabytes),
    PriceColumn("MB a", "link", 10, "link_bytes", _megabytes),
    PriceColumn("staleness,", "updates", 12, "staleness", "{:.3g}".format),
)


def table(rows: Rows, bandwidths: Sequence[float]) -> Iterator[str]:
    """Yields the lines of both tables, the fastest method on the first network on top."""
    first, ordered = bandwidths[0], sorted(bandwidths)
    label = partial(_label, several=len({row["nodes"] for row in rows}) > 1)
    priced = [row for row in rows if "prices" in row]
    priced.sort(key=lambda row: -row["prices"][first]["examples_per_second"])
    if priced:
        width = max(len(label(row)) for row in priced)
        has_epochs = any(row["prices"][first]["epoch_seconds"] for row in priced)
        columns = [column for column in COLUMNS if has_epochs or column.key != "epoch_seconds"]
        above = "".join(f"{column.above:>{column.width}}" for column in columns)
        below = "".join(f"{column.below:>{column.width}}" for column in columns)
        yield f"at {first:g} Gbit/s".ljust(width) + above
        yield " " * width + below
        for row in priced:
            cells = (f"{c.text(row['prices'][first][c.key]):>{c.width}}" for c in columns)
            yield f"{label(row):{width}}{''.join(cells)}"
        title = "  computing, %, at Gbit/s".ljust(8 * len(ordered))
        yield ""
        yield " " * width + title + "  Gbit/s for computing"
        shares = "".join(f"{100 * share:>8g}%" for share in priced[0]["needed"])
        yield " " * width + "".join(f"{b:>8g}" for b in ordered) + shares
        for row in priced:
            cells = (f"{100 * row['prices'][b]['computing']:>8.3g}" for b in ordered)
            speeds = ("never" if b is None else f"{b:.3g}" for b in row["needed"].values())
            needed = (f"{speed:>9}" for speed in speeds)
            yield f"{label(row):{width}}{''.join(cells)}{''.join(needed)}"
    refused = [row for row in rows if "refused" in row]
    yield from [""] * bool(priced and refused)
    for row in refused:
        yield f"No price of {label(row)}: {row['refused']}"


def _label(row: dict[str, Any], several: bool) -> str:
    parts = row["method"], str(row.get("period", "")), row.get("compression")
    return " ".join(filter(None, parts)) + f", {row['nodes']:,} nodes" * several


def notes(config: Config, rows: Rows, assumed: bool = False) -> Iterator[str]:
    """Yields lines on the figures; `assumed`: a step's seconds are those of another model."""
    priced = {row["method"] for row in rows if "prices" in row}
    sentences = [
        "Seconds are simulated, each method's by its own clock; nothing was trained.",
        "Examples a second say how fast data goes through, not how fast the loss falls: rare "
        "exchanges and stale gradients may cost updates, which only training can tell; with "
        "--penalty=WORKDIR, of a sweep, they count.",
        "Waiting is for slower workers, or for work that is dropped.",
        "MB a node are those of all messages between nodes, for a step of one node; MB a link what "
        "the busiest link, a node's or the server's, carries one way while all nodes make a step.",
    ]
    if any(None in row.get("needed", {}).values() for row in rows):
        sentences.append("'never' is where workers wait so much that no network is fast enough.")
    methods = {name: price.with_method(config, name).methods for name in sorted(priced)}
    grouped = [name for name, method in methods.items() if method.groups > 1]
    if grouped:
        sentences.append(
            f"An update of {and_list(grouped)} is of one worker or a few, of the others of all."
        )
    if any(not hasattr(methods[name].read, "graph") for name in grouped):
        sentences.append(
            "Their server's own link is as wide as it takes, but for a server_bandwidth."
        )
    if any("daso" in name.split("+") for name in priced):
        sentences.append(
            "daso is between its first and last epochs, before any plateau of the loss."
        )
    if any("local" in name.split("+") for name in priced):
        sentences.append("The computing of local has that of its auxiliary heads in it.")
    if assumed:
        sentences.append(
            "A step's seconds are the config's cluster.seconds_per_example, whatever the size of "
            "the model; --step_seconds has yours."
        )
    for sentence in sentences:
        yield from textwrap.wrap(sentence, WIDE)


def pays_table(rows: Sequence[dict[str, float]], noise_scale: float) -> Iterator[str]:
    names = list(rows[0])[2:]
    yield "Gbit/s".rjust(8) + "rho".rjust(10) + "".join(f"{name:>10}" for name in names)
    for row in rows:
        cells = "".join(f"{row[name]:>10.3g}" for name in ("rho", *names))
        yield f"{row['gigabits']:>8g}{cells}"
    yield from textwrap.wrap(
        f"rho: seconds of an all-reduce, over those in which all workers compute {noise_scale:g} "
        f"examples. {and_list(names)}: seconds to a loss that they take there, over the best of "
        "synchronous training with its best batch and outer momentum on one node. It is what a "
        "contest of a perceptron on 8 workers found at that rho, with heavy-ball SGD on both "
        "sides.",
        WIDE,
    )


def _which(
    config: Config, shapes: Any, penalties: Any, bandwidths: Sequence[float], rows: Rows
) -> tuple[list[str], list[dict[str, Any]]]:
    from optdyn.report import which  # here, for it takes long

    answers, others = which.answers(config, shapes, penalties, bandwidths), list[str]()
    for row in rows:
        if row["nodes"] == config.cluster.nodes:
            keys = {k: row[k] for k in ("period", "compression") if k in row}
            one = price.with_method(config, row["method"], **keys)
            if not which.is_measured(penalties, one):
                others.append(which.label_of(row["method"], one))
    lines = [*which.table(answers[0], others), "", *which.sentences(answers, penalties, config)]
    known = {"nodes": config.cluster.nodes, "not measured": others}
    return lines, [
        {"gigabits": gigabits, **known, "rows": [row._asdict() for row in its], "refused": refused}
        for gigabits, its, refused in answers
    ]


def _page(
    clusters: Sequence[Config],
    shapes: Any,
    penalties: Any,
    names: Sequence[str],
    keys: Sequence[dict[str, Any]],
    gigabits: float,
    printed: Sequence[str],
) -> str:
    from optdyn.report import sliders  # here, for it takes long

    nodes = sorted({one.cluster.nodes for one in clusters})
    if len(nodes) == 1:
        nodes = sorted({max(round(nodes[0] * factor), 1) for factor in SIZES})
    of_methods = sliders.curves_of_methods(names, keys)
    curves = list(sliders.curves_of_arms(penalties) if penalties else of_methods)
    data = sliders.grid(clusters[0], shapes, curves, nodes, gigabits)
    start = f"The sliders start at {' '.join(printed[0].split())}"
    return sliders.render(data, start, "\n".join(printed), penalties)


if __name__ == "__main__":
    if not any(argument.lstrip("-").split("=")[0] == "config" for argument in sys.argv[1:]):
        sys.argv.insert(1, f"--config={DEFAULT_CONFIG}")
    define_flags()
    app.run(main, workdir=app.NO_WORKDIR)
