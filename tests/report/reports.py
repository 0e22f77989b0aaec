"""Workdirs made up by hand, and their report read again."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

from optdyn.implicit_momentum.moments import Reading
from optdyn.implicit_momentum.readings import as_row
from optdyn.report import report
from optdyn.report.page import Section

VOID = {"meta", "img", "wbr"}
READ = Reading(0.74, ((0.71, 0.78),), 0.4, 50.0, 96)


def run(folder: Path, losses, status="completed", histogram=(10,), **config) -> None:
    """A run logged every 10 updates, one simulated second each; `a__b` is the config's key a.b.

    A key that is None is left out.
    """
    keys = {
        "method__name": "asynchronous",
        "method__groups": 1,
        "optimizer__momentum": 0.0,
        "optimizer__learning_rate": 0.1,
        "cluster__service__name": "exponential",
        "seed": 0,
        "replicas__count": 0,
    } | config
    nested: dict = {}
    for key, value in ((k, v) for k, v in keys.items() if v is not None):
        *path, last = key.split("__")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    rows = [
        {"step": 10 * i, "simulated_seconds": float(i), "train_loss": loss, "test_accuracy": 0.5}
        for i, loss in enumerate(losses)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(nested))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if status:
        final = {
            **next((row for row in rows[::-1] if row["train_loss"] is not None), rows[-1]),
            "status": status,
            "simulated_seconds_per_step": 0.1,
            "staleness_histogram": list(histogram),
            "versions": {"python": "3.11.7"},
            "device": {"platform": "cpu"},
        }
        (folder / "summary.json").write_text(json.dumps(final))


def recording(folder: Path, groups: int, reading: Reading = READ) -> None:
    """A recording of replicas that was read, without its trajectories."""
    keys = {"replicas__count": 8, "optimizer__learning_rate": 0.4, "method__groups": groups}
    keys |= {"steps": 12, "model__name": "mlp", "batch_size": 128, "data__train_examples": 250}
    run(folder, [1.0], histogram=[8, 2], **keys)
    (folder / "metrics.jsonl").unlink()
    found = {"groups": groups, **as_row(reading)}
    (folder / "implicit_momentum.json").write_text(json.dumps(found))


class Page(HTMLParser):
    """Tables as lists of cells, images, and whether every tag is closed where it should be."""

    def __init__(self, text: str):
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.images: list[dict] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.images.append(dict(attrs))
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert tag == self._open.pop()

    def handle_data(self, data):
        if "td" in self._open or "th" in self._open:
            self.tables[-1][-1][-1] += data.strip()


def page(workdir: Path, **options) -> tuple[str, Page]:
    text = report.write(workdir, **options).read_text()
    return text, Page(text)


def svg(image: dict) -> str:
    return base64.b64decode(image["src"].split(",")[1]).decode()


def table_of(section: Section) -> list[dict[str, str]]:
    """The table of a section as `rows` has it."""
    table = section.table
    cells = [[c.shown + f"({c.range})" * bool(c.range) for c in row] for row in table.rows]
    return rows([[column.title for column in table.columns], *cells])


def rows(table: list[list[str]]) -> list[dict[str, str]]:
    """Cells by the first words of their column's title."""
    titles = [re.split(r" \(", title)[0] for title in table[0]]
    return [dict(zip(titles, row, strict=True)) for row in table[1:]]
