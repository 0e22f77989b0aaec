"""The methods once more, in plain NumPy and float64, written from their equations.

There is one class a piece, and a pair is made of two of them: what a node does by itself (`read`)
is given the gradient that its updates take, and what nodes exchange (`mix`) is put around one
`read` a node. Parameters are dicts {block: {name: array}}. The clock's choices are given, as they
are to the project's own code, and so are random numbers and the cuts of fragments; nothing else of
that is used here.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.fft import dctn, idctn

from optdyn.methods import averaging, messages, sparse
from optdyn.methods.async_local_sgd import DROPPED


def tree(function, *trees):
    """Leaf by leaf."""
    if isinstance(trees[0], dict):
        return {key: tree(function, *(one[key] for one in trees)) for key in trees[0]}
    return function(*trees)


def plus(a, b, factor=1.0):
    return tree(lambda x, y: x + factor * y, a, b)


def minus(a, b):
    return plus(a, b, -1.0)


def weighted(weights, trees):
    """Their sum by the weights."""
    return tree(lambda *leaves: sum(p * x for p, x in zip(weights, leaves, strict=True)), *trees)


def mean(trees):
    return weighted([1 / len(trees)] * len(trees), trees)


def zeros(like):
    return tree(np.zeros_like, like)


def fragments(params, count):
    """(block, name) of the arrays of each fragment."""
    cut = averaging.split_fragments(params, count)
    names = [(block, name) for block in sorted(params) for name in sorted(params[block])]
    return [[(b, n) for b, n in names if one[b][n] is not None] for one in cut]


def part(params, names):
    """The arrays of those names, in a dict of their own."""
    return {(block, name): params[block][name] for block, name in names}


def replaced(params, arrays):
    """The parameters with those arrays in place of their own."""
    return {
        block: {name: arrays.get((block, name), x) for name, x in leaves.items()}
        for block, leaves in params.items()
    }


# The gradient of a multi-layer perceptron with ReLU, by hand: of the whole, or block by block.


def hidden_blocks(params):
    return sorted(name for name in params if name.startswith("hidden") and "head" not in name)


def cross_entropy(block, h, label):
    """Mean loss of a linear classifier, its gradients, and that with respect to its outputs."""
    z = h @ block["kernel"] + block["bias"]
    z = z - z.max(axis=1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    n = np.arange(len(label))
    loss = -np.log(p[n, label]).mean()
    p[n, label] -= 1
    p /= len(label)
    return loss, {"kernel": h.T @ p, "bias": p.sum(axis=0)}, p


def whole(params, x, label, later=None):
    """Backpropagation: loss and gradients. On the way back blocks may be `later` ones."""
    later = later or params
    hidden, hs, grads = hidden_blocks(params), [x], {}
    for name in hidden:
        hs.append(np.maximum(hs[-1] @ params[name]["kernel"] + params[name]["bias"], 0))
    loss, grads["classifier"], back = cross_entropy(params["classifier"], hs[-1], label)
    back = back @ later["classifier"]["kernel"].T
    for name, h in reversed(list(zip(hidden, hs[:-1], strict=True))):
        back = back * (h @ later[name]["kernel"] + later[name]["bias"] > 0)
        grads[name] = {"kernel": h.T @ back, "bias": back.sum(axis=0)}
        back = back @ later[name]["kernel"].T
    return loss, grads


def greedy(params, x, label):
    """Each block learns from a head of its own, and nothing flows back between blocks."""
    hidden, h, grads = hidden_blocks(params), x, {}
    for name in hidden:
        out = np.maximum(h @ params[name]["kernel"] + params[name]["bias"], 0)
        head = "classifier" if name == hidden[-1] else f"{name}_head"
        loss, grads[head], back = cross_entropy(params[head], out, label)
        back = back @ params[head]["kernel"].T * (out > 0)
        grads[name] = {"kernel": h.T @ back, "bias": back.sum(axis=0)}
        h = out
    return loss, grads


class NumpyHeavyBall:
    """v <- mu v + g, x <- x - gamma v."""

    def __init__(self, params):
        self.moments = {"first": zeros(params)}

    def step(self, x, grads, hyper):
        v = self.moments["first"] = plus(grads, self.moments["first"], hyper["momentum"])
        return plus(x, v, -hyper["learning_rate"])


class NumpyAdam:
    """u, v <- means of g and of g^2; x <- x - gamma u' / (sqrt(v') + eps), their start taken off"""

    def __init__(self, params, first=0.9):
        self.moments, self.count = {"first": zeros(params), "second": zeros(params)}, 0
        self.decays = {"first": first, "second": 0.999}

    def direction(self, grads):
        self.count += 1
        for power, (name, b) in enumerate(self.decays.items(), start=1):
            self.moments[name] = tree(
                lambda m, g, b=b, power=power: b * m + (1 - b) * g**power, self.moments[name], grads
            )
        u, v = (
            tree(lambda m, b=b: m / (1 - b**self.count), self.moments[name])
            for name, b in self.decays.items()
        )
        return tree(lambda u, v: u / (np.sqrt(v) + 1e-8), u, v)

    def step(self, x, grads, hyper):
        return plus(x, self.direction(grads), -hyper["learning_rate"])


OPTIMIZERS = {"sgd": NumpyHeavyBall, "adam": NumpyAdam}


# What a message leaves of an array.

LEVELS = {  # of |v| over the largest of its block
    2: np.array([0, 1]),
    3: np.array([0, 1 / 3, 2 / 3, 1]),
    4: np.array([0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]),
}


def rounded(levels, v, block):
    """Each number of v, (n,), as the nearest level of its block's scale."""
    found = np.zeros(len(v))
    for start in range(0, len(v), block):
        scale = np.abs(v[start : start + block]).max()
        for i, number in enumerate(v[start : start + block], start=start):
            nearest = np.abs(levels * scale - abs(number)).argmin()
            found[i] = np.sign(number) * levels[nearest] * scale
    return found


