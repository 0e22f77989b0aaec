"""When workers with parameters of their own arrive, and with which arrivals they exchange."""

from collections.abc import Sequence

import numpy as np

from optdyn import seeds
from optdyn.strategies.method import Chosen, Setting, slowed
from optdyn.timeline.arrivals import Work, arrivals
from optdyn.timeline.base import Timeline, from_arrivals
from optdyn.timeline.compute_groups import work_of
from optdyn.timeline.exchanges import batches, exchanges
from optdyn.timeline.service import law
from optdyn.timeline.versions import empty


def local_work(setting: Setting, methods: Chosen, sent: bool) -> Work:
    """What workers do for a local step, their exchange `sent` or not.

    A gradient that is slower, as a local one may be, is so here too.
    """
    config, cluster = setting.config, slowed(setting, methods)
    return work_of(cluster, config.strategy.groups, config.batch_size, setting.update_bytes, sent)


def timeline(
    setting: Setting, methods: Chosen, periods: Sequence[int], is_stale: bool = True
) -> tuple[Timeline, np.ndarray]:
    """Arrivals of local steps, and (steps,) bool: which of them exchange.

    Those of worker i do at every `periods[i]`-th. Its service has two messages of `update_bytes` in
    it then, as all of `asynchronous` have. The staleness is how many exchanges of others there were
    since the worker's own last one; none where what it read then does not count (`is_stale`).
    """
    config = setting.config
    if config.cluster.service == "race":
        return empty(len(periods), config.steps), np.zeros(config.steps, bool)
    if held := setting.held:
        held.groups(held.worker, len(periods))
        line = from_arrivals(held.worker, held.seconds, len(periods))
        exchange, late, _ = exchanges(line.worker, periods, is_stale)
        return line._replace(staleness=late, batch=batches(line.worker, periods)), exchange
    alone, exchanged = (local_work(setting, methods, sent) for sent in (False, True))
    cycles = [[alone.of(i)] * (period - 1) + [exchanged.of(i)] for i, period in enumerate(periods)]
    compute, sent = (
        [np.concatenate([each[n] for each in own]) for own in cycles] for n in range(2)
    )
    work = Work(compute, sent, exchanged.overlap)
    stream = int(seeds.generator(config.seed, "arrivals").integers(2**63))
    line = arrivals(stream, law(config.cluster), work, config.steps)
    exchange, late, _ = exchanges(line.worker, periods, is_stale)
    return line._replace(staleness=late), exchange


def by_speed(setting: Setting, methods: Chosen, period: int) -> list[int]:
    """How many local steps each worker takes while the fastest takes `period`; at least one."""
    seconds = local_work(setting, methods, sent=False).means().max(axis=1)
    shares = seconds.min() / seconds
    return [max(int(period * share + 1e-9), 1) for share in shares]
