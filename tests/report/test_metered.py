"""The report's section about the momentum meter, on workdirs made up here."""

import base64
import json

import pytest

from optdyn.report import momenta, run_tables, tables
from tests.report.reports import page, run, table_of

TITLE = "Implicit momentum over training"
NOISY = "too noisy: strength 3.1"


def probed(folder, windows, total=(), status="completed", whole=None, **config):
    """A run whose log has, at the log points of `windows`, (implicit, low, high), or a reason.

    `whole` is what the summary has of all windows together; `total` the same as `windows`.
    """
    run(folder, [2.0] + [1.0] * 4, status, probes__momentum=True, **config)

    def readings_of(name, it):
        if isinstance(it, str):
            return {f"{name}_momentum_refused": it}
        keys = [f"{name}_momentum{end}" for end in ("", "_low", "_high", "_p")]
        return dict(zip(keys, (*it, 0.5), strict=True))

    path = folder / "metrics.jsonl"
    log = [json.loads(line) for line in path.read_text().splitlines()]
    for row, it in zip(log[1:], windows, strict=False):
        row |= readings_of("implicit", it)
    for row, it in zip(log[1:], total, strict=False):
        row |= readings_of("fitted", it)
    path.write_text("".join(json.dumps(row) + "\n" for row in log))
    readings = readings_of("implicit", whole or windows[-1])
    readings |= readings_of("fitted", total[-1]) if total else {}
    say(folder, learning_rate=0.1, effective_learning_rate=0.03, **readings)


def say(folder, **more):
    """The summary has these figures, too."""
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


def section(workdir):
    return momenta.metered(tables.points(workdir))


def drawn(picture):
    return base64.b64decode(picture.src.split(",")[1]).decode()


def test_a_run_has_its_intervals_and_theory(tmp_path):
    windows = [NOISY, (0.7, 0.6, 0.8), (0.76, 0.7, 0.82)]
    probed(tmp_path / "w", windows, whole=(0.74, 0.7, 0.78), method__groups=4)
    it = section(tmp_path / "w")
    (row,) = table_of(it)
    assert row["implicit momentum"] == "0.74(0.7 – 0.78)"
    assert (row["theory"], row["α/g"], row["effective learning rate"]) == ("0.75", "0.025", "0.03")
    assert "total momentum φ₁" not in row and "refused" not in row
    (picture,) = it.pictures
    assert picture.alt.endswith("Last, g = 4: 0.76 (0.7 to 0.82).")
    assert "theory, 1 − 1/g" in drawn(picture)


def test_explicit_momentum_has_a_total(tmp_path):
    windows, total = [(0.74, 0.7, 0.78)], [(1.26, 1.2, 1.32)]
    keys = {"method__groups": 4, "optimizer__momentum": 0.5}
    probed(tmp_path / "w", windows, total, **keys)
    it = section(tmp_path / "w")
    (row,) = table_of(it)
    assert row["total momentum φ₁"] == "1.26(1.2 – 1.32)"
    assert row["its theory"] == "1.25"  # 0.5 + 1 - 1/4
    assert len(it.pictures) == 2


def test_a_steered_momentum_is_shown_beside_its_aim(tmp_path):
    keys = {"method__groups": 4, "optimizer__momentum": 0.9, "probes__steer": True}
    probed(tmp_path / "w", [(0.74, 0.7, 0.78)], [(0.91, 0.85, 0.97)], **keys)
    say(tmp_path / "w", explicit_momentum=0.16)
    (row,) = table_of(section(tmp_path / "w"))
    assert (row["explicit momentum"], row["its theory"]) == ("0.16", "0.9")


def test_no_theory_where_service_has_a_memory(tmp_path):
    keys = {"method__groups": 4, "cluster__service__name": "constant"}
    probed(tmp_path / "w", [(0.83, 0.8, 0.86)], **keys)
    say(tmp_path / "w", implicit_momentum_p=1e-9)
    it = section(tmp_path / "w")
    (row,) = table_of(it)
    assert row["theory"] == row["α/g"] == "–"
    assert ("1e-09", True) in [(cell.shown, cell.bad) for cell in it.table.rows[0]]
    assert "theory" not in drawn(it.pictures[0])


def test_seeds_share_a_row_and_a_refusal_is_counted(tmp_path):
    fits = [(0.7, 0.6, 0.8), (0.8, 0.7, 0.9), (0.74, 0.7, 0.78), NOISY]
    for seed, it in enumerate(fits):
        name = tmp_path / "points" / f"s{seed}"
        probed(name, [it], method__groups=4, seed=seed)
    it = section(tmp_path)
    (row,) = table_of(it)
    assert row["implicit momentum"] == "0.74(0.7 – 0.8)"
    assert row["refused"] == f"1 of 4: {NOISY}"
    assert it.pictures[0].alt.endswith("g = 4: 0.74 (0.7 to 0.8).")


def test_what_was_refused_or_not_metered_is_not_drawn(tmp_path):
    for seed, it in enumerate([(0.7, 0.6, 0.8), NOISY]):
        probed(tmp_path / "seeds" / "points" / f"s{seed}", [it], method__groups=4, seed=seed)
    assert section(tmp_path / "seeds").pictures[0].alt.endswith("g = 4: 0.7 (0.6 to 0.8).")
    probed(tmp_path / "refused", [NOISY], method__groups=4)
    it = section(tmp_path / "refused")
    (row,) = table_of(it)
    assert row["implicit momentum"] == "–" and row["refused"] == NOISY
    assert not it.pictures
    run(tmp_path / "plain", [2.0, 1.0])
    assert section(tmp_path / "plain") is None


def test_of_many_settings_some_are_drawn_and_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(momenta, "ROWS", 12)
    for g in range(1, 16):
        it = (1 - 1 / g, 0.9 - 1 / g, 1.1 - 1 / g)
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
    probed(tmp_path / "metered", [(0.74, 0.7, 0.78)], method__groups=4)
    text, _ = page(tmp_path)
    assert "2 runs: 2 completed" in text
    assert f"{TITLE}</h2>" in text
