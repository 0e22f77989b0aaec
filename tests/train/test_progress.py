"""The progress line: what a terminal shows after all that was written to it, and a file holds."""

import errno
import io
import itertools
import os
import re
import signal

import pytest

from optdyn.base import progress, signals
from optdyn.base.errors import print_error
from optdyn.base.progress import Progress, Sweep, clock, note_signals, number, say


class Terminal(io.StringIO):
    """Standard error on a terminal so many columns wide."""

    def isatty(self):
        return True

    def lines(self, width):
        """What is on the screen: a line longer than the terminal goes on in the next."""
        screen = []
        for line in self.getvalue().split("\n"):
            last = line.split(progress.CLEAR)[-1]
            rows = [part for part in line.split(progress.CLEAR)[:-1] if len(part) >= width]
            assert not rows, "what is rewritten left a part of itself in a line above"
            screen += [last[i : i + width] for i in range(0, max(len(last), 1), width)]
        return screen


@pytest.fixture
def now(monkeypatch):
    """`now[0]`: the time, as the progress line reads it."""
    time = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: time[0])
    return time


@pytest.fixture
def terminal(monkeypatch, now):
    """`terminal(width)`: standard error is one."""

    def make(width):
        made = Terminal()
        monkeypatch.setattr(progress.sys, "stderr", made)
        monkeypatch.setenv("COLUMNS", str(width))
        return made

    yield make
    progress._open = False


@pytest.mark.parametrize("width", [10, 40, 80, 200])
def test_one_line_whatever_the_width(terminal, now, width):
    shown, line = terminal(width), Progress("a-workdir-with-a-long-name", 20_000)
    for step in range(0, 20_000, 5_000):
        line.show(step, "loss 0.1234")
        now[0] += 1
        (last,) = shown.lines(width)
        assert last.startswith("a-workdir"[:9]) and len(last) < width
    line.show(20_000, "loss 0.1")
    assert len(shown.lines(width)) == 2 and shown.lines(width)[1] == ""
    if width == 200:
        assert "step 20,000/20,000  loss 0.1  5,000 steps/s" in shown.lines(width)[0]


def test_the_rate_leaves_out_what_is_before_the_first_call(terminal, now):
    """An hour of compiling, then 100 steps a second: 900 steps are left, 9 seconds."""
    shown, line = terminal(200), Progress("run", 1_100)
    now[0] += 3600
    line.show(100)
    assert "left" not in shown.lines(200)[0]
    now[0] += 1
    line.show(200)
    assert shown.lines(200) == ["run  step 200/1,100  100 steps/s  0:00:09 left"]


def test_a_resumed_run_does_not_count_what_was_done_before(terminal, now):
    shown, line = terminal(200), Progress("run", 3_000, start=2_000)
    line.show(2_001)
    now[0] += 10
    line.show(2_011)
    assert shown.lines(200) == ["run  step 2,011/3,000  1.00 steps/s  0:16:29 left"]


def test_what_is_said_has_a_line_of_its_own(terminal, now):
    shown, line = terminal(80), Progress("run", 10)
    say("resuming at 3")
    line.show(4)
    say("saved at 4: the same command goes on")
    assert shown.lines(80) == ["resuming at 3", "saved at 4: the same command goes on", ""]
    now[0] += 1
    line.show(5)
    assert shown.lines(80)[-1].startswith("run  step 5/10")


def test_another_process_than_the_writer_says_nothing(terminal, monkeypatch):
    shown = terminal(80)
    monkeypatch.setattr("optdyn.base.processes.is_writer", lambda: False)
    say("resuming at 3")
    assert shown.getvalue() == ""


def test_a_traceback_and_a_signal_begin_lines_of_their_own(terminal, now):
    shown, line = terminal(80), Progress("run", 10)
    with pytest.raises(ZeroDivisionError), note_signals() as come:
        line.show(1)
        os.kill(os.getpid(), signal.SIGINT)
        assert come.stopped == signal.SIGINT
        now[0] += 1
        line.show(2)
        raise ZeroDivisionError
    first, second, third = shown.lines(80)
    assert first == "stopping; once more to stop at once"
    assert second.startswith("run  step 2/10") and third == ""


@pytest.mark.parametrize("number", [*signals.ENDING, *signals.SAVING])
def test_a_signal_is_noted_once_or_more_and_then_as_it_was(number, terminal):
    before = signal.getsignal(number)
    with note_signals() as come:
        signal.raise_signal(number)
        noted = (0, 1) if number in signals.SAVING else (number, 0)
        assert (come.stopped, come.saves) == noted
        if number not in (signal.SIGINT, signal.SIGTERM):  # they act as before the second time
            signal.raise_signal(number)
            assert (come.stopped, come.saves) == (noted[0], 2 * noted[1])
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("numbers", itertools.permutations((signal.SIGTERM, signal.SIGHUP)))
def test_a_terminal_that_closes_sends_more_than_one(numbers, terminal):
    """As where a session ends: both, in any order, and SIGHUP twice. The first one counts."""
    with note_signals() as come:
        for number in (*numbers, signal.SIGHUP):
            signal.raise_signal(number)
    assert come.stopped == numbers[0]


