"""`configs/custom/student.py` in little: five methods train her network, and give it back."""

import pytest

from configs.custom import student
from tests.blocks import ROOT


@pytest.mark.parametrize("names", [("DiLoCo",), pytest.param((), marks=pytest.mark.slow, id="all")])
def test_methods_train_her_network_and_give_it_back_with_the_accuracy_of_the_log(names):
    runs, test = student.main(steps=20, seeds=1, names=names), student.images()["test"]
    assert list(runs) == list(names or ("sync", "asynchronous", "DiLoCo", "DASO", "gossip"))
    for name in runs:
        run = runs[name][0]
        assert run.log["train_loss"].iloc[-1] < run.log["train_loss"].iloc[0]
        assert run.log["test_accuracy"].iloc[-1] > 0.2  # chance is 0.1
        for average, column in ((False, "test_accuracy"), (True, "ema_test_accuracy")):
            found = student.accuracy(run.restore(average=average), test)
            logged = run.log[column].iloc[-1]
            assert found == pytest.approx(logged, abs=1.5 / len(test["label"])), (name, column)


def test_what_is_added_to_her_script_is_short():
    text = (ROOT / "configs" / "custom" / "student.py").read_text()
    assert len(text[text.index("\ndef main(") :].strip().splitlines()) <= 40
