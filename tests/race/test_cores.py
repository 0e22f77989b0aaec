"""The server's threads on one core, and where they were afterwards."""

import os
import threading

import pytest

from optdyn.race.race import THREADS, one_core

pytestmark = pytest.mark.skipif(not THREADS.exists(), reason="no threads that can be told cores")


def cores_of_threads():
    return [os.sched_getaffinity(int(thread.name)) for thread in THREADS.iterdir()]


def test_all_threads_are_on_one_core_and_then_where_they_were():
    """Those that begin inside, too."""
    begun, end = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: (begun.set(), end.wait()))
    before = os.sched_getaffinity(0)
    with one_core():
        other.start()
        begun.wait()
        assert all(cores == {min(before)} for cores in cores_of_threads())
    try:
        assert all(cores == before for cores in cores_of_threads())
    finally:
        end.set()
        other.join()


def test_an_error_inside_frees_them():
    before = os.sched_getaffinity(0)
    with pytest.raises(KeyError), one_core():
        raise KeyError
    assert os.sched_getaffinity(0) == before
