"""Values of unions, for tests that go through all of them with one set of numbers."""

from collections.abc import Mapping
from typing import Any

from optdyn.clock.service import Law
from optdyn.experiment import Config
from optdyn.methods import MethodStack
from optdyn.problem.models import Model


def as_model(values: dict[str, Any]) -> Model:
    """The model called `name`, with those of the other values that it has."""
    model = Model.named(values["name"])
    keys = {key: value for key, value in values.items() if key in model.field_table()}
    return model.changed(keys)


def as_law(name: str, variation: float = 1.0) -> Law:
    """The law called `name`, with the variation if it has one."""
    law: Any = Law.named(name)
    return law.with_(variation=variation) if "variation" in law.field_table() else law


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with values of keys; `method.KEY` is of each method that has it."""
    shared = [key for key in values if key.startswith("method.") and key.count(".") == 1]
    others = {key: value for key, value in values.items() if key not in shared}
    numbers = {key.removeprefix("method."): values[key] for key in shared}
    name = numbers.pop("name", config.method.name)
    methods = config.method if name == config.method.name else MethodStack.named(name)
    return config.with_({"method": methods.with_keys(numbers)}).with_(others)
