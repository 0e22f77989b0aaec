"""What do samples of old policies cost? `python -m configs.stale_samples WORKDIR`

In asynchronous reinforcement learning not only the gradient is late, but also what it is taken of:
workers sample with policies of some updates ago. Here an image is shown, the policy pi_x draws one
of ten labels, and the reward is 1 if it is right, so that J(x) = mean pi_x(label | image) is known
exactly. A_i is the reward of sample i less the mean of the others' in its batch, and

    late        A grad log pi_y                                  y: the parameters that sampled
    plain       A grad log pi_x                                  x: the newest, as in all below
    ratio       rho A grad log pi_x,   rho = pi_x / pi_y
    truncated   min(rho, 2) A grad log pi_x
    clipped     grad min(rho A, clip(rho, 0.8, 1.2) A)           PPO (arXiv 1707.06347)

`truncated` is what decoupled weights (AReaL, arXiv 2505.24298) are where every sample is used once.
`late` is asynchronous SGD, whose gradients are unbiased at old parameters; `ratio` is unbiased at
the newest ones, `plain` nowhere. Step and momentum of every arm are the best of a grid on seeds 100
to 103, by updates to J = 0.4; twenty others report. Arrivals are those of `asynchronous`.

The meter (`research/dynamics/moments.py`) reads the momentum of eight runs without explicit
momentum, of 800 updates with 16 groups. Decided before the run: a kind *has momentum* if the whole
interval is above 0.47, half of 1 - 1/16, and has none if it is below 0.1.

Then samples whose content decides how long they take: labels from 5 on three times as long as the
others, in the mean, exponential. With 16 workers, seconds until both halves of the labels have a J
of 0.4, if samples of R or more updates ago are dropped, or if nothing is applied while one that old
is on its way (paced).

First runs changed what is asked: J was to be 0.6, which a quarter of the runs without staleness
missed; some of the best settings lay on the edge of a narrower grid; and the mean of all labels was
to be 0.4 in the second part too, which fast labels reached alone. The third run is the record.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from optdyn.analysis import figures
from optdyn.basics import seeds
from optdyn.basics.arguments import Parser
from optdyn.basics.files import write_json
from optdyn.basics.trees import Tree
from optdyn.config import usual
from optdyn.dynamics.moments import NORMAL, NotIdentified, fit
from optdyn.evidence.intervals import ratio, shown
from optdyn.evidence.lock import blob
from optdyn.evidence.study import Study
from optdyn.problem import shared_data
from optdyn.setup import Cluster, Data

KINDS = ("late", "plain", "ratio", "truncated", "clipped")
GROUPS = (1, 4, 16)
LONG_RUN = tuple(2.0**i for i in range(-5, 5))  # steps, rate / (1 - momentum)
MOMENTA = (-0.8, -0.3, 0.0, 0.3, 0.6, 0.9, 0.97)
KEPT = 0.9
CHOOSE, REPORT = tuple(range(100, 104)), tuple(range(20))
BATCH, HIDDEN, LABELS, PIXELS, EXAMPLES, EVALUATED = 32, 16, 10, 14, 4000, 1000
LOOK, TARGET, MOST, CLIP = 10, 0.4, 2.0, 0.2
STEPS = {1: 600, 4: 800, 16: 1600}
READ, READINGS, LEAVES = 800, 8, 256  # updates of a reading, seeds, numbers that are projected on
SLOW, TIMES = 5, 3.0  # the first slow label; how much longer they take
WAYS: Mapping[str, tuple[int, int]] = {  # (drop at R, wait at R); 0: neither
    "all": (0, 0),
    **{f"dropped from {r} on": (r, 0) for r in (8, 16, 32)},
    **{f"paced at {r}": (0, r) for r in (16, 32)},
}


class Line(NamedTuple):
    """Of every update how many ago its samples' policy is, its seconds, and which labels it has."""

    staleness: np.ndarray  # (T,) int
    seconds: np.ndarray  # (T,)
    slow: np.ndarray  # (T,) int8: 1 slow labels, 0 fast ones, -1 all