def compressor(keys):
    """What is sent of an array; None where all of it is."""
    kind, bits = keys.get("compression", ""), keys.get("compression_bits", 32)
    if not kind and bits == 32:
        return None

    def few_bits(v):
        return v if bits == 32 else rounded(LEVELS[bits], v, keys["compression_block"])

    def message(v):
        flat = v.reshape(-1)
        if kind == "sign":
            return np.where(v >= 0, 1.0, -1.0) * np.abs(v).mean()
        if not kind:
            return few_bits(flat).reshape(v.shape)
        largest = np.argsort(-np.abs(flat), kind="stable")
        largest = largest[: int(np.ceil(keys["compression_share"] * v.size))]
        sent = np.zeros(v.size)
        sent[largest] = few_bits(flat[largest])
        return sent.reshape(v.shape)

    return lambda v: tree(message, v)


class PowerSGD:
    """P <- M Q, orthogonalized; Q <- M' P; M ~ P Q', of the nodes' mean M. Vectors are whole."""

    def __init__(self, params, rank):
        first = messages.powersgd(rank).init({"/".join(n): v for n, v in params.items()})
        low = [n for n, v in params.items() if v.ndim == 2 and rank * sum(v.shape) < v.size]
        self.q = dict(zip(low, map(np.float64, first), strict=True))

    def __call__(self, params):
        sent = dict(params)
        for name, q in self.q.items():
            m = params[name] if params[name].shape[0] <= params[name].shape[1] else params[name].T
            p = np.linalg.qr(m @ q)[0]
            self.q[name] = m.T @ p
            low = p @ self.q[name].T
            sent[name] = low if m is params[name] else low.T
        return sent


class NumpyUpdate(NamedTuple):
    """What the timeline and the schedule say of one update."""

    plan: Any
    staleness: Any
    hyper: dict[str, float]

    def of_node(self, i):
        plan, late = jax.tree.map(lambda leaf: leaf[i], self.plan.inner), self.staleness
        return self._replace(plan=plan, staleness=late[i] if np.ndim(late) else late)


# What a node does by itself: `step(update, batch)` and then `params` is x_t.


class NumpySync:
    """x <- x - gamma g(x)"""

    def __init__(self, params, gradient, optimizer, keys):
        self.params, self.gradient, self.keys = params, gradient, keys
        self.groups = keys.get("groups", 1)
        self.optimizer, self.rules = optimizer, [optimizer(params)]

    def step(self, update, batch):
        grads = self.gradient(self.params, batch)
        self.params = self.rules[0].step(self.params, grads, update.hyper)

    def move(self, params):
        """x_t is other parameters."""
        self.params = params


