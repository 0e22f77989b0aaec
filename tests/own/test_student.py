"""`configs/custom/student.py` in little: five methods train her network, and give it back."""

import pytest

from configs.custom import student
from tests.blocks import ROOT


@pytest.fixture(scope="module")
def runs():
    return student.main(steps=20, seeds=1)


def test_every_method_trains_the_network_as_it_is(runs):
    assert list(runs) == ["sync", "asynchronous", "DiLoCo", "DASO", "gossip"]
    for name in runs:
        log = runs[name][0].log
        assert log["train_loss"].iloc[-1] < log["train_loss"].iloc[0]
        assert log["test_accuracy"].iloc[-1] > 0.2  # chance is 0.1


@pytest.mark.parametrize("average", [False, True])
def test_the_parameters_are_back_in_her_module_with_the_accuracy_of_the_log(runs, average):
    test = student.images()["test"]
    for name in runs:
        run = runs[name][0]
        found = student.accuracy(run.restore(average=average), test)
        logged = run.log["ema_test_accuracy" if average else "test_accuracy"].iloc[-1]
        assert found == pytest.approx(logged, abs=1.5 / len(test["label"])), name


def test_what_is_added_to_her_script_is_short():
    text = (ROOT / "configs" / "custom" / "student.py").read_text()
    assert len(text[text.index("\ndef main(") :].strip().splitlines()) <= 40