@pytest.mark.parametrize("number", signals.ENDING)
def test_a_signal_that_was_ignored_stays_ignored(number, terminal):
    """As SIGINT is in the background of a script, and SIGHUP under nohup."""
    signal.signal(number, signal.SIG_IGN)
    with note_signals() as come:
        signal.raise_signal(number)
        assert come.stopped == 0
        assert signal.getsignal(number) == signal.SIG_IGN
    assert signal.getsignal(number) == signal.SIG_IGN


@pytest.mark.parametrize("number", signals.SAVING)
def test_a_signal_that_somebody_heeds_stays_theirs(number, terminal):
    """As that which submitit has jobs queued again by."""
    heard = []
    before = signal.signal(number, lambda *_: heard.append(number))
    try:
        with note_signals() as come:
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert (heard, come.saves) == ([number], 0)


class Gone(io.StringIO):
    """Standard error that takes nothing."""

    def __init__(self, error, is_terminal):
        super().__init__()
        self.error, self.isatty = error, lambda: is_terminal

    def write(self, text):
        raise self.error


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(errno.EPIPE, "nobody reads it"),
        OSError(errno.EIO, "the terminal is closed"),
        OSError(errno.ENOSPC, "full"),
        ValueError("I/O operation on closed file"),
        RuntimeError("reentrant call"),  # a signal's handler, amid another write
        None,
    ],
)
def test_progress_is_no_reason_to_stop(monkeypatch, now, error, is_terminal):
    gone = error and Gone(error, is_terminal)
    monkeypatch.setattr(progress.sys, "stderr", gone)
    with note_signals() as come:
        line = Progress("run", 2)
        for step in range(3):
            now[0] += 100
            line.show(step)
        signal.raise_signal(signal.SIGTERM)
    say("saved")
    assert come.stopped and print_error("something") == 2


def test_what_takes_long_is_told(terminal, monkeypatch, now):
    shown, line = terminal(80), Progress("run", 10)

    class Timer:
        def __init__(self, seconds, function):
            timers.append((seconds, function))

        def start(self):
            pass

        def cancel(self):
            cancelled.append(self)

    timers, cancelled = [], []
    monkeypatch.setattr(progress, "Timer", Timer)
    line.show(1, "loss 2")
    with line.during("evaluating"):
        assert shown.lines(80) == ["run  step 1/10  loss 2"]
        ((seconds, passed),) = timers
        passed()
        assert shown.lines(80) == ["run  step 1/10  loss 2  evaluating ..."]
    assert seconds == progress.PATIENCE and len(cancelled) == 1


def test_elsewhere_lines_are_whole_and_seldom(monkeypatch, now):
    kept = io.StringIO()
    monkeypatch.setattr(progress.sys, "stderr", kept)
    monkeypatch.setenv("COLUMNS", "20")
    line = Progress("run", 100)
    for step in range(1, 101):
        line.show(step, "loss 0.5")
        now[0] += 0.3
    lines = kept.getvalue().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["step 35/100", "step 69/100", "step 100/100"]
    assert all("\r" not in line and "3.33 steps/s" in line for line in lines)


def test_a_sweep_counts_points_and_the_updates_of_them_all(terminal, now):
    shown, line = terminal(200), Sweep("sweep", {"a": 100, "b": 100, "c": 100}, {"c"})
    line.show("a", 10)
    now[0] += 10
    line.show("b", 20)
    expected = "sweep  update 130/300  1/3 points  2.00 updates/s  0:01:25 left"
    assert shown.lines(200) == [expected]
    now[0] += 10
    line.end("b", "diverged")
    assert shown.lines(200)[0].startswith("sweep  update 210/300  2/3 points, 1 diverged  ")
    assert not line.is_done
    line.end("a", "completed")
    assert line.is_done and shown.lines(200)[-1] == ""


@pytest.mark.parametrize("exponent", range(-6, 10))
def test_numbers_have_three_digits_and_no_exponent(exponent):
    value = 1.2345 * 10.0**exponent
    text = number(value)
    assert re.fullmatch(r"[\d,]*\d(\.\d+)?", text)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=5e-3)  # half of a third digit
    assert len(text.replace(",", "").replace(".", "").strip("0")) == 3


def test_times_are_in_hours_minutes_seconds():
    assert [clock(s) for s in (0, 0.6, 59.6, 3_599, 3_600, 90_061)] == [
        *("0:00:00", "0:00:01", "0:01:00", "0:59:59", "1:00:00", "25:01:01")
    ]
    assert (number(0), number(12_345.6), number(9.999)) == ("0", "12,300", "10.00")