class NumpyAsynchronous(NumpySync):
    """x <- x - gamma g(x_{t - tau}), with fresh blocks of x_t; of C(g + e_i) in place of g"""

    def __init__(self, params, gradient, optimizer, keys):
        super().__init__(params, gradient, optimizer, keys)
        self.versions, self.errors = [params], [zeros(params)] * self.groups

    def version(self, late):
        """Blocks as old as all are, or as (servers,) says: a head is on its block's server."""
        late, blocks = np.asarray(late), [*hidden_blocks(self.params), "classifier"]
        age = {name: int(late if late.ndim == 0 else late[j]) for j, name in enumerate(blocks)}
        age |= dict.fromkeys(self.keys.get("fresh", ()), 0)
        return {
            name: self.versions[-1 - age[name.removesuffix("_head")]][name] for name in self.params
        }

    def step(self, update, batch):
        grads = self.gradient(self.version(update.staleness), batch)
        if message := compressor(self.keys):
            grads = plus(grads, self.errors[update.plan.worker])
            sent = message(grads)
            self.errors[update.plan.worker] = minus(grads, sent)
            grads = sent
        self.apply(grads, update.hyper)

    def apply(self, grads, hyper):
        self.params = self.rules[0].step(self.params, grads, hyper)
        self.versions.append(self.params)

    def move(self, params):
        """x_t is other parameters, also for who reads it where it was written."""
        self.params = self.versions[-1] = params


class NumpyBuffered(NumpyAsynchronous):
    """x <- x - gamma mean_j g_j(what j had read), each of its own part of the batch."""

    def step(self, update, batch):
        late = update.staleness
        grads = [
            self.gradient(self.version(late[j]), batch.part(j, len(late))) for j in range(len(late))
        ]
        self.apply(mean(grads), update.hyper)


class NumpyRingleader(NumpyAsynchronous):
    """G_i: the mean of i's gradients of a round; x <- x - gamma mean_i G_i once each has one.

    In rounds: with the arrival after which each has one, and with the next of each other group.
    Those who come again meanwhile are of the next round.
    """

    def __init__(self, params, gradient, optimizer, keys):
        super().__init__(params, gradient, optimizer, keys)
        self.round, self.next = ([[] for _ in range(self.groups)] for _ in range(2))
        self.seen, self.turns = [0] * self.groups, []

    def step(self, update, batch):
        i = int(update.plan.worker)
        grads = self.gradient(self.versions[self.seen[i]], batch)
        (self.next if self.turns and i not in self.turns else self.round)[i].append(grads)
        if not self.turns and all(self.round):
            self.turns = list(range(self.groups))
        if i in self.turns:
            self.turns.remove(i)
            self.apply(mean([mean(group) for group in self.round]), update.hyper)
            if not self.turns:
                self.round, self.next = self.next, [[] for _ in self.round]
        else:
            self.versions.append(self.params)
        self.seen[i] = len(self.versions) - 1


class NumpyStalePipeline(NumpyAsynchronous):
    """x^s <- x^s - gamma grad_s f(x^1_{t - tau_1}, ...): tau_s = S - s, the last two on stage S.

    In 2bw all tau are 1. Backward it is x_t in no_stash. In predict x_{t - tau} moves on by its
    last step, mu + ... + mu^tau times.
    """

    def step(self, update, batch):
        kind, mu = self.keys["pipeline"], update.hyper["momentum"]
        blocks, ages = [*hidden_blocks(self.params), "classifier"], []
        for j in range(len(blocks)):
            age = 1 if kind == "2bw" else max(len(blocks) - 2 - j, 0)
            ages.append(min(age, len(self.versions) - 1))
        read = self.version(ages)
        if kind == "predict":
            before = self.version([min(a + 1, len(self.versions) - 1) for a in ages])
            for name, age in zip(blocks, ages, strict=True):
                far = sum(mu**i for i in range(1, age + 1))
                read[name] = plus(read[name], minus(read[name], before[name]), far)
        later = self.params if kind == "no_stash" else None
        self.apply(self.gradient(read, batch, later), update.hyper)


class NumpyWorkers:
    """Workers with parameters and an optimizer of their own."""

    def __init__(self, params, gradient, optimizer, keys):
        self.params, self.gradient, self.keys = params, gradient, keys
        self.groups = keys["groups"]
        self.x, self.read = [params] * self.groups, [params] * self.groups
        self.optimizer, self.rules = optimizer, [optimizer(params) for _ in range(self.groups)]
        self.last = None  # who has just read
        self.done, self.exchanges = [0] * self.groups, 0

    def exchanges_now(self, i):
        self.done[i] += 1
        return self.done[i] % self.keys["period"] == 0

    def move(self, params):
        self.params = params


