"""What a way of parallelising takes in seconds, by its own clock: nothing is trained.

    computing = sum_i (seconds that worker i computes) / (workers x seconds of all updates)
    waiting   = computing (1 / computing_0 - 1)
    exchange  = computing (1 / computing - 1 / computing_0)

The shares add up to 1. computing_0 is the share of computing on a network that takes no time.
What is computed and then dropped, as by K-sync, is no computing here but waiting. Seconds are of a
run of some hundred updates, drawn by the law of its cluster, in its steady state: without the first
and the last period of nodes that meet, without the epochs in which shares of a batch are found, and
for DASO between its first and last epochs. A model is its shapes; there are no arrays, whatever its
size.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from optdyn.base.errors import ConfigError, Join, one_line, one_of_these
from optdyn.base.trees import Plan
from optdyn.clock.arrivals import compute_means
from optdyn.clock.cluster import Cluster, Pieces
from optdyn.clock.service import DRAWN
from optdyn.clock.timeline import Meeting, Shares, Timeline, TimelineError, entries_at, plan_of
from optdyn.experiment import Config, cluster_joins, refuse_first
from optdyn.methods import MethodStack
from optdyn.methods.asynchronous import Asynchronous
from optdyn.methods.dynamic_batch import costs
from optdyn.methods.method import slowed
from optdyn.methods.workers import WorkerMethod
from optdyn.price import sent_bytes
from optdyn.price.sent_bytes import workers_per_update
from optdyn.price.shapes import Shapes, clock_inputs, stage_work

GEOMETRIC = "geometric"  # the law of a staleness, of groups that do not differ
GIGABIT = 1e9 / 8  # bytes
SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)  # of computing, that networks are looked for
STEPS, EACH = 512, 64  # updates at least, and of every group that arrives by itself
PERIODS = 8  # or so many of a period
FALLING = 1e-9  # the loss of an epoch over that of the one before
EPOCH = 128  # updates, after each of which shares of a batch follow the speeds
WIDEST, NARROWEST = 1e5, 1e-4  # Gbit/s between which a bandwidth is looked for
RATIO = 1.005  # of two bandwidths that are one
FREE_NETWORK = {"bandwidth": 0.0, "latency": 0.0, "latencies": (), "bandwidths": (), "regions": 0}
FREE_NETWORK |= {"local_bandwidth": 0.0, "local_latency": 0.0, "server_bandwidth": 0.0}


class Price(NamedTuple):
    """What one method takes on one cluster; seconds are simulated, shares are of workers' time."""

    method: str
    seconds: float  # an update
    examples_per_second: float
    epoch_seconds: float  # once through the training set; 0: there is none
    computing: float
    waiting: float  # for slower workers, or at work that is dropped
    exchange: float
    network_bytes: float  # between nodes, for a step of one node, of all messages it is in
    link_bytes: float  # one way over the busiest link, a node's or the server's, by a step of all
    logged_bytes: float  # an update, as a run's log counts `sent_bytes`; 0: it does not
    staleness: float  # updates, mean; of nodes that meet, where they receive


class Pace(NamedTuple):
    """How fast updates follow one another."""

    seconds: float  # an update
    computing: float  # the share of all workers' time, in the mean of the draws' law
    exchanges: float  # the share of arrivals that exchange


class UpdateRange(NamedTuple):
    """A run of `steps` updates, of which `first` to `last` count, last excluded."""

    steps: int
    first: int
    last: int
    steps_per_epoch: int
    settled: bool = True  # False: of a run from its first update to its last


def examples_of_worker(config: Config) -> float:
    """How many examples a worker computes for its part of an update."""
    return config.batch_size / workers_per_update(config)


def with_step_seconds(config: Config, seconds: float) -> Config:
    """The experiment in which a worker of speed 1 computes so long for its part of an update."""
    each = examples_of_worker(config)
    return config.with_({"cluster.seconds_per_example": seconds / each})


