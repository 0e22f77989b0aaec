"""A page with sliders, of prices and penalties: `optdyn price --page=FILE.html`.

All prices are computed before; `sliders.js` multiplies two figures and finds the nearest period.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple

from optdyn import methods
from optdyn.base.errors import ConfigError
from optdyn.base.progress import say
from optdyn.clock.service import Gamma, LogNormal
from optdyn.clock.timeline import TimelineError
from optdyn.experiment import Config
from optdyn.price import price
from optdyn.price.price import GIGABIT
from optdyn.price.shapes import Shapes
from optdyn.report import efficiency, page, which
from optdyn.report.figures import OKABE_ITO
from optdyn.report.penalties import ProblemResults
from optdyn.report.tables import method_value

GIGABITS = tuple(float(f"{n}e{e}") for e in range(-2, 3) for n in (1, 2, 5))
SPREADS = (0.0, 0.1, 0.3, 1.0)  # standard deviation of a worker's times over their mean
LAW = "lognormal"  # of a cluster whose law has no spread
DIGITS = 5  # of a figure on the page
DASHES = ("none", "6 3", "2 2", "8 3 2 3")  # of curves, in SVG's words


class PricedMethod(NamedTuple):
    """A method with one period: a line of the page, with a price at all stops."""

    family: str  # its label but for the period
    period: int  # 0: it has none
    synchronous: bool
    penalty: list[which.Triple] | None  # over each synchronous curve; None: not measured
    on_cluster: Callable[[Config], Config]  # of another experiment


def curves_of_methods(
    names: Sequence[str], keys: Sequence[Mapping[str, Any]]
) -> Iterator[PricedMethod]:
    """Yields a curve for each method and values of the keys of config.method that it has."""
    for name in dict.fromkeys((methods.PLAIN, *names)):
        for values in price.distinct_settings(name, keys):
            family = " ".join(filter(None, (name, str(values.get("compression") or ""))))
            on_cluster = partial(price.with_method, name=name, **values)
            is_plain = name == methods.PLAIN
            yield PricedMethod(family, int(values.get("period", 0)), is_plain, None, on_cluster)


def curves_of_arms(found: ProblemResults) -> Iterator[PricedMethod]:
    seeds = efficiency.all_and_draws(found.seeds)
    families = which.labels(found.arms, periods=False)
    updates = [arm.median_updates(seeds) for arm in found.arms]
    synchronous = [u for arm, u in zip(found.arms, updates, strict=True) if arm.synchronous]
    for arm, family, above in zip(found.arms, families, updates, strict=True):
        penalty = [which.ratio(above, below) for below in synchronous]
        on_cluster = partial(which.on_cluster, arm=arm, anchor=found.anchor)
        period = int(method_value(arm.keys, "period", 0))
        yield PricedMethod(family, period, arm.synchronous, penalty, on_cluster)


def spreads(config: Config) -> list[tuple[str, dict[str, Any]]]:
    """Returns the stops of the slider of stragglers, with the config's: words and keys."""
    law = config.cluster.service
    variations = [law.variation] if isinstance(law, (LogNormal, Gamma)) else []
    drawn = bool(variations)
    name = law.name if drawn else LAW
    stops: list[tuple[str, dict[str, Any]]] = [("none", {"cluster.service.name": "constant"})]
    for variation in sorted({*SPREADS, *variations})[1:]:
        keys = {"cluster.service.name": name, "cluster.service.variation": variation}
        stops.append((f"{variation:.0%}", keys))
    return stops if drawn or law.name == "constant" else [*stops, (f"{law.name} times", {})]