def arrivals(groups: int, steps: int, seed: int) -> Line:
    """Those of `asynchronous`: memoryless groups, a second each in the mean."""
    config = usual().with_(
        {"strategy.name": "asynchronous", "strategy.groups": groups},
        cluster=Cluster(nodes=groups, seconds_per_example=1 / BATCH),
        batch_size=BATCH,
        steps=steps,
        seed=seed,
    )
    line = config.timeline(steps_per_epoch=steps, update_bytes=0)
    return Line(line.staleness, line.seconds, np.full(steps, -1, np.int8))


def by_content(workers: int, steps: int, seed: int, drop: int = 0, pace: int = 0) -> Line:
    """Workers whose samples take as long as their labels do, half of them slow.

    A sample that is `drop` updates old or older when it arrives is dropped. While one that is on
    its way is `pace` updates old, those that arrive and their workers wait for it; the oldest is
    applied first.
    """
    rng = seeds.generator(seed, "content")
    version, made, waiting = 0, list[tuple[int, float, int]](), list[tuple[int, float, int]]()

    def begun(now: float) -> tuple[float, int, int]:
        slow = int(rng.integers(2))
        mean = 2 * (TIMES if slow else 1.0) / (1 + TIMES)
        return now + float(rng.exponential(mean)), version, slow

    def oldest(working: Sequence[tuple[float, int, int]]) -> list[int]:
        return [read for _, read, _ in working] or [version]

    working = [begun(0.0) for _ in range(workers)]
    heapq.heapify(working)
    while version < steps:
        now, read, slow = heapq.heappop(working)
        if drop and version - read >= drop:
            heapq.heappush(working, begun(now))
        else:
            heapq.heappush(waiting, (read, now, slow))
        while waiting and not (pace and version - min(oldest(working)) >= pace):
            read, _, slow = heapq.heappop(waiting)
            made.append((version - read, now, slow))
            version += 1
            heapq.heappush(working, begun(now))
    staleness, at, slow_ones = zip(*made[:steps], strict=True)
    return Line(np.array(staleness), np.array(at), np.array(slow_ones, np.int8))


def slots_of(lines: Sequence[Line]) -> int:
    """Versions that are kept, of the oldest that is read on: a power of 2."""
    return int(2 ** np.ceil(np.log2(max(line.staleness.max() for line in lines) + 2)))


def policy(params: Tree, x: jax.Array) -> jax.Array:
    """(B, labels) logits."""
    return jax.nn.relu(x @ params["in"] + params["b"]) @ params["out"]


def surrogate(kind: str, params: Tree, old: Tree, x: jax.Array, a: jax.Array, r: jax.Array) -> Any:
    """Whose gradient is minus that of a kind; rewards `r` (B,) of labels `a` drawn by `old`."""
    advantage = r - (r.sum() - r) / (len(r) - 1)
    new, drawn = (
        jnp.take_along_axis(jax.nn.log_softmax(policy(p, x)), a[:, None], 1)[:, 0]
        for p in (params, old)
    )
    rho = jnp.exp(new - jax.lax.stop_gradient(drawn))
    if kind == "clipped":
        return -jnp.minimum(rho * advantage, jnp.clip(rho, 1 - CLIP, 1 + CLIP) * advantage).mean()
    if kind == "ratio":
        return -(rho * advantage).mean()
    weight = jnp.minimum(jax.lax.stop_gradient(rho), MOST) if kind == "truncated" else 1.0
    return -(weight * advantage * new).mean()


def images() -> tuple[jax.Array, jax.Array]:
    """Images and labels, those of fast labels first."""
    data = Data(train_examples=EXAMPLES, image_size=PIXELS)
    train = shared_data.load(usual().with_(data=data)).train
    x, y = np.asarray(train["image"], np.float32).reshape(EXAMPLES, -1), train["label"]
    order = np.argsort(y >= SLOW, kind="stable")
    return jnp.asarray(x[order] / x.max()), jnp.asarray(y[order])


def init(key: jax.Array) -> Tree:
    a, b = jax.random.split(key)
    width = PIXELS**2
    return {
        "in": jax.random.normal(a, (width, HIDDEN)) / width**0.5,
        "b": jnp.zeros(HIDDEN),
        "out": 0.1 * jax.random.normal(b, (HIDDEN, LABELS)) / HIDDEN**0.5,
    }


