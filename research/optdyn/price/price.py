"""The seconds of a method on a cluster, by the method's clock: nothing is trained.

    computing = sum_i (seconds that worker i computes) / (workers x seconds of all updates)
    waiting   = computing (1 / computing_0 - 1)
    exchange  = computing (1 / computing - 1 / computing_0)

The shares add up to 1. computing_0 is the share of computing on a network that takes no time. Work
that is dropped, as by K-sync, is waiting here. Seconds are of a run of some hundred updates, drawn
by the law of its cluster, in its steady state: without the first and the last period of nodes that
meet, without the epochs in which shares of a batch are found, and for DASO between its first and
last epochs.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from optdyn.base.errors import ConfigError, Join, one_line, one_of_these
from optdyn.base.trees import Plan
from optdyn.clock.cluster import Cluster, Pieces
from optdyn.clock.meetings import compute_means
from optdyn.clock.service import DRAWN
from optdyn.clock.timeline import Meeting, Shares, Timeline, TimelineError, entries_at, plan_of
from optdyn.clock.versions import NO_WAITING
from optdyn.experiment import Config, cluster_joins, refuse_first
from optdyn.methods import MethodStack
from optdyn.methods.asynchronous import Asynchronous
from optdyn.methods.dynamic_batch import costs
from optdyn.methods.method import slowed
from optdyn.methods.workers import WorkerMethod
from optdyn.price import sent_bytes
from optdyn.price.sent_bytes import workers_per_update
from optdyn.price.shapes import Shapes, clock_inputs, stage_work

GEOMETRIC = "geometric"  # a law of staleness, for groups that do not differ
GIGABIT = 1e9 / 8  # bytes
SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)  # of computing, for which a bandwidth is searched
STEPS, GROUP_STEPS = 512, 64  # least updates, and of a group that arrives by itself
PERIODS = 8  # or so many periods
FALLING = 1e-9  # the loss of an epoch over that of the one before
EPOCH = 128  # updates, after each of which shares of a batch follow the speeds
WIDEST, NARROWEST = 1e5, 1e-4  # Gbit/s between which a bandwidth is searched
RATIO = 1.005  # of two bandwidths that count as one
FREE_NETWORK = {"bandwidth": 0.0, "latency": 0.0, "latencies": (), "bandwidths": (), "regions": 0}
FREE_NETWORK |= {"local_bandwidth": 0.0, "local_latency": 0.0, "server_bandwidth": 0.0}


class Price(NamedTuple):
    """The price of a method on a cluster; seconds are simulated, shares are of workers' time."""

    method: str
    seconds: float  # an update
    examples_per_second: float
    epoch_seconds: float  # once through the training set; 0: no training set
    computing: float
    waiting: float  # for slower workers, or in work that is dropped
    exchange: float
    network_bytes: float  # of all messages between nodes, for a step of one node
    link_bytes: float  # one way over the busiest link, a node's or the server's, for a step of all
    logged_bytes: float  # an update, as `sent_bytes` in a run's log; 0: not logged
    staleness: float  # updates, mean; where nodes meet, of those after which they receive


class Pace(NamedTuple):
    seconds: float  # an update
    computing: float  # share of all workers' time, by the law's mean
    exchanges: float  # share of arrivals that exchange


class UpdateRange(NamedTuple):
    """A run of `steps` updates, of which `first` to `last` count, `last` excluded."""

    steps: int
    first: int
    last: int
    steps_per_epoch: int
    settled: bool = True  # in the steady state; False: a run from its first update to its last


def examples_of_worker(config: Config) -> float:
    """Returns the examples of a worker's part of an update."""
    return config.batch_size / workers_per_update(config)


def with_step_seconds(config: Config, seconds: float) -> Config:
    """Returns the config whose workers of speed 1 take so long for their part of an update."""
    return config.with_({"cluster.seconds_per_example": seconds / examples_of_worker(config)})


def with_nodes(config: Config, nodes: int) -> Config:
    """Returns the config on so many nodes, with as many examples a worker."""
    cluster, examples = config.cluster, examples_of_worker(config)
    changed = config.with_({"cluster.nodes": nodes})
    if config.methods.groups == cluster.worker_count > 1:
        groups = {"groups": nodes * cluster.devices_per_node}
        changed = changed.with_(method=config.method.with_keys(groups))
    return changed.with_(batch_size=max(round(examples * workers_per_update(changed)), 1))


