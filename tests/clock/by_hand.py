"""All clocks by hand: groups, nodes and stages, event by event and message by message.

It shares with the clocks what they are given: the config, the streams of the seed, the bytes of
messages, when and with whom nodes meet, and how a batch is divided by rates.
"""

from itertools import repeat

import numpy as np

from optdyn.base import seeds
from optdyn.base.trees import bytes_of
from optdyn.clock import network
from optdyn.clock.availability import cluster_presence
from optdyn.clock.timeline import divide_batch
from optdyn.clock.versions import Policy
from optdyn.methods.averaging import split_fragments
from optdyn.methods.dynamic_batch import costs, smooth
from optdyn.methods.gossip import graph_peers
from optdyn.methods.local import Local
from optdyn.methods.local import costs as costs_of_stages
from tests.methods.test_battery import EPOCH

# Messages.


def region(cluster, node):
    """The number of the node's region."""
    return node * cluster.regions // cluster.nodes


def earth(cluster):
    return network.regions(cluster.regions, cluster.bandwidth_variation)


def longitudes(cluster):
    """(nodes,), 0 where all have one hour."""
    if not cluster.regions:
        return np.zeros(cluster.nodes)
    return earth(cluster).longitude[[region(cluster, node) for node in range(cluster.nodes)]]


def link(cluster, one, other, size):
    """Seconds of a message from the one node to the other."""
    latency, width = cluster.latency, cluster.bandwidth
    if cluster.regions:
        here, (a, b) = earth(cluster), (region(cluster, node) for node in (one, other))
        latency, width = latency + here.latency[a, b], width * min(here.width[a], here.width[b])
    if cluster.latencies:
        latency = cluster.latencies[one][other]
    if cluster.bandwidths:
        width = cluster.bandwidths[one][other]
    return latency + (size / width if width else 0.0)


def to_server(cluster, node, size):
    """Seconds of a message to the server, at node 0 or in the region that is nearest to all."""
    if not cluster.regions:
        return link(cluster, node, 0, size)
    places = [region(cluster, one) for one in range(cluster.nodes)]
    far = min(earth(cluster).latency, key=lambda row: sum(row[place] for place in places))
    width = cluster.bandwidth * earth(cluster).width[places[node]]
    return cluster.latency + far[places[node]] + (size / width if width else 0.0)


def sent(kind, nodes):
    """(from, to, part of the bytes) of every message of an all-reduce over these nodes.

    A node of a tree sends to the one whose number lacks the last of its bits; a server is node 0.
    """
    n = len(nodes)
    if kind == "ring":
        around = [(nodes[i], nodes[(i + 1) % n], 1 / n) for i in range(n)]
        return [around] * (2 * (n - 1))
    up, level = [], 1
    while level < n and kind == "tree":
        up.append([(nodes[i], nodes[i - level], 1) for i in range(level, n, 2 * level)])
        level *= 2
    if kind == "server":
        up = [[(node, nodes[0], 1) for node in nodes[1:]]]
    return up + [[(to, one, part) for one, to, part in turn] for turn in reversed(up)]