def with_nodes(config: Config, nodes: int) -> Config:
    """The experiment on so many nodes, whose workers have as many examples for an update.

    Where every worker is a group it stays so.
    """
    cluster, each = config.cluster, examples_of_worker(config)
    there = config.with_({"cluster.nodes": nodes})
    if config.methods.groups == cluster.worker_count > 1:
        groups = {"groups": nodes * cluster.devices_per_node}
        there = there.with_(method=config.method.with_keys(groups))
    return there.with_(batch_size=max(round(each * workers_per_update(there)), 1))


def with_method(config: Config, name: str, **keys: object) -> Config:
    """The experiment by another method, whose workers have as many examples for an update.

    Groups that arrive by themselves are as many as workers, or as the devices of a node; those of
    the experiment's own method stay as they are. `keys` are of config.method; those that say
    nothing of the method are left out. Raises `ConfigError`.
    """
    cluster, each = config.cluster, examples_of_worker(config)
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
        method=changed, batch_size=max(round(each * workers / groups * arrivals), 1)
    )


def distinct_settings(name: str, keys: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The values of keys of config.method, without keys that the method lacks, each once."""
    methods = MethodStack.named(name)
    own = [{k: v for k, v in each.items() if methods.having(k)} for each in keys]
    return [each for i, each in enumerate(own) if each not in own[:i]]


def rows(
    config: Config,
    shapes: Shapes,
    methods: Sequence[str],
    bandwidths: Sequence[float],
    keys: Sequence[Mapping[str, Any]] = ({},),
) -> Iterator[dict[str, Any]]:
    """A row a method and values of keys of config.method: prices by Gbit/s, or why it has none.

    `needed` are the Gbit/s for `SHARES` of computing, None where no network is fast enough.
    Values that say nothing of a method make no row more.
    """
    for name in methods:
        for values in distinct_settings(name, keys):
            row: dict[str, Any] = {"method": name, "nodes": config.cluster.nodes}
            try:
                one = with_method(config, name, **values)
                row |= {"groups": one.methods.groups, "batch_size": one.batch_size}
                if one.methods.having("period"):
                    row["period"] = one.methods.get("period", 1)
                of = price_by_bandwidth(one, shapes)
                row |= values | {"prices": {b: of(b * GIGABIT)._asdict() for b in bandwidths}}
                found = bandwidth_needed(of, SHARES, bandwidths)
                row["needed"] = {s: None if math.isinf(b) else b for s, b in found.items()}
            except (ConfigError, TimelineError) as error:
                row |= {**values, "refused": one_line(error)}
            yield row


def price(config: Config, shapes: Shapes, steps: int = 0) -> Price:
    """What the experiment's method takes on its cluster.

    With `steps` it is of a run of so many updates from the first to the last, as it is trained;
    else of the steady state. DASO's nodes meet every `max_batches`, as they do between its first
    and last epochs, in either. Raises `ConfigError` and `TimelineError` where the method's clock
    does not know such a cluster or the model.
    """
    return price_by_bandwidth(config, shapes, steps)(config.cluster.bandwidth)


def price_by_bandwidth(config: Config, shapes: Shapes, steps: int = 0) -> Callable[[float], Price]:
    """`price` by the bytes a second between nodes, each computed once."""
    methods, cluster = config.methods, config.cluster
    window = _window(config, shapes, steps)
    refuse_first(config, _joins(config, shapes, window))
    left_out = {"warmup_epochs": 0, "cooldown_epochs": 0}
    if window.settled:
        left_out["synchronous_updates"] = 0
    whole = config.with_(steps=window.steps, method=methods.with_keys(left_out))
    refuse_first(whole, cluster_joins(whole))
    free = whole.with_(cluster=cluster.with_(**FREE_NETWORK))
    without = _pace(free, shapes, window, _line(free, shapes, window)).computing
    # Where nobody ever waits all time is computing, and the draws' own mean is left out.
    ideal = 1.0 if _is_free_running(config) else min(without, 1.0)

    @cache
    def of(bandwidth: float) -> Price:
        there = whole.with_(cluster=cluster.with_(bandwidth=bandwidth))
        line = _line(there, shapes, window)
        seconds, computing, exchanges = _pace(there, shapes, window, line)
        more = max(1 / computing - 1 / without, 0.0)  # what the network adds, over computing
        computing = 1 / (1 / ideal + more)
        sent = sent_bytes.between_nodes(there, shapes, line, exchanges)
        return Price(
            methods.name,
            seconds,
            config.batch_size / seconds,
            seconds * shapes.set_size / config.batch_size,
            computing,
            computing * (1 / ideal - 1),
            computing * more,
            *sent,
            sent_bytes.logged_bytes(there, shapes, line.plan, exchanges),
            _staleness(line),
        )

    return of


def bandwidth_needed(
    of: Callable[[float], Price], computing: Iterable[float], tried: Iterable[float] = ()
) -> dict[float, float]:
    """Gbit/s between nodes with which such shares of the workers' time are computing.

    `of` is as `price_by_bandwidth` returns it, and was asked for those that are `tried`. Infinite
    if no network is fast enough: workers wait for one another too. To within `RATIO`.
    """
    known = {b: of(b * GIGABIT).computing for b in (NARROWEST, WIDEST, *tried)}
    return {share: _bandwidth_for_share(of, share, known) for share in computing}


def _bandwidth_for_share(
    of: Callable[[float], Price], share: float, known: dict[float, float]
) -> float:
    """The root by secants, as 1 / computing is nearly linear in 1 / bandwidth, else by the middle.

    It is found where a bandwidth that is off by less than `RATIO` would be off as much.
    """
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
        known[middle] = of(middle * GIGABIT).computing
        if abs(1 / known[middle] - goal) <= near:
            return middle
        turn += 1


def check_prices(config: Config) -> None:
    """Raises `ConfigError` where a cluster has no prices, by whatever method."""
    refuse_first(config, _cluster(config.cluster))


def _cluster(cluster: Cluster) -> Iterator[Join]:
    name, known = cluster.service.name, (*DRAWN, GEOMETRIC)
    wrong = not cluster.service.is_drawn and name not in known
    yield Join("cluster.service.name", wrong, f"must be {one_of_these(name, known)}")
    for key in ("presence", "diurnal"):
        said = "prices are of workers that are always there"
        yield Join(f"cluster.{key}", getattr(cluster, key), said)
    said = "prices are of examples' seconds and a network"
    yield Join("cluster.pieces", cluster.pieces != Pieces(), said)


def _joins(config: Config, shapes: Shapes, window: UpdateRange) -> Iterator[Join]:
    """What has a price."""
    yield from _cluster(config.cluster)
    methods = config.methods
    for key in ("disturbances", "disturbance_probability"):
        slowed = window.settled and getattr(config.cluster, key)
        said = "slowdowns come and go by epochs, and so have the price of a run "
        yield Join(f"cluster.{key}", slowed, f"{said}(Experiment.price()), no settled one")
    several = methods.by_block and isinstance(methods.read, Asynchronous)
    said = "its blocks have servers of their own, each with other arrivals, and shares of time are "
    yield Join("method.name", several, f"{said}of one")
    unknown = methods.by_block and shapes.problem is None
    said = "needs the blocks of a model; name one by --config, not --parameters"
    yield Join("method.name", unknown, said)


def _window(config: Config, shapes: Shapes, steps: int) -> UpdateRange:
    methods = config.methods
    if steps and not methods.get("max_batches", 0):
        each = max(shapes.set_size // config.batch_size, 1) if shapes.set_size else steps
        return UpdateRange(steps, 0, steps, each, settled=False)
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
    steps = max(STEPS, max(-(-EACH // period), PERIODS) * period * methods.groups)
    return UpdateRange(steps, 0, steps, steps)


def _is_free_running(config: Config) -> bool:
    """Whether groups of one worker arrive by themselves, and nothing that they do is dropped."""
    methods, cluster = config.methods, config.cluster
    if methods.mix or not methods.grouped:
        return False
    alone = methods.groups == cluster.worker_count
    waits = methods.get("staleness_bound", -1) >= 0 or methods.get("delay_bound", 0)
    waits = waits or methods.get("allotted", 0)
    return alone and not waits and methods.get("waiting", "") in ("", "k_batch_async")


def _line(config: Config, shapes: Shapes, window: UpdateRange) -> Timeline:
    """The updates of the window, whose seconds begin at 0."""
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
    """How fast it goes in the window."""
    cluster, methods = config.cluster, config.methods
    plan: Plan = getattr(line.plan, "inner", ()) if methods.mix else line.plan
    workers, read = cluster.worker_count, methods.read
    # Groups send all that they have at each arrival.
    exchange = read.exchanged(plan) if isinstance(read, WorkerMethod) else np.ones(1)
    exchanges = float(exchange.mean())
    if not (window.settled and isinstance(read, WorkerMethod)) or methods.mix:
        seconds, busy = float(line.seconds[-1]), _computing_seconds(config, shapes, window, line)
        return Pace(seconds / len(line.seconds), busy / (workers * seconds), exchanges)
    # Every worker is a renewal process of its own, and begins anew with every exchange.
    steps, rate, exchanged = _until_exchange(line, methods.groups, exchange)
    means = compute_means(
        slowed(clock_inputs(config, shapes), methods), len(rate), config.batch_size
    )
    each = exchanged / steps if exchanges else 0 * steps
    share = float(rate @ means.sum(axis=1)) / workers
    return Pace(1 / float(rate.sum()), share, float(rate @ each / rate.sum()))


def _until_exchange(
    line: Timeline, workers: int, exchange: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each worker's steps up to its last exchange, how many a second, and its exchanges."""
    order = np.argsort(line.worker, kind="stable")
    ends = np.cumsum(np.bincount(line.worker, minlength=workers))
    found = np.ones((3, workers))
    for worker, own in enumerate(np.split(order, ends[:-1])):
        (sent,) = np.nonzero(exchange[own])
        last = sent[-1] if len(sent) else len(own) - 1
        sent_until = float(exchange[own].sum())
        found[:, worker] = last + 1, (last + 1) / line.seconds[own[last]], sent_until
    return found[0], found[1], found[2]


def _computing_seconds(
    config: Config, shapes: Shapes, window: UpdateRange, line: Timeline
) -> float:
    """Seconds that all workers compute for the updates, in the mean of their law."""
    methods, updates = config.methods, len(line.seconds)
    if methods.stages:
        work = stage_work(config, shapes)
        part = float(work.forward.sum() + work.backward.sum())
        return updates * part * config.cluster.seconds_per_example * config.batch_size
    cluster = slowed(clock_inputs(config, shapes), methods)
    if divided := plan_of(line, Shares):
        each = window.steps_per_epoch
        of = costs(config.cluster, -(-window.steps // each), each, config.seed)
        epoch = np.arange(window.first, window.last) // each
        shares = np.asarray(divided.shares).reshape(updates, -1)
        return float((shares * of.example[epoch] + of.delay[epoch]).sum())
    nodes, groups = cluster.nodes if methods.mix else 1, methods.groups
    batch = config.batch_size // nodes // methods.get("arrivals", 1)
    means = compute_means(cluster, nodes * groups, batch)  # of every worker of every group
    an_update = means.sum(axis=1).reshape(nodes, groups)
    if groups == 1:
        return float(updates * an_update.sum())
    if cluster.service.name == GEOMETRIC:  # whose arrivals are nobody's
        rate = 1 / means.max(axis=1).reshape(nodes, groups)
        return float(updates * ((rate * an_update).sum(axis=1) / rate.sum(axis=1)).sum())
    who = _groups_of_updates(line).reshape(updates, nodes, -1)
    return float(an_update[np.arange(nodes)[:, None], who].sum())


def _groups_of_updates(line: Timeline) -> np.ndarray:
    """The groups whose gradients updates are of, (updates, ...), inside nodes with an axis more."""
    choice = line.plan
    while not hasattr(choice, "worker") and hasattr(choice, "inner"):
        choice = choice.inner
    return np.asarray(getattr(choice, "worker", line.worker))


def _staleness(line: Timeline) -> float:
    choice = line.plan
    if isinstance(choice, Meeting) and line.staleness.ndim == 1:
        received = np.asarray(choice.receive).reshape(len(line.seconds), -1).any(axis=1)
        return float(line.staleness[received].mean()) if received.any() else 0.0
    return float(np.mean(line.staleness))
