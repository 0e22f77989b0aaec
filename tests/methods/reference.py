"""The methods once more, in plain NumPy and float64, written from their equations.

There is one class a piece, and a pair is made of two of them: what a node does by itself (`read`)
is given the gradient that its updates take, and what nodes exchange (`mix`) is put around one
`read` a node. Parameters are dicts {block: {name: array}}. The clock's choices are given, as they
are to the project's own code, and so are the random numbers; nothing else of that is used here.
"""

import numpy as np
from scipy.fft import dctn, idctn

from optdyn.methods import async_local_sgd
from optdyn.methods.sparse import places


def tree(function, *trees):
    """Leaf by leaf."""
    if isinstance(trees[0], dict):
        return {key: tree(function, *(each[key] for each in trees)) for key in trees[0]}
    return function(*trees)


def plus(a, b, factor=1.0):
    return tree(lambda x, y: x + factor * y, a, b)


def minus(a, b):
    return plus(a, b, -1.0)


def mean(trees):
    return tree(lambda *leaves: sum(leaves) / len(leaves), *trees)


def zeros(like):
    return tree(np.zeros_like, like)


# The gradient of a multi-layer perceptron with ReLU, by hand: of the whole, or block by block.


def cross_entropy(block, h, label):
    """Mean loss of a linear classifier, its gradients, and that with respect to h."""
    z = h @ block["kernel"] + block["bias"]
    z = z - z.max(axis=1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    n = np.arange(len(label))
    loss = -np.log(p[n, label]).mean()
    p[n, label] -= 1
    p /= len(label)
    return loss, {"kernel": h.T @ p, "bias": p.sum(axis=0)}, p @ block["kernel"].T


def whole(params, x, label):
    """Backpropagation: loss and gradients."""
    hidden = sorted(name for name in params if name.startswith("hidden") and "head" not in name)
    hs, grads = [x], {}
    for name in hidden:
        hs.append(np.maximum(hs[-1] @ params[name]["kernel"] + params[name]["bias"], 0))
    loss, grads["classifier"], back = cross_entropy(params["classifier"], hs[-1], label)
    for name, h, out in reversed(list(zip(hidden, hs[:-1], hs[1:], strict=True))):
        back = back * (out > 0)
        grads[name] = {"kernel": h.T @ back, "bias": back.sum(axis=0)}
        back = back @ params[name]["kernel"].T
    return loss, grads


def greedy(params, x, label):
    """Each block learns from a head of its own, and nothing flows back between blocks."""
    hidden = sorted(name for name in params if name.startswith("hidden") and "head" not in name)
    h, grads = x, {}
    for name in hidden:
        out = np.maximum(h @ params[name]["kernel"] + params[name]["bias"], 0)
        head = "classifier" if name == hidden[-1] else f"{name}_head"
        loss, grads[head], back = cross_entropy(params[head], out, label)
        back = back * (out > 0)
        grads[name] = {"kernel": h.T @ back, "bias": back.sum(axis=0)}
        h = out
    return loss, grads


class HeavyBall:
    """v <- mu v + g, x <- x - gamma v."""

    def __init__(self, params):
        self.v = zeros(params)

    def step(self, x, grads, hyper):
        self.v = tree(lambda v, g: hyper["momentum"] * v + g, self.v, grads)
        return plus(x, self.v, -hyper["learning_rate"])


# What a node does by itself: `step(choice, hyper, batch)` and then `params` is x_t.


class Sync:
    """x <- x - gamma g(x)"""

    def __init__(self, params, gradient, groups, keys):
        self.params, self.gradient, self.rule = params, gradient, HeavyBall(params)

    def step(self, choice, hyper, batch):
        grads = self.gradient(self.params, batch)
        self.params = self.rule.step(self.params, grads, hyper)

    def move(self, params):
        self.params = params


class Asynchronous(Sync):
    """x <- x - gamma g(the version that was read); every block has a slot of its own."""

    def __init__(self, params, gradient, groups, keys):
        super().__init__(params, gradient, groups, keys)
        self.table = {name: {} for name in params}  # slots that were written; x_0 is in the others
        self.first, self.newest = params, dict.fromkeys(params)

    def at(self, slots):
        return {
            name: self.table[name].get(int(slot), self.first[name]) for name, slot in slots.items()
        }

    def slots(self, slots, keys):
        """Of each block: all the same, or those of its server, a head with its block."""
        slots, own = np.asarray(slots), sorted(n for n in self.params if not n.endswith("_head"))
        own = [*(n for n in own if n != "classifier"), "classifier"]
        place = {name: i for i, name in enumerate(own)}
        number = {name: place[name.removesuffix("_head")] for name in self.params}
        return {name: slots if slots.ndim == 0 else slots[number[name]] for name in self.params}

    def step(self, choice, hyper, batch):
        seen = self.at(self.slots(choice.read, None))
        self.write(self.gradient(seen, batch), self.slots(choice.write, None), hyper)

    def write(self, grads, slots, hyper):
        self.params = self.rule.step(self.params, grads, hyper)
        self.newest = slots
        self.move(self.params)

    def move(self, params):
        """x_t is other parameters, also for who reads it where it was written."""
        self.params = params
        for name, slot in self.newest.items():
            self.table[name][0 if slot is None else int(slot)] = params[name]


class Buffered(Asynchronous):
    """x <- x - gamma mean_j g_j(what j had read), each of its own part of the batch."""

    def step(self, choice, hyper, batch):
        k = len(choice.read)
        each = [
            self.gradient(self.at(self.slots(choice.read[j], None)), batch.part(j, k))
            for j in range(k)
        ]
        self.write(mean(each), self.slots(choice.write, None), hyper)


class Ringleader(Asynchronous):
    """G_i: the mean of i's gradients of a round; x <- x - gamma mean_i G_i once each has one.

    In rounds: with the arrival after which each has one, and with the next of each other group.
    Those who come again meanwhile are of the next round.
    """

    def __init__(self, params, gradient, groups, keys):
        super().__init__(params, gradient, groups, keys)
        self.round, self.next = ([[] for _ in range(groups)] for _ in range(2))
        self.turns = []

    def step(self, choice, hyper, batch):
        i = int(choice.worker)
        grads = self.gradient(self.at(self.slots(i, None)), batch)
        (self.next if self.turns and i not in self.turns else self.round)[i].append(grads)
        if not self.turns and all(self.round):
            self.turns = list(range(len(self.round)))
        if i not in self.turns:
            self.newest = self.slots(i, None)
            self.move(self.params)
            return
        self.write(mean([mean(each) for each in self.round]), self.slots(i, None), hyper)
        self.turns.remove(i)
        if not self.turns:
            self.round, self.next = self.next, [[] for _ in self.round]


class Workers:
    """Workers with parameters and an optimizer of their own."""

    def __init__(self, params, gradient, groups, keys):
        self.params, self.gradient, self.keys = params, gradient, keys
        self.x = [params] * groups
        self.read = [params] * groups
        self.rules = [HeavyBall(params) for _ in range(groups)]
        self.last = None  # who has just read
        self.groups, self.done, self.exchanges = groups, [0] * groups, 0

    def exchanges_now(self, i):
        self.done[i] += 1
        return self.done[i] % self.keys["period"] == 0

    def move(self, params):
        self.params = params


class Elastic(Workers):
    """s = a (w_i - w*); w* <- w* + s; w_i <- w_i - gamma g(w_i) - s"""

    def step(self, choice, hyper, batch):
        i = int(choice.worker)
        w = self.x[i]
        after = self.rules[i].step(w, self.gradient(w, batch), hyper)
        if self.exchanges_now(i):
            a = self.keys["elasticity"] / self.groups
            s = tree(lambda w, c: a * (w - c), w, self.params)
            self.params, after = plus(self.params, s), minus(after, s)
        self.x[i] = after


class AsyncLocal(Workers):
    """Delayed Nesterov, N = groups and c = 0: G = theta_read - w_i, Delta <- Delta + G;
    N-th: m <- b m + Delta / N, theta <- theta - eta (b m + G / N), Delta <- 0; else
    theta <- theta - eta G / N."""

    def __init__(self, params, gradient, groups, keys):
        super().__init__(params, gradient, groups, keys)
        self.m, self.delta = zeros(params), zeros(params)

    def step(self, choice, hyper, batch):
        i, n = int(choice.worker), self.groups
        b, eta = self.keys["outer_momentum"], self.keys["outer_learning_rate"]
        self.x[i] = self.rules[i].step(self.x[i], self.gradient(self.x[i], batch), hyper)
        self.last = None
        if not self.exchanges_now(i):
            return
        self.exchanges += 1
        gap = minus(self.read[i], self.x[i])
        self.delta, way = plus(self.delta, gap), tree(lambda g: g / n, gap)
        if self.exchanges % n == 0:
            self.m = tree(lambda m, d: b * m + d / n, self.m, self.delta)
            way, self.delta = plus(way, self.m, b), zeros(self.delta)
        self.params = plus(self.params, way, -eta)
        self.x[i] = self.read[i] = self.params
        self.last = i

    def move(self, params):
        self.params = params
        if self.last is not None:
            self.x[self.last] = self.read[self.last] = params


class Decoupled(Workers):
    """D_m = Theta_m - x_m; v <- mu v + Delta; Theta <- Theta - eta (Delta + mu v);
    x_m, Theta_m <- Theta of those who were merged. Which merge a message is in, the clock says."""

    def __init__(self, params, gradient, groups, keys):
        super().__init__(params, gradient, groups, keys)
        self.v, self.mail, self.steps = zeros(params), {}, [0] * groups

    def step(self, choice, hyper, batch):
        i = int(choice.worker)
        self.x[i] = self.rules[i].step(self.x[i], self.gradient(self.x[i], batch), hyper)
        self.steps[i] += 1
        if choice.receive.all():
            self.x[i] = self.read[i] = self.mail.pop(i)
            self.steps[i] = 0
        if choice.send.all() and choice.into[0] != async_local_sgd.DROPPED:
            self.mail[i] = int(choice.into[0]), self.steps[i], minus(self.read[i], self.x[i])
        last, many = int(choice.merge[0]), int(choice.merges[0])
        mu, eta = self.keys["outer_momentum"], self.keys["outer_learning_rate"]
        for number in range(last - many + 1, last + 1):
            sent = {m: own for m, own in self.mail.items() if isinstance(own, tuple)}
            members = {m: own for m, own in sent.items() if own[0] == number}
            total = sum(w for _, w, _ in members.values())
            parts = [tree(lambda d, w=w / total: d * w, gap) for _, w, gap in members.values()]
            gap = tree(lambda *leaves: sum(leaves), *parts)
            self.v = tree(lambda v, d: mu * v + d, self.v, gap)
            self.params = plus(self.params, plus(gap, self.v, mu), -eta)
            self.mail |= dict.fromkeys(members, self.params)


class AdPsgd(Workers):
    """x_i, x_j <- (x_i + x_j) / 2; x_i <- x_i - gamma g(x_i read); x_i read <- x_i"""

    @property
    def params(self):
        return mean(self.x)

    @params.setter
    def params(self, params):
        pass

    def step(self, choice, hyper, batch):
        i, j = int(choice.worker), int(choice.peer)
        grads = self.gradient(self.read[i], batch)
        met = mean([self.x[i], self.x[j]])
        self.x[j] = met
        self.x[i] = self.read[i] = self.rules[i].step(met, grads, hyper)
        self.last = i

    def move(self, params):
        shift = minus(params, self.params)
        self.x = [plus(x, shift) for x in self.x]
        if self.last is not None:
            self.read[self.last] = self.x[self.last]


# What nodes exchange: `step(choice, hyper, batches)` of all nodes.


class Alone:
    def __init__(self, nodes, keys):
        (self.node,) = nodes

    def step(self, choice, hyper, batches):
        self.node.step(choice, hyper, batches[0])

    @property
    def params(self):
        return [self.node.params]


class Nodes:
    """Each makes an update by itself, and then they exchange."""

    def __init__(self, nodes, keys):
        self.nodes, self.keys = nodes, keys
        self.theta, self.m = nodes[0].params, zeros(nodes[0].params)
        self.sent = None
        self.start(nodes[0].params)

    def start(self, params):
        pass

    def step(self, choice, hyper, batches):
        self.before = self.params
        for i, node in enumerate(self.nodes):
            node.step(pick(choice.inner, i), hyper, batches[i])
        self.exchange(choice, hyper)

    @property
    def params(self):
        return [node.params for node in self.nodes]


def pick(choice, i):
    """That of node i."""
    return type(choice)(*(None if leaf is None else leaf[i] for leaf in choice)) if choice else ()


class Averaging(Nodes):
    """D = theta - mean_p x_p(sent); theta <- theta - outer(D); x <- theta"""

    def exchange(self, choice, hyper):
        if np.all(choice.send):
            self.sent = mean(self.params)
        if np.all(choice.receive):
            self.theta = self.outer(minus(self.theta, self.sent), hyper)
            for node in self.nodes:
                node.move(self.theta)

    def outer(self, gap, hyper):
        return minus(self.theta, gap)


class DesLoc(Averaging):
    """Parameters at every meeting, and heavy ball's velocities, first moments, at every so many."""

    def start(self, params):
        self.meetings = 0

    def exchange(self, choice, hyper):
        super().exchange(choice, hyper)
        self.meetings += bool(np.all(choice.receive))
        if np.all(choice.receive) and self.meetings % self.keys["first_moment_meetings"] == 0:
            average([node.rule for node in self.nodes if hasattr(node, "rule")])
            for rules in zip(*(getattr(node, "rules", ()) for node in self.nodes), strict=True):
                average(rules)


def average(rules):
    """The mean of optimizers' velocities, in all of them."""
    if rules:
        met = mean([rule.v for rule in rules])
        for rule in rules:
            rule.v = met


class Diloco(Averaging):
    """m <- mu m + D; theta <- theta - eta (D + mu m)"""

    def outer(self, gap, hyper):
        mu, eta = self.keys["outer_momentum"], self.keys["outer_learning_rate"]
        self.m = tree(lambda m, d: mu * m + d, self.m, gap)
        return plus(self.theta, plus(gap, self.m, mu), -eta)


class SlowMo(Averaging):
    """u <- beta u + D / gamma; theta <- theta - a gamma u"""

    def outer(self, gap, hyper):
        beta, a = self.keys["slow_momentum"], self.keys["slow_learning_rate"]
        gamma = hyper["learning_rate"]
        self.m = tree(lambda u, d: beta * u + d / gamma, self.m, gap)
        return plus(self.theta, self.m, -a * gamma)


class SparseLoco(Averaging):
    """e_i <- beta e_i + theta - x_i; s_i = top-k(e_i); e_i <- e_i - s_i;
    theta <- theta - a mean s_i"""

    def start(self, params):
        self.errors = [zeros(params) for _ in self.nodes]

    def exchange(self, choice, hyper):
        if not np.all(choice.send):
            return
        beta, share = self.keys["error_decay"], self.keys["compression_share"]
        whole = [
            plus(minus(self.theta, x), e, beta)
            for x, e in zip(self.params, self.errors, strict=True)
        ]
        sent = [tree(lambda v: largest(v, share), v) for v in whole]
        self.errors = [minus(v, s) for v, s in zip(whole, sent, strict=True)]
        self.theta = plus(self.theta, mean(sent), -self.keys["outer_learning_rate"])
        for node in self.nodes:
            node.move(self.theta)


def largest(v, share):
    """The share of its numbers that are largest, 0 elsewhere."""
    flat, kept = v.reshape(-1), np.zeros(v.size)
    order = np.argsort(-np.abs(flat), kind="stable")[: int(np.ceil(share * v.size))]
    kept[order] = flat[order]
    return kept.reshape(v.shape)


class Eager(Diloco):
    """G_i = (D_i + sum_{j != i} D_j of the meeting before) / P; each node its own outer step"""

    def start(self, params):
        self.own = [Diloco([node], self.keys) for node in self.nodes]
        self.past = [zeros(params) for _ in self.nodes]

    def exchange(self, choice, hyper):
        if not np.all(choice.send):
            return
        count = len(self.nodes)
        gaps = [minus(own.theta, x) for own, x in zip(self.own, self.params, strict=True)]
        for i, node in enumerate(self.nodes):
            others = [self.past[j] for j in range(count) if j != i]
            own = self.own[i]
            own.theta = own.outer(mean([gaps[i], *others]), hyper)
            node.move(own.theta)
        self.past = gaps


class Sparta(Nodes):
    """x_i[S] <- mean_j x_j[S], of numbers S that all have drawn"""

    def exchange(self, choice, hyper):
        every = [tree(np.copy, x) for x in self.params]
        names = [(block, name) for block in sorted(every[0]) for name in sorted(every[0][block])]
        for n, (block, name) in enumerate(names):
            arrays = [x[block][name] for x in every]
            chosen = places(choice.draw, n, arrays[0].size, self.keys["averaged_share"])
            at = np.unravel_index(np.asarray(chosen), arrays[0].shape)
            mean = sum(array[at] for array in arrays) / len(arrays)
            for array in arrays:
                array[at] = mean
        for node, x in zip(self.nodes, every, strict=True):
            node.move(x)


class Demo(Nodes):
    """m_i <- beta m_i + (theta - x_i); q_i: its k largest of every chunk's DCT, taken off;
    theta <- theta - mean_i q_i"""

    def start(self, params):
        self.momenta = [zeros(params) for _ in self.nodes]

    def exchange(self, choice, hyper):
        beta, ways = self.keys["momentum_decay"], []
        for i, x in enumerate(self.params):
            self.momenta[i] = plus(minus(self.theta, x), self.momenta[i], beta)
            ways.append(tree(self.fast, self.momenta[i]))
            self.momenta[i] = minus(self.momenta[i], ways[-1])
        self.theta = minus(self.theta, mean(ways))
        for node in self.nodes:
            node.move(self.theta)

    def fast(self, v):
        matrix, c = np.atleast_2d(v), self.keys["chunk"]
        height, width = (max(d for d in range(1, c + 1) if n % d == 0) for n in matrix.shape)
        out = np.zeros_like(matrix)
        for a in range(0, matrix.shape[0], height):
            for b in range(0, matrix.shape[1], width):
                block = slice(a, a + height), slice(b, b + width)
                found = dctn(matrix[block], norm="ortho")
                least = np.sort(np.abs(found), axis=None)[::-1][: self.keys["coefficients"]][-1]
                out[block] = idctn(np.where(np.abs(found) >= least, found, 0.0), norm="ortho")
        return out.reshape(v.shape)


class Daso(Nodes):
    """x <- (2 S x + sum_p x_p(sent)) / (2 S + P), S batches after the sending"""

    def exchange(self, choice, hyper):
        earlier = self.sent
        if choice.send:
            self.sent = [tree(np.copy, x) for x in self.params]
        if choice.receive:
            s, sent = int(choice.waited), self.sent if choice.waited == 0 else earlier
            total = tree(lambda *leaves: sum(leaves), *sent)
            for node in self.nodes:
                merged = tree(
                    lambda x, y: (2 * s * x + y) / (2 * s + len(self.nodes)), node.params, total
                )
                node.move(merged)


def heard(choice, every):
    """Of each node i sum_j W_ij x_j, where W_ij is the share of j's messages that go to i."""
    count = len(every)
    w = [[np.mean(choice.to[j] == i) for j in range(count)] for i in range(count)]
    return [
        tree(lambda *leaves, row=row: sum(p * x for p, x in zip(row, leaves, strict=True)), *every)
        for row in w
    ]


class Gossip(Nodes):
    """x_i <- sum_j W_ij x_j - gamma g_i: neighbours' parameters of before, and one's own way"""

    def exchange(self, choice, hyper):
        after, mixed = self.params, heard(choice, self.before)
        for i, node in enumerate(self.nodes):
            node.move(plus(mixed[i], minus(after[i], self.before[i])))


class OverGraph(Nodes):
    """D_i = theta_i - sum_j W_ij x_j; theta_i <- theta_i - outer(D_i); x_i <- theta_i"""

    meets = Averaging

    def start(self, params):
        self.own = [self.meets([node], self.keys) for node in self.nodes]

    def exchange(self, choice, hyper):
        if not np.all(choice.send):
            return
        for own, node, mixed in zip(self.own, self.nodes, heard(choice, self.params), strict=True):
            own.theta = own.outer(minus(own.theta, mixed), hyper)
            node.move(own.theta)


class Gasloc(Nodes):
    """g_i = x_i - theta_i; theta_i <- theta_i + eta g_i - (Lambda y)_i + gamma (y_i - y_i before),
    y_i = theta_i + eta g_i, (Lambda y)_i = sum_j W_ij (y_i - y_j), whose rows of W sum to 1"""

    def start(self, params):
        self.begun, self.y = ([params] * len(self.nodes) for _ in range(2))

    def exchange(self, choice, hyper):
        if not np.all(choice.send):
            return
        eta, gamma = self.keys["outer_learning_rate"], self.keys["outer_momentum"]
        ways = [minus(x, theta) for x, theta in zip(self.params, self.begun, strict=True)]
        y = [plus(theta, g, eta) for theta, g in zip(self.begun, ways, strict=True)]
        pulls = [minus(own, mixed) for own, mixed in zip(y, heard(choice, y), strict=True)]
        for i, node in enumerate(self.nodes):
            self.begun[i] = plus(minus(y[i], pulls[i]), minus(y[i], self.y[i]), gamma)
            node.move(self.begun[i])
        self.y = y


class DilocoOverGraph(OverGraph):
    meets = Diloco


class SlowMoOverGraph(OverGraph):
    meets = SlowMo


GRADIENTS = {"local": greedy}
READS = {
    "asynchronous": Asynchronous,
    "ringmaster": Asynchronous,  # of what is not dropped
    "buffered": Buffered,
    "mindflayer": Buffered,  # of what is not dropped
    "ringleader": Ringleader,
    "elastic": Elastic,
    "async_local_sgd": AsyncLocal,
    "ad_psgd": AdPsgd,
    "decoupled": Decoupled,
}
MIXES = {
    "daso": Daso,
    "model_averaging": Averaging,
    "diloco": Diloco,
    "slowmo": SlowMo,
    "des_loc": DesLoc,
    "sparseloco": SparseLoco,
    "eager": Eager,
    "gossip": Gossip,
    "gasloc": Gasloc,
    "sparta": Sparta,
    "demo": Demo,
}
JOINED = {"model_averaging": OverGraph, "diloco": DilocoOverGraph, "slowmo": SlowMoOverGraph}


class Batch:
    """Examples of a node, whose `devices` have equal parts one after the other."""

    def __init__(self, x, label, devices):
        self.x, self.label, self.devices = x, label, devices

    def part(self, j, k):
        """Every k-th example of each device, from the j-th on."""
        each = len(self.label) // self.devices
        own = [d * each + i for d in range(self.devices) for i in range(each) if i % k == j]
        return Batch(self.x[own], self.label[own], self.devices)


def run(name, params, choices, hypers, images, labels, nodes, devices, keys):
    """Parameters of every node after each update, (steps,) lists of dicts.

    `choices` and `hypers` are of each update; `keys` are those of config.method, of several joined
    a section each.
    """
    parts = name.split("+")

    def of(known, usual):
        return next((known[part] for part in parts if part in known), usual)

    def section(known):
        part = next((part for part in parts if part in known), "")
        return keys.get(part, {}) if len(parts) > 1 else keys

    loss = of(GRADIENTS, whole)
    mix = of(JOINED if "gossip" in parts else MIXES, of(MIXES, Alone))
    count = nodes if mix is not Alone else 1
    params = tree(lambda leaf: np.asarray(leaf, np.float64), params)

    def gradient(x, batch):
        return loss(x, batch.x, batch.label)[1]

    inside = section(READS)
    groups = inside.get("groups", 1)
    every = [of(READS, Sync)(params, gradient, groups, inside) for _ in range(count)]
    made, history = mix(every, section(MIXES)), []
    for choice, hyper, x, label in zip(choices, hypers, images, labels, strict=True):
        x = np.float64(x).reshape(len(x), -1) / 255
        cut = [slice(i * len(x) // count, (i + 1) * len(x) // count) for i in range(count)]
        batches = [Batch(x[own], label[own], devices if count > 1 else 1) for own in cut]
        made.step(choice, hyper, batches)
        history.append(made.params)
    return history
