"""The report's HTML: one file, no requests, readable on a phone, a laptop and on paper."""

import math
from collections.abc import Sequence
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
    good: bool = False


class Table(NamedTuple):
    """`label` is what a screen reader calls it; the first column stays in sight."""

    label: str
    columns: list[Column]
    rows: list[list[Cell]]


class Picture(NamedTuple):
    """`src` is a data: URI."""

    src: str
    alt: str
    caption: str = ""


class Section(NamedTuple):
    """A heading and what is below it, in this order."""

    title: str
    points: Sequence[str] = ()
    text: str = ""
    pictures: Sequence[Picture] = ()
    table: Table | None = None
    notes: Sequence[str] = ()
    small: bool = False  # its pictures


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


LONG = 24  # rows of a table that scrolls by itself
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
p, li, figcaption, dd { max-width: 44rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; }
figcaption, .note, .range { color: #444; font-size: .9em; }
.scroll { overflow: auto; }
.scroll.long { max-height: 80vh; border-bottom: 1px solid #bbb; }
table { border-collapse: separate; border-spacing: 0; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd;
  background: #fff; }
th { vertical-align: bottom; position: sticky; top: 0; z-index: 1; min-width: 3.5rem;
  max-width: 8rem; line-height: 1.25; border-bottom-color: #888; }
th:first-child, td:first-child { position: sticky; left: 0; padding-left: 0; }
th:first-child { z-index: 2; }
th.text, td.text { text-align: left; }
td.text { max-width: 16rem; overflow-wrap: break-word; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:hover { text-decoration: underline; }
th button:focus-visible { outline: 2px solid #0072B2; }
th[aria-sort=ascending] button::after { content: " \\25B2"; }
th[aria-sort=descending] button::after { content: " \\25BC"; }
.range { white-space: nowrap; display: block; }
.bad { color: #a63d00; font-weight: 600; }
.good { font-weight: 700; }
.figures { display: grid; gap: 1rem 2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); }
.figures.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
figure { margin: 0; }
img { width: 100%; height: auto; max-width: 34rem; }
dt { font-weight: 600; }
dd { margin: 0 0 .5rem; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  .scroll, .scroll.long { overflow: visible; max-height: none; }
  table { font-size: 7.5pt; }
  th, td { padding: .1rem .3rem; }
  th, th:first-child, td:first-child { position: static; }
  th, td, td.text { min-width: 0; max-width: none; }
  figure, tr, p { break-inside: avoid; }
  h2, h2 + p { break-after: avoid; }
  .figures, .figures.small { grid-template-columns: 1fr 1fr; }
  .hint { display: none; }
}
</style>
</head>
<body>
{% macro grid(table) %}
{% if table.rows | length > 1 %}
<p class="note hint" hidden>A click on a column's title sorts by it.</p>
{% endif %}
<div class="scroll{{ ' long' if table.rows | length > LONG }}" tabindex="0" role="region"
 aria-label="{{ table.label }}">
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
{% set text = table.columns[loop.index0].text %}
<td{% if text or cell.bad or cell.good %} class="
{{- 'text ' if text }}{{ 'bad' if cell.bad }}{{ 'good' if cell.good }}"{% endif %}
{%- if cell.range or cell.sort | string != cell.shown %} data-sort="{{ cell.sort }}"{% endif %}>
{{- cell.shown }}
{%- if cell.range %} <span class="range">({{ cell.range }})</span>{% endif %}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% endmacro %}
<h1>{{ title }}</h1>
{% for note in notes %}
<p>{{ note }}</p>
{% endfor %}
{% for section in sections %}
<h2>{{ section.title }}</h2>
{% if section.points %}
<ul>
{% for line in section.points %}
<li>{{ line }}</li>
{% endfor %}
</ul>
{% endif %}
{% if section.text %}
<p>{{ section.text }}</p>
{% endif %}
{% if section.pictures %}
<div class="figures{{ ' small' if section.small }}">
{% for picture in section.pictures %}
<figure><img src="{{ picture.src }}" alt="{{ picture.alt }}">
{% if picture.caption %}<figcaption>{{ picture.caption }}</figcaption>{% endif %}
</figure>
{% endfor %}
</div>
{% endif %}
{% if section.table %}
{{ grid(section.table) }}
{% endif %}
{% for line in section.notes %}
<p class="note">{{ line }}</p>
{% endfor %}
{% endfor %}
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
document.querySelectorAll(".hint").forEach(hint => hint.hidden = false);
document.querySelectorAll("th button").forEach(button => button.onclick = () => {
  const head = button.parentNode, column = head.cellIndex, body = head.closest("table").tBodies[0];
  const down = head.getAttribute("aria-sort") === "ascending";
  head.parentNode.querySelectorAll("th").forEach(th => th.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const cell = row => row.cells[column];
  const value = row => cell(row).dataset.sort ?? cell(row).innerText;
  const compare = (a, b) => a - b || a.localeCompare(b, "en", {numeric: true});
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
    return environment.from_string(TEMPLATE).render(**content, LONG=LONG)
