"""What ways of parallelising take in seconds, without training: `optdyn price`.

    optdyn price --parameters=124e6 --step_seconds=0.5 --methods=all --periods=1,32,128

is of 64 nodes between which there is 1 Gbit/s, with stragglers (`configs/price.py`). The first
table is of the first of the `--bandwidths`, the fastest method on top: seconds an update, examples
a second, what the workers' time goes to, bytes a node and a link, and staleness. The second has the
share that computes on every network, and the Gbit/s that half of it and more would need.

Seconds are those of the method's own clock on `config.cluster`: simulated, with its stragglers. The
model is that of a `--config`, by its shapes, or so many float32 `--parameters`; a worker computes
for its part of an update as the config says, or so many `--step_seconds`. All other keys are the
config's, as `--config.cluster.service.variation=0.5`. Methods combine,
`--methods=diloco+async_local_sgd`; `--nodes`, `--periods` and `--compression` take lists.
`--out=FILE` writes all figures as JSON.

    optdyn price --penalty=WORKDIR --parameters=124e6 --step_seconds=0.5 --methods=all

says which method: of the finished runs in the workdir of a sweep, how many updates every method
takes to a training loss (`--target`) over tuned synchronous training, times what an update of it
takes on this cluster. `--where=KEY=VALUE` chooses among runs of several problems. Workdirs are a
list.
`--noise_scale=B`, in examples, says where DiLoCo and top-k pay (`price/who_pays.py`).
`--page=FILE.html` writes one offline page with sliders for bandwidth, nodes, stragglers and period,
of some thousand prices, which take a minute or two.
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

USUAL = "price"  # the config without a --config
LONGEST = 10_000  # updates of a period
MOST_NODES = 2**20
WIDE = 100  # characters of a line of notes
NONE = "none"  # in a list of compressions
# Of a page with sliders, where nothing else is said: curves, and nodes over those of the cluster.
METHODS = ("sync", "asynchronous", "diloco", "async_local_sgd")
PERIODS = ("8", "32", "128")
SIZES = (0.125, 0.25, 0.5, 1, 2)
VARIED = {"lognormal": "log-normal", "gamma": "gamma"}
UNITS = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
Rows = Sequence[dict[str, Any]]


def define() -> None:
    """The flags of this command besides those of all (`app.run`)."""
    flags.DEFINE_list("methods", [], "Names of methods, or 'all'; by default the config's.")
    flags.DEFINE_list("bandwidths", ["1", "0.1", "10", "100"], "Gbit/s between nodes.")
    flags.DEFINE_list(
        "periods", [], "Updates from one exchange to the next, where a method has it."
    )
    flags.DEFINE_list(
        "compression", [], "What messages go through, 'none' among them, where a method has it."
    )
    flags.DEFINE_list("nodes", [], "Numbers of nodes; by default the config's.")
    flags.DEFINE_string(
        "parameters",
        None,
        "Parameters of a float32 model, as 124e6 or 124M; by default the config's.",
    )
    flags.DEFINE_float("step_seconds", None, "Seconds that a worker computes for an update.")
    flags.DEFINE_bool("json", False, "Print all figures as JSON in place of the tables.")
    flags.DEFINE_string("out", "", "JSON file of all figures.")
    flags.DEFINE_string("page", "", "HTML file with sliders for the cluster.")
    flags.DEFINE_list("penalty", [], "Workdirs of sweeps that measured updates to a loss.")
    flags.DEFINE_float("target", None, "Training loss that updates of --penalty are counted to.")
    flags.DEFINE_float("noise_scale", None, "Gradient noise scale of the problem, in examples.")
    flags.DEFINE_list("where", [], "KEY=VALUE of configs, which runs of --penalty agree with.")


def main(config: Config, workdir: Path) -> int:
    app.check_kind(config)
    price.check_prices(config)
    given = flags.FLAGS
    InputError.refuse(_wrong_flags(given))
    penalties = _penalties(given) if given.penalty else None
    noise_scale = given.noise_scale
    if noise_scale is not None:
        _number("noise_scale", noise_scale)
    measured = [arm.name for arm in penalties.arms] if penalties else []
    names = _methods(given.methods or measured or (METHODS if given.page else [config.method.name]))
    bandwidths = [_number("bandwidths", text) for text in given.bandwidths]
    keys = _keys(given.periods or list(PERIODS) * bool(given.page), given.compression)
    clusters, shapes = _clusters(config, given.nodes, given.parameters, given.step_seconds)
    found = [row for each in clusters for row in price.rows(each, shapes, names, bandwidths, keys)]
    if not any("prices" in row for row in found):
        raise ConfigError(f"no price of {found[0]['method']}: {found[0]['refused']}")
    is_model = given.parameters is None
    assumed = not is_model and given.step_seconds is None
    headings = [heading(each, shapes, is_model) for each in clusters]
    lines = [*headings, "", *table(found, bandwidths), "", *notes(clusters[0], found, assumed)]
    figures: dict[str, Any] = {"bytes": shapes.bytes, "rows": found}
    if noise_scale is not None:
        figures["who_pays"] = list[Any]()
        for each in clusters:
            paid = who_pays.pays(each, shapes.bytes, noise_scale, bandwidths)
            lines += ["", *table_of_pays(paid, noise_scale)]
            figures["who_pays"] += [{"nodes": each.cluster.nodes, **row} for row in paid]
    if penalties:
        figures["which"] = []
        for each in clusters:
            said, answers = _which(each, shapes, penalties, bandwidths, found)
            lines += ["", *said]
            figures["which"] += answers
    if given.out:
        write_json(Path(given.out), figures)
    if given.page:
        page = _page(clusters, shapes, penalties, names, keys, bandwidths[0], lines)
        write(Path(given.page), page)
    print(*([as_json(figures)] if app.in_json() else lines), sep="\n")
    if given.page:
        told_to = sys.stderr if app.in_json() else None
        print(f"\n{Path(given.page)}: the page with sliders", file=told_to)
    return 0


# What the flags say.


def _wrong_flags(given: flags.FlagValues) -> Iterator[tuple[object, str]]:
    """Flags that say something of another, or name what is not there."""
    of_penalty = {"target": given.target is not None, "where": given.where}
    for flag, is_given in of_penalty.items():
        alone = is_given and not given.penalty
        yield alone, f"--{flag}: says something of --penalty, which is not given"
    for source in map(Path, given.penalty):
        yield not source.exists(), f"--penalty: there is no {str(source)!r}"
    yield not given.bandwidths, "--bandwidths is empty; name a number of Gbit/s"
    for flag, name in (("out", given.out), ("page", given.page)):
        wrong = name and (not Path(name).parent.is_dir() or Path(name).is_dir())
        yield wrong, f"--{flag}: {name!r} must be a file in a folder that is there"


def _penalties(given: flags.FlagValues) -> Any:
    """What was measured in workdirs, `penalties.ProblemResults`."""
    from optdyn.report import penalties  # here, for it takes long

    target = math.nan if given.target is None else given.target
    return penalties.measured(list(map(Path, given.penalty)), target, given.where)


def _methods(given: Sequence[str]) -> list[str]:
    """The methods that are meant. Raises `ConfigError` at one that there is not."""
    every = [each for name in given for each in (built_in() if name == "all" else [name])]
    for name in every:
        MethodStack.named(name)
    return list(dict.fromkeys(every))


def _keys(periods: Sequence[str], compressions: Sequence[str]) -> list[dict[str, Any]]:
    """Values of keys of config.method, every one with every other. Raises `InputError`."""
    every: list[dict[str, Any]] = [{}]
    if periods:
        every = [{"period": int(_number("periods", text, LONGEST))} for text in periods]
    for name in compressions:
        one_of("--compression", name, (NONE, *filter(None, COMPRESSIONS)))
    if compressions:
        own = [{"compression": "" if name == NONE else name} for name in compressions]
        every = [one | other for one in every for other in own]
    return every


def _clusters(
    config: Config, nodes: Sequence[str], parameters: str | None, step_seconds: float | None
) -> tuple[list[Config], Shapes]:
    """The experiment on every number of nodes, and the shapes of the model's parameters."""
    numbers = [int(_number("nodes", text, MOST_NODES)) for text in nodes] or [config.cluster.nodes]
    count = 0.0
    if parameters is not None:  # as 124e6, 124M or 1.3B
        unit = UNITS.get(parameters[-1:].upper(), 0.0)
        digits = parameters[:-1] if unit else parameters
        count = _number("parameters", digits) * (unit or 1)
    if step_seconds is not None:
        _number("step_seconds", step_seconds)
    said = "must be (), for --bandwidths says all links"
    refuse_first(config, [Join("cluster.bandwidths", config.cluster.bandwidths, said)])
    clusters = [price.with_nodes(config, number) for number in dict.fromkeys(numbers)]
    shapes = parameter_shapes(count) if count else model_shapes(config)
    if step_seconds is not None:
        clusters = [price.with_step_seconds(each, step_seconds) for each in clusters]
    return clusters, shapes


