"""Any method and optimizer on ladders: what is searched, and that the least seconds are found."""

import math

import pytest

from analysis.studies import _problems as problems
from optdyn.evidence.arms import MOMENTUM, RATE, STEP, point
from optdyn.experiment import ConfigError
from optdyn.tune import ladders
from tests.evidence.known import TARGET, Known


def config(name, optimizer="sgd", **keys):
    base = problems.network("mlp", 64).with_(steps=3200)
    method = {"method.name": name, "tune.target": TARGET, "cluster.nodes": 4}
    method_keys = {f"method.{key}": value for key, value in keys.items()}
    return base.with_({**method, "optimizer.name": optimizer, **method_keys})


def away(value, best):
    return math.log2(value / best) ** 2


def test_the_period_of_least_seconds_is_found_with_adam():
    def taken(config):
        of, optimizer = config.methods, config.optimizer
        period, outer, mu = of.get("period", 0), of.get("outer_learning_rate", 0), 0.8
        off = away(optimizer.learning_rate, 2**-7) + away(outer, 1.0) + away(period, 32) / 4
        off += 20 * (of.get("outer_momentum", 0) - mu) ** 2
        return 100 * 1.3**off * period**0.1, period**-0.1

    one = config("diloco", "adam", period=4, outer_momentum=0.3)
    found = ladders.searched(Known(taken), one, TARGET)
    assert found["setting"] == pytest.approx(
        {
            RATE: 2**-7,
            "method.period": 32,
            "method.outer_learning_rate": 1.0,
            "method.outer_momentum": 0.8,
        }
    )
    assert found["interior"] and found["seconds"] == pytest.approx([100] * 3)
    assert found["updates"] == pytest.approx([100 * 32**0.1] * 3)


def test_a_ladder_that_has_an_end_stays_there():
    def taken(config):
        off = away(config.optimizer.learning_rate, 2**-7)
        return 100 * 1.3**off * config.methods.get("period", 0), 1.0

    found = ladders.searched(Known(taken), config("model_averaging", "adam", period=8), TARGET)
    assert found["setting"]["method.period"] == 1 and found["interior"]


@pytest.mark.parametrize(
    ("name", "optimizer", "keys", "wanted"),
    [
        ("sync", "sgd", {}, [STEP, MOMENTUM]),
        ("sync", "adam", {}, [RATE]),
        ("gossip", "adam", {}, [RATE]),
        ("slowmo", "adam", {}, [RATE, "period", "slow_learning_rate", "slow_momentum"]),
        (
            "model_averaging",
            "sgd",
            {"compression": "top_k"},
            [STEP, MOMENTUM, "period", "compression_share"],
        ),
        (
            "model_averaging",
            "adam",
            {"compression": "powersgd"},
            [RATE, "period", "compression_rank"],
        ),
        ("model_averaging", "adam", {"compression": "sign"}, [RATE, "period"]),
        (
            "sparseloco",
            "adam",
            {},
            [RATE, "period", "outer_learning_rate", "error_decay", "compression_share"],
        ),
        ("eager", "adam", {}, [RATE, "period", "outer_learning_rate", "outer_momentum"]),
        (
            "model_averaging+elastic",
            "adam",
            {},
            [RATE, "method.model_averaging.period", "method.elastic.period"],
        ),
    ],
)
def test_what_is_searched_is_what_the_method_and_the_optimizer_have(name, optimizer, keys, wanted):
    found = ladders.ladders(config(name, optimizer, **keys))
    assert list(found) == [key if "." in key or key == STEP else f"method.{key}" for key in wanted]


def test_every_rung_is_a_value_that_the_config_takes():
    for name, keys in (
        ("diloco", {"period": 16, "fragments": 4, "delay": 2, "compression": "top_k"}),
        ("slowmo", {}),
        ("sparseloco", {}),
    ):
        one = config(name, **keys)
        arm = ladders.arm(one)
        for moved in arm.ladders:
            for by in (-12, -3, 0, 3, 6):
                rungs = [arm.start[key] + by * (key == moved) for key in arm.ladders]
                one.with_(point(arm, rungs)).methods  # noqa: B018  it checks them


def test_the_search_starts_where_the_config_stands():
    one = config("diloco", period=16, outer_learning_rate=0.5, outer_momentum=0.9)
    one = one.with_({"optimizer.learning_rate": 0.05, "optimizer.momentum": 0.8})
    arm = ladders.arm(one)
    values = point(arm, list(arm.start.values()))
    assert values["method.period"] == 16 and values[MOMENTUM] == 0.8
    assert values["method.outer_momentum"] == 0.9
    # Powers of 2 of the long-run step: within half a rung of what the config has.
    assert values[RATE] == pytest.approx(0.05, rel=math.sqrt(2) - 1)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("learning_rate", 0.0, r"learning_rate = 0\.0: must be above 0: the search"),
        ("schedule", "cosine", "must be 'constant', without"),
    ],
)
def test_a_search_needs_a_constant_rate_to_start_from(key, value, line):
    with pytest.raises(ConfigError, match=line):
        ladders.ladders(config("diloco", "adam").with_({f"optimizer.{key}": value}))