def grid(
    config: Config,
    shapes: Shapes,
    curves: Sequence[PricedMethod],
    nodes: Sequence[int],
    gigabits: float,
) -> dict[str, Any]:
    """Returns all data of the page: stops of its sliders, and prices at each.

    A curve's figures are lists by stragglers, nodes and bandwidths, null without a price. Seconds
    are an update's, of the first order of arrivals. The sliders start at the config's cluster, with
    so many Gbit/s.
    """
    stragglers, periods = spreads(config), sorted({c.period for c in curves if c.period})
    rows = []
    for i, curve in enumerate(curves):
        prices = [
            [_prices(curve, price.with_nodes(config.with_(keys), n), shapes) for n in nodes]
            for _, keys in stragglers
        ]
        row = {name: getattr(curve, name) for name in ("family", "period", "synchronous")}
        row["penalty"] = curve.penalty and [[_plain(v) for v in ends] for ends in curve.penalty]
        for name in ("batch", "seconds", "computing"):
            row[name] = [[found and found[name] for found in line] for line in prices]
        rows.append(row)
        count = len(nodes) * len(stragglers) * len(GIGABITS)
        say(f"page: {i + 1} of {len(curves)} methods, {count * (i + 1):,} prices")
    families = list(dict.fromkeys(curve.family for curve in curves))
    colours = len(OKABE_ITO)
    here = [i for i, (_, keys) in enumerate(stragglers) if config.with_(keys) == config]
    distances = [abs(math.log(stop / gigabits)) for stop in GIGABITS]
    return {
        "gigabits": GIGABITS,
        "nodes": list(nodes),
        "stragglers": [words for words, _ in stragglers],
        "periods": periods,
        "families": [
            {"name": name, "colour": OKABE_ITO[i % colours], "dash": DASHES[i // colours % 4]}
            for i, name in enumerate(families)
        ],
        "rows": rows,
        "start": {
            "bandwidth": distances.index(min(distances)),
            "nodes": list(nodes).index(config.cluster.nodes),
            "stragglers": (here or [0])[0],
            "period": len(periods) // 2,
        },
    }


def _prices(curve: PricedMethod, config: Config, shapes: Shapes) -> dict[str, Any] | None:
    """Returns a curve's figures by bandwidth; None where it has no price."""
    try:
        experiment = curve.on_cluster(config)
        at = price.price_by_bandwidth(experiment, shapes)
        prices = [at(b * GIGABIT) for b in GIGABITS]
    except (ConfigError, TimelineError):
        return None
    return {
        "batch": experiment.batch_size,
        "seconds": [_plain(found.seconds) for found in prices],
        "computing": [_plain(found.computing) for found in prices],
    }


def _plain(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


STYLE = """\
form { position: sticky; top: 0; z-index: 4; display: grid; gap: .3rem 1.2rem; padding: .5rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 13rem), 1fr));
  background: var(--paper); border-bottom: 1px solid var(--strong); }
form div { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 .5rem;
  font-size: .85rem; }
input[type=range] { width: 100%; margin: 0; height: 1.5rem; accent-color: var(--link); }
#answer { border-left: 4px solid var(--link); padding-left: 1rem; min-height: 4.5em; }
#now td { white-space: nowrap; }
th[scope=row] { text-align: left; font-weight: 400; max-width: 16rem; top: auto;
  vertical-align: baseline; border-bottom-color: var(--rule); }
pre { overflow: auto; font-size: .8rem; }
figure svg { max-width: 40rem; font-size: 12px; fill: var(--ink); }
figure g { fill: none; stroke-width: 1.8;
  stroke: oklch(from currentColor max(l, calc(.72 * var(--dark))) c h); }
figure line { stroke: var(--rule); }
figure .mark { stroke: var(--ink); }
figcaption span { display: inline-block; margin-right: 1rem; }
figcaption svg { width: 2rem; height: .6rem; margin-right: .3rem; }
@media (max-width: 40rem) { form { grid-template-columns: 1fr 1fr; gap: .2rem .8rem; }
  form div { font-size: .8rem; } #answer { min-height: 7.5em; } }
@media print { form { position: static; } }
"""
TEMPLATE = (
    page.HEAD
    + """\
<h1>{{ title }}</h1>
<p>{{ heading }}</p>
<noscript>
<p>The sliders need JavaScript; what the command printed is at the end of the page.</p>
</noscript>
<form aria-label="The cluster" onsubmit="return false">
{% for name, title, count in sliders %}
<div><label for="at-{{ name }}">{{ title }}</label>
<b id="said-{{ name }}" aria-hidden="true"></b>
<input type="range" id="at-{{ name }}" min="0" max="{{ count - 1 }}" step="1"></div>
{% endfor %}
</form>
<p id="answer" aria-live="polite"></p>
<div class="figures">
{% for name, alt in figures %}
<figure id="{{ name }}" data-alt="{{ alt }}"></figure>
{% endfor %}
</div>
<h2>At these stops</h2>
<div class="scroll" tabindex="0" role="region"
 aria-label="All methods at these stops, the best first">
<table>
<thead><tr><th scope="col" class="text">method</th><th scope="col">seconds an update</th>
<th scope="col">examples a second</th><th scope="col">computing, %</th>
{% if target %}<th scope="col">time to the loss, over synchronous</th>{% endif %}</tr></thead>
<tbody id="now"></tbody>
</table>
</div>
<h2>The share that computes, as a table</h2>
<div class="scroll" tabindex="0" role="region"
 aria-label="Computing, per cent, by method and Gbit/s">
<table>
<thead><tr><th scope="col" class="text">computing, %, at Gbit/s</th>
{% for stop in gigabits %}<th scope="col">{{ "%g" % stop }}</th>{% endfor %}</tr></thead>
<tbody id="along"></tbody>
</table>
</div>
<h2>What this is</h2>
{% for note in notes %}
<p>{{ note }}</p>
{% endfor %}
<details><summary>What the command printed</summary>
<pre tabindex="0">{{ printed }}</pre>
</details>
<script type="application/json" id="data">{{ data | tojson }}</script>
<script>
{{ script | safe }}
{{ sliders_script | safe }}
open(JSON.parse(document.getElementById("data").textContent));
</script>
</body>
</html>
"""
)
NOTES = (
    "Every price was made before, by optdyn price: simulated seconds of each method’s own clock. "
    "Nothing was trained for it, and the page only looks prices up and multiplies. Between the "
    "stops, curves are straight lines.",
    "Seconds are an update’s: of all workers, or of methods whose groups arrive by themselves, of "
    "the next one to arrive. A worker computes as many examples for its part of an update on every "
    "number of nodes.",
    "Stragglers: the standard deviation of a worker’s times over their mean. The period is that of "
    "methods that have one; a method shows its nearest.",
)
MEASURED = (
    "Time to the loss is the updates of each method over those of tuned synchronous training, as "
    "measured on {problem}, to a training loss of {target:.3g} with {seeds} seeds, times what an "
    "update takes here. It is carried over as it is, to whatever cluster the sliders say. Its "
    "interval of 95 % is that of the updates."
)


def render(
    data: Mapping[str, Any], heading: str, printed: str, found: ProblemResults | None = None
) -> str:
    """Returns the page of a `grid`, with a `heading` and the command's tables, `printed`."""
    sliders = [
        ("bandwidth", "Bandwidth", len(data["gigabits"])),
        ("nodes", "Nodes", len(data["nodes"])),
        ("stragglers", "Stragglers", len(data["stragglers"])),
        ("period", "Period", len(data["periods"])),
    ]
    figures = [
        ("computing", "The share of the workers' time that computes, against bandwidth."),
        ("seconds", "Simulated seconds an update, against bandwidth."),
    ]
    notes = list(NOTES)
    if found:
        figures.insert(0, ("time", "Time to the loss over synchronous training's."))
        problem, target, seeds = found.problem, found.target, found.seeds
        notes.append(MEASURED.format(problem=problem, target=target, seeds=seeds))
    return page.fill(
        TEMPLATE,
        STYLE,
        title="Which method, on which cluster" if found else "What methods take, on which cluster",
        heading=heading,
        sliders=[slider for slider in sliders if slider[2] > 1],
        figures=figures,
        target=bool(found),
        gigabits=data["gigabits"],
        notes=notes,
        printed=printed,
        data=data,
        sliders_script=files("optdyn.report").joinpath("sliders.js").read_text(),
    )