def sampled(data: Any, by: Tree, key: jax.Array, slow: jax.Array) -> tuple[jax.Array, ...]:
    """A batch of images, of slow or fast labels or all, labels that `by` draws, and rewards."""
    (x, y), (image, drawn) = data, jax.random.split(key)
    fast = (y < SLOW).sum()
    first, end = jnp.where(slow > 0, fast, 0), jnp.where(slow == 0, fast, len(y))
    i = jax.random.randint(image, (BATCH,), first, end)
    a = jax.random.categorical(drawn, policy(by, x[i]))
    return x[i], a, (a == y[i]).astype(jnp.float32)


def gains(data: Any, params: Tree) -> jax.Array:
    """(2,) mean pi(label | image) of fast and of slow labels."""
    x, y = (each[:: EXAMPLES // EVALUATED] for each in data)
    right = jnp.take_along_axis(jax.nn.softmax(policy(params, x)), y[:, None], 1)[:, 0]
    of = jnp.stack([y < SLOW, y >= SLOW])
    return (right * of).sum(axis=1) / of.sum(axis=1)


def trained(
    data: Any, kind: str, slots: int, metered: bool, staleness: Any, slow: Any, *numbers: Any
) -> tuple[jax.Array, Any]:
    """One run, of seed, rate and momentum: `gains` every LOOK updates.

    If it is `metered`, of every update its step and another gradient, of new samples of x_t, too;
    both on LEAVES of the parameters' numbers.
    """
    seed, rate, momentum = numbers
    key = jax.random.key(seed)
    params = init(jax.random.fold_in(key, 0))
    table = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (slots, *leaf.shape)), params)
    places = np.random.default_rng(0).choice(HIDDEN * (PIXELS**2 + LABELS + 1), LEAVES, False)

    def some(tree: Tree) -> jax.Array:
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])[places]

    def update(carry: Any, t: jax.Array) -> tuple[Any, tuple[jax.Array, ...]]:
        params, v, table = carry
        old = jax.tree.map(lambda leaf: leaf[(t - staleness[t]) % slots], table)
        own, other = jax.random.split(jax.random.fold_in(key, t + 1))
        at = old if kind == "late" else params
        g = jax.grad(partial(surrogate, kind))(at, old, *sampled(data, old, own, slow[t]))
        v = jax.tree.map(lambda v, g: momentum * v + g, v, g)
        new = jax.tree.map(lambda leaf, v: leaf - rate * v, params, v)
        moved: tuple[jax.Array, ...] = ()
        if metered:
            fresh = sampled(data, params, other, jnp.int8(-1))
            true = jax.grad(partial(surrogate, "late"))(params, params, *fresh)
            moved = some(jax.tree.map(jnp.subtract, new, params)), some(true)
        table = jax.tree.map(lambda leaf, n: leaf.at[(t + 1) % slots].set(n), table, new)
        return (new, v, table), moved

    def looked(carry: Any, start: jax.Array) -> tuple[Any, Any]:
        carry, moved = jax.lax.scan(update, carry, start + jnp.arange(LOOK))
        return carry, (gains(data, carry[0]), moved)

    begun = params, jax.tree.map(jnp.zeros_like, params), table
    starts = jnp.arange(0, staleness.shape[0], LOOK)
    _, (seen, moved) = jax.lax.scan(looked, begun, starts)
    return seen, jax.tree.map(lambda leaf: leaf.reshape(-1, LEAVES), moved)


def runs(
    data: Any, kind: str, lines: Sequence[Line], cases: Sequence[tuple[int, float, float]]
) -> Any:
    """(cases, looks, 2) `gains`."""
    of = np.array([case[0] for case in cases])
    staleness = np.stack([line.staleness for line in lines])[of]
    slow = np.stack([line.slow for line in lines])[of]
    momentum = np.array([case[2] for case in cases])
    rate = np.array([case[1] for case in cases]) * (1 - momentum)
    slots = slots_of(lines)

    @jax.jit
    def every(*each: jax.Array) -> jax.Array:
        def one(own: tuple[jax.Array, ...]) -> jax.Array:
            return trained(data, kind, slots, False, *own)[0]

        return jax.lax.map(one, each, batch_size=32)

    return np.asarray(every(staleness, slow, of, rate, momentum))