class NumpyElastic(NumpyWorkers):
    """s = a (w_i - w*); w* <- w* + s; w_i <- w_i - gamma g(w_i) - s"""

    def step(self, update, batch):
        i = int(update.plan.worker)
        w = self.x[i]
        after = self.rules[i].step(w, self.gradient(w, batch), update.hyper)
        if self.exchanges_now(i):
            a = self.keys["elasticity"] / self.groups
            s = tree(lambda w, c: a * (w - c), w, self.params)
            self.params, after = plus(self.params, s), minus(after, s)
        self.x[i] = after


class NumpyAsyncLocal(NumpyWorkers):
    """G = e^(-alpha tau) gate(tau) (theta_read - w_i); theta <- theta - eta V(G)

    Delayed Nesterov: Delta <- Delta + G; N-th: m <- b m + Delta / N, V = (1 - c N + c) b m + G / N,
    Delta <- 0; else V = c b m + G / N. Adam: its direction, of first decay b. HeLoCo: m <- b m +
    (1 - b) D, V = D + b m, D of each array the G that is turned toward m.
    """

    def __init__(self, params, gradient, optimizer, keys):
        super().__init__(params, gradient, optimizer, keys)
        self.m, self.delta, self.version = zeros(params), zeros(params), [0] * self.groups
        self.moments = NumpyAdam(params, keys["outer_momentum"])

    def step(self, update, batch):
        i, keys = int(update.plan.worker), self.keys
        self.x[i] = self.rules[i].step(self.x[i], self.gradient(self.x[i], batch), update.hyper)
        self.last = None
        if not self.exchanges_now(i):
            return
        age = self.exchanges - self.version[i]
        weight = np.exp(-keys["age_decay"] * age)
        if keys["age_cutoff"]:
            weight *= np.cos(np.pi / 2 * min(age / keys["age_cutoff"], 1)) ** 2
        self.exchanges += 1
        way = getattr(self, keys["server"])(minus(self.read[i], self.x[i]), weight)
        self.params = plus(self.params, way, -keys["outer_learning_rate"])
        self.x[i] = self.read[i] = self.params
        self.last, self.version[i] = i, self.exchanges

    def nesterov(self, gap, weight):
        b, n = self.keys["outer_momentum"], self.keys["momentum_delay"] or self.groups
        gap, c = tree(lambda g: weight * g, gap), self.keys["momentum_part"] / n
        self.delta = plus(self.delta, gap)
        if self.exchanges % n == 0:
            self.m = tree(lambda m, d: b * m + d / n, self.m, self.delta)
            c, self.delta = 1 - c * n + c, zeros(self.delta)
        return tree(lambda m, g: c * b * m + g / n, self.m, gap)

    def adam(self, gap, weight):
        return self.moments.direction(tree(lambda g: weight * g, gap))

    def heloco(self, gap, weight):
        b = self.keys["outer_momentum"]
        gap = tree(lambda d, m: weight * self.turned(d, m), gap, self.m)
        self.m = tree(lambda m, d: b * m + (1 - b) * d, self.m, gap)
        return plus(gap, self.m, b)

    def turned(self, d, m):
        """HeLoCo's correction of one array, by cases."""
        k = self.keys["correction"]
        size, length = np.linalg.norm(d), np.linalg.norm(m)
        if not length or not size:
            return d
        c, towards, f = (d * m).sum() / size / length, m / length, size / (size + length)
        if c >= self.keys["aligned"]:
            return d
        if c < 0:
            return d - min(-k * c * f, 1) * c * size * towards
        share = min(k * (1 - c) * f, 1)
        u = (1 - share) * d / size + share * towards
        return size * u / np.linalg.norm(u)

    def move(self, params):
        self.params = params
        if self.last is not None:
            self.x[self.last] = self.read[self.last] = params


