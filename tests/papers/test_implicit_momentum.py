"""The rule of the claim about implicit momentum, on results that are made up."""

import copy

import pytest

from optdyn.configs.papers import implicit_momentum as claim


def fit(momentum, error=0.005, p=0.5):
    return {"momentum": momentum, "error": error, "rate": 0.01, "p": p, "strength": 50.0}


def result():
    """As it is if all is as the theorem says."""
    cells = []
    for model in claim.MODELS:
        for groups in claim.GROUPS:
            right = fit(1 - 1 / groups)
            cell = {"model": model, "groups": groups, "service": "exponential"}
            cells.append({**cell, "whole": right, "half": right, "single": [right] * 5})
    for model in ("quadratic", "mlp"):
        wrong = fit(0.84, p=1e-9)
        cell = {"model": model, "groups": claim.CONTRAST, "service": "constant"}
        cells.append({**cell, "whole": wrong, "half": wrong, "single": [wrong] * 5})
    return copy.deepcopy({"cells": cells})


def at(found, model, groups):
    return next(c for c in found["cells"] if (c["model"], c["groups"]) == (model, groups))


@pytest.mark.parametrize(
    "window, value, word",
    [
        ("whole", fit(0.75 + 0.014), "confirmed"),  # within three standard errors
        ("whole", fit(0.75 + 0.009, error=0.001), "confirmed"),  # as good as equal
        ("whole", fit(0.75 + 0.016), "refuted"),
        ("half", fit(0.75 - 0.016), "refuted"),
        ("whole", fit(0.75, error=0.02), "open"),  # too coarse to say much
        ("half", fit(0.75, error=0.02), "confirmed"),
        ("half", {"refused": "too noisy"}, "open"),
    ],
)
def test_the_rule(window, value, word):
    found = result()
    at(found, "cnn", 4)[window] = value
    assert claim.verdict(found).word == word


def test_a_model_that_is_always_or_never_rejected_leaves_it_open():
    found = result()
    assert claim.verdict(found).word == "confirmed"
    found["cells"][-1]["whole"]["p"] = 0.2  # constant service passes for one term
    assert claim.verdict(found).word == "open"
    found = result()
    for model in claim.MODELS:
        at(found, model, 16)["single"] = [fit(0.9375, p=0.01)] * 5  # 15 of 30 right ones do not
    assert claim.verdict(found).word == "open"


def test_one_group_says_how_far_the_meter_is_off_and_no_more():
    found = result()
    at(found, "mlp", 1)["half"] = {"refused": "too noisy"}
    at(found, "cnn", 1)["half"] = fit(0.26)
    said = claim.verdict(found)
    assert said.word == "confirmed" and "12 of 12" in said.by and "off by 0.26 at most" in said.by
