"""Values of unions, for tests that go through all of them with one set of numbers."""

from typing import Any

from optdyn.problem.models import Model


def as_model(values: dict[str, Any]) -> Model:
    """The model called `name`, with those of the other values that it has."""
    model = Model.named(values["name"])
    keys = {key: value for key, value in values.items() if key in model.field_table()}
    return model.changed(keys)