class NumpyDecoupled(NumpyWorkers):
    """D_m = Theta_m - x_m; v <- mu v + Delta; Theta <- Theta - eta (Delta + mu v);
    x_m, Theta_m <- Theta of those who were merged, of every fragment by itself. Which merge a
    message is in, the clock says."""

    def __init__(self, params, gradient, optimizer, keys):
        super().__init__(params, gradient, optimizer, keys)
        names = fragments(params, keys["fragments"])
        self.parts = [
            SimpleNamespace(names=one, v=zeros(part(params, one)), mail={}, steps=[0] * self.groups)
            for one in names
        ]

    def step(self, update, batch):
        i, plan = int(update.plan.worker), SimpleNamespace(**update.plan.numbers)
        self.x[i] = self.rules[i].step(self.x[i], self.gradient(self.x[i], batch), update.hyper)
        for q, p in enumerate(self.parts):
            p.steps[i] += 1
            if plan.receive[q]:
                theta = p.mail.pop(i)
                self.x[i], self.read[i] = (
                    replaced(params, theta) for params in (self.x[i], self.read[i])
                )
                p.steps[i] = 0
            if plan.send[q] and plan.into[q] != DROPPED:
                gap = minus(part(self.read[i], p.names), part(self.x[i], p.names))
                p.mail[i] = int(plan.into[q]), p.steps[i], gap
            last, many = int(plan.merge[q]), int(plan.merges[q])
            for number in range(last - many + 1, last + 1):
                self.merge(p, number)

    def merge(self, p, number):
        sent = {m: letter for m, letter in p.mail.items() if isinstance(letter, tuple)}
        members = {m: letter for m, letter in sent.items() if letter[0] == number}
        _, steps, gaps = zip(*members.values(), strict=True)
        gap = weighted(np.array(steps) / sum(steps), gaps)
        mu, eta = self.keys["outer_momentum"], self.keys["outer_learning_rate"]
        p.v = plus(gap, p.v, mu)
        theta = plus(part(self.params, p.names), plus(gap, p.v, mu), -eta)
        self.params = replaced(self.params, theta)
        p.mail |= dict.fromkeys(members, theta)


class NumpyAdPsgd(NumpyWorkers):
    """x_i, x_j <- (x_i + x_j) / 2; x_i <- x_i - gamma g(x_i read); x_i read <- x_i"""

    @property
    def params(self):
        return mean(self.x)

    @params.setter
    def params(self, params):
        pass

    def step(self, update, batch):
        i, j = int(update.plan.worker), int(update.plan.numbers["peer"])
        grads = self.gradient(self.read[i], batch)
        met = mean([self.x[i], self.x[j]])
        self.x[j] = met
        self.x[i] = self.read[i] = self.rules[i].step(met, grads, update.hyper)
        self.last = i

    def move(self, params):
        shift = minus(params, self.params)
        self.x = [plus(x, shift) for x in self.x]
        if self.last is not None:
            self.read[self.last] = self.x[self.last]


# What nodes exchange: `step(update, batches)` of all nodes.


class OneNode:
    def __init__(self, nodes, keys, name):
        (self.node,) = nodes

    def step(self, update, batches):
        self.node.step(update, batches[0])

    @property
    def params(self):
        return [self.node.params]


class NumpyNodes:
    """Each makes an update by itself, and then they exchange."""

    def __init__(self, nodes, keys, name):
        self.nodes, self.keys, self.name = nodes, keys, name
        self.start(nodes[0].params)

    def start(self, params):
        pass

    def step(self, update, batches):
        self.before = self.params
        for i, node in enumerate(self.nodes):
            if self.is_there(update.plan, i):
                node.step(update.of_node(i), batches[i])
        self.exchange(update.plan, update.hyper)

    def is_there(self, plan, i):
        return True

    @property
    def params(self):
        return [node.params for node in self.nodes]


class Mean:
    """theta <- theta - D"""

    def __init__(self, theta, keys):
        self.theta, self.m, self.keys = theta, zeros(theta), keys

    def step(self, gap, hyper):
        self.theta = minus(self.theta, gap)


class Scaled(Mean):
    """theta <- theta - a D"""

    def step(self, gap, hyper):
        self.theta = plus(self.theta, gap, -self.keys["outer_learning_rate"])


class Nesterov(Mean):
    """m <- mu m + D; theta <- theta - eta (D + mu m)"""

    def step(self, gap, hyper):
        mu, eta = self.keys["outer_momentum"], self.keys["outer_learning_rate"]
        self.m = plus(gap, self.m, mu)
        self.theta = plus(self.theta, plus(gap, self.m, mu), -eta)


class Slow(Mean):
    """u <- beta u + D / gamma; theta <- theta - a gamma u"""

    def step(self, gap, hyper):
        beta, a = self.keys["slow_momentum"], self.keys["slow_learning_rate"]
        gamma = hyper["learning_rate"]
        self.m = tree(lambda u, d: beta * u + d / gamma, self.m, gap)
        self.theta = plus(self.theta, self.m, -a * gamma)


OUTER = {"diloco": Nesterov, "slowmo": Slow, "sparseloco": Scaled}


