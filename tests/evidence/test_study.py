"""What a study has run it never runs again, and what a kill has torn is no trouble."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import optdyn
from optdyn.base import progress
from optdyn.evidence import study as study_of
from optdyn.evidence.study import Job, Study
from optdyn.experiment import Config
from tests.evidence.known import quadratic


@pytest.fixture
def here(monkeypatch):
    """Trials run in threads of this process, as starting one takes two seconds."""
    monkeypatch.setattr(study_of, "a_core_each", ThreadPoolExecutor)


def jobs(**most):
    config = quadratic().with_({"optimizer.learning_rate": 0.1}, steps=30)
    return [Job(config, 1e-9, **most)]


def test_trials_are_remembered_by_what_they_are_of(tmp_path):
    lines = tmp_path / "trials.jsonl"
    with Study(tmp_path, "small", (5,), (0,), processes=1) as study:
        short = study.trials(jobs(most=10))
        whole = study.trials(jobs() * 2)  # longer than what is remembered; the same one twice
        assert len(lines.read_text().splitlines()) == 2
        assert whole[0] == whole[1] and whole[0].losses[: len(short[0].losses)] == short[0].losses
    lines.write_text(lines.read_text() + '{"id": "torn')
    with Study(tmp_path, "small", (5,), (0,), processes=1) as again:
        assert again.trials(jobs(most=10)) == short  # though more of it is known
        assert again.trials(jobs()) == whole[:1]
    assert len(lines.read_text().splitlines()) == 1  # rewritten, the longest of each


def test_an_experiment_of_python_is_the_trial_of_its_config(tmp_path, here):
    """A user's claim is written with `optdyn.Experiment`."""
    model, data = optdyn.Quadratic(dimension=4), optdyn.MNIST5k(train_examples=20)
    made = optdyn.Experiment(model=model, data=data, batch_size=4, steps=20)
    with Study(tmp_path, "small", (5,), (0,), processes=1) as study:
        (curve,) = study.trials([Job(made, 1e-9)])
        assert study.trials([Job(Config.read(made.to_dict()), 1e-9)]) == [curve]
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 1


def test_whoever_waits_sees_how_many_trials_have_run(tmp_path, monkeypatch, capsys, here):
    monkeypatch.setattr(progress, "PRINTED_SECONDS", 0.0)
    (job,) = jobs(most=10)
    other = job._replace(config=job.config.with_(seed=7))
    with Study(tmp_path / "mine", "small", (5,), (0,), processes=1) as study:
        study.trials([job, other])
        study.trials([job])  # which is remembered
    first, second = capsys.readouterr().err.splitlines()
    assert first == "mine  trial 1  1 more asked for"
    assert second.startswith("mine  trial 2  0 more asked for  ")
    assert second.endswith(" trials/s")  # and no time left: the search decides how many there are


def test_measurements_are_made_once(tmp_path):
    made = []

    def measure(value):
        made.append(value)
        return {"value": (value, 2)}

    for _ in range(2):
        with Study(tmp_path, "small", (5,), (0,)) as study:
            assert study.remember("a", measure, 1) == {"value": [1, 2]}  # as JSON has it
    assert made == [1]


def test_seeds_that_choose_do_not_report(tmp_path):
    with pytest.raises(ValueError, match="must not report"):
        Study(tmp_path, "small", (0, 1), (1, 2))