def reached(seen: np.ndarray, at: np.ndarray) -> float:
    """Where J, (looks,), reaches the target, on the axis `at`; infinite if it does not."""
    there = np.flatnonzero(seen >= TARGET)
    if not len(there):
        return np.inf
    i = there[0]
    if i == 0:
        return float(at[0])
    part = (TARGET - seen[i - 1]) / (seen[i] - seen[i - 1])
    return float(at[i - 1] + part * (at[i] - at[i - 1]))


def tuned(data: Any, kind: str, lines: Mapping[int, Line], clock: str) -> dict[str, Any]:
    """The best step and momentum on the seeds that choose, and what it takes on the others.

    By updates the mean of all labels counts, by seconds that of the half that is behind.
    """
    points = list(product(LONG_RUN, MOMENTA))
    looks = slice(LOOK - 1, None, LOOK)

    def goal(run: np.ndarray) -> np.ndarray:
        return run.min(axis=1) if clock == "seconds" else run.mean(axis=1)

    def taken(own: Sequence[int], cases: Sequence[tuple[float, float]]) -> np.ndarray:
        chosen, took = [lines[seed] for seed in own], []
        counts = np.arange(LOOK, len(chosen[0].seconds) + 1, LOOK)
        seen = runs(data, kind, chosen, [(i, *case) for case in cases for i in range(len(own))])
        for run, line in zip(seen, chosen * len(cases), strict=True):
            at = line.seconds[looks] if clock == "seconds" else counts
            took.append(reached(goal(run), at))
        return np.reshape(took, (len(cases), len(own)))

    cost = dict(zip(points, np.median(taken(CHOOSE, points), axis=1).tolist(), strict=True))
    best = min(points, key=lambda point: cost[point])
    kept = min((p for p in points if p[1] == KEPT), key=lambda point: cost[point])
    found = taken(REPORT, [best, kept])
    return {
        "step": best[0],
        "momentum": best[1],
        "edge": [best[0] in (LONG_RUN[0], LONG_RUN[-1]), best[1] in (MOMENTA[0], MOMENTA[-1])],
        clock: found[0].tolist(),
        f"{clock} with {KEPT}": found[1].tolist(),
        "cost": [[cost[step, momentum] for momentum in MOMENTA] for step in LONG_RUN],
    }


def reading(data: Any, kind: str, lines: Sequence[Line], step: float) -> dict[str, Any]:
    """The momentum that the meter fits to runs without explicit momentum, all together."""
    one = jax.jit(partial(trained, data, kind, slots_of(lines), True))
    every = [one(line.staleness, line.slow, s, step, 0.0)[1] for s, line in enumerate(lines)]
    try:
        found = fit([(np.asarray(moved), np.asarray(true)) for moved, true in every])
    except NotIdentified as error:
        return {"step": step, "refused": str(error)}
    ends = found.momentum + np.array([-1, 1]) * NORMAL * found.momentum_error
    return {"step": step, "momentum": [found.momentum, *ends.tolist()], "p": found.p}


def of_kind(data: Any, kind: str, groups: int) -> dict[str, Any]:
    """A kind with so many groups: its best setting, and of the most groups what the meter reads."""
    lines = {s: arrivals(groups, STEPS[groups], s) for s in (*CHOOSE, *REPORT)}
    row = {"kind": kind, "groups": groups, **tuned(data, kind, lines, "updates")}
    if groups == GROUPS[-1]:
        short = [Line(*(each[:READ] for each in lines[seed])) for seed in REPORT[:READINGS]]
        best = int(np.array(row["cost"])[:, MOMENTA.index(0.0)].argmin())
        steps = LONG_RUN[best], LONG_RUN[best] / 4
        row["read"] = [reading(data, kind, short, step) for step in steps]
    return row


