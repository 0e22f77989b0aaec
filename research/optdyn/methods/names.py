"""The field's names of methods that are settings of a method here.

    rennala    --config.method.name=buffered --config.method.waiting=k_batch_sync

`optdyn list names` shows them, and so does the error of such a `config.method.name`.
"""

import re
from collections.abc import Mapping
from typing import Any

from optdyn.base.errors import closest

CONSTANT = {"cluster.service.name": "constant"}  # the only law that some clocks know
ONE_NODE = {"cluster.nodes": 1}
AVERAGING = {"method.name": "model_averaging"}
BUFFERED = {"method.name": "buffered"}
DILOCO = {"method.name": "diloco"}
COMPRESSED = AVERAGING | {"method.period": 1}

# Names that mean the same share a row.
TOGETHER: Mapping[str, Mapping[str, Any]] = {
    "ddp all_reduce data_parallel": {"method.name": "sync"},
    "asgd omnivore parameter_server": {"method.name": "asynchronous"},
    "ssp": {"method.name": "asynchronous", "method.staleness_bound": 4},
    "ringmaster_asgd": {"method.name": "ringmaster"},
    "ringleader_asgd": {"method.name": "ringleader"},
    "k_sync m_synchronous backup_workers": BUFFERED | {"method.waiting": "k_sync"},
    "k_batch_sync rennala": BUFFERED | {"method.waiting": "k_batch_sync"},
    "k_async": BUFFERED | {"method.waiting": "k_async"},
    "fadas": BUFFERED
    | {
        "optimizer.name": "amsgrad",
        "optimizer.chain": ("staleness_rate",),
        "optimizer.chain_options.law": "bounded",
    },
    "cgad": {
        "method.name": "async_local_sgd",
        "method.server": "adam",
        "method.age_decay": 0.1,
        "method.age_cutoff": 16.0,
    },
    "heloco": {"method.name": "async_local_sgd", "method.server": "heloco"},
    "k_batch_async fedbuff": BUFFERED | {"method.waiting": "k_batch_async"},
    "delay_adaptive": {
        "method.name": "asynchronous",
        "optimizer.chain": ("staleness_rate",),
        "optimizer.chain_options.law": "bounded",
    },
    "dc_asgd": {"method.name": "asynchronous", "optimizer.chain": ("delay_compensation",)},
    "easgd eamsgd": {"method.name": "elastic"},
    "delayed_nesterov": {"method.name": "async_local_sgd"},
    "local_sgd fedavg": AVERAGING,
    "local_adam": AVERAGING | {"optimizer.name": "adam", "method.inner_state": "averaged"},
    "post_local_sgd": AVERAGING | {"method.synchronous_updates": 100},
    "streaming_diloco": DILOCO | {"method.fragments": 2},
    "co2": DILOCO | {"method.delay": 4, "method.merging": "correct"},
    "lookahead": DILOCO | {"method.outer_momentum": 0.0} | ONE_NODE,
    "snoo": DILOCO | ONE_NODE,
    "noloco": {
        "method.name": "slowmo+gossip",
        "method.gossip.graph": "random",
        "method.slowmo.slow_learning_rate": 0.7,
        "method.slowmo.slow_momentum": 0.9,
    },
    "d_psgd": {"method.name": "gossip"},
    "sgp push_sum": {
        "method.name": "gossip",
        "method.graph": "push",
        "method.gossip_order": "adapt",
    },
    "top_k": COMPRESSED | {"method.compression": "top_k"},
    "sign_sgd": COMPRESSED | {"method.compression": "sign"},
    "powersgd": COMPRESSED | {"method.compression": "powersgd"},
    "dbs": {"method.name": "dynamic_batch"},
    "dgl greedy": {"method.name": "local", "method.variant": "greedy"} | CONSTANT,
    "pipedream": {"method.name": "stale_pipeline"} | CONSTANT,
}
NAMES = {name: how for names, how in TOGETHER.items() for name in names.split()}


def flags(name: str) -> str:
    """Returns the flags of a command that choose the method of that name."""
    return " ".join(
        f"--config.{key}=" + (f"'{value!r}'" if isinstance(value, tuple) else f"{value}")
        for key, value in NAMES[name].items()
    )


def meant(name: str, known: Mapping[str, Any]) -> str:
    """Returns a hint at `known` methods or names that are like an unknown one; '' if none is."""
    asked = re.sub(r"[^a-z0-9]+", "_", name.lower())
    same = [other for other in (asked, asked.removesuffix("_sgd")) if other in NAMES]
    alike = same or closest(asked, [*known, *(other for other in NAMES if other not in known)])
    if alike and alike[0] not in known:
        return f"; {alike[0]} is here {flags(alike[0])}"
    alike = [other for other in alike if other in known]
    return f"; did you mean {' or '.join(alike)}?" if alike else ""