def all_reduce(cluster, nodes, size):
    """Seconds of an all-reduce: each of its rounds takes as long as the slowest of its links."""
    kind, n = cluster.collective, len(nodes)
    if n == 1:
        return 0.0
    if kind == "server":
        return 2 * max(to_server(cluster, node, size) for node in nodes)
    rounds = sent(kind, nodes)
    up = [message for turn in rounds[: len(rounds) // 2] for message in turn]
    return len(rounds) * max(link(cluster, a, b, size * part) for a, b, part in up)


def between(cluster, size):
    """Seconds of an all-reduce over all nodes; between regions a ring has two levels."""
    if not (cluster.regions and cluster.collective == "ring"):
        return all_reduce(cluster, range(cluster.nodes), size)
    members = {}
    for node in range(cluster.nodes):
        members.setdefault(region(cluster, node), []).append(node)
    inside = max(all_reduce(cluster, own, size) for own in members.values())
    return inside + all_reduce(cluster, [own[0] for own in members.values()], size)


def to_all(cluster, size):
    """Seconds until all nodes have the message of each."""
    back = between(cluster, cluster.nodes * size) / 2
    return back if cluster.collective == "ring" else between(cluster, size) / 2 + back


def inside_node(cluster, devices, size):
    """Seconds of an all-reduce over devices of a node, and until one has handed on a sum."""
    local = {"latency": cluster.local_latency, "bandwidth": cluster.local_bandwidth}
    alone = cluster.with_(nodes=devices, **local, **dict.fromkeys(("latencies", "bandwidths"), ()))
    alone = alone.with_(regions=0, devices_per_node=1, speeds=())
    stream = size / cluster.local_bandwidth if cluster.local_bandwidth and devices > 1 else 0.0
    added = all_reduce(alone, range(devices), size)
    return added, (devices - 1) * cluster.local_latency + stream


def exchange(cluster, groups, size, gradient=None, is_sent=True):
    """Seconds of the messages of each group: among its workers, to the server and back."""
    k, found = cluster.nodes * cluster.devices_per_node // groups, []
    for group in range(groups):
        places = sorted({w // cluster.devices_per_node for w in range(group * k, (group + 1) * k)})
        ways = (size if gradient is None else gradient, size)
        server = is_sent * sum(max(to_server(cluster, p, way) for p in places) for way in ways)
        if k > 1 and not (is_sent and cluster.collective == "server"):
            server += sum(inside_node(cluster, min(k, cluster.devices_per_node), size))
            server += all_reduce(cluster, places, size)
        found.append(server)
    return found


def with_exchange(compute, exchange, overlap):
    """An exchange begins before the computing ends, and is never over before it."""
    return max(compute, (1 - overlap) * compute + exchange)


# Groups.


def means_of(cluster, groups, batch):
    """Mean seconds of the workers of each group."""
    k = cluster.nodes * cluster.devices_per_node // groups
    speeds = np.reshape(cluster.speeds or [1.0] * (groups * k), (groups, k))
    parts = [[batch / k] * k] * groups
    if cluster.split == "proportional":
        parts = [divide_batch(own, batch) for own in speeds]
    return cluster.seconds_per_example * np.array(parts) / speeds


def services(law, seed, means):
    """Of each group the seconds of its services, the slowest worker's, one after the other."""

    def of(rng, own):
        while True:
            yield float((law(rng, (1, len(own))) * own).max())

    return [of(np.random.default_rng((seed, g)), own) for g, own in enumerate(means)]


def absences(seed, presence, absence):
    """[since, until] of a group's absences."""
    rng, now = np.random.default_rng(seed), 0.0
    while presence:
        left = now + rng.exponential(presence)
        now = left + rng.exponential(absence)
        yield left, now


def arrive(count, steps, takes, policy, limits=(), away=(), serving=None):
    """Rows (second, [(group, updates since it had read)]) and who was dropped before each.

    All groups are looked at for every event, and each says what it is at: a second, whether it is
    dealt with then, done, out of time or back, and the version that it had read.
    """
    SERVED, DONE, LATE, BACK = range(4)
    rows, dropped, gathered, waits, free = [], [set()], [], set(), 0.0
    clock, at = [0] * count, [None] * count
    away = [*map(iter, away)] or [iter(())] * count
    absent = [next(own, None) for own in away]

    def begin(group, now):
        end, what = now + (seconds := takes(group, now)), DONE
        if limits and seconds > limits[group]:
            end, what = now + limits[group], LATE
        while absent[group] and absent[group][1] <= now:
            absent[group] = next(away[group])
        if what == DONE and absent[group] and absent[group][0] <= end:
            end, what = absent[group][1], BACK
        at[group] = end, group, what, len(rows)

    def order(work):  # those of a second come in their order, whatever the rounding of sums
        return round(work[0], 9), work[2] != SERVED, work[1]

    for group in range(count):
        begin(group, 0.0)
    while len(rows) < steps:
        now, group, what, version = min(filter(None, at), key=order)
        if what == DONE and serving is not None:
            free = max(free, now) + next(serving)
            at[group] = free, group, SERVED, version
            continue
        if what == LATE or (what != BACK and len(rows) - version >= policy.delay_bound):
            if version < len(rows):
                dropped[-1].add(group)
            begin(group, now)
            continue
        if what == BACK:
            begin(group, now)
            continue
        at[group] = None
        clock[group] += 1
        gathered.append((group, version))
        waits.add(group)
        if len(gathered) == policy.arrivals:
            rows.append((now, [(g, len(rows) - read) for g, read in gathered]))
            dropped.append(set())
            gathered = []
            if policy.waiting.endswith("_sync"):
                waits = set(range(count))
        elif policy.waiting in ("k_sync", "k_async"):
            continue
        for other in sorted(waits):
            if clock[other] <= min(clock) + policy.bound:
                waits.remove(other)
                begin(other, now)
    return rows, dropped[:-1]


def share_cores(takes, serving, cores, steps):
    """(seconds, groups) of groups that compute on cores that they share with their server."""
    left, line, rows, now = {g: next(own) for g, own in enumerate(takes)}, [], [], 0.0
    while len(rows) < steps:
        at_work = [*left, *line[:1]]
        pace = min(1.0, cores / len(at_work))
        first = min([*left.values(), *(job for _, job in line[:1])])
        now += first / pace
        left = {g: rest - first for g, rest in left.items()}
        line[:1] = [(g, job - first) for g, job in line[:1]]
        if line and line[0][1] < 1e-12:
            g, _ = line.pop(0)
            rows.append((now, g))
            left[g] = next(takes[g])
        for g in [g for g, rest in left.items() if rest < 1e-12]:
            line.append((g, next(serving)))
            del left[g]
    return zip(*rows, strict=True)


def groups(config, model, size):
    """(seconds, groups, staleness) of groups that arrive by themselves."""
    cluster, methods = config.cluster, config.methods
    method = methods.read or methods.members[0]
    count, policy = getattr(method, "groups", 1), getattr(method, "policy", Policy())
    means = means_of(cluster, count, config.batch_size // policy.arrivals)
    if methods.gradient:
        means = means * methods.gradient.relative_cost(config, model)
    small = getattr(method, "compressor", lambda: None)()
    gradient = size * small.ratio(model.params) if small else None
    sends, stays = (exchange(cluster, count, size, gradient, way) for way in (True, False))
    period, begun = periods(method, cluster, means, stays), [0] * count
    stream, longitude = seeds.number(config.seed, "arrivals"), longitudes(cluster)
    drawn = services(cluster.service.draw, stream, means)

    def takes(group, now):
        begun[group] += 1
        hour = 2 * np.pi * now / cluster.day + longitude[group * cluster.nodes // count]
        compute = next(drawn[group]) * (1 + cluster.diurnal * np.sin(hour))
        messages = stays if begun[group] % period[group] else sends
        return with_exchange(compute, messages[group], cluster.overlap)

    serving = repeat(2 * size / cluster.server_bandwidth) if cluster.server_bandwidth else None
    if cluster.pieces.conv_compute:
        takes, serving = merged_server(config, count, bool(method.fresh))
    limits = ()
    if policy.allotted < np.inf:
        services_of = zip(means, sends, strict=True)
        limits = [
            policy.allotted * with_exchange(max(m), e, cluster.overlap) for m, e in services_of
        ]
    away = [
        absences((stream, group, 1), cluster.presence, cluster.absence) for group in range(count)
    ]
    rows, _ = arrive(count, config.steps, takes, policy, limits, away, serving)
    seconds, had = zip(*rows, strict=True)
    who, late = np.moveaxis(np.array(had), -1, 0)
    return np.array(seconds), who, since_exchange(who, period, late, method)


def periods(method, cluster, means, stays):
    """Local steps of each group from one exchange to the next."""
    if method.name == "decoupled":  # which waits for none
        return [np.inf] * len(means)
    if getattr(method, "steps_by_speed", False):
        alone = [
            with_exchange(max(m), e, cluster.overlap) for m, e in zip(means, stays, strict=True)
        ]
        return [max(int(method.period * min(alone) / own + 1e-9), 1) for own in alone]
    return [getattr(method, "period", 1)] * len(means)


def since_exchange(who, period, late, method):
    """Staleness of workers with parameters of their own: others' exchanges since their last one."""
    if method.name != "async_local_sgd":
        return 0 * late if method.name == "elastic" else late
    steps, read, count, found = [0] * len(period), [0] * len(period), 0, []
    for (group,) in who:
        found.append([count - read[group]])
        steps[group] += 1
        if steps[group] % period[group] == 0:
            count += 1
            read[group] = count
    return np.array(found)


def merged_server(config, groups, fresh):
    """Services of Omnivore's groups, and of the server that they queue for."""
    pieces, law = config.cluster.pieces, config.cluster.service
    k = config.cluster.nodes * config.cluster.devices_per_node // groups
    conv, own, served = seeds.generator(config.seed, "arrivals").spawn(3)
    mean = max(pieces.conv_compute / k, pieces.conv_network * k)
    alone, at_server = (0.0, pieces.fc) if fresh else (pieces.fc, pieces.fc_network)

    def takes(group, now):
        return float((law.draw(conv, (1, k)) * mean).max() + law.draw(own, (1,))[0] * alone)

    return takes, (float(law.draw(served, (1,))[0]) * at_server for _ in repeat(None))


# Nodes.


def meet(
    meeting,
    ready,
    done,
    message,
    handed_on=0.0,
    load=np.ones_like,
    early=False,
    there=None,
    fetch=None,
):
    """Seconds of the last node after each update, of nodes that wait for what they receive.

    Of nodes that come and go, `there`, those meet that have not left since the last meeting, or by
    `fetch`, the seconds of a message, those update that have what others have, to the end.
    """
    send, receive, waited = (np.reshape(part, (len(done), -1)) for part in meeting[:3])
    handed_on = np.broadcast_to(handed_on, send.shape[1])
    now, here, came, seconds = np.zeros(len(done[0])), np.full(len(done[0]), True), {}, []
    since, ends = 0.0, []
    for t in range(len(done)):
        if fetch:
            here = with_what_others_have(here, now, done[t], load, there, fetch)
        old, start, slow = dict(came), now, load(now)
        first, now = start + slow * ready[t], start + slow * done[t]
        if there and not fetch:
            here = here & (now < there.left)
            if send[t].any() and not here.any():
                one, again = first_for(there, now - since)
                seconds[t - len(ends) :] = [end[one] + again - since for end in ends]
                first, now = (part + again - since for part in (first, now))
                here[one] = True
            ends.append(now)
        for q in np.flatnonzero(send[t]):
            came[q] = message(t, q, start if early else first, now, here)
        if receive[t].any():
            latest, wait = np.zeros_like(now), sum(handed_on[receive[t]])
            for q in np.flatnonzero(receive[t]):
                latest = np.maximum(latest, (old if waited[t, q] else came).get(q, 0.0))
            now = np.maximum(now, latest) + wait
            if there and not fetch:
                since, ends = max(latest) + wait, []
                now, here = np.full_like(now, since), there.at(since)
        if fetch:
            now = np.where(here, now, start)
        seconds.append(max([since, *now[here]]))
    return [min(seconds[t:]) for t in range(len(seconds))]  # a straggler nobody waits for


def first_for(there, seconds):
    """The first node to be back that stays for its `seconds`, and when it is back."""
    while True:
        one, start = there.back.argmin(), there.back.min()
        there.at(np.where(np.arange(len(seconds)) == one, start, -np.inf))
        if start + seconds[one] < there.left[one]:
            return one, start


def with_what_others_have(here, now, done, load, there, fetch):
    """Who makes the next update; sets `now` of who comes."""
    count = len(now)
    while True:
        here = here & (now < there.left)
        come = np.arange(count) == there.back.argmin()
        start = there.back.min()
        if here.any():
            start = min(now[here])
            source = [
                next(j % count for j in range(i, 2 * count) if here[j % count])
                for i in range(count)
            ]
            come = [there.back[i] + fetch(source[i], i) <= start for i in range(count)] & ~here
        now[come] = start
        here = here | come & there.at(np.where(come, start, -np.inf))
        here = here & (now + done * load(now) < there.left)
        if here.any():
            return here


def over_one_link(seconds, on_the_way=0.0):
    """Messages that are sums over all nodes: the link takes one after the other."""
    free = 0.0

    def message(t, q, first, now, here):
        nonlocal free
        free = max(max(*first[here], free, 0.0) + seconds(t, q), *now[here]) + on_the_way
        return np.full(len(now), free)

    return message


def to_neighbours(to, seconds, early=False):
    """Messages of each node to those of row t of `to`, one after the other.

    What would go to who is away goes where that one would have sent it.
    """
    free = {}

    def message(t, q, first, now, here):
        came = np.zeros(len(now))
        for j in np.flatnonzero(here):
            clock = max(free.get(j, 0.0), first[j])
            for n, i in enumerate(to[t][j]):
                for _ in range(len(now)):
                    i = i if here[i] else to[t][i][n]
                if here[i] and i != j:
                    clock += seconds(j, i)
                    came[i] = max(came[i], clock if early else max(clock, now[j]))
            free[j] = clock
        return came

    return message


def follow(methods, cluster, seed, batch, factors):
    """Seconds of devices whose shares follow how fast those were that share a batch."""
    steps, n, k = factors.shape
    together = n if methods.mix else 1  # batches of an update
    speeds = np.reshape(cluster.speeds or np.ones(n * k), (together, -1))
    epochs, workers = -(-steps // EPOCH), np.arange(n * k).reshape(together, -1)
    delay = costs(cluster, epochs, EPOCH, seed).delay
    found = np.empty((steps, together, speeds.shape[1]))
    for i, team in enumerate(workers):
        rates, share = None, divide_batch(np.ones(len(team)), batch // together)
        for epoch in range(epochs):
            example = cluster.seconds_per_example / speeds[i]
            for worker, first, last, factor in cluster.disturbances:
                example = example * np.where((team == worker) & (first <= epoch <= last), factor, 1)
            window = slice(epoch * EPOCH, (epoch + 1) * EPOCH)
            rows = share * example * factors[window].reshape(-1, n * k)[:, team]
            found[window, i] = rows + delay[epoch, team]
            if methods.gradient.adapt:
                new = share / found[window, i].mean(axis=0)
                rates = new if rates is None else smooth(rates, new, methods.gradient.smoothing)
                share = divide_batch(rates, batch // together)
    return found.reshape(factors.shape)


def local_times(config, model, size):
    """(steps, nodes) seconds until an exchange may begin, and until the end of an update."""
    cluster, methods, steps = config.cluster, config.methods, config.steps
    n, k = cluster.nodes, cluster.devices_per_node
    if methods.mix and methods.read:
        lines, own = [], {"nodes": 1, "latencies": (), "bandwidths": ()}
        own |= {"latency": cluster.local_latency, "bandwidth": cluster.local_bandwidth}
        for node in range(n):
            speeds = cluster.speeds[node * k : (node + 1) * k]
            alone = config.with_(
                cluster=cluster.with_(**own, speeds=speeds),
                batch_size=config.batch_size // n,
                seed=seeds.number(config.seed, f"node {node}", below=2**32),
            )
            lines.append(np.diff(all_servers(alone, model, size)[0], prepend=0.0))
        return (np.stack(lines, axis=1),) * 2
    factors = cluster.service.draw(seeds.generator(config.seed, "arrivals"), (steps, n, k))
    teams = n if methods.mix else 1
    compute = factors * means_of(cluster, teams, config.batch_size // teams).reshape(n, k)
    if "local" in methods.name:
        compute = compute * methods.gradient.relative_cost(config, model)
    if "dynamic_batch" in methods.name:
        compute = follow(methods, cluster, config.seed, config.batch_size, factors)
    slowest = compute.max(axis=2)
    ready = slowest * (1 - cluster.overlap) + inside_node(cluster, k, size)[0]
    return ready, np.maximum(slowest, ready)


def nodes(config, model, line, size):
    """Seconds of nodes that meet when the plan of the line says, and with whom."""
    cluster, plan, steps = config.cluster, line.plan, config.steps
    method, longitude = config.methods.outermost, longitudes(cluster)
    ready, done = local_times(config, model, size)
    hand_on = inside_node(cluster, cluster.devices_per_node, size)[1]

    def load(now):
        return 1 + cluster.diurnal * np.sin(2 * np.pi * now / cluster.day + longitude)

    there = cluster_presence(cluster, config.seed)
    if hasattr(method, "graph"):
        meeting, early = plan, getattr(method, "gossip_order", "") == "combine"
        if not hasattr(plan, "send"):
            meeting = np.ones(steps, bool), np.ones(steps, bool), np.zeros(steps, int)
        turn = np.cumsum(meeting[0]) - 1
        rng = seeds.generator(config.seed, "graph")
        to = graph_peers(method.graph, cluster.nodes, turn[-1] + 1, rng)
        small = getattr(method, "compressor", lambda: None)()
        each = size * small.ratio(model.params) if small else size

        def seconds(one, other):
            return link(cluster, one, other, each)

        message = to_neighbours(to[turn % len(to)], seconds, early)
        return meet(meeting, ready, done, message, hand_on, load, early, there, there and seconds)
    if not hasattr(plan, "send"):  # they meet after every update
        meeting = np.ones(steps, bool), np.ones(steps, bool), np.zeros(steps, int)
        sends = getattr(method, "update_message", lambda _: None)(model.params)
        travel = to_all if sends and sends.gathered else between
        takes = travel(cluster, sends.bytes if sends else size)
        return meet(meeting, ready, done, over_one_link(lambda t, q: takes), hand_on)
    if method.name == "eager":
        message = over_one_link(lambda t, q: between(cluster, size), hand_on)
        return meet(plan, ready, done, message)
    if method.name == "daso":
        now, later = method.blocking_dtype or method.transfer_dtype, method.transfer_dtype

        def half(t, q):
            blocks = plan.receive[t] and not plan.waited[t]
            return between(cluster, size / (1 + ((now if blocks else later) == "bfloat16")))

        return meet(plan, ready, done, over_one_link(half), hand_on)
    parts = split_fragments(model.params, method.fragments)
    sizes = [size * bytes_of(part) / bytes_of(model.params) for part in parts]
    small = method.compressor()
    travel = to_all if small and small.gathered else between
    messages = [[size * m / bytes_of(model.params) for m in method.message_bytes(p)] for p in parts]

    def takes(t, q):
        found = sum(travel(cluster, one) for one in messages[q])
        if method.state_at_meetings == "averaged":  # of SGD it is a velocity, of the first moment
            due = plan.receive[t].any() if plan.states is None else plan.states[t, 0]
            found += between(cluster, size * due) if due else 0.0
        return found

    hand_on = [inside_node(cluster, cluster.devices_per_node, one)[1] for one in sizes]
    return meet(plan, ready, done, over_one_link(takes), hand_on, load, there=there)


# Stages.


def staged(kind, forward, backward, update, lags, parts, updates):
    """{(stage, update, part, what): (start, end)} of stages that do one task after the other."""
    S, tasks, free = len(forward), {}, [0.0] * len(forward)
    takes = {"F": forward, "B": backward, "U": update}
    for t in range(updates):
        left = []
        for j in range(S):
            ahead = {"local": 1, "gpipe": parts, "1f1b": min(S - j, parts)}[kind]
            order = [("F", m) for m in range(ahead)]
            for m in range(parts):
                order += [("B", m)] + [("F", m + ahead)] * (m + ahead < parts)
            left.append([*order, ("U", -1)])
        while any(left):
            for j in range(S):
                while left[j]:
                    what, m = left[j][0]
                    source = j - 1 if what == "F" else j + 1 if kind != "local" else S
                    needs, begin = what != "U" and 0 <= source < S, free[j]
                    if needs and (source, t, m, what) not in tasks:
                        break
                    if needs:
                        sent = tasks[source, t, m, what][1] + lags[min(j, source)]
                        begin = max(begin, sent)
                    free[j] = begin + takes[what][j]
                    tasks[j, t, *reversed(left[j].pop(0))] = begin, free[j]
    return tasks


def pipeline(config, model):
    """Seconds of updates by stages of a model's blocks."""
    cluster, method, steps = config.cluster, config.methods.outermost, config.steps
    k, stages = cluster.devices_per_node, cluster.nodes
    _, work = costs_of_stages(
        Local(variant="backprop") if method.name != "local" else method, config, model
    )
    parts = method.parts(stages)
    unit = cluster.seconds_per_example * config.batch_size / k / parts
    lags = [link(cluster, j, j + 1, own / k / parts) for j, own in enumerate(work.sent)]
    update = [inside_node(cluster, k, own)[0] for own in work.parameters]
    forward, backward = work.forward * unit, work.backward * unit
    if method.name == "stale_pipeline":  # all updates are one, without an end
        back = [b + u / parts for b, u in zip(backward, update, strict=True)]
        tasks = staged("1f1b", forward, back, [0.0] * stages, lags, parts * (steps + stages), 1)
        return [tasks[0, 0, parts * (t + 1) - 1, "B"][1] for t in range(steps)]
    kind = "gpipe" if method.variant == "backprop" and stages > 1 else "local"
    tasks = staged(kind, forward, backward, update, lags, parts, steps)
    return [max(tasks[j, t, -1, "U"][1] for j in range(stages)) for t in range(steps)]


def all_servers(config, model, size):
    """As `groups`; where blocks learn by themselves (servers,) a server's own, and the last's."""
    method = config.methods.read
    if not (config.methods.by_block and method and method.name == "asynchronous"):
        return groups(config, model, size)
    bytes_at = {}
    for name, number in config.methods.servers(model.problem).items():
        bytes_at[number] = bytes_at.get(number, 0) + bytes_of(model.params[name])
    lines = []
    for n, own in sorted(bytes_at.items()):
        seed = seeds.number(config.seed, f"server {n}", below=2**32) if n else config.seed
        lines.append(groups(config.with_(seed=seed), model, own))
    seconds, workers, late = (np.stack(each, axis=-1) for each in zip(*lines, strict=True))
    return seconds.max(axis=-1), workers, late


def clock(config, model, line, size):
    """(seconds, groups, staleness); the last two where groups arrive."""
    methods = config.methods
    if methods.stages:
        return pipeline(config, model), None, None
    if config.cluster.pieces.conv_compute or (
        methods.read and not methods.mix and methods.groups > 1
    ):
        return all_servers(config, model, size)
    return nodes(config, model, line, size), None, None
