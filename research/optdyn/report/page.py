"""The report's HTML: one file, no requests, readable on a phone, a laptop and on paper."""

import base64
import math
import re
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape


class Column(NamedTuple):
    """A column of a table; `text` is set flush left."""

    title: str
    text: bool = False


class Cell(NamedTuple):
    """A cell's text, and the value by which its column is sorted."""

    shown: str
    sort: str | float
    bad: bool = False
    range: str = ""


class Table(NamedTuple):
    """A table, which a screen reader calls `label`; its first column stays in sight."""

    label: str
    columns: list[Column]
    rows: list[list[Cell]]


class Picture(NamedTuple):
    src: str
    alt: str
    caption: str = ""


class Section(NamedTuple):
    """A heading and the parts below it, in this order."""

    title: str
    points: Sequence[str] = ()
    text: str = ""
    pictures: Sequence[Picture] = ()
    table: Table | None = None
    notes: Sequence[str] = ()
    small: bool = False  # its pictures


def table(
    label: str,
    rows: Sequence[Mapping[str, Cell]],
    text: Collection[str] = (),
    without: Collection[str] = (),
) -> Table:
    """Returns rows of the same columns, by title; those of `text` are set flush left."""
    titles = [title for title in rows[0] if title not in without]
    cells = [[row[title] for title in titles] for row in rows]
    return Table(label, [Column(title, title in text) for title in titles], cells)


def between(
    middle: Cell, low: float, high: float, resolution: float = 0.0, digits: int = 3
) -> Cell:
    """Returns the cell with the ends of an interval or a range; `resolution` as in `number`."""
    ends = (cell(float(f"{end:.{digits}g}"), resolution).shown for end in (low, high))
    return middle._replace(range=" – ".join(ends))


def cell(value: Any, resolution: float = 0.0) -> Cell:
    """Returns the cell of a number, a text, or nothing (None, NaN)."""
    if value is None or value != value:
        return Cell("–", "Infinity")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return Cell(str(value), str(value))
    if math.isinf(value):
        return Cell("not reached", "Infinity")
    return Cell(number(value, resolution), value)


def number(value: float, resolution: float = 0.0) -> str:
    """Returns four digits; no exponent from a thousand to a million.

    With log points `resolution` apart no digit is finer: 137 is 140 with one every 25, and less
    than one log interval is `under` it.
    """
    if 0 < resolution < math.inf and math.isfinite(value):
        digit = 10.0 ** math.floor(math.log10(resolution))
        value = round(value / digit) * digit
        if value == 0:
            return f"under {resolution:.4g}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


LONG = 24  # rows of a table that scrolls by itself
# The style of all pages: light and dark, tables, pictures, paper.
STYLE = """\
:root { color-scheme: light dark; --dark: 0; --paper: #fff; --ink: #1a1a1a; --soft: #444;
  --rule: #ddd; --strong: #888; --bad: #a63d00; --link: #0072B2; }
@media screen and (prefers-color-scheme: dark) { :root {
  --dark: 1; --paper: #16181b; --ink: #e6e6e6; --soft: #b4b4b4; --rule: #34383d; --strong: #777;
  --bad: #ff9d5c; --link: #6cb8f0; }
  img { filter: invert(.9) hue-rotate(180deg); } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere; margin-top: .3rem; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid var(--strong); }
p, li, figcaption, dd { max-width: 44rem; overflow-wrap: anywhere; }
ul { padding-left: 1.2rem; }
.answer { border-left: 4px solid var(--link); padding-left: 1rem; }
.answer ul { margin: .3rem 0; }
figcaption, .note, .range { color: var(--soft); font-size: .9em; }
.scroll { overflow: auto; }
.scroll.long { max-height: 80vh; border-bottom: 1px solid var(--strong); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 1px; }
table { border-collapse: separate; border-spacing: 0; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--rule);
  background: var(--paper); }
th { vertical-align: bottom; position: sticky; top: 0; z-index: 1; min-width: 3.5rem;
  max-width: 8rem; line-height: 1.25; overflow-wrap: break-word;
  border-bottom-color: var(--strong); }
th:first-child, td:first-child { position: sticky; left: 0; padding-left: 0; }
th:first-child { z-index: 2; }
th.text, td.text { text-align: left; }
td.text { max-width: 16rem; overflow-wrap: break-word; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:hover { text-decoration: underline; }
th button:focus-visible { outline: 2px solid var(--link); }
th[aria-sort=ascending] button::after { content: " \\25B2"; }
th[aria-sort=descending] button::after { content: " \\25BC"; }
.range { white-space: nowrap; display: block; }
.bad { color: var(--bad); font-weight: 600; }
.figures { display: grid; gap: 1rem 2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); }
.figures.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
figure { margin: 0; min-width: 0; }
img { width: 100%; height: auto; max-width: 34rem; background: #fff; border-radius: 4px; }
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
"""
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
{{ style | safe }}</style>
</head>
<body>
"""
TEMPLATE = (
    HEAD
    + """\
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
{{- column.title | breakable }}</button></th>
{% endfor %}
</tr></thead>
<tbody>
{% for row in table.rows %}
<tr>
{% for cell in row %}
{% set text = table.columns[loop.index0].text %}
<td{% if text or cell.bad %} class="{{ 'text ' if text }}{{ 'bad' if cell.bad }}"{% endif %}
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
<h1>{{ title | breakable }}</h1>
{% for note in notes %}
<p>{{ note }}</p>
{% endfor %}
{% if answers %}
<div class="answer">
<ul>
{% for line in answers %}
<li>{{ line }}</li>
{% endfor %}
</ul>
</div>
{% endif %}
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
{{ script | safe }}
</script>
</body>
</html>
"""
)


def uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def breakable(text: str) -> Markup:
    """Returns a config's name that a narrow column may break after its dots and underscores."""
    return Markup(re.sub(r"(?<=[._])", "<wbr>", str(escape(text))))


def render(**values: Any) -> str:
    """Returns a page of sections; every value is escaped."""
    return fill(TEMPLATE, **{"answers": (), **values}, LONG=LONG)


def fill(template: str, style: str = "", **values: Any) -> str:
    """Returns a template that begins with `HEAD`, with `style` after `STYLE` and values escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["breakable"] = breakable
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    script = files("optdyn.report").joinpath("page.js").read_text()
    return environment.from_string(template).render(style=STYLE + style, script=script, **values)
