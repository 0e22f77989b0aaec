"""Distances in the tree of updates against a tree that is made edge by edge."""

import numpy as np
import pytest

from optdyn.config import usual
from optdyn.dynamics.tree_distance import between_meetings, distances
from optdyn.evidence.trial import timeline_of
from optdyn.setup import Cluster
from optdyn.timeline.base import Meeting, chosen
from optdyn.training import trainer

STEPS, GROUPS = 60, 5


class Tree:
    """Points by number, 0 the first, and whom each follows."""

    def __init__(self):
        self.parent = [None]

    def after(self, point):
        self.parent.append(point)
        return len(self.parent) - 1

    def path(self, point):
        """From the point to the first."""
        found = [point]
        while self.parent[found[-1]] is not None:
            found.append(self.parent[found[-1]])
        return found

    def distance(self, one, other):
        """To the closest common ancestor, from whichever is farther."""
        up, beside = self.path(one), self.path(other)
        common = next(point for point in up if point in set(beside))
        return max(up.index(common), beside.index(common))


def line_of(keys, service="exponential"):
    config = usual().with_(
        {f"strategy.{key}": value for key, value in keys.items()},
        cluster=Cluster(nodes=GROUPS, service=service),
        batch_size=60,
        steps=STEPS,
        seed=3,
    )
    return config.timeline(steps_per_epoch=STEPS, update_bytes=0)


METHODS = {
    "asynchronous": ({"name": "asynchronous", "groups": GROUPS}, None),
    "one group": ({"name": "asynchronous", "groups": 1}, 0),
    "ringmaster": ({"name": "ringmaster", "groups": GROUPS, "delay_bound": 4}, 3),
    **{
        f"{waiting}, {k}": (
            {"name": "buffered", "groups": GROUPS, "arrivals": k, "waiting": waiting},
            k - 1 if waiting.endswith("_sync") else None,
        )
        for waiting, k in [
            ("k_sync", 3),
            ("k_batch_sync", 3),
            ("k_batch_sync", 10),
            ("k_async", 3),
            ("k_batch_async", 3),
        ]
    },
}


@pytest.mark.parametrize("name", METHODS)
def test_they_are_those_of_the_tree(name):
    """Each gradient is an edge, and was taken at the version that its group had read."""
    keys, known = METHODS[name]
    late = line_of(keys).staleness.reshape(STEPS, -1)
    tree, versions, wanted = Tree(), [0], []
    for t in range(STEPS):
        x = versions[t]
        for tau in late[t]:
            wanted.append(tree.distance(x, versions[t - tau]))
            x = tree.after(x)
        versions.append(x)
    found = distances(line_of(keys).staleness)
    np.testing.assert_array_equal(found.ravel(), wanted)
    if known is None:
        assert found.max() > late.shape[1]  # it is late, and not by waiting alone
    else:
        assert found.max() == known


def test_constant_service_is_as_late_as_there_are_others():
    late = line_of({"name": "asynchronous", "groups": GROUPS}, "constant").staleness
    assert distances(late).max() == GROUPS - 1


def test_periods_of_local_sgd_are_between_meetings():
    config = usual().with_(
        {"strategy.name": "model_averaging", "strategy.period": 4, "model.hidden": (2,)},
        cluster=Cluster(nodes=GROUPS),
        batch_size=60,
        steps=20,
    )
    line = trainer.prepare(config, timeline_of=timeline_of).timeline
    met = chosen(line, Meeting).receive.reshape(20, -1).all(axis=1)
    np.testing.assert_array_equal(between_meetings(met, GROUPS), [4 * GROUPS - 1] * 5)


@pytest.mark.parametrize("nodes", [1, 3])
def test_nodes_that_meet_are_branches(nodes):
    """Periods of 2, 3 and 1 updates, and an update that no meeting follows."""
    tree, start, wanted = Tree(), 0, []
    for h in (2, 3, 1):
        taken = [[start] for _ in range(nodes)]  # where every node's gradients are taken
        for own in taken:
            for _ in range(h):
                own.append(tree.after(own[-1]))
        # The branch is the first node's own, and then has the gradients of the others.
        edges = [(x, x) for x in taken[0][:-1]]
        start = taken[0][-1]
        for z in (z for own in taken[1:] for z in own[:-1]):
            edges.append((start, z))
            start = tree.after(start)
        wanted.append(max(tree.distance(*edge) for edge in edges))
    met = np.array([False, True, False, False, True, True, False])
    np.testing.assert_array_equal(between_meetings(met, nodes), wanted)