class NumpyAveraging(NumpyNodes):
    """D = theta - mean_p x_p(sent), by an outer step to theta, and x <- theta; or (1 - a) theta + a
    x, or theta + (x - x(sent)). Of x - theta + b e is sent what a message leaves of it, and e is
    the rest. Every fragment by itself; who is away has no part in the mean."""

    def start(self, params):
        self.parts, count, self.meetings = [], len(self.nodes), 0
        if self.name == "sparseloco":
            self.keys = {**self.keys, "compression": "top_k"}
        for names in fragments(params, self.keys.get("fragments", 1)):
            x = part(params, names)
            outer = OUTER.get(self.name, Mean)(x, self.keys)
            low = self.keys.get("compression") == "powersgd"
            message = PowerSGD(x, self.keys["compression_rank"]) if low else compressor(self.keys)
            self.parts.append(
                SimpleNamespace(
                    names=names, outer=outer, sent=None, mean=None, is_low=low, message=message
                )
            )
            self.parts[-1].errors = [zeros(x)] * (1 if low else count)

    def exchange(self, plan, hyper):
        for q, p in enumerate(self.parts):
            earlier = p.mean
            if np.ravel(plan.send)[q]:
                p.sent = [part(x, p.names) for x in self.params]
                p.mean = self.sent_mean(p, plan.present)
            if np.ravel(plan.receive)[q]:
                arrived = earlier if np.ravel(plan.waited)[q] else p.mean
                p.outer.step(minus(p.outer.theta, arrived), hyper)
                for node, sent in zip(self.nodes, p.sent, strict=True):
                    x = part(node.params, p.names)
                    node.move(replaced(node.params, self.merged(p.outer.theta, x, sent)))
        if np.any(plan.receive):
            self.meetings += 1
            self.states()

    def sent_mean(self, p, present):
        """theta plus the mean of the messages, or that of the parameters."""
        count, sent = len(self.nodes), p.sent
        if present is not None:
            return weighted(np.asarray(present) / count, sent)
        if not p.message:
            return mean(sent)
        decay, theta = self.keys.get("error_decay", 1.0), p.outer.theta
        gaps = [minus(x, theta) for x in ([mean(sent)] if p.is_low else sent)]
        gaps = [plus(gap, e, decay) for gap, e in zip(gaps, p.errors, strict=True)]
        messages = [p.message(gap) for gap in gaps]
        p.errors = [minus(gap, m) for gap, m in zip(gaps, messages, strict=True)]
        return plus(theta, mean(messages))

    def merged(self, theta, x, sent):
        if self.keys.get("merging") == "correct":
            return plus(theta, minus(x, sent))
        return weighted((1 - self.keys["mixing"], self.keys["mixing"]), (theta, x))

    def states(self):
        """What becomes of the nodes' optimizers at a meeting."""
        for rules in zip(*(node.rules for node in self.nodes), strict=True):
            for name in rules[0].moments:
                if self.keys["inner_state"] == "averaged" or self.is_due(name):
                    met = mean([rule.moments[name] for rule in rules])
                    for rule in rules:
                        rule.moments[name] = met
        if self.keys["inner_state"] == "reset":
            for node in self.nodes:
                node.rules = [node.optimizer(self.nodes[0].params) for _ in node.rules]

    def is_due(self, moment):
        """DES-LOC averages a moment at every so many meetings."""
        return (
            self.name == "des_loc" and self.meetings % self.keys[f"{moment}_moment_meetings"] == 0
        )


class NumpyEager(NumpyNodes):
    """G_i = (D_i + sum_{j != i} D_j of the meeting before) / P; each node its own outer step"""

    def start(self, params):
        self.outer = [Nesterov(params, self.keys) for _ in self.nodes]
        self.past = [zeros(params) for _ in self.nodes]

    def exchange(self, plan, hyper):
        if not np.all(plan.send):
            return
        gaps = [minus(o.theta, x) for o, x in zip(self.outer, self.params, strict=True)]
        for i, (node, outer) in enumerate(zip(self.nodes, self.outer, strict=True)):
            others = self.past[:i] + self.past[i + 1 :]
            outer.step(mean([gaps[i], *others]), hyper)
            node.move(outer.theta)
        self.past = gaps