def with_method(config: Config, name: str, **keys: object) -> Config:
    """Returns the config with another method, with as many examples a worker. Raises `ConfigError`.

    Groups that arrive by themselves are as many as workers, or as devices of a node; those of the
    config's method stay. `keys` are of config.method; those that the method lacks are left out.
    """
    cluster, examples = config.cluster, examples_of_worker(config)
    workers = cluster.worker_count
    methods = MethodStack.named(name)
    groups = cluster.devices_per_node if methods.mix else workers
    if name == config.method.name:
        groups = config.methods.groups
    elif not methods.grouped:
        groups = 1
    changed = config.method.changed({"name": name}).with_keys({"groups": groups, **keys})
    arrivals = changed.get("arrivals", 1)
    return config.with_(
        method=changed, batch_size=max(round(examples * workers / groups * arrivals), 1)
    )


def distinct_settings(name: str, keys: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the dicts of keys of config.method, without keys that the method lacks, each once."""
    methods = MethodStack.named(name)
    settings = [{k: v for k, v in values.items() if methods.sections_with(k)} for values in keys]
    return [values for i, values in enumerate(settings) if values not in settings[:i]]


def rows(
    config: Config,
    shapes: Shapes,
    methods: Sequence[str],
    bandwidths: Sequence[float],
    keys: Sequence[Mapping[str, Any]] = ({},),
) -> Iterator[dict[str, Any]]:
    """Yields a row for each method and values of keys: prices by Gbit/s, or why it has none.

    `needed` are the Gbit/s for `SHARES` of computing, None where no network is fast enough.
    """
    for name in methods:
        for values in distinct_settings(name, keys):
            row: dict[str, Any] = {"method": name, "nodes": config.cluster.nodes}
            try:
                changed = with_method(config, name, **values)
                row |= {"groups": changed.methods.groups, "batch_size": changed.batch_size}
                if changed.methods.sections_with("period"):
                    row["period"] = changed.methods.get("period", 1)
                price_at = price_by_bandwidth(changed, shapes)
                row |= values | {"prices": {b: price_at(b * GIGABIT)._asdict() for b in bandwidths}}
                found = bandwidth_needed(price_at, SHARES, bandwidths)
                row["needed"] = {s: None if math.isinf(b) else b for s, b in found.items()}
            except (ConfigError, TimelineError) as error:
                row |= {**values, "refused": one_line(error)}
            yield row


def price(config: Config, shapes: Shapes, steps: int = 0) -> Price:
    """Returns the price of the config's method on its cluster, in `steps` or the steady state.

    DASO's nodes meet every `max_batches` in both. Raises `ConfigError` and `TimelineError` where
    the method's clock does not know the cluster or the model.
    """
    return price_by_bandwidth(config, shapes, steps)(config.cluster.bandwidth)


def price_by_bandwidth(config: Config, shapes: Shapes, steps: int = 0) -> Callable[[float], Price]:
    """Returns bytes a second between nodes -> `price`, each computed once."""
    methods, cluster = config.methods, config.cluster
    window = _window(config, shapes, steps)
    refuse_first(config, _joins(config, shapes, window))
    steady = {"warmup_epochs": 0, "cooldown_epochs": 0}
    if window.settled:
        steady["synchronous_updates"] = 0
    whole = config.with_(steps=window.steps, method=methods.with_keys(steady))
    refuse_first(whole, cluster_joins(whole))
    free = whole.with_(cluster=cluster.with_(**FREE_NETWORK))
    without = _pace(free, shapes, window, _line(free, shapes, window)).computing
    # Where nobody waits all time is computing, whatever the mean of the draws.
    ideal = 1.0 if _is_free_running(config) else min(without, 1.0)

    @cache
    def price_at(bandwidth: float) -> Price:
        changed = whole.with_(cluster=cluster.with_(bandwidth=bandwidth))
        line = _line(changed, shapes, window)
        seconds, computing, exchanges = _pace(changed, shapes, window, line)
        added = max(1 / computing - 1 / without, 0.0)  # by the network, over computing
        computing = 1 / (1 / ideal + added)
        sent = sent_bytes.between_nodes(changed, shapes, line, exchanges)
        return Price(
            methods.name,
            seconds,
            config.batch_size / seconds,
            seconds * shapes.set_size / config.batch_size,
            computing,
            computing * (1 / ideal - 1),
            computing * added,
            *sent,
            sent_bytes.logged_bytes(changed, shapes, line.plan, exchanges),
            _staleness(line),
        )

    return price_at


def bandwidth_needed(
    price_at: Callable[[float], Price], computing: Iterable[float], tried: Iterable[float] = ()
) -> dict[float, float]:
    """Returns the Gbit/s between nodes at which such shares of the workers' time are computing.

    Right to within `RATIO`; infinite if no network is fast enough.
    """
    known = {b: price_at(b * GIGABIT).computing for b in (NARROWEST, WIDEST, *tried)}
    return {share: _bandwidth_for_share(price_at, share, known) for share in computing}


def _bandwidth_for_share(
    price_at: Callable[[float], Price], share: float, known: dict[float, float]
) -> float:
    """Returns the root by secants, as 1 / computing is nearly linear in 1 / bandwidth."""
    if known[WIDEST] < share or known[NARROWEST] >= share:
        return math.inf if known[WIDEST] < share else NARROWEST
    goal, turn = 1 / share, 0
    near = (RATIO - 1) / 2 * (goal - 1 / known[WIDEST])
    while True:
        low = max(b for b, c in known.items() if c < share)
        high = min(b for b, c in known.items() if c >= share and b > low)
        if high / low <= RATIO:
            return high
        slope = (1 / known[low] - 1 / known[high]) / (1 / low - 1 / high)
        secant = 1 / (1 / high + (goal - 1 / known[high]) / slope)
        middle = math.sqrt(low * high) if turn % 3 == 2 else min(max(secant, low), high)
        known[middle] = price_at(middle * GIGABIT).computing
        if abs(1 / known[middle] - goal) <= near:
            return middle
        turn += 1


def check_prices(config: Config) -> None:
    """Raises `ConfigError` where a cluster has no prices, whatever the method."""
    refuse_first(config, _cluster(config.cluster))


def _cluster(cluster: Cluster) -> Iterator[Join]:
    name, known = cluster.service.name, (*DRAWN, GEOMETRIC)
    is_unknown = not cluster.service.is_drawn and name not in known
    yield Join("cluster.service.name", is_unknown, f"must be {one_of_these(name, known)}")
    for key in ("presence", "diurnal"):
        must = "must be 0, as prices are of workers that are always there"
        yield Join(f"cluster.{key}", getattr(cluster, key), must)
    must = "must be unset, as prices are of examples' seconds and a network"
    yield Join("cluster.pieces", cluster.pieces != Pieces(), must)


def _joins(config: Config, shapes: Shapes, window: UpdateRange) -> Iterator[Join]:
    yield from _cluster(config.cluster)
    methods = config.methods
    for key in ("disturbances", "disturbance_probability"):
        is_slowed = window.settled and getattr(config.cluster, key)
        must = "must be unset, as slowdowns by epochs have no steady state; use Experiment.price()"
        yield Join(f"cluster.{key}", is_slowed, must)
    has_servers = methods.by_block and isinstance(methods.read, Asynchronous)
    must = "must have one server, as shares of time are those of one order of arrivals"
    yield Join("method.name", has_servers, must)
    is_unknown = methods.by_block and shapes.problem is None
    must = "needs the blocks of a model; name one by --config, not --parameters"
    yield Join("method.name", is_unknown, must)


def _window(config: Config, shapes: Shapes, steps: int) -> UpdateRange:
    methods = config.methods
    if steps and not methods.get("max_batches", 0):
        epoch = max(shapes.set_size // config.batch_size, 1) if shapes.set_size else steps
        return UpdateRange(steps, 0, steps, epoch, settled=False)
    adapt = methods.get("adapt", False)
    if methods.mix:
        cycle = methods.mix.cycle
        last = (max(-(-STEPS // cycle), PERIODS) + 1) * cycle
        epoch = last + cycle
        settling = 2 * epoch if adapt else 0  # shares of a batch have followed the speeds
        return UpdateRange(settling + epoch, settling + cycle, settling + last, epoch)
    if adapt:
        return UpdateRange(STEPS + 2 * EPOCH, 2 * EPOCH, STEPS + 2 * EPOCH, EPOCH)
    period = methods.get("period", 1)
    steps = max(STEPS, max(-(-GROUP_STEPS // period), PERIODS) * period * methods.groups)
    return UpdateRange(steps, 0, steps, steps)


def _is_free_running(config: Config) -> bool:
    methods, cluster = config.methods, config.cluster
    if methods.mix or not methods.grouped:
        return False
    is_one_worker = methods.groups == cluster.worker_count
    waits = methods.get("staleness_bound", -1) >= 0 or methods.get("delay_bound", 0)
    waits = waits or methods.get("allotted", 0)
    return is_one_worker and not waits and methods.get("waiting", "") in ("", NO_WAITING)


def _line(config: Config, shapes: Shapes, window: UpdateRange) -> Timeline:
    """Returns the updates of the window, whose seconds begin at 0."""
    known = clock_inputs(config, shapes, window.steps_per_epoch)._asdict()
    del known["setup"]
    if window.settled:  # DASO follows the losses: as long as they fall its B stays
        known["epochs"] = [
            {"train_loss": FALLING**n} for n in range(window.first // window.steps_per_epoch)
        ]
    line = config.timeline(**known)
    counted = slice(window.first, window.last)
    since = line.seconds[window.first - 1] if window.first else 0.0
    return line._replace(
        worker=line.worker[counted],
        staleness=line.staleness[counted],
        seconds=line.seconds[counted] - since,
        plan=entries_at(line.plan, counted),
    )


def _pace(config: Config, shapes: Shapes, window: UpdateRange, line: Timeline) -> Pace:
    cluster, methods = config.cluster, config.methods
    plan: Plan = getattr(line.plan, "inner", ()) if methods.mix else line.plan
    workers, read = cluster.worker_count, methods.read
    # Groups without parameters of their own exchange at each arrival.
    exchange = read.exchanged(plan) if isinstance(read, WorkerMethod) else np.ones(1)
    exchanges = float(exchange.mean())
    if not (window.settled and isinstance(read, WorkerMethod)) or methods.mix:
        seconds, busy = float(line.seconds[-1]), _computing_seconds(config, shapes, window, line)
        return Pace(seconds / len(line.seconds), busy / (workers * seconds), exchanges)
    # Each worker is a renewal process, which begins anew with each exchange.
    steps, rate, exchanged = _until_exchange(line, methods.groups, exchange)
    means = compute_means(
        slowed(clock_inputs(config, shapes), methods), len(rate), config.batch_size
    )
    exchange_share = exchanged / steps if exchanges else 0 * steps
    share = float(rate @ means.sum(axis=1)) / workers
    return Pace(1 / float(rate.sum()), share, float(rate @ exchange_share / rate.sum()))


def _until_exchange(
    line: Timeline, workers: int, exchange: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns each worker's steps until its last exchange, steps a second, and exchanges."""
    order = np.argsort(line.worker, kind="stable")
    ends = np.cumsum(np.bincount(line.worker, minlength=workers))
    found = np.ones((3, workers))
    for worker, steps in enumerate(np.split(order, ends[:-1])):
        (sent,) = np.nonzero(exchange[steps])
        last = sent[-1] if len(sent) else len(steps) - 1
        rate = (last + 1) / line.seconds[steps[last]]
        found[:, worker] = last + 1, rate, float(exchange[steps].sum())
    return found[0], found[1], found[2]


def _computing_seconds(
    config: Config, shapes: Shapes, window: UpdateRange, line: Timeline
) -> float:
    """Returns the seconds that all workers compute for the updates, by the law's mean."""
    methods, updates = config.methods, len(line.seconds)
    if methods.stages:
        work = stage_work(config, shapes)
        part = float(work.forward.sum() + work.backward.sum())
        return updates * part * config.cluster.seconds_per_example * config.batch_size
    cluster = slowed(clock_inputs(config, shapes), methods)
    if divided := plan_of(line, Shares):
        per_epoch = window.steps_per_epoch
        cost = costs(config.cluster, -(-window.steps // per_epoch), per_epoch, config.seed)
        epoch = np.arange(window.first, window.last) // per_epoch
        shares = np.asarray(divided.shares).reshape(updates, -1)
        return float((shares * cost.example[epoch] + cost.delay[epoch]).sum())
    nodes, groups = cluster.nodes if methods.mix else 1, methods.groups
    batch = config.batch_size // nodes // methods.get("arrivals", 1)
    means = compute_means(cluster, nodes * groups, batch)  # of each worker of each group
    update = means.sum(axis=1).reshape(nodes, groups)
    if groups == 1:
        return float(updates * update.sum())
    if cluster.service.name == GEOMETRIC:  # arrivals are of no group
        rate = 1 / means.max(axis=1).reshape(nodes, groups)
        return float(updates * ((rate * update).sum(axis=1) / rate.sum(axis=1)).sum())
    arriving = _groups_of_updates(line).reshape(updates, nodes, -1)
    return float(update[np.arange(nodes)[:, None], arriving].sum())


def _groups_of_updates(line: Timeline) -> np.ndarray:
    """Returns the groups whose gradients updates apply, (updates, ...), by node inside nodes."""
    plan = line.plan
    while not hasattr(plan, "worker") and hasattr(plan, "inner"):
        plan = plan.inner
    return np.asarray(getattr(plan, "worker", line.worker))


def _staleness(line: Timeline) -> float:
    plan = line.plan
    if isinstance(plan, Meeting) and line.staleness.ndim == 1:
        received = np.asarray(plan.receive).reshape(len(line.seconds), -1).any(axis=1)
        return float(line.staleness[received].mean()) if received.any() else 0.0
    return float(np.mean(line.staleness))
