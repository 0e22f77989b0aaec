"""Names of registries and of the user's own files, and the one line where there is nothing."""

import json
import sys
from functools import partial

import pytest

from optdyn.base import lookup
from optdyn.base.errors import ConfigError
from optdyn.base.fields import plain
from optdyn.cli.registries import KINDS, listed
from optdyn.experiment import Experiment, read, to_json
from tests.train.runs import refusal as refused

KEY = "config.some.key"
refusal = partial(refused, error=ConfigError)


def test_a_name_is_of_the_registry_or_of_a_file(folder):
    assert lookup.find(KEY, "a", {"a": 1, "b": 2}) == 1
    (folder / "mine_here.py").write_text("thing = 7\n")
    assert lookup.find(KEY, "mine_here:thing", {}) == 7
    deep = folder / "deep" / "er"
    deep.mkdir(parents=True)
    (deep / "neighbour_of_it.py").write_text("value = 8\n")
    (deep / "it.py").write_text("from neighbour_of_it import value\nthing = [value]\n")
    found = lookup.find(KEY, "deep/er/it.py:thing", {})
    assert found == [8]
    assert lookup.find(KEY, f"{deep}/it.py:thing", {}) is found  # imported once
    assert lookup.find(KEY, "json:loads", {}).__module__ == "json"


def test_what_is_installed_goes_before_the_current_folder(folder, monkeypatch):
    (folder / "colorsys.py").write_text("raise RuntimeError('the wrong one')\n")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert lookup.find(KEY, "colorsys:rgb_to_hsv", {})(0, 0, 1) == (2 / 3, 1, 1)
    # The folder is looked through last: nothing before it is displaced.
    assert sys.path.index(str(folder)) == len(sys.path) - 1


def test_what_cannot_be_found_is_one_line(folder):
    assert refusal(lookup.find, KEY, "c", {"a": 1, "b": 2}) == (
        f"config.some.key = 'c': must be one of a, b, or {lookup.OWN}"
    )
    assert "no module 'nosuch.deep'" in refusal(lookup.find, KEY, "nosuch.deep:x", {})
    assert f"no file {folder}/nosuch.py" in refusal(lookup.find, KEY, "nosuch.py:x", {})
    (folder / "halves.py").write_text("import math\n\n\ndef one():\n    pass\n")
    for name in ("halves:two", "halves.py:two"):
        said = refusal(lookup.find, KEY, name, {})
        assert f"{folder}/halves.py has no 'two', only one" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ny = nosuch\n", "line 2: NameError: name 'nosuch' is not defined"),
        ("x = 1\n\ndef f(:\n", "line 3: SyntaxError"),
        (
            "import nosuch_lib\n",
            "line 1: ModuleNotFoundError: No module named 'nosuch_lib'",
        ),
        ("import json\n\nx = json.loads('{')\n", "line 3: JSONDecodeError"),
    ],
)
def test_an_error_in_the_file_says_where(folder, text, said):
    (folder / "broken_one.py").write_text(text)
    for name in ("broken_one:x", "broken_one.py:x"):
        message = refusal(lookup.find, KEY, name, {})
        assert message.startswith(f"{KEY} = {name!r}: ")
        assert f"{folder}/broken_one.py, {said}" in message


def test_what_a_call_raises_says_where(folder):
    (folder / "calls.py").write_text("def make(a):\n    b = a\n    return 1 / b\n")
    make = lookup.find(KEY, "calls:make", {})
    assert lookup.call(KEY, "calls:make", make, 2) == 0.5
    said = refusal(lookup.call, KEY, "calls:make", make, 0)
    assert f"{folder}/calls.py, line 3: ZeroDivisionError" in said
    said = refusal(lookup.call, KEY, "calls:make", make, 1, c=2)
    assert f"{folder}/calls.py, line 1: TypeError" in said and "'c'" in said
    with pytest.raises(ZeroDivisionError):  # ours are not disguised
        lookup.call(KEY, "registered", make, 0)


def test_options_are_the_same_from_a_config_and_from_its_json():
    config = Experiment()
    config = config.with_(
        {
            "model.name": "a.py:model",
            "model.options.widths": (1, 2),
            "model.options.deep": {"a": (3,), "b": "text"},
        }
    )
    expected = {"widths": (1, 2), "deep": {"a": (3,), "b": "text"}}
    for made in (config, read(json.loads(to_json(config)))):
        options = plain(made.model.options)
        assert options == expected and type(options) is type(options["deep"]) is dict
        options["deep"].clear()  # it is whoever was given it that may
        assert made.model.options == expected


def test_everything_registered_is_listed_with_a_line():
    some = {
        "models": {"mlp", "transformer"},
        "data": {"mnist5k", "tfds", "text"},
        "losses": {"cross_entropy", "huber"},
        "metrics": {"accuracy", "squared_error"},
        "optimizers": {"adam", "contrib.muon", "closed_loop"},
        "schedules": {"cosine", "piecewise"},
        "transforms": {"delay_compensation", "staleness_rate"},
        "methods": {"sync", "daso"},
        "names": {"rennala", "snoo"},
        "laws": {"constant", "geometric", "trace"},
    }
    assert set(some) == set(KINDS)
    for kind, names in some.items():
        lines = listed(kind)
        assert names <= set(lines)
        assert all(lines.values()), kind
        assert not any("\n" in line for line in lines.values())
    assert not any("scale_by" in name for name in listed("optimizers"))
    assert "must be one of models" in refusal(listed, "nosuch")
