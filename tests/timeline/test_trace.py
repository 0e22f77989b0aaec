"""Recorded arrivals: a file written from a timeline gives it back; a bad one says what is bad."""

import numpy as np
import pandas as pd
import pytest

from research.outputs.recorder import Recorder
from research.timeline import TimelineError, make
from research.timeline.trace import replay

HEADER = "worker,seconds\n"


@pytest.fixture
def write(tmp_path):
    path = tmp_path / "trace.csv"

    def write(text):
        path.write_bytes(text.encode("latin1"))
        return str(path)

    return write


def test_round_trip(cluster, write):
    """Whatever else the file holds, in whatever order of columns, and however long it is."""
    made = make(cluster(nodes=3), groups=3, steps=500, batch_size=8)
    rows = zip(made.seconds, made.worker, strict=True)
    path = write("seconds,note,worker\n" + "".join(f"{float(s)!r},x,{w}\n" for s, w in rows))
    values = cluster(nodes=3, service="trace", trace=path)
    for steps in (500, 200):
        read = make(values, groups=3, steps=steps, batch_size=8)
        assert read.slots == made.slots
        for a, b in zip(made[:4], read[:4], strict=True):
            np.testing.assert_array_equal(a[:steps], b)
            assert a.dtype == b.dtype
        # One unit in the last place: not every version of pandas reads floats to the bit.
        np.testing.assert_array_max_ulp(made.seconds[:steps], read.seconds, 1)


def test_replicas_share_the_file(cluster, write):
    text = HEADER + "".join(f"{t % 2},{t + 1}\n" for t in range(12))
    values = cluster(nodes=2, service="trace", trace=write(text))
    timeline = make(values, groups=2, steps=4, batch_size=8, replicas=3)
    np.testing.assert_array_equal(timeline.seconds, [[1, 2, 3, 4]] * 3)
    np.testing.assert_array_equal(timeline.staleness, [[0, 1, 1, 1]] * 3)
    with pytest.raises(TimelineError, match="12 arrivals, the run has 16 steps"):
        make(values, groups=2, steps=4, batch_size=8, replicas=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "0,1\n0,2\n0,3\n", "no arrival of worker 1 of 2"),
        (HEADER + "0,1\n1,2\n", "2 arrivals, the run has 3 steps"),
        (HEADER, "0 arrivals"),
        (HEADER + "0,1\n1,3\n0,2\n", "in order"),
        (HEADER + "0,-1\n1,2\n0,3\n", "from 0 up"),
        (HEADER + "0,1\n1,inf\n0,inf\n", "finite"),
        (HEADER + "0,1\n1,\n0,2\n", "finite"),
        (HEADER + "0,1\n1,2\n2,3\n", "worker 2, but groups are 0..1"),
        (HEADER + "0,1\n-1,2\n1,3\n", "worker -1, but groups are 0..1"),
        (HEADER + "0,1\n0.5,2\n1,3\n", "worker 0.5, but groups are 0..1"),
        (HEADER + "0,1\n,2\n1,3\n", "worker nan, but groups are 0..1"),
        (HEADER + "0,1\n1e30,2\n1,3\n", r"worker 1e\+30, but groups are 0..1"),
        (HEADER + "0,1\nb,2\n1,3\n", "not a CSV file with the columns worker"),
        (HEADER + "0,1\n1,soon\n1,3\n", "not a CSV file with the columns worker"),
        ("group,time\n0,1\n1,2\n0,3\n", "not a CSV file with the columns worker"),
        ("0,1\n1,2\n0,3\n", "not a CSV file with the columns worker"),
        (HEADER + "0,1\n1,2,3,4\n", "not a CSV file with the columns worker"),
        ("", "not a CSV file with the columns worker"),
        ("\xff\xfe\x00", "not a CSV file with the columns worker"),
    ],
)
def test_bad_files(cluster, write, text, message):
    path = write(text)
    values = cluster(nodes=2, service="trace", trace=path)
    with pytest.raises(TimelineError, match=message) as caught:
        make(values, groups=2, steps=3, batch_size=8)
    assert str(caught.value).startswith(f"trace {path}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "message"), [("none.csv", "No such file"), ("", "directory")])
def test_files_that_cannot_be_opened(cluster, tmp_path, name, message):
    values = cluster(nodes=2, service="trace", trace=str(tmp_path / name))
    with pytest.raises(TimelineError, match=message) as caught:
        make(values, groups=2, steps=3, batch_size=8)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture
def made(cluster):
    """Twelve updates by all workers together, with a number and three shares decided for each."""
    base = make(cluster(), groups=1, steps=12, batch_size=8)
    control = {"waited": np.arange(12), "shares": np.arange(36).reshape(12, 3)}
    return base._replace(control=control)


def test_a_recorded_run_is_replayed(made, tmp_path):
    """Through an interruption: what was recorded beyond the checkpoint happens again."""
    path = tmp_path / "trace.csv"
    first = Recorder(path, 0)
    first.append(made, slice(0, 4), 2.0)
    first.append(made, slice(4, 9), 100.0)
    Recorder(path, 4).append(made, slice(4, 12), 4.0)
    again = replay(str(path), 12, {"waited": 0, "shares": 3})
    np.testing.assert_allclose(again.seconds, np.arange(1, 13) / 2)
    np.testing.assert_array_equal(again.read, made.read)
    for name, values in made.control.items():
        np.testing.assert_array_equal(again.control[name], values)
    assert len(replay(str(path), 5, {"waited": 0}).control["shares"]) == 5


def test_numbers_are_recorded_as_they_were(made, tmp_path):
    rates = np.linspace(0.3, 0.7, len(made.seconds), dtype=np.float32)
    sent = np.arange(len(made.seconds)) % 2 == 0
    numbered = made._replace(control={"outer_learning_rate": rates, "send": sent})
    Recorder(tmp_path / "trace.csv", 0).append(numbered, slice(0, 12), 1.0)
    table = pd.read_csv(tmp_path / "trace.csv")
    found = table["control.outer_learning_rate"].to_numpy(np.float32)
    np.testing.assert_array_equal(found, rates)
    np.testing.assert_array_equal(table["control.send"], sent.astype(int))


def test_a_new_run_begins_a_new_trace(made, tmp_path):
    path = tmp_path / "trace.csv"
    for _ in range(2):
        Recorder(path, 0).append(made, slice(0, 3), 1.0)
    assert len(replay(str(path), 3, {}).seconds) == 3
    with pytest.raises(TimelineError, match="3 arrivals, the run has 4 steps"):
        replay(str(path), 4, {})


@pytest.mark.parametrize(
    ("needed", "message"),
    [
        ({"send": 0}, r"control\.send$"),
        ({"shares": 4}, r"control\.shares\.0 to \.3$"),
        ({"waited": 1}, r"control\.waited\.0 to \.0$"),
    ],
)
def test_what_a_replay_needs(made, tmp_path, needed, message):
    path = tmp_path / "trace.csv"
    Recorder(path, 0).append(made, slice(0, 12), 1.0)
    with pytest.raises(TimelineError, match=message):
        replay(str(path), 12, needed)
