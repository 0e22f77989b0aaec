"""The lag polynomials of asynchronous SGD by theory, and one momentum that stands for them.

    phi(L) E d_t = -eta(L) E G_t        d_t = x_{t+1} - x_t,  L d_t = d_{t-1}
    phi(L) = 1 - sum_{k=1..K} phi_k L^k,    eta(L) = sum_{m=0..Mg} eta_m L^m

Heavy-ball SGD of momentum mu and learning rate alpha, its gradients taken at x_{t - tau}, obeys
(1 - mu L) E d_t = -alpha sum_m P(tau = m) E G_{t-m}. With a geometric staleness of mean g - 1 it is
(arXiv 1605.09774)

    (1 - mu L) (1 - (1 - 1/g) L) E d_t = -(alpha / g) E G_t
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.signal import lfilter

from optdyn.methods import known_stack
from optdyn.momentum.moments import equivalent_momentum

LINK_KEYS = ("latency", "bandwidth", "server_bandwidth")  # of the cluster: not memoryless times
UNLIKE_KEYS = ("latencies", "bandwidths", "regions", "presence")  # workers are unlike, or away
RESPONSE = 4096  # terms of an impulse response: 0.99 ** 4096 is 1e-18


class Theory(NamedTuple):
    phi: tuple[float, ...]  # phi_1 .. phi_K
    eta: tuple[float, ...]  # eta_0 .. eta_Mg


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


def theory(config: Mapping[str, Any]) -> Theory | None:
    """Returns the lag polynomials of plain or heavy-ball SGD; None where no theorem has them.

    They are exact for synchronous runs, 'geometric' staleness, 'exponential' service of groups of
    one worker and equal speeds, and 'constant' service at equal speeds, once every group has
    arrived; where no group waits, links take no time or the same for all, and nothing is dropped,
    kept back (`compression`) or `fresh`.
    """
    optimizer, name, groups = config["optimizer"], config["method"]["name"], groups_of(config)
    varies = optimizer.get("schedule", "constant") != "constant" or optimizer.get("warmup_steps")
    varies = varies or config.get("probes", {}).get("steer")
    more = optimizer.get("options") or optimizer.get("chain")
    plain = optimizer.get("name", "sgd") == "sgd" and not more and not varies
    methods = known_stack(name)
    if not (plain and methods and methods.simple):
        return None
    alpha, mu = optimizer["learning_rate"], optimizer["momentum"]
    if groups == 1:
        return Theory((mu,), (alpha,))
    if memoryless(config):
        implicit = 1 - 1 / groups
        phi = (mu + implicit, -mu * implicit) if mu else (implicit,)
        return Theory(phi, (alpha / groups,))
    if config["cluster"]["service"]["name"] == "constant" and _is_whole(config) and _alike(config):
        return Theory((mu,) if mu else (), (0.0,) * (groups - 1) + (alpha,))
    return None


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


def _is_whole(config: Mapping[str, Any]) -> bool:
    return not (number_of(config, "fresh") or number_of(config, "compression"))


def _alike(config: Mapping[str, Any]) -> bool:
    cluster = config["cluster"]
    bounded = number_of(config, "staleness_bound", -1) >= 0
    bounded = bounded or number_of(config, "delay_bound", 0) > 0
    pieces = any(cluster.get("pieces", {}).values())
    unlike = pieces or any(cluster.get(key) for key in UNLIKE_KEYS)
    return len(set(cluster.get("speeds", ()))) <= 1 and not bounded and not unlike


def geometric_distance(phi: np.ndarray, eta: np.ndarray) -> float:
    """Returns the total variation between the impulse response and a geometric one of its mean.

    `phi` (K,) and `eta` (Mg + 1,). NaN where the recursion is unstable or no law has its mean lag.
    """
    polynomial = np.concatenate([[1.0], -np.asarray(phi, float)])
    momentum = equivalent_momentum(phi, eta)
    if not abs(momentum) < 1 or (abs(np.roots(polynomial)) >= 1).any():
        return float("nan")
    response = lfilter(eta, polynomial, np.eye(1, RESPONSE)[0])
    geometric = (1 - momentum) * momentum ** np.arange(RESPONSE)
    return float(abs(response / response.sum() - geometric).sum() / 2)


def compared(expected: Theory | None, fitted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `theory_NAME` and `NAME_covers` of phi, eta, momentum and learning_rate.

    `fitted` has `ok` and `NAME_interval`. Terms that the theory lacks are 0; None where there is no
    theory, no fit, or too few terms fitted.
    """
    names = ("phi", "eta", "momentum", "learning_rate")
    truths: tuple[Any, ...] = (None,) * 4
    if expected:
        momentum = float(equivalent_momentum(np.array(expected.phi), np.array(expected.eta)))
        truths = (expected.phi, expected.eta, momentum, sum(expected.eta))
    found: dict[str, Any] = {}
    for name, truth in zip(names, truths, strict=True):
        interval = np.array(fitted[f"{name}_interval"]).reshape(-1, 2)
        missing = len(interval) - np.size(truth)
        found[f"theory_{name}"], found[f"{name}_covers"] = truth, None
        if fitted["ok"] and expected and missing >= 0:
            low, high = interval.T
            values = np.pad(np.atleast_1d(truth), (0, missing))
            covers = ((low <= values) & (values <= high)).tolist()
            found[f"{name}_covers"] = covers if isinstance(truth, tuple) else covers[0]
    return found
