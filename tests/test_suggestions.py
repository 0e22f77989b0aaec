"""Which name was meant: of what a user might type, and of every name with one slip in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optdyn.base.errors import closest, did_you_mean
from optdyn.cli.keys import keys

METHODS = ("sync", "asynchronous", "async_local_sgd", "daso", "diloco", "gossip", "local")
ALL = tuple(keys())
KEYS = ("optimizer.learning_rate", "optimizer.momentum", "model.name", "batch_size", "steps")


@pytest.mark.parametrize(
    "name, names, expected",
    [
        ("async", METHODS, ["asynchronous", "async_local_sgd"]),  # cut off, and not `sync`
        ("DiLoCo", METHODS, ["diloco"]),
        ("gosip", METHODS, ["gossip"]),
        ("nothing_like_it", METHODS, []),
        ("Adam", ("adam", "adamw", "nadam"), ["adam"]),  # the name itself, in another case
        ("muon", ("adam", "contrib.muon"), ["contrib.muon"]),
        ("optimizer.lr", KEYS, ["optimizer.learning_rate"]),
        ("bs", KEYS, ["batch_size"]),
        ("learnin_rate", KEYS, ["optimizer.learning_rate"]),
        ("--momentum", KEYS, ["optimizer.momentum"]),
        ("model.steps", KEYS, ["steps"]),
        ("", KEYS, []),
    ],
)
def test_what_users_type(name, names, expected):
    assert closest(name, names) == expected


def test_the_end_of_a_line():
    assert did_you_mean("asyn", METHODS) == "; did you mean asynchronous or async_local_sgd?"
    assert did_you_mean("asyn", METHODS, most=1) == "; did you mean asynchronous?"
    assert did_you_mean("xyz", METHODS) == ""


@given(st.sampled_from(ALL), st.data())
def test_one_slip_in_a_key_of_the_config_is_seen(key, data):
    """A letter left out, doubled or in another case, of names of more than four letters.

    Two of four letters in common would be no more alike than other words are. What is another
    key's name now, or its beginning, may well be meant as that.
    """
    section, _, last = key.rpartition(".")
    at = data.draw(st.integers(0, len(last) - 1))
    slip = data.draw(st.sampled_from(["", last[at] * 2, last[at].upper()]))
    typed = last[:at] + slip + last[at + 1 :]
    ends = {other.rpartition(".")[2] for other in ALL}
    found = closest(f"{section}.{typed}".lstrip("."), ALL, most=len(ends))
    assert found or len(last) < 5
    if len(last) > 4 and not any(end.startswith(typed) for end in ends - {last}):
        assert last in {other.rpartition(".")[2] for other in found}