class NumpySparta(NumpyNodes):
    """x_i[S] <- mean_j x_j[S], of numbers S that all have drawn"""

    def exchange(self, plan, hyper):
        params = [tree(np.copy, x) for x in self.params]
        (names,) = fragments(params[0], 1)
        for n, (block, name) in enumerate(names):
            arrays = [x[block][name] for x in params]
            share = self.keys["averaged_share"]
            chosen = np.asarray(sparse.places(plan.draw, n, arrays[0].size, share))
            at = np.unravel_index(chosen, arrays[0].shape)
            met = sum(array[at] for array in arrays) / len(arrays)
            for array in arrays:
                array[at] = met
        for node, x in zip(self.nodes, params, strict=True):
            node.move(x)


class NumpyDemo(NumpyNodes):
    """m_i <- beta m_i + (theta - x_i); q_i: its k largest of every chunk's DCT, taken off;
    theta <- theta - mean_i q_i, or gamma times its sign"""

    def start(self, params):
        self.theta, self.momenta = params, [zeros(params) for _ in self.nodes]

    def exchange(self, plan, hyper):
        beta, sent = self.keys["momentum_decay"], []
        for i, x in enumerate(self.params):
            self.momenta[i] = plus(minus(self.theta, x), self.momenta[i], beta)
            sent.append(tree(self.fast, self.momenta[i]))
            self.momenta[i] = minus(self.momenta[i], sent[-1])
        way = mean(sent)
        if self.keys["signed"]:
            way = tree(lambda v: hyper["learning_rate"] * np.sign(v), way)
        self.theta = minus(self.theta, way)
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


class NumpyDaso(NumpyNodes):
    """x <- (2 S x + sum_p x_p(sent)) / (2 S + P), S batches after the sending"""

    def start(self, params):
        self.sent = None

    def exchange(self, plan, hyper):
        earlier = self.sent
        if plan.send:
            self.sent = self.params
        if plan.receive:
            s, sent, count = int(plan.waited), earlier, len(self.nodes)
            met = mean(sent if s else self.sent)
            for node in self.nodes:
                total = 2 * s + count
                node.move(weighted((2 * s / total, count / total), (node.params, met)))


def shares(plan, count):
    """P_ij, the share of j's messages that go to i."""
    return np.array([[np.mean(plan.to[j] == i) for j in range(count)] for i in range(count)])


class NumpyGossip(NumpyNodes):
    """x <- P x - gamma g(z), or x <- P (x - gamma g(z)); w <- P w, z = x / w

    Where rows of P sum to 1 too w stays 1. Who is away makes no update and has what its stand-in
    has. Compressed: y_i <- y_i + C(x_i - y_i); x_i <- x_i + c sum_j P_ij (y_j - y_i).
    """

    def start(self, params):
        self.w, self.known = np.ones(len(self.nodes)), [params] * len(self.nodes)

    def is_there(self, plan, i):
        return plan.stand is None or plan.stand[i] == i

    def exchange(self, plan, hyper):
        p, early = shares(plan, len(self.nodes)), self.keys["gossip_order"] == "combine"
        if message := compressor(self.keys):
            after = self.compressed(p, message)
        else:
            w, self.w = self.w, p @ self.w
            pairs = list(zip(self.before, self.params, w, strict=True))
            ways = [minus(z, before) for before, z, _ in pairs]
            sent = [tree(lambda z, w=w: w * z, before) for before, _, w in pairs]
            if not early:
                sent = [plus(x, way) for x, way in zip(sent, ways, strict=True)]
            after = [weighted(row, sent) for row in p]
            if early:
                after = [plus(x, way) for x, way in zip(after, ways, strict=True)]
            after = [tree(lambda x, w=w: x / w, x) for x, w in zip(after, self.w, strict=True)]
        stand = range(len(after)) if plan.stand is None else plan.stand
        for node, other in zip(self.nodes, stand, strict=True):
            node.move(after[other])

    def compressed(self, p, message):
        x, c = self.params, self.keys["consensus_rate"]
        self.known = [plus(y, message(minus(x, y))) for x, y in zip(x, self.known, strict=True)]
        pulls = [minus(weighted(row, self.known), y) for row, y in zip(p, self.known, strict=True)]
        return [plus(x, pull, c) for x, pull in zip(x, pulls, strict=True)]


class NumpyOverGraph(NumpyNodes):
    """D_i = theta_i - sum_j W_ij x_j; theta_i <- theta_i - outer(D_i); x_i <- theta_i"""

    def start(self, params):
        self.outer = [OUTER.get(self.name, Mean)(params, self.keys) for _ in self.nodes]

    def exchange(self, plan, hyper):
        if not np.all(plan.send):
            return
        met = [weighted(row, self.params) for row in shares(plan, len(self.nodes))]
        for node, outer, x in zip(self.nodes, self.outer, met, strict=True):
            outer.step(minus(outer.theta, x), hyper)
            node.move(outer.theta)