def of_way(data: Any, name: str) -> dict[str, Any]:
    """A way with old samples: how old they are, how many are of slow labels, its best setting."""
    drop, pace = WAYS[name]
    lines = {
        s: by_content(GROUPS[-1], STEPS[GROUPS[-1]], s, drop, pace) for s in (*CHOOSE, *REPORT)
    }
    late = np.concatenate([line.staleness for line in lines.values()])
    share = np.mean([line.slow.mean() for line in lines.values()])
    row = {"way": name, "staleness": float(late.mean()), "slow share": float(share)}
    return row | tuned(data, "truncated", lines, "seconds")


def measured(study: Study) -> dict[str, Any]:
    """Everything, a row at a time; one that has ended is not done again by the same code."""
    data, code = images(), blob(Path(__file__))

    def row(function: Callable[..., dict[str, Any]], *of: Any) -> dict[str, Any]:
        found: dict[str, Any] = study.remember(f"{of} {code}", function, data, *of)
        print({key: value for key, value in found.items() if key != "cost"}, flush=True)
        return found

    # Where nothing is stale all kinds are the same.
    kinds = [each for each in product(GROUPS, KINDS) if each[0] > 1 or each[1] == KINDS[0]]
    rows = [row(of_kind, kind, groups) for groups, kind in kinds]
    ways = [row(of_way, name) for name in WAYS]
    return {"choose": list(CHOOSE), "report": list(REPORT), "rows": rows, "ways": ways}


def table(record: Mapping[str, Any]) -> str:
    """In Markdown, over training without staleness, and over taking all."""
    alone = record["rows"][0]["updates"]
    lines = ["| | groups | updates over none late | momentum chosen | 0.9 kept | momentum read |"]
    lines.append("|---|---|---|---|---|---|")
    for row in record["rows"]:
        kept = ratio(row[f"updates with {KEPT}"], row["updates"])
        read = "; ".join(
            shown(of["momentum"]) if "p" in of else "refused" for of in row.get("read", ())
        )
        over = shown(ratio(row["updates"], alone))
        at = f"{row['momentum']:g}" + "*" * row["edge"][1]
        lines.append(
            f"| {row['kind']} | {row['groups']} | {over} | {at} | {shown(kept)} | {read} |"
        )
    every = record["ways"][0]["seconds"]
    lines += ["", "| | staleness | slow samples | seconds over all |", "|---|---|---|---|"]
    for row in record["ways"]:
        share, over = f"{100 * row['slow share']:.0f} %", shown(ratio(row["seconds"], every))
        lines.append(f"| {row['way']} | {row['staleness']:.1f} | {share} | {over} |")
    return "\n".join(lines)


def picture(record: Mapping[str, Any]) -> Figure:
    figure, axes = figures.new(5.6, 3.6)
    alone = record["rows"][0]["updates"]
    for kind in KINDS:
        rows = [row for row in record["rows"] if row["kind"] == kind and row["groups"] > 1]
        value, low, high = np.array([ratio(row["updates"], alone) for row in rows]).T
        x = [row["groups"] - 1 for row in rows]
        axes.errorbar(x, value, [value - low, high - value], marker="o", ms=4, label=kind)
    axes.set(xscale="log", yscale="log", xlabel="mean staleness of the samples, updates")
    axes.set_ylabel(f"updates to J = {TARGET}, over none late")
    axes.set_xticks([g - 1 for g in GROUPS[1:]], [str(g - 1) for g in GROUPS[1:]])
    axes.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    axes.axhline(1, color="#999999", lw=0.8, zorder=0)
    axes.minorticks_off()
    figures.legend(figure)
    return figure


def main() -> None:
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--out", type=Path, help="the record; by default stale_samples.json there")
    parser.add_argument("--picture", type=Path, help="an SVG")
    asked = parser.read()
    with Study(asked.workdir, "stale_samples", CHOOSE, REPORT) as study:
        record = measured(study)
    write_json(asked.out or asked.workdir / "stale_samples.json", record)
    print(table(record))
    if asked.picture:
        asked.picture.write_text(figures.svg(picture(record)))


if __name__ == "__main__":
    main()
