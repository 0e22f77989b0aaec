"""Recorded arrivals: a file written from a timeline gives it back; a bad one says what is bad."""

import numpy as np
import pytest

from optdyn.clock.arrivals import compute_groups as make_of
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Trace
from optdyn.clock.timeline import TimelineError
from optdyn.clock.trace import read_trace

HEADER = "worker,seconds\n"


@pytest.fixture
def write(tmp_path):
    path = tmp_path / "trace.csv"

    def write(text):
        path.write_bytes(text.encode("latin1"))
        return str(path)

    return write


def make(cluster, *, steps, replicas=0, **values):
    """The timeline of groups whose arrivals are those of the file that the cluster names."""
    trace = None
    if cluster.service.name == "trace":
        trace = read_trace(cluster.service.path, steps * max(replicas, 1))
    return make_of(cluster, steps=steps, replicas=replicas, trace=trace, **values)


def test_round_trip(write):
    """Whatever else the file holds, in whatever order of columns, and however long it is."""
    made = make(Cluster(nodes=3), groups=3, steps=500, batch_size=8)
    rows = zip(made.seconds, made.worker, strict=True)
    path = write("seconds,note,worker\n" + "".join(f"{float(s)!r},x,{w}\n" for s, w in rows))
    values = Cluster(nodes=3, service=Trace(path))
    for steps in (500, 200):
        again = make(values, groups=3, steps=steps, batch_size=8)
        assert again.slots == made.slots
        for a, b in zip((*made[:2], *made.plan), (*again[:2], *again.plan), strict=True):
            if a is not None:
                np.testing.assert_array_equal(a[:steps], b)
                assert a.dtype == b.dtype
        # One unit in the last place: not every version of pandas reads floats to the bit.
        np.testing.assert_array_max_ulp(made.seconds[:steps], again.seconds, 1)


def test_replicas_share_the_file(write):
    text = HEADER + "".join(f"{t % 2},{t + 1}\n" for t in range(12))
    values = Cluster(nodes=2, service=Trace(write(text)))
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
        (HEADER + "0,1\n-1,2\n1,3\n", "worker -1 is no whole number"),
        (HEADER + "0,1\n0.5,2\n1,3\n", "worker 0.5 is no whole number"),
        (HEADER + "0,1\n,2\n1,3\n", "worker nan is no whole number"),
        (HEADER + "0,1\n1e30,2\n1,3\n", r"worker 1e\+30 is no whole number"),
        (HEADER + "0,1\nb,2\n1,3\n", "not a CSV file with the columns worker"),
        (HEADER + "0,1\n1,soon\n1,3\n", "not a CSV file with the columns worker"),
        ("group,time\n0,1\n1,2\n0,3\n", "not a CSV file with the columns worker"),
        ("0,1\n1,2\n0,3\n", "not a CSV file with the columns worker"),
        (HEADER + "0,1\n1,2,3,4\n", "not a CSV file with the columns worker"),
        ("", "not a CSV file with the columns worker"),
        ("\xff\xfe\x00", "not a CSV file with the columns worker"),
    ],
)
def test_bad_files(write, text, message):
    path = write(text)
    values = Cluster(nodes=2, service=Trace(path))
    with pytest.raises(TimelineError, match=message) as caught:
        make(values, groups=2, steps=3, batch_size=8)
    assert str(caught.value).startswith(f"trace {path}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "message"), [("none.csv", "No such file"), ("", "directory")])
def test_files_that_cannot_be_opened(tmp_path, name, message):
    values = Cluster(nodes=2, service=Trace(str(tmp_path / name)))
    with pytest.raises(TimelineError, match=message) as caught:
        make(values, groups=2, steps=3, batch_size=8)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)
