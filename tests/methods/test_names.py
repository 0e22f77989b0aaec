"""Other names of methods: each can be run as it is told, and the glossary has it."""

import re
from pathlib import Path

import pytest

from optdyn import methods
from optdyn.experiment import Config, ConfigError
from optdyn.methods import names
from optdyn.train.checks import check

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"


@pytest.mark.parametrize("name", names.NAMES)
def test_a_name_can_be_run_as_it_is_told(name):
    check(Config().with_(names.NAMES[name]))


def test_names_are_those_of_the_glossary_and_of_no_method():
    words = re.sub(r"[^a-z0-9]+", "_", GLOSSARY.read_text().lower())
    assert [name for name in names.NAMES if f"_{name}_" not in words] == []
    assert not set(names.NAMES) & set(methods.built_in())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rennala", "; rennala is here --config.method.name=buffered --config.method.waiting"),
        ("Rennala SGD", "; rennala is here "),
        ("m-synchronous SGD", "; m_synchronous is here --config.method.name=buffered"),
        ("local-SGD", "; local_sgd is here --config.method.name=model_averaging"),
        ("lokahead", "; lookahead is here "),  # mistyped
        ("dilocco", "; did you mean diloco?"),
        ("xyzzy", "of your own"),
    ],
)
def test_who_asks_for_another_name_is_told(name, said):
    with pytest.raises(ConfigError) as refused:
        methods.MethodStack.named(name)
    assert said in str(refused.value) and "\n" not in str(refused.value)
