"""The values of a config, for tests that write it key by key."""

from ml_collections import ConfigDict

from optdyn.experiment import Experiment, parse
from optdyn.setup import Cluster, Model, Pieces


def as_experiment(given: ConfigDict | Experiment) -> Experiment:
    return given if isinstance(given, Experiment) else parse(given)


def as_cluster(given: ConfigDict | Cluster) -> Cluster:
    if isinstance(given, Cluster):
        return given
    values = given.to_dict()
    return Cluster(**{**values, "pieces": Pieces(**values.get("pieces", {}))})


def as_model(given: ConfigDict | Model) -> Model:
    return given if isinstance(given, Model) else Model(**given.to_dict())
