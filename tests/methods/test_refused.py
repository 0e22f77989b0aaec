"""What a method cannot be is refused before any work, in a line that names the key."""

import pytest

from optdyn.experiment import ConfigError
from optdyn.train.checks import check

SECTIONS = {"batch_size", "cluster", "model", "optimizer", "parallel", "replicas"}  # else: method
FOUR = {"cluster.nodes": 4, "cluster.service.name": "constant"}
AWAY = {"cluster.presence": 1.0, "cluster.absence": 1.0}
SUMS = "exchanges otherwise than by sums"
BOTH = "both say what nodes exchange"
WITH = {  # what is asked for besides the name, so that it can run
    "ad_psgd": {"cluster.nodes": 4, "groups": 4},
    "async_local_sgd": FOUR | {"groups": 1},
    "asynchronous": {},
    "buffered": {"cluster.nodes": 4, "groups": 4},
    "compressed gossip": FOUR | {"compression": "top_k", "gossip_order": "adapt"},
    "compressed groups": {"compression": "top_k", "groups": 2, "cluster.nodes": 4},
    "daso": {"cluster.nodes": 2, "batch_size": 64},
    "decoupled": {"groups": 2, "cluster.nodes": 2},
    "elastic": FOUR | {"groups": 1},
    "gossip": {"cluster.nodes": 8, "batch_size": 64},
    "model_averaging": {"cluster.nodes": 2, "batch_size": 64},
    "ringleader": {"cluster.nodes": 4, "groups": 4},
    "stale_pipeline": {"cluster.nodes": 3, "cluster.service.name": "constant", "batch_size": 6}
    | {"model.name": "mlp", "model.hidden": (6, 4, 5), "micro_batches": 3},
}
NAMES = {"compressed gossip": "gossip", "compressed groups": "asynchronous"}
REFUSED = {
    "ad_psgd": [({"graph": "star"}, "^config.method.graph = 'star': must be one of")],
    "async_local_sgd": [
        ({"momentum_part": 1.5}, "^config.method.momentum_part = 1.5: must be from 0 to 1"),
        ({"momentum_delay": -1}, "^config.method.momentum_delay = -1: must be at least "),
    ],
    "asynchronous": [
        ({"snapshots": "float16"}, "method.snapshots = 'float16': must be one of"),
        ({"name": "elastic", "snapshots": "host"}, "snapshots: 'elastic' has no such key"),
        ({"name": "buffered", "snapshots": "host"}, "one version an update"),
        (
            {"name": "daso+asynchronous", "asynchronous.groups": 2, "batch_size": 8}
            | {"asynchronous.snapshots": "host", "cluster.devices_per_node": 2},
            "asynchronous.snapshots = 'host': .*'bfloat16' halves the table",
        ),
        (
            {"name": "asynchronous+local", "asynchronous.groups": 2, "cluster.nodes": 4}
            | {"asynchronous.compression": "top_k"},
            "asynchronous.compression = 'top_k': of groups that send whole gradients",
        ),
        ({"parallel.api": "jit", "snapshots": "host"}, "shard_snapshots gives each"),
        ({"replicas.count": 2, "snapshots": "host"}, "replicas share a device"),
        ({"parallel.shard_snapshots": True}, "needs config.parallel.api = 'jit'"),
        (
            {"name": "sync", "parallel.api": "jit", "parallel.shard_snapshots": True},
            "one table of versions",
        ),
        ({"cluster.diurnal": 1.0}, "cluster.diurnal"),
        ({"cluster.presence": 1.0, "staleness_bound": 1}, "cluster.presence"),
        ({"cluster.diurnal": 0.5, "cluster.service.name": "geometric"}, "cluster.diurnal"),
    ],
    "buffered": [
        ({"arrivals": 5, "waiting": "k_sync"}, "arrivals = 5: must be at most"),
        ({"arrivals": 5, "waiting": "k_async"}, "arrivals = 5: must be at most"),
        ({"arrivals": 0}, "arrivals = 0: must be at least 1"),
        ({"waiting": "nobody"}, "waiting = 'nobody': must be one of 'k_sync'"),
        ({"arrivals": 3}, "batch_size = 4: must be a multiple of 3"),
        ({"groups": 3}, "groups = 3: must divide"),
        ({"staleness_bound": 1}, "staleness_bound: 'buffered' has no such key"),
        ({"fresh": ("x",)}, "fresh: 'buffered' has no such key"),
        ({"cluster.service.name": "geometric"}, "service.name = 'geometric': must be one of"),
        ({"replicas.count": 2}, "replicas.count = 2: "),
    ],
    "compressed gossip": [
        ({"graph": "random"}, "graph = 'random': of compressed messages must be one of 'ring'"),
        ({"compression": "powersgd"}, "compression = 'powersgd': of gossip must be one of ''"),
        ({"gossip_order": "combine"}, "gossip_order = 'combine': must be 'adapt' with"),
        (AWAY, "cluster.presence = 1.0: must be 0"),
    ],
    "compressed groups": [
        (
            {"compression": "powersgd"},
            "compression = 'powersgd': of asynchronous must be one of ''",
        ),
        ({"groups": 1}, "of 2 groups at least"),
        ({"cluster.service.name": "race"}, "of groups whose times are drawn"),
    ],
    "daso": [
        ({"cluster.presence": 1.0}, "cluster.presence"),
        ({"cluster.regions": 3}, "cluster.regions"),
    ],
    "decoupled": [
        ({"quorum": 3}, "quorum = 3: must be at most config.method.groups = 2, or 0"),
        ({"fragments": 9}, "fragments = 9: must be from 1 to config.method.period = 8"),
        ({"delay": -1}, "delay = -1: must be at least 0"),
        ({"grace": -1.0}, "grace = -1.0: must be at least 0"),
    ],
    "des_loc": [
        ({"first_moment_meetings": 0}, "first_moment_meetings = 0: must be at least 1"),
        ({"delay": 2}, "method.delay = 2: must be 0 with config.method.name = 'des_loc'"),
        ({"inner_state": "reset"}, "method.inner_state = 'reset': must be 'kept' with"),
        ({"parallel.api": "overlap"}, "averages its optimizers' states too"),
        ({"name": "des_loc+gossip"}, BOTH),
        ({"cluster.presence": 1.0}, "'des_loc' does not simulate absences"),
    ],
    "diloco": [
        ({"outer_learning_rate": 0.0}, "method.outer_learning_rate = 0.0: must be above 0"),
        ({"outer_momentum": 1.0}, "config.method.outer_momentum = 1.0: must be at least 0 and"),
        ({"merging": "add"}, "merging = 'add': must be one of 'mix', 'correct'"),
        (
            {"merging": "correct", "mixing": 0.5},
            "mixing = 0.5: must be 0 with config.method.merging = 'correct'",
        ),
        ({"merging": "correct", "parallel.api": "overlap"}, "keeps what nodes did meanwhile"),
        ({"name": "eager", "parallel.api": "overlap"}, "exchanges otherwise than by"),
        ({"name": "eager+gossip"}, f"eager and gossip {BOTH}"),
    ],
    "diloco+gossip": [
        ({"gossip.graph": "push"}, "method.gossip.graph = 'push': must be another with"),
        ({"gossip.graph": "star"}, "method.gossip.graph = 'star': must be one of"),
        ({"diloco.compression": "sign"}, "method.diloco.compression = 'sign': must be '' with"),
        (
            {"gossip.compression": "top_k", "gossip.gossip_order": "adapt"},
            "method.gossip.compression = 'top_k': must be '' with",
        ),
        ({"diloco.fragments": 2}, "method.diloco.fragments = 2: must be 1 with"),
        (
            {"diloco.inner_state": "averaged"},
            "method.diloco.inner_state = 'averaged': must be 'kept' with",
        ),
        (AWAY, "cluster.presence = 1.0: must be 0 with"),
        ({"parallel.api": "overlap"}, SUMS),
        ({"name": "daso+gossip"}, f"daso and gossip {BOTH}"),
        ({"name": "diloco+slowmo"}, f"diloco and slowmo {BOTH}"),
        ({"name": "sparseloco+gossip"}, BOTH),
    ],
    "elastic": [
        ({"groups": 3}, "^config.method.groups = 3: must divide the cluster's 4 workers"),
        ({"elasticity": 2.0}, "^config.method.elasticity = 2.0: must be from 0 to"),
        ({"staleness_bound": 2}, "^config.method.staleness_bound: 'elastic' has no such key"),
        ({"cluster.pieces.conv_compute": 1.0}, "^config.cluster.pieces"),
        (
            {"cluster.service.name": "geometric"},
            "^config.cluster.service.name = 'geometric': must be one of",
        ),
        ({"replicas.count": 2}, "^config.replicas.count = 2: needs config.method.name one of"),
        (
            {"optimizer.name": "closed_loop"},
            "^config.method.name = 'elastic': must be one of 'sync', 'asynchronous', "
            "'ringmaster' with config.optimizer.name = 'closed_loop', which takes",
        ),
    ],
    "gasloc": [
        ({"graph": "push"}, "method.graph = 'push': must be another with"),
        ({"graph": "star"}, "method.graph = 'star': must be one of"),
        (AWAY, "does not simulate absences"),
        ({"parallel.api": "overlap"}, SUMS),
        ({"name": "gasloc+gossip"}, BOTH),
        ({"name": "diloco+gasloc"}, BOTH),
    ],
    "gossip": [
        ({"graph": "star"}, "^config.method.graph = 'star': must be one of 'ring'"),
        ({"gossip_order": ""}, "^config.method.gossip_order = '': must be one of"),
        ({"batch_size": 60}, "^config.batch_size = 60: must be a multiple"),
        (
            {"graph": "push", "cluster.nodes": 2048, "batch_size": 2048},
            "^config.cluster.nodes = 2048: must be at",
        ),
    ],
    "mindflayer": [({"allotted": -1.0}, r"allotted = -1\.0: must be at least 0")],
    "model_averaging": [
        ({"fragments": 0}, "config.method.fragments = 0: must be from 1 to .*period = 8"),
        ({"fragments": 9}, "config.method.fragments = 9: must be from 1 to .*period = 8"),
        ({"fragments": 3, "delay": 2}, "config.method.delay = 2: must be from 0 to 1, less"),
        ({"delay": -1}, "config.method.delay = -1: must be from 0 to 7, less"),
        ({"mixing": 1.5}, "config.method.mixing = 1.5: must be from 0 to 1"),
        ({"mixing": float("nan")}, "config.method.mixing = nan: must be a number"),
        ({"synchronous_updates": -1}, "method.synchronous_updates = -1: must be at least 0"),
        ({"inner_state": "lost"}, "inner_state = 'lost': must be one of 'kept', 'averaged', 'r"),
        ({"inner_state": "reset", "fragments": 2}, "must be 'kept' with .*fragments = 2"),
        ({"inner_state": "averaged", "delay": 1}, "must be 'kept' with config.method.delay = 1"),
        ({"cluster.presence": 1.0, "delay": 1}, "method.delay"),
        ({"cluster.presence": 1.0, "compression": "sign"}, "method.compression"),
        ({"cluster.server_bandwidth": 1.0}, "cluster.server_bandwidth"),
        (
            {"cluster.regions": 2, "cluster.latencies": ((0.0, 1.0), (1.0, 0.0))},
            "regions",
        ),
    ],
    "ringleader": [
        ({"snapshots": "host"}, "method.snapshots = 'host'"),
        ({"replicas.count": 2}, "replicas.count = 2: needs config.method.name one of"),
        ({"cluster.service.name": "race"}, "cluster.service.name = 'race': must be one of"),
        ({"groups": 3}, "method.groups = 3: must divide"),
    ],
    "slowmo": [
        ({"slow_learning_rate": float("nan")}, "slow_learning_rate = nan: must be a number"),
        ({"slow_momentum": -0.1}, "config.method.slow_momentum = -0.1: must be at least 0 and"),
        ({"compression": "zip"}, "compression = 'zip': must be one of '', 'bfloat16', 'top_k'"),
        ({"compression_share": 0.0}, "compression_share = 0.0: must be above 0 and at most 1"),
        ({"compression_rank": 0}, "compression_rank = 0: must be at least 1"),
        ({"compression_bits": 9}, "compression_bits = 9: must be from 2 to 8, or 32"),
        (
            {"compression_bits": 4, "compression": "sign"},
            "compression_bits = 4: must be 32 with config.method.compression = 'sign'",
        ),
        ({"compression_block": 0}, "compression_block = 0: must be at least 1"),
    ],
    "sparseloco": [
        ({"compression": "sign"}, "compression = 'sign': of sparseloco must be one of '', 'top_k'"),
        ({"error_decay": 1.5}, "error_decay = 1.5: must be from 0 to 1"),
        (AWAY, "cluster.presence = 1.0: needs .*; 'sparseloco' does not"),
        ({"parallel.api": "overlap"}, "sends the largest numbers of an array only"),
    ],
    "stale_pipeline": [
        ({"pipeline": "nosuch"}, "pipeline = 'nosuch': must be one of 'stash', '2bw'"),
        ({"cluster.nodes": 4}, "nodes = 4: stages of a pipeline, must be from 1 to the model's 3"),
        ({"parallel.api": "jit"}, "runs unlike programs on its stages, which only 'shard_map' can"),
        ({"pipeline": "2bw", "micro_batches": 2}, "micro_batches = 2: must be"),
        ({"cluster.devices_per_node": 4}, "batch_size = 6: must be a multiple of 4"),
        (
            {"pipeline": "predict", "optimizer.name": "adam"},
            "name = 'adam': 'predict' is of heavy ball",
        ),
        (
            {"cluster.service.name": "exponential"},
            "service.name = 'exponential': must be one of 'constant'",
        ),
        ({"name": "daso+stale_pipeline"}, "stale_pipeline cuts one model over the nodes"),
        ({"name": "local+stale_pipeline"}, "both say how a gradient is taken"),
        ({"parallel.accumulation": 2}, "must be 1: 'stale_pipeline' computes"),
    ],
}
ROWS = [(name, *row) for name, rows in REFUSED.items() for row in rows]


def whole(name, values):
    """The keys of a config with what is asked for."""
    asked = {"name": NAMES.get(name, name), **WITH.get(name, {}), **values}
    return {
        key if key.partition(".")[0] in SECTIONS else f"method.{key}": value
        for key, value in asked.items()
    }


@pytest.mark.parametrize(("name", "values", "said"), ROWS)
def test_what_cannot_be_is_refused_in_a_line(config, name, values, said):
    with pytest.raises(ConfigError, match=said) as refused:
        check(config(whole(name, values)))
    assert "\n" not in str(refused.value)
