"""The report and the tables, on workdirs made up here, against figures worked out by hand."""

import html
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from optdyn.implicit_momentum.moments import Reading
from optdyn.report import figures, headline, report, run_tables, tables
from tests.report.reports import Page, page, recording, rows, run, svg


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """g = 1 and 4, momentum kept at 0.9 and adapted, one diverged, one interrupted, two fits."""
    workdir = tmp_path_factory.mktemp("sweep")
    points = workdir / "points"
    geometric = [round(1e4 * 0.25 * 0.75**k) for k in range(40)]
    run(points / "g1", [2.0, 1.0, 0.5, 0.25], optimizer__momentum=0.9)
    four = {"method__groups": 4, "histogram": geometric}
    run(points / "g4-adapted", [2.0, 0.8, 0.4, 0.3], optimizer__momentum=0.2, **four)
    run(points / "g4-kept", [2.0, 0.2, None], "diverged", optimizer__momentum=0.9, **four)
    run(points / "g16", [2.0, 1.2], "interrupted", method__groups=16, optimizer__momentum=0.9)
    recording(points / "fit-g4", 4)
    recording(points / "fit-g2", 2, Reading(None, (), 1e-7, 90.0, 96))
    return workdir


@pytest.fixture(scope="module")
def written(sweep) -> tuple[str, Page]:
    return page(sweep)


def test_the_table_has_the_figures_worked_out_by_hand(written):
    # The worst completed run reaches 0.3. g1 passes it between updates 20 (0.5) and 30 (0.25), at
    # 20 + 10 * (0.5 - 0.3) / 0.25 = 28, and 0.1 simulated seconds an update make 2.8 seconds. The
    # log has a point every 10 updates, one simulated second: so it is shown as 30, and as 3.
    text, parsed = written
    table = {(row["method"], row["momentum"]): row for row in rows(parsed.tables[0])}
    assert "a training loss of 0.3," in text
    reached = {key: row["updates to target"] for key, row in table.items()}
    assert reached == {
        ("g = 1", "0.9"): "30",
        ("g = 4", "0.2"): "30",
        ("g = 4", "0.9"): "not reached",
        ("g = 16", "0.9"): "not reached",
    }
    first = table["g = 1", "0.9"]
    assert first["simulated seconds to target"] == "3"
    assert text.count('data-sort="28.0">30<') == 1  # but sorted by what it is
    assert first["simulated seconds an update"] == "0.1"
    assert first["final training loss"] == "0.25"
    assert table["g = 4", "0.9"]["status"] == "diverged"
    assert table["g = 16", "0.9"]["status"] == "interrupted"
    assert "4 runs: 2 completed, 1 diverged, 1 interrupted." in text
    # The reference is the synchronous one, which one group is: 28 / 30 of it, with one seed.
    first = "g = 1, momentum 0.9, the synchronous one, itself takes the fewest updates: 30; "
    assert first + "next g = 4, momentum 0.2, 30, 1.1 times; one seed, so no interval." in text


def test_a_given_target_is_used(tmp_path):
    run(tmp_path / "w", [2.0, 1.0, 0.5])
    text, parsed = page(tmp_path / "w", target=1.5)
    assert rows(parsed.tables[0])[0]["updates to target"] == "under 10"
    assert 'data-sort="5.0">under 10<' in text
    assert "as asked for" in text


def test_line_styles_tell_a_kept_momentum_from_an_adapted_one(tmp_path):
    for groups, adapted in ((2, 0.4), (4, 0.15)):
        for momentum in (0.9, adapted):
            name = tmp_path / "points" / f"{groups}-{momentum}"
            run(name, [2.0, 1.0], method__groups=groups, optimizer__momentum=momentum)
    text, parsed = page(tmp_path)
    dashes = set(re.findall("stroke-dasharray: [^;]*", svg(parsed.images[0])))
    assert len(dashes) == 2  # adapted ones, the target
    assert "Solid: momentum 0.9 throughout." in text
    assert "Dashed: momentum chosen for the number of groups." in text


