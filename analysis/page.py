"""The report's HTML: one file, no requests, readable on a phone, a laptop and on paper."""

import math
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined


class Column(NamedTuple):
    """Of a table; `text` is set flush left."""

    title: str
    text: bool = False


class Cell(NamedTuple):
    """What is shown, and what sorting goes by."""

    shown: str
    sort: str | float
    bad: bool = False
    range: str = ""


class Table(NamedTuple):
    """`label` is what a screen reader calls it."""

    label: str
    columns: list[Column]
    rows: list[list[Cell]]


class Picture(NamedTuple):
    """`src` is a data: URI."""

    src: str
    alt: str
    caption: str = ""


def cell(value: Any) -> Cell:
    """A number, a text, or nothing (None, NaN)."""
    if value is None or value != value:
        return Cell("–", "Infinity")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return Cell(str(value), str(value))
    if math.isinf(value):
        return Cell("not reached", "Infinity")
    return Cell(number(value), value)


def number(value: float) -> str:
    """Four digits; no exponent from a thousand to a million."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid #bbb; }
p, li, figcaption, dd { max-width: 44rem; }
figcaption, .note, .range { color: #444; font-size: .9em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd; }
th { vertical-align: bottom; }
th.text, td.text { text-align: left; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid #0072B2; }
th[aria-sort=ascending] button::after { content: " \\25B2"; }
th[aria-sort=descending] button::after { content: " \\25BC"; }
.range { white-space: nowrap; }
.bad { color: #a63d00; font-weight: 600; }
.figures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
.figures.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
figure { margin: 0; }
img { width: 100%; height: auto; max-width: 40rem; }
dt { font-weight: 600; }
dd { margin: 0 0 .5rem; overflow-wrap: anywhere; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  .scroll { overflow: visible; }
  table { font-size: 7.5pt; }
  th, td { padding: .1rem .3rem; }
  figure, tr, p { break-inside: avoid; }
  h2, h2 + p { break-after: avoid; }
  .figures { grid-template-columns: 1fr 1fr; }
}
</style>
</head>
<body>
{% macro grid(table) %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ table.label }}">
<table>
<thead><tr>
{% for column in table.columns %}
<th scope="col"{% if column.text %} class="text"{% endif %}><button type="button">
{{- column.title }}</button></th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in table.rows %}
<tr>
{% for cell in row %}
<td class="{{ 'text' if table.columns[loop.index0].text }}{{ ' bad' if cell.bad }}"
 data-sort="{{ cell.sort }}">{{ cell.shown }}
{%- if cell.range %} <span class="range">({{ cell.range }})</span>{% endif %}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% endmacro %}
{% macro pictures(list, size='') %}
<div class="figures {{ size }}">
{% for picture in list %}
<figure><img src="{{ picture.src }}" alt="{{ picture.alt }}">
{% if picture.caption %}<figcaption>{{ picture.caption }}</figcaption>{% endif %}
</figure>
{% endfor %}
</div>
{% endmacro %}
<h1>{{ title }}</h1>
<h2>What was run</h2>
<ul>
{% for line in lead %}
<li>{{ line }}</li>
{% endfor %}
</ul>
{% if headline %}
{{ grid(headline) }}
{% endif %}
{% for line in notes %}
<p class="note">{{ line }}</p>
{% endfor %}
{% if losses %}
<h2>Training loss</h2>
<p>{{ losses_note }}</p>
{{ pictures(losses) }}
{% endif %}
{% if staleness %}
<h2>Staleness</h2>
<p>{{ staleness_note }}</p>
{{ pictures(staleness, 'small') }}
{% endif %}
{% if fits %}
<h2>Implicit momentum</h2>
<p>{{ fits_note }}</p>
{{ pictures(fits_pictures) }}
{{ grid(fits) }}
{% endif %}
<h2>Where the numbers come from</h2>
<p>{{ simulated }}</p>
<dl>
{% for name, value in provenance %}
<dt>{{ name }}</dt><dd>{{ value }}</dd>
{% endfor %}
</dl>
<details><summary>Configuration shared by all runs</summary>
<dl>
{% for name, value in shared %}
<dt>{{ name }}</dt><dd>{{ value }}</dd>
{% endfor %}
</dl>
</details>
<script>
document.querySelectorAll("th button").forEach(button => button.onclick = () => {
  const head = button.parentNode, column = head.cellIndex, body = head.closest("table").tBodies[0];
  const down = head.getAttribute("aria-sort") === "ascending";
  head.parentNode.querySelectorAll("th").forEach(th => th.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = row => row.cells[column].dataset.sort;
  const compare = (a, b) => a - b || String(a).localeCompare(b);
  [...body.rows].sort((a, b) => compare(value(a), value(b)) * (down ? -1 : 1))
    .forEach(row => body.append(row));
});
</script>
</body>
</html>
"""


def render(**content: Any) -> str:
    """The page; every value is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(TEMPLATE).render(**content)
