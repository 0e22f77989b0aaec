"""What the timeline tests share: clusters by their differences from the default."""

import pytest

from research.config import default


@pytest.fixture(scope="session")
def cluster():
    """`cluster(nodes=4, ...)`: the default `config.cluster` with those values."""

    def make(**values):
        cluster = default().cluster
        cluster.update(values)
        return cluster

    return make
