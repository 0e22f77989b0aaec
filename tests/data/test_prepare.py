"""The command that prepares TFDS data sets."""

import socket
import sys

import pytest
import tensorflow_datasets as tfds

from optdyn.problem.data import prepare
from tests.data.builders import examples, tiny
from tests.data.loaded import load


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise OSError("refused by the test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mnist", "cannot prepare 'mnist' .*no answer from .*refused by the test.*network"),
        ("imagenet2012", "cannot prepare 'imagenet2012' .*/manual .*ILSVRC2012_img_train.tar"),
        ("no_such_set", "TFDS cannot make 'no_such_set'"),
        ("mnist:1.0.0", "TFDS cannot make 'mnist:1.0.0'.*3.0.1"),
    ],
)
def test_what_is_in_the_way_is_one_line(tmp_path, monkeypatch, no_network, spec, message):
    monkeypatch.setattr(sys, "argv", ["prepare", spec, f"--data_dir={tmp_path}"])
    with pytest.raises(SystemExit, match=f"error: {message}") as stopped:
        prepare.main()
    assert "\n" not in stopped.value.code  # a message: exit status 1
    assert not list(tmp_path.rglob("*.json"))


def test_what_it_prepares_can_be_loaded(tmp_path, monkeypatch, no_network, capsys):
    def builder(spec, **arguments):
        assert spec == "tiny"
        return tiny({"train": examples(30), "test": examples(6)})(**arguments)

    monkeypatch.setattr(tfds, "builder", builder)
    monkeypatch.setattr(sys, "argv", ["prepare", "tfds:tiny", f"--data_dir={tmp_path}"])
    for _ in range(2):
        prepare.main()
        assert "30 + 6 images (5, 4, 3), 3 classes" in capsys.readouterr().out.splitlines()[-1]
    assert len(load("tfds:tiny", tmp_path).train["label"]) == 30
