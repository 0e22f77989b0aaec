"""The staleness of asynchronous SGD: whether it is memoryless, and what momentum has its mean.

Gradients taken at x_{t - tau} act in the mean as sum_m P(tau = m) L^m. Memoryless arrivals of g
groups have P(tau = m) = (1/g) (1 - 1/g)^m, one term of momentum 1 - 1/g (arXiv 1605.09774).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from optdyn.methods import known_stack

LINK_KEYS = ("latency", "bandwidth", "server_bandwidth")  # of the cluster: not memoryless times
UNLIKE_KEYS = ("latencies", "bandwidths", "regions", "presence")  # workers are unlike, or away


def groups_of(config: Mapping[str, Any]) -> int:
    """Returns the number of groups that arrive independently; 1 where all wait for all."""
    name = config["method"]["name"]
    methods = known_stack(name)
    return number_of(config, "groups", 1) if not methods or methods.grouped else 1


def number_of(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Returns the value of a key of config.method, of the first joined method that has it."""
    method = config["method"]
    sections = (one for one in method.values() if isinstance(one, Mapping))
    parts = [method, *sections] if "+" in method["name"] else [method]
    return next((one[key] for one in parts if key in one), default)


def memoryless(config: Mapping[str, Any]) -> bool:
    """Returns whether every group is as likely as another to arrive next, whoever came before."""
    groups, cluster = groups_of(config), config["cluster"]
    methods = known_stack(config["method"]["name"])
    if not (methods and methods.simple):
        return False
    if groups == 1:
        return True
    if not _is_whole(config):
        return False
    if cluster["service"]["name"] == "geometric":
        return True
    workers = cluster.get("nodes", groups) * cluster.get("devices_per_node", 1)
    network = any(cluster.get(key) for key in LINK_KEYS)
    exponential = cluster["service"]["name"] == "exponential" and not network
    return exponential and _alike(config) and workers == groups


def theory(config: Mapping[str, Any]) -> float | None:
    """Returns 1 - 1/g if arrivals are memoryless; else there is no theorem."""
    return 1 - 1 / groups_of(config) if memoryless(config) else None


def _is_whole(config: Mapping[str, Any]) -> bool:
    return not (number_of(config, "fresh") or number_of(config, "compression"))


def _alike(config: Mapping[str, Any]) -> bool:
    cluster = config["cluster"]
    bounded = number_of(config, "staleness_bound", -1) >= 0
    bounded = bounded or number_of(config, "delay_bound", 0) > 0
    pieces = any(cluster.get("pieces", {}).values())
    unlike = pieces or any(cluster.get(key) for key in UNLIKE_KEYS)
    return len(set(cluster.get("speeds", ()))) <= 1 and not bounded and not unlike


def equivalent_momentum(law: np.ndarray) -> float:
    """Returns the momentum m / (1 + m) of one term with the mean m of P(tau = 0), P(tau = 1), .."""
    mean = float(law @ np.arange(len(law)))
    return mean / (1 + mean)


def geometric_distance(law: np.ndarray) -> float:
    """Returns the total variation between a law of staleness and the geometric one of its mean."""
    momentum = equivalent_momentum(law)
    geometric = (1 - momentum) * momentum ** np.arange(len(law))
    return float(abs(law - geometric).sum() + momentum ** len(law)) / 2
