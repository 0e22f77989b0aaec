"""What a run says at its end, of summaries as runs write them."""

import sys
from pathlib import Path

import pytest

from optdyn.base.flag_parser import invocation
from optdyn.cli.train import ending_lines
from optdyn.cli.tune import tuning_lines
from optdyn.implicit_momentum.moments import Reading
from optdyn.implicit_momentum.readings import as_row

RUN = {
    **{"status": "completed", "step": 2000, "steps": 2000, "simulated_seconds": 13.4371},
    **{"train_loss": 0.018491, "test_loss": 0.34121, "test_accuracy": 0.9105},
    **{"learning_rate": 0.2, "versions": {"jax": "0"}, "staleness_histogram": [1, 2]},
}


@pytest.mark.parametrize(
    "changes, then, expected",
    [
        (
            {},
            "report",
            [
                "completed: 2,000 updates, 13.4 simulated seconds",
                "training loss 0.01849, test loss 0.3412, test accuracy 0.9105",
                "next: python -m launch.report --workdir='a b'",
            ],
        ),
        (
            {"status": "interrupted", "step": 50, "signal": 2, "test_accuracy": None},
            "report",
            [
                "interrupted: 50 of 2,000 updates, 13.4 simulated seconds",
                "at the last log point: training loss 0.01849, test loss 0.3412",
                "a b: the same command goes on",
            ],
        ),
        (
            {"status": "diverged", "worse": True, "train_loss": 6.5e32, "test_accuracy": None},
            "reality",
            [
                "diverged: 2,000 updates, 13.4 real seconds",
                "training loss 6.5e+32, test loss 0.3412, far above the first",
                "next: python -m launch.reality --workdir='a b'",
            ],
        ),
    ],
)
def test_a_run_says_three_lines(monkeypatch, changes, then, expected):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "launch.train"])
    assert list(ending_lines(RUN | changes, Path("a b"), then)) == expected


def test_what_else_a_run_measured_is_told(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "/usr/bin/optdyn", "train"])
    meter = as_row(Reading(0.527, ((0.456, 0.598),), 0.3, 20.0, 400))
    metered = list(ending_lines(RUN | meter, Path("a"), "report"))
    assert metered[1].endswith(", implicit momentum 0.527 (95 %: 0.46 to 0.6)")
    assert metered[2] == "next: optdyn report --workdir=a"
    doubted = as_row(Reading(None, (), 2e-7, 20.0, 400))
    lines = list(ending_lines(RUN | doubted, Path("a"), "report"))
    assert lines[1].endswith(", implicit momentum (95 %: no single term fits (p = 2e-07))")
    assert "momentum" not in list(ending_lines(RUN, Path("a"), "report"))[1]
    recording = {"status": "completed", "step": 10, "steps": 10, "replicas": 400, "train_loss": 2.0}
    assert list(ending_lines(recording, Path("a"), "momentum")) == [
        "completed: 400 replicas of 10 updates",
        "training loss 2",
        "next: optdyn momentum a",
    ]
    # It was interrupted before it had any figure.
    assert list(ending_lines({"status": "interrupted", "signal": 15}, Path("a"), "report")) == [
        "interrupted: no update",
        "a: the same command goes on",
    ]


@pytest.mark.parametrize(
    "program, expected",
    [
        (["/usr/bin/python", "/usr/bin/optdyn", "train"], "optdyn report"),
        (["optdyn", "train"], "optdyn report"),
        (["python", "-m", "launch.train", "optdyn"], "python -m launch.report"),
        (["python", "/usr/bin/optdyn", "race"], "optdyn report"),
        (["python", "-m", "launch.race"], "python -m launch.report"),
        (["python", "-m", "optdyn.cli.race"], "optdyn report"),
    ],
)
def test_a_command_is_named_as_it_can_be_called(monkeypatch, program, expected):
    """The server of a race is a process of the installed package, in any folder."""
    monkeypatch.setattr(sys, "orig_argv", program)
    assert invocation("report") == expected


def test_the_tuner_says_how_to_train_with_its_choice():
    row = {"seconds_to_target": 4.85, "with_probes": 5.63}
    row |= {"overhead": 0.1, "updates": 2300, "picked": "2/0.3/0.0893", "settings": "x " * 50}
    table, where, use = tuning_lines(row, Path("a"))
    assert "2300" in table and "x x" not in table and len(table.splitlines()[0]) < 90
    assert where.startswith("a/results.csv")
    assert use.endswith(
        "--config.method.groups=2 --config.optimizer.momentum=0.3 "
        "--config.optimizer.learning_rate=0.0893"
    )