def _number(flag: str, text: Any, whole_to: int = 0) -> float:
    """A finite number above 0, or a whole one from 1 to `whole_to`."""
    value, wanted = math.nan, "a finite number above 0"
    with suppress(ValueError):
        value = float(text)
    good = 0 < value < math.inf
    if whole_to:
        good = 1 <= value <= whole_to and value % 1 == 0
        wanted = f"a whole number from 1 to {whole_to:,}"
    if not good:
        raise InputError(f"--{flag}: {text!r} must be {wanted}")
    return value


# What is printed.


def heading(config: Config, shapes: Shapes, is_model: bool) -> str:
    """What all prices are of, in a sentence."""
    cluster = config.cluster
    nodes = f"{cluster.nodes:,} nodes of {cluster.devices_per_node:,} devices"
    nodes = nodes.removesuffix(" of 1 devices")
    each = price.examples_of_worker(config)
    law = f"{VARIED.get(cluster.service.name, cluster.service.name)} times"
    if spread := getattr(cluster.service, "variation", 0.0):
        law += f" ({spread:.0%})"
    named = f" of {config.model.name}" if is_model else ""
    said = (
        f"{nodes}, {shapes.bytes // 4:,} parameters{named} in {shapes.bytes / 1e6:,.0f} MB, "
        f"{each * cluster.seconds_per_example:.3g} s a step of {each:g} examples, {law}."
    )
    return textwrap.fill(said, WIDE)


