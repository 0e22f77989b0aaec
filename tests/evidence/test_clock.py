"""Programs timed in turn: on the cores that were asked for, every setting once a round."""

import time

import numpy as np
import pytest

from optdyn.evidence.clock import Setting, in_turn, repeated
from optdyn.evidence.study import affinity


def which(n: int, value: float) -> float:
    """A number that tells the cores of its process and what it was called with."""
    return 10 * len(affinity()) + n + value


def test_every_setting_is_called_once_a_round_on_its_cores():
    before = affinity()
    found = in_turn([[Setting(1, which, (i, j / 4)) for j in range(3)] for i in range(2)])
    expected = [[10 + i + j / 4 for i in range(2)] for j in range(3)]
    np.testing.assert_array_equal(found.seconds, expected)
    assert affinity() == before  # of this process


@pytest.mark.parametrize("each", [0.0, 0.002, 1.0])
def test_repetitions_take_long_enough(monkeypatch, each):
    """Against a clock that only the repetitions move, 1e-4 s by calling."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    counts = []

    def call(n):
        counts.append(n)
        now[0] += 1e-4 + n * each
        return []

    seconds = repeated(call, least=0.1)
    assert counts[0] == 1 and seconds == pytest.approx(each + 1e-4 / counts[-1])
    assert counts == [1] if each == 1 else counts[-1] * (each + 1e-4) >= 0.1 * 0.9