class NumpyGasloc(NumpyNodes):
    """g_i = x_i - theta_i; theta_i <- theta_i + eta g_i - (Lambda y)_i + gamma (y_i - y_i before),
    y_i = theta_i + eta g_i, (Lambda y)_i = sum_j W_ij (y_i - y_j), whose rows of W sum to 1"""

    def start(self, params):
        self.begun, self.y = ([params] * len(self.nodes) for _ in range(2))

    def exchange(self, plan, hyper):
        if not np.all(plan.send):
            return
        eta, gamma = self.keys["outer_learning_rate"], self.keys["outer_momentum"]
        pairs = zip(self.params, self.begun, strict=True)
        y = [plus(theta, minus(x, theta), eta) for x, theta in pairs]
        for i, row in enumerate(shares(plan, len(y))):
            pull, moved = minus(y[i], weighted(row, y)), minus(y[i], self.y[i])
            self.begun[i] = plus(minus(y[i], pull), moved, gamma)
            self.nodes[i].move(self.begun[i])
        self.y = y


GRADIENTS = {"local": greedy}
READS = {
    "asynchronous": NumpyAsynchronous,
    "ringmaster": NumpyAsynchronous,  # of what is not dropped
    "buffered": NumpyBuffered,
    "mindflayer": NumpyBuffered,  # of what is not dropped
    "ringleader": NumpyRingleader,
    "elastic": NumpyElastic,
    "async_local_sgd": NumpyAsyncLocal,
    "ad_psgd": NumpyAdPsgd,
    "decoupled": NumpyDecoupled,
}
MIXES = {
    "daso": NumpyDaso,
    "model_averaging": NumpyAveraging,
    "diloco": NumpyAveraging,
    "slowmo": NumpyAveraging,
    "des_loc": NumpyAveraging,
    "sparseloco": NumpyAveraging,
    "eager": NumpyEager,
    "gossip": NumpyGossip,
    "gasloc": NumpyGasloc,
    "sparta": NumpySparta,
    "demo": NumpyDemo,
}
ALONE = {"stale_pipeline": NumpyStalePipeline}  # goes with no other
JOINED = dict.fromkeys(("model_averaging", "diloco", "slowmo"), NumpyOverGraph)


class Batch:
    """Examples of a node, whose `devices` have equal parts one after the other."""

    def __init__(self, x, label, devices):
        self.x, self.label, self.devices = x, label, devices

    def part(self, j, k):
        """Every k-th example of each device, from the j-th on."""
        size = len(self.label) // self.devices
        mine = [d * size + i for d in range(self.devices) for i in range(size) if i % k == j]
        return Batch(self.x[mine], self.label[mine], self.devices)


def run(name, params, updates, images, labels, nodes, devices, keys, optimizer="sgd"):
    """Yields after each update the parameters of the nodes, and the mean loss that it was of.

    `keys` are those of config.method, of several joined a section each.
    """
    names = name.split("+")

    def found(known, other):
        """The class of the part that is in `known`, its keys and its name."""
        part = next((part for part in names if part in known), None)
        section = (keys.get(part, {}) if part else {}) if len(names) > 1 else keys
        return known.get(part, other), section, part

    loss, *_ = found(GRADIENTS, whole)
    mix, outside, mixing = found(JOINED if "gossip" in names else MIXES, None)
    if not mix:
        mix, outside, mixing = found(MIXES, OneNode)
    read, inside, _ = found(READS | ALONE, NumpySync)
    count = 1 if mix is OneNode else nodes
    params, losses = tree(lambda leaf: np.asarray(leaf, np.float64), params), []

    def gradient(x, batch, *later):
        value, grads = loss(x, batch.x, batch.label, *later)
        losses.append(value)
        return grads

    optimizer = OPTIMIZERS[optimizer]
    method = mix([read(params, gradient, optimizer, inside) for _ in range(count)], outside, mixing)
    for update, x, label in zip(updates, images, labels, strict=True):
        x = np.float64(x).reshape(len(x), -1) / 255
        cut = [slice(i * len(x) // count, (i + 1) * len(x) // count) for i in range(count)]
        batches = [Batch(x[rows], label[rows], devices if count > 1 else 1) for rows in cut]
        method.step(update, batches)
        yield method.params, np.mean(losses)
        losses.clear()