def _percent(share: float) -> str:
    return f"{round(100 * share, 3) + 0.0:.3g}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.4g}" if size < 1e10 else f"{size / 1e6:,.0f}"


class PriceColumn(NamedTuple):
    """A column of the first table: two lines of head, characters, and a figure of a price."""

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


def table(found: Rows, bandwidths: Sequence[float]) -> Iterator[str]:
    """The rows as text, the fastest on the first network on top."""
    first, ordered = bandwidths[0], sorted(bandwidths)
    several = len({row["nodes"] for row in found}) > 1
    named = partial(_named, several=several)
    priced = [row for row in found if "prices" in row]
    priced.sort(key=lambda row: -row["prices"][first]["examples_per_second"])
    if priced:
        width = max(len(named(row)) for row in priced)
        has_epochs = any(row["prices"][first]["epoch_seconds"] for row in priced)
        columns = [column for column in COLUMNS if has_epochs or column.key != "epoch_seconds"]
        above = "".join(f"{column.above:>{column.width}}" for column in columns)
        below = "".join(f"{column.below:>{column.width}}" for column in columns)
        yield f"at {first:g} Gbit/s".ljust(width) + above
        yield " " * width + below
        for row in priced:
            cells = (f"{c.text(row['prices'][first][c.key]):>{c.width}}" for c in columns)
            yield f"{named(row):{width}}{''.join(cells)}"
        title = "  computing, %, at Gbit/s".ljust(8 * len(ordered))
        yield ""
        yield " " * width + title + "  Gbit/s for computing"
        shares = "".join(f"{100 * share:>8g}%" for share in priced[0]["needed"])
        yield " " * width + "".join(f"{b:>8g}" for b in ordered) + shares
        for row in priced:
            cells = (f"{100 * row['prices'][b]['computing']:>8.3g}" for b in ordered)
            speeds = ("never" if b is None else f"{b:.3g}" for b in row["needed"].values())
            wanted = (f"{speed:>9}" for speed in speeds)
            yield f"{named(row):{width}}{''.join(cells)}{''.join(wanted)}"
    refused = [row for row in found if "refused" in row]
    yield from [""] * bool(priced and refused)
    for row in refused:
        yield f"No price of {named(row)}: {row['refused']}"