def test_readings_of_replicas_stand_beside_theory_with_their_sets(written):
    text, parsed = written
    table = {row["recording"]: row for row in rows(parsed.tables[-1])}
    good, rejected = table["fit-g4"], table["fit-g2"]
    assert (good["implicit momentum"], good["95 % set"]) == ("0.74", "0.71 to 0.78")
    assert (good["theory"], good["strength"]) == ("0.75", "50")
    assert rejected["95 % set"] == "no single term fits (p = 1e-07)"
    assert rejected["implicit momentum"] == "–"
    assert "2 recordings of replicas" in text
    scope = "8 replicas of the first 12 updates of mlp, in batches of 128 of 250 examples."
    assert f"g = 4: {scope}" in text


def test_pictures_are_inside_the_file_and_said_in_words(written):
    _, parsed = written
    alts = [image["alt"] for image in parsed.images]
    assert [alt.split(".")[0] for alt in alts[:6]] == [
        "Training loss against updates",
        "Training loss against simulated seconds",
        "Updates to a training loss, against that loss",
        "Simulated seconds to a training loss, against that loss",
        "Updates to the target against seconds an update",
        "Pareto fronts of training loss against simulated seconds",
    ]
    assert "g = 1, momentum 0.9: 30 updates, 3 seconds; g = 4, momentum 0.2: 30" in alts[4]
    assert alts[2].endswith(
        "g = 1, momentum 0.9 gets to 0.25; g = 4, momentum 0.2 gets to 0.3; "
        "g = 16, momentum 0.9 gets to 1.2."
    )
    assert alts[5].endswith("g = 1 gets to 0.25; g = 4 gets to 0.2; g = 16 gets to 1.2.")
    # 1e4 draws of the law itself, rounded: their mean is 3 within rounding.
    assert alts[6].startswith("Test accuracy against updates. g = 1, momentum 0.9 ends at 0.5;")
    assert alts[7] == "Histogram of staleness. g = 4: mean 3; over it the geometric law of mean 3."
    assert alts[8].endswith("0.74 (0.71 to 0.78) at g = 4.")
    for image in parsed.images:
        assert image["src"].startswith("data:image/svg+xml;base64,")
        assert ElementTree.fromstring(svg(image)).tag.endswith("svg")


def test_nothing_is_fetched(written):
    text, parsed = written
    for part in (text, *map(svg, parsed.images)):
        assert not re.search(r"""(src|href|action)\s*=\s*["']?\s*(https?:|//)""", part)
        assert not re.search(r"""url\(\s*["']?(https?:|//)|@import|fetch\(|<link""", part)


def test_the_same_workdir_gives_the_same_bytes(sweep, written):
    assert page(sweep)[0] == written[0]


def test_names_are_escaped(tmp_path):
    evil = '<script>alert("1")&'
    run(tmp_path / evil / "points" / evil, [2.0, 1.0], status=evil, model__name=evil)
    text, parsed = page(tmp_path / evil)
    assert evil not in text
    assert html.escape(evil, quote=False).replace('"', "&#34;") in text
    assert rows(parsed.tables[0])[0]["status"] == evil


def test_optimizers_without_momentum_and_joined_methods_are_compared(tmp_path):
    run(tmp_path / "a", [2.0, 1.0], optimizer__name="sgd", optimizer__momentum=0.5)
    joined = {"method__diloco__period": 4, "method__asynchronous__groups": 2}
    joined |= {"method__name": "diloco+asynchronous", "method__groups": None}
    adam = {"optimizer__name": "adam", "optimizer__momentum": None, "optimizer__b1": 0.9}
    run(tmp_path / "b", [2.0, 1.1], **joined, **adam)
    text, parsed = page(tmp_path)
    first, second = rows(parsed.tables[0])
    assert (first["method"], first["momentum"]) == ("g = 1", "0.5")
    assert (second["method"], second["momentum"]) == ("diloco+asynchronous, g = 2", "0")
    assert "optimizer.b1" not in text


