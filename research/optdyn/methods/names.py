"""What the field calls methods that are here under another name, and how they are chosen.

    rennala    --config.strategy.name=buffered --config.strategy.waiting=k_batch_sync

`optdyn list names` shows them, and who asks for one in `config.strategy.name` is told. Values are
those that make it the method of that name; its other numbers are the reader's.
"""

import re
from collections.abc import Mapping
from typing import Any

from optdyn.base.errors import closest

CONSTANT = {"cluster.service": "constant"}  # the only law that their clocks draw
ONE_NODE = {"cluster.nodes": 1}
AVERAGING = {"strategy.name": "model_averaging"}
BUFFERED = {"strategy.name": "buffered"}
DILOCO = {"strategy.name": "diloco"}
COMPRESSED = AVERAGING | {"strategy.period": 1}

PUSH_SUM = {"strategy.graph": "push", "strategy.gossip_order": "adapt"}

# Names that mean the same are together.
TOGETHER: Mapping[str, Mapping[str, Any]] = {
    "ddp all_reduce data_parallel": {"strategy.name": "sync"},
    "asgd omnivore parameter_server": {"strategy.name": "asynchronous"},
    "ssp": {"strategy.name": "asynchronous", "strategy.staleness_bound": 4},
    "ringmaster_asgd": {"strategy.name": "ringmaster"},
    "ringleader_asgd": {"strategy.name": "ringleader"},
    "k_sync m_synchronous backup_workers": BUFFERED | {"strategy.waiting": "k_sync"},
    "k_batch_sync rennala": BUFFERED | {"strategy.waiting": "k_batch_sync"},
    "k_async": BUFFERED | {"strategy.waiting": "k_async"},
    "fadas": BUFFERED
    | {
        "optimizer.name": "amsgrad",
        "optimizer.momentum": 0.0,
        "optimizer.chain": ("staleness_rate",),
        "optimizer.chain_options.law": "bounded",
    },
    "cgad": {
        "strategy.name": "async_local_sgd",
        "strategy.server": "adam",
        "strategy.age_decay": 0.1,
        "strategy.age_cutoff": 16.0,
    },
    "heloco": {"strategy.name": "async_local_sgd", "strategy.server": "heloco"},
    "k_batch_async fedbuff": BUFFERED | {"strategy.waiting": "k_batch_async"},
    "delay_adaptive": {
        "strategy.name": "asynchronous",
        "optimizer.chain": ("staleness_rate",),
        "optimizer.chain_options.law": "bounded",
    },
    "dc_asgd": {"strategy.name": "asynchronous", "optimizer.chain": ("delay_compensation",)},
    "easgd eamsgd": {"strategy.name": "elastic"},
    "delayed_nesterov": {"strategy.name": "async_local_sgd"},
    "local_sgd fedavg": AVERAGING,
    "local_adam": AVERAGING | {"optimizer.name": "adam", "strategy.inner_state": "averaged"},
    "post_local_sgd": AVERAGING | {"strategy.synchronous_updates": 100},
    "streaming_diloco": DILOCO | {"strategy.fragments": 2},
    "co2": DILOCO | {"strategy.delay": 4, "strategy.merging": "correct"},
    "lookahead": DILOCO | {"strategy.outer_momentum": 0.0} | ONE_NODE,
    "snoo": DILOCO | ONE_NODE,
    "noloco": {
        "strategy.name": "slowmo+gossip",
        "strategy.graph": "random",
        "strategy.slow_learning_rate": 0.7,
        "strategy.slow_momentum": 0.9,
    },
    "d_psgd": {"strategy.name": "gossip"},
    "sgp push_sum": {"strategy.name": "gossip"} | PUSH_SUM,
    "top_k": COMPRESSED | {"strategy.compression": "top_k"},
    "sign_sgd": COMPRESSED | {"strategy.compression": "sign"},
    "powersgd": COMPRESSED | {"strategy.compression": "powersgd"},
    "dbs": {"strategy.name": "dynamic_batch"},
    "dgl greedy": {"strategy.name": "local", "strategy.variant": "greedy"} | CONSTANT,
    "pipedream": {"strategy.name": "stale_pipeline"} | CONSTANT,
}
NAMES = {name: how for names, how in TOGETHER.items() for name in names.split()}


def flags(name: str) -> str:
    """The method of that other name, as it is asked for in a command."""
    return " ".join(
        f"--config.{key}=" + (f"'{value!r}'" if isinstance(value, tuple) else f"{value}")
        for key, value in NAMES[name].items()
    )


def meant(name: str, known: Mapping[str, Any]) -> str:
    """The end of the line that refuses a method's name; '' if nothing is like it.

    It tells what is meant among the `known` methods, or how a method of another name is chosen.
    """
    asked = re.sub(r"[^a-z0-9]+", "_", name.lower())
    same = [other for other in (asked, asked.removesuffix("_sgd")) if other in NAMES]
    found = same or closest(asked, [*known, *(other for other in NAMES if other not in known)])
    if found and found[0] not in known:
        return f"; {found[0]} is here {flags(found[0])}"
    found = [other for other in found if other in known]
    return f"; did you mean {' or '.join(found)}?" if found else ""