def _named(row: dict[str, Any], several: bool) -> str:
    """A row's method, with the nodes that it is on where there are `several` numbers of them."""
    parts = row["method"], str(row.get("period", "")), row.get("compression")
    return " ".join(filter(None, parts)) + f", {row['nodes']:,} nodes" * several


def notes(config: Config, found: Rows, assumed: bool = False) -> Iterator[str]:
    """What the figures are of, in sentences; `assumed`: the step's seconds are of no such model."""
    priced = {row["method"] for row in found if "prices" in row}
    said = [
        "Seconds are simulated, each method's by its own clock; nothing was trained.",
        "Examples a second say how fast data goes through, not how fast the loss falls: rare "
        "exchanges and stale gradients may cost updates, which only training can tell; with "
        "--penalty=WORKDIR, of a sweep, they count.",
        "Waiting is for slower workers, or for work that is dropped.",
        "MB a node are those of all messages between nodes, for a step of one node; MB a link what "
        "the busiest link, a node's or the server's, carries one way while all nodes make a step.",
    ]
    if any(None in row.get("needed", {}).values() for row in found):
        said.append("'never' is where workers wait so much that no network is fast enough.")
    methods = {name: price.with_method(config, name).methods for name in sorted(priced)}
    alone = [name for name, method in methods.items() if method.groups > 1]
    if alone:
        said.append(
            f"An update of {and_list(alone)} is of one worker or a few, of the others of all."
        )
    if any(not hasattr(methods[name].read, "graph") for name in alone):
        said.append("Their server's own link is as wide as it takes, but for a server_bandwidth.")
    if any("daso" in name.split("+") for name in priced):
        said.append("daso is between its first and last epochs, before any plateau of the loss.")
    if any("local" in name.split("+") for name in priced):
        said.append("The computing of local has that of its auxiliary heads in it.")
    if assumed:
        said.append(
            "A step's seconds are the config's cluster.seconds_per_example, whatever the size of "
            "the model; --step_seconds has yours."
        )
    for sentence in said:
        yield from textwrap.wrap(sentence, WIDE)


def table_of_pays(found: Sequence[dict[str, float]], noise_scale: float) -> Iterator[str]:
    """The same as text, with what it is."""
    names = list(found[0])[2:]
    yield "Gbit/s".rjust(8) + "rho".rjust(10) + "".join(f"{name:>10}" for name in names)
    for row in found:
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


# Beyond prices.


def _which(
    config: Config, shapes: Any, penalties: Any, bandwidths: Sequence[float], found: Rows
) -> tuple[list[str], list[dict[str, Any]]]:
    """Which method is best on a cluster: as lines, and as JSON has it, by bandwidth."""
    from optdyn.report import which  # here, for it takes long

    every, others = which.answers(config, shapes, penalties, bandwidths), list[str]()
    for row in found:
        if row["nodes"] == config.cluster.nodes:
            keys = {k: row[k] for k in ("period", "compression") if k in row}
            one = price.with_method(config, row["method"], **keys)
            if not which.has(penalties, one):
                others.append(which.named(row["method"], one))
    lines = [*which.table(every[0], others), "", *which.sentences(every, penalties, config)]
    known = {"nodes": config.cluster.nodes, "not measured": others}
    return lines, [
        {"gigabits": gigabits, **known, "rows": [row._asdict() for row in its], "refused": refused}
        for gigabits, its, refused in every
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
    """The page with sliders, which start at the first of the clusters; `printed` begins with it."""
    from optdyn.report import sliders  # here, for it takes long

    nodes = sorted({each.cluster.nodes for each in clusters})
    if len(nodes) == 1:
        nodes = sorted({max(round(nodes[0] * factor), 1) for factor in SIZES})
    of_methods = sliders.curves_of_methods(names, keys)
    curves = list(sliders.curves_of_arms(penalties) if penalties else of_methods)
    data = sliders.grid(clusters[0], shapes, curves, nodes, gigabits)
    start = f"The sliders start at {' '.join(printed[0].split())}"
    return sliders.render(data, start, "\n".join(printed), penalties)


if __name__ == "__main__":
    if not any(argument.lstrip("-").split("=")[0] == "config" for argument in sys.argv[1:]):
        sys.argv.insert(1, f"--config={USUAL}")
    define()
    app.run(main, workdir=app.NONE)