def test_runs_of_all_ends_and_recordings_have_a_report(tmp_path):
    run(tmp_path / "running", [2.0, 1.0], status="")
    with (tmp_path / "running" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "train')  # torn
    text, parsed = page(tmp_path / "running")
    row = rows(parsed.tables[0])[0]
    assert (row["status"], row["final training loss"]) == ("unfinished", "1")
    assert "Staleness</h2>" not in text
    run(tmp_path / "diverged at once", [None], "diverged")
    parsed = page(tmp_path / "diverged at once")[1]
    assert rows(parsed.tables[0])[0]["status"] == "diverged"
    recording(tmp_path / "recording", 4)
    text, parsed = page(tmp_path / "recording")
    assert len(parsed.images) == 1 and "Training loss</h2>" not in text
    keys = {"method__groups": 2, "cluster__service__name": "constant"}
    run(tmp_path / "constant", [2.0, 1.0], histogram=[0, 5], **keys)  # no geometric law over it
    last = page(tmp_path / "constant")[1].images[-1]
    assert last["alt"] == "Histogram of staleness. g = 2: mean 1."


def test_seeds_share_a_row_and_learning_rates_a_curve(tmp_path):
    for seed, last in enumerate((0.5, 0.6, 0.7)):
        for rate, factor in ((0.1, 1.0), (0.01, 2.0)):
            losses = [2.0, factor * last]
            name = tmp_path / "points" / f"{rate}-{seed}"
            run(name, losses, optimizer__learning_rate=rate, seed=seed)
    text, parsed = page(tmp_path)
    good = next(row for row in rows(parsed.tables[0]) if row["learning rate"] == "0.1")
    assert good["final training loss"] == "0.6(0.5 – 0.7)"
    # The worst seed at the best learning rate ends at 0.7; the other learning rate is no bound.
    assert "a training loss of 0.7," in text
    alt = parsed.images[0]["alt"]
    assert alt == "Training loss against updates. asynchronous, learning rate 0.1 ends at 0.6."


def test_numbers_sort_as_numbers(written):
    for shown, sort in ((">1,000<", ""), ("not reached", "Infinity"), (">–<", "Infinity")):
        for cell in re.findall(rf"<td[^>]*{shown}", written[0]):
            assert f'data-sort="{sort}' in cell
    assert re.search(r'data-sort="50.0">50<', written[0])


LABEL = re.compile(r"<!-- (.*?) -->")


@pytest.fixture
def large(tmp_path, monkeypatch) -> Path:
    """48 methods of which a table takes 20; the larger the momentum the worse, 4 diverged."""
    monkeypatch.setattr(headline, "ROWS", 20)
    for i in range(48):
        losses, status = ([2.0, 0.5 + i / 48], "completed") if i < 44 else ([2.0, None], "diverged")
        run(tmp_path / "large" / str(i), losses, status, optimizer__momentum=i / 50)
    return tmp_path / "large"


def test_of_many_methods_the_best_and_the_worst_are_shown(large):
    text, parsed = page(large)
    assert "48 runs: 44 completed, 4 diverged." in text
    # 0.5 + 23/48, which the 24 best reach; the worst here never learn.
    assert "a training loss of 0.9792, the lowest that each of the better half" in text
    table = rows(parsed.tables[0])
    shown = [*range(15), *range(43, 48)]
    assert [float(row["momentum"]) for row in table] == [i / 50 for i in shown]
    assert [row["status"] for row in table] == ["completed"] * 16 + ["diverged"] * 4
    curves = LABEL.findall(svg(parsed.images[0]))
    named = [f"asynchronous, momentum {i / 50:.4g}" for i in (*range(8), 46, 47)]
    assert [label for label in curves if "momentum" in label] == named
    assert {"38 others", "diverged"} <= set(curves)


def test_more_runs_make_no_larger_page(large):
    before = len(page(large)[0])
    for i in range(48):
        run(large / f"{i} more", [2.0, 1.0 + i / 48], optimizer__momentum=-(i + 1) / 50)
    after = page(large)[0]
    assert "96 runs" in after and len(after) < 1.1 * before


def test_settings_go_by_as_few_keys_as_tell_them_apart():
    """The momentum follows from the groups, the learning rate does not; the seed is no setting."""
    runs = pd.DataFrame(
        {
            "method.name": "asynchronous",
            "method.groups": [1, 1, 2, 2],
            "optimizer.momentum": [0.9, 0.9, 0.4, 0.4],
            "optimizer.learning_rate": [0.1, 0.2, 0.1, 0.2],
            "model.name": "mlp",
            "seed": [0, 1, 2, 3],
        }
    )
    printed = ["method.name", "method.groups", "optimizer.learning_rate"]
    assert run_tables.distinguishing_keys(runs, list(runs)) == printed


def test_nice_numbers():
    assert figures.nice(0.5, 20) == [0.5, 1, 2, 5, 10, 20]
    assert figures.nice(3, 4) == []
    assert figures.nice(1e-3, 1e6) == [10.0**d for d in range(-3, 7)]


def test_workdirs_are_compared(tmp_path, capsys):
    run(tmp_path / "one", [2.0, 1.0])
    run(tmp_path / "several" / "points" / "a", [2.0, 0.5], method__groups=2)
    run(tmp_path / "several" / "points" / "b", [2.0, 0.4], method__groups=4)
    flags = [f"--workdir={tmp_path / 'one'}", str(tmp_path / "several")]
    assert report.main(flags) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == tmp_path / "report.html"
    assert not (tmp_path / "one" / "report.html").exists()
    table = rows(Page(path.read_text()).tables[0])
    found = {row["method"]: row["final training loss"] for row in table}
    assert found == {"g = 1": "1", "g = 2": "0.5", "g = 4": "0.4"}
    assert report.main([*flags, f"--out={tmp_path / 'here.html'}", "--json", "--target=0.7"]) == 0
    assert (tmp_path / "here.html").exists()
    printed = json.loads(capsys.readouterr().out)
    assert printed["target"] == 0.7
    found = {row["method.groups"]: row for row in printed["rows"]}
    assert list(found) == [4, 2, 1]  # the best first
    assert found[1]["updates_to_target"] == [None] and found[1]["train_loss"] == [1.0]
    assert found[4]["updates_to_target"][0] < found[2]["updates_to_target"][0]


def test_equal_configs_of_two_workdirs_are_not_seeds(tmp_path):
    for name, loss in (("before", 1.0), ("after", 0.5)):
        run(tmp_path / name, [2.0, loss])
    path = report.write(tmp_path / "before", tmp_path / "after")
    table = rows(Page(path.read_text()).tables[0])
    assert [row["final training loss"] for row in table] == ["1", "0.5"]


def test_results_csv(sweep):
    path = tables.write_results(sweep, keys=["cluster.service.name"])
    results = pd.read_csv(path)
    names = ["fit-g2", "fit-g4", "g1", "g4-adapted", "g4-kept", "g16"]
    assert list(results["point"]) == names  # 16 after 4
    swept = ["cluster.service.name", "method.groups", "optimizer.momentum", "replicas.count"]
    figures = ["train_loss", "test_accuracy", "status", "simulated_seconds_per_step"]
    assert set(swept + figures) <= set(results)
    columns = list(results)
    assert max(map(columns.index, swept)) < min(map(columns.index, figures))
    assert "staleness_histogram" not in results
    assert [entry.name for entry in sweep.glob(".*")] == []


@pytest.mark.parametrize("rubbish", [False, True])
def test_bad_input_is_one_line_and_2(tmp_path, capsys, rubbish):
    if rubbish:
        run(tmp_path, [1.0])
        (tmp_path / "metrics.jsonl").write_text("{}\nrubbish\n")
    assert report.main([f"--workdir={tmp_path}"]) == 2
    message = "/metrics.jsonl: is not JSON" if rubbish else ": no run in it"
    assert re.fullmatch(rf"error: {tmp_path}{message}.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"method.name": "asynchronous", "method.groups": 4}, "g = 4"),
        ({"method.name": "elastic", "method.groups": 8}, "elastic, g = 8"),
        ({"method.name": "daso+asynchronous", "method.groups": 2}, "daso+asynchronous, g = 2"),
        ({"method.name": "sync", "optimizer.chain": "[]"}, "sync, optimizer.chain none"),
        ({"method.name": "sync", "optimizer.chain": '["a", "b"]'}, "sync, optimizer.chain a, b"),
    ],
)
def test_a_setting_says_which_method_it_is(values, words):
    assert run_tables.describe(values, list(values)) == words
