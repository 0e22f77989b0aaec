"""The report's section about the momentum meter, on workdirs made up here."""

import base64
import json

import pytest

from optdyn.implicit_momentum.moments import Reading
from optdyn.implicit_momentum.readings import as_row
from optdyn.report import momenta, run_tables, tables
from tests.report.reports import page, run, table_of

TITLE = "Implicit momentum over training"
NOTHING = Reading(0.4, ((0.0, 1.0),), 0.6, 2.0, 300)
NO_TERM = Reading(None, (), 1e-9, 80.0, 300)


def one(estimate, low, high):
    return Reading(estimate, ((low, high),), 0.5, 40.0, 300)


def probed(folder, windows, whole=None, **config):
    """A run whose log has, at the log points of `windows`, a reading each.

    `whole` is what the summary has of all windows together.
    """
    run(folder, [2.0] + [1.0] * 4, probes__momentum=True, **config)
    path = folder / "metrics.jsonl"
    log = [json.loads(line) for line in path.read_text().splitlines()]
    for row, reading in zip(log[1:], windows, strict=False):
        row |= as_row(reading)
    path.write_text("".join(json.dumps(row) + "\n" for row in log))
    say(folder, learning_rate=0.1, **as_row(whole or windows[-1]))


def say(folder, **more):
    """The summary has these figures, too."""
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


def section(workdir):
    return momenta.metered(tables.points(workdir))


def drawn(picture):
    return base64.b64decode(picture.src.split(",")[1]).decode()


def test_a_run_has_its_sets_and_theory(tmp_path):
    windows = [NOTHING, one(0.7, 0.6, 0.8), one(0.76, 0.7, 0.82)]
    probed(tmp_path / "w", windows, one(0.74, 0.7, 0.78), method__groups=4)
    it = section(tmp_path / "w")
    (row,) = table_of(it)
    assert (row["implicit momentum"], row["95 % set"]) == ("0.74", "0.7 to 0.78")
    assert (row["theory"], row["p"], row["strength"]) == ("0.75", "0.5", "40")
    (picture,) = it.pictures
    assert picture.alt.endswith("Last, g = 4: 0.76 (0.7 to 0.82).")
    assert "theory, 1 − 1/g" in drawn(picture)


def test_a_steered_momentum_is_the_one_that_is_shown(tmp_path):
    keys = {"method__groups": 4, "optimizer__momentum": 0.9, "probes__steer": True}
    probed(tmp_path / "w", [one(0.74, 0.7, 0.78)], **keys)
    say(tmp_path / "w", explicit_momentum=0.16)
    (row,) = table_of(section(tmp_path / "w"))
    assert row["explicit momentum"] == "0.16"


def test_no_theory_where_service_has_a_memory_and_no_term_is_marked(tmp_path):
    keys = {"method__groups": 4, "cluster__service__name": "constant"}
    probed(tmp_path / "w", [NO_TERM], **keys)
    it = section(tmp_path / "w")
    (row,) = table_of(it)
    assert row["theory"] == row["implicit momentum"] == "–" and not it.pictures
    assert row["95 % set"] == "no single term fits (p = 1e-09)"
    assert ("1e-09", True) in [(cell.shown, cell.bad) for cell in it.table.rows[0]]


def test_seeds_share_a_row_which_counts_what_they_say(tmp_path):
    readings = [one(0.7, 0.6, 0.8), one(0.8, 0.7, 0.9), one(0.74, 0.7, 0.78), NOTHING, NO_TERM]
    for seed, reading in enumerate(readings):
        name = tmp_path / "points" / f"s{seed}"
        probed(name, [reading], method__groups=4, seed=seed)
    it = section(tmp_path)
    (row,) = table_of(it)
    assert row["implicit momentum"] == "0.72(0.4 – 0.8)"
    said = "3 of a median width of 0.2, 1 say nothing, in 1 no single term fits"
    assert row["95 % set"] == said
    assert it.pictures[0].alt.endswith("g = 4: 0.72 (0.4 to 0.8).")


def test_what_was_not_metered_has_no_section(tmp_path):
    run(tmp_path / "plain", [2.0, 1.0])
    assert section(tmp_path / "plain") is None


def test_of_many_settings_some_are_drawn_and_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(momenta, "ROWS", 12)
    for g in range(1, 16):
        it = one(1 - 1 / g, 0.9 - 1 / g, 1.1 - 1 / g)
        probed(tmp_path / "points" / f"g{g}", [it], method__groups=g)
    it = section(tmp_path)
    assert f"{run_tables.LINES} of 15 settings." in it.text
    assert it.pictures[0].alt.count("g = ") == run_tables.LINES
    assert len(table_of(it)) == 12 and "12 of 15 settings" in it.notes[-1]


@pytest.mark.parametrize("groups", [[4] * 5, [1, 4, 4, 16], [2] * 10])
def test_no_two_settings_look_alike(groups):
    looks = [(str(colour), line) for colour, line in momenta._looks(groups)]
    assert len(set(looks)) == len(groups)


def test_metered_runs_beside_others_are_not_compared_with_them(tmp_path):
    for seed in range(2):
        run(tmp_path / f"plain{seed}", [2.0, 1.0, 0.5], seed=seed)
    probed(tmp_path / "metered", [one(0.74, 0.7, 0.78)], method__groups=4)
    text, _ = page(tmp_path)
    assert "2 runs: 2 completed" in text
    assert f"{TITLE}</h2>" in text
