"""Who is discarded where an example's cost goes with its content?

`python -m configs.cost_by_content WORKDIR`

8 workers take gradients of 8 MNIST images each, drawn anew, and a gradient takes

    noise * (sum of its images' costs) / 8  seconds             costs have mean 1 over the data

Costs go with the label (those from 5 on cost c times the others) or with the number of pixels that
are not 0; the *heavy* half are labels from 5 on, or images of more pixels than the median. Where
images are `sorted`, all those of a gradient are of the same half, as where like lengths are put
together. An update of those who wait, as in `research/timeline/several.py`, is of

    all            the gradients of all 8                        m = 8, synchronous
    m fastest      the first m; the others are dropped           `k_sync`, arXiv 2602.03802
    S gradients    the first S of whoever is there, and what is  `k_batch_sync`, Rennala SGD,
                   under way is dropped                          arXiv 2305.12387

and of those who don't, of one gradient: `asynchronous`, and Ringmaster (arXiv 2501.16168), which
drops those of R or more updates ago. What a worker will draw and how long that takes is decided by
the seed, the same for all ways and settings. Gradients are real, of an MLP 196-32-10 on 4,000
images of 14 x 14, trained by SGD with momentum for `SECONDS` simulated seconds.

The step and the momentum of every way in every cell are searched on seeds 100 to 103 until no
neighbour, diagonals among them, takes fewer seconds to a training loss of 0.25 of all images;
twenty others report. How long runs are was set after a look at two of the seeds that choose.
Decided before the run, of intervals from seeds drawn again in pairs:

1. A way is *biased* if the share of the heavy half in what it learned from, over that in the data,
   has an interval below 1, and *fair* if it has one between 0.98 and 1.02. Synchronous and
   asynchronous training should be fair everywhere, and all ways where all images cost the same.
2. *It learns something else* if, when the loss is 0.25, the heavy half's loss over the light one's
   is more than synchronous training's, the interval of the ratio above 1. After all `SECONDS` the
   same is asked of the heavy half's held-out error over synchronous training's.
3. Claim 21 *holds* in a cell if the best that waits takes at most 1.1 times the seconds of the best
   that does not, the interval below 1.1; it *fails* if that is above. The best are of the least
   median on the seeds that choose. The same is asked of seconds until both halves are at 0.25. It
   holds of costs by content if the geometric mean over the cells where costs differ does.
"""

import heapq
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from optdyn.basics import seeds
from optdyn.basics.arguments import Parser
from optdyn.basics.files import write_json
from optdyn.config import usual
from optdyn.evidence.arms import WORSE, Rungs, beside, diagonal, momenta, rates
from optdyn.evidence.intervals import mean_ratio, ratio, shown
from optdyn.evidence.lock import blob
from optdyn.evidence.study import Study
from optdyn.problem import shared_data
from optdyn.setup import Data

WORKERS, EXAMPLES, LABELS, HIDDEN, PIXELS = 8, 8, 10, 32, 14
IMAGES, EVALUATED, HEAVY = 4000, 1000, 5
TARGET, BOUND, FAIR = 0.25, 1.1, (0.98, 1.02)
SECONDS, LOOKS = 480.0, 80
CHOOSE, REPORT = tuple(range(100, 104)), tuple(range(20))
ERRORS = ("light error", "heavy error")  # held-out, after SECONDS


class Way(NamedTuple):
    gradients: int  # of an update
    waits: bool  # for gradients of the newest version; what is under way at an update is dropped
    again: bool  # who has delivered begins another at once
    old: float = np.inf  # what was begun so many updates ago, or more, is dropped


class Cell(NamedTuple):
    cost: float  # of a heavy label over a light one; 0: by pixels
    variation: float = 0.3  # of the noise, log-normal of mean 1; 0: none
    sorted: bool = False


WAYS: Mapping[str, Way] = {
    "all": Way(8, True, False),
    **{f"{m} fastest": Way(m, True, False) for m in (2, 4, 6)},
    **{f"{s} gradients": Way(s, True, True) for s in (4, 16)},
    "asynchronous": Way(1, False, True),
    "Ringmaster, R = 8": Way(1, False, True, 8),
}
CELLS: Mapping[str, Cell] = {
    "c = 1": Cell(1),
    "c = 2": Cell(2),
    "c = 4": Cell(4),
    "c = 4, no noise": Cell(4, 0.0),
    "c = 4, sorted": Cell(4, sorted=True),
    "by pixels": Cell(0),
}


class Images(NamedTuple):
    """Of training, and of held-out images; `heavy` (N,) bool, and `cost` (N,) of mean 1."""

    x: np.ndarray
    y: np.ndarray
    heavy: np.ndarray
    cost: np.ndarray


class Line(NamedTuple):
    """Of every update how old its gradients are, its seconds, and which of the draws they are."""

    staleness: np.ndarray  # (T,)
    seconds: np.ndarray  # (T,)
    drawn: np.ndarray  # (T, gradients)


@lru_cache(maxsize=1)
def _loaded() -> Any:
    data = Data(train_examples=IMAGES, image_size=PIXELS)
    return shared_data.load(usual().with_(data=data))


def images(cell: Cell) -> tuple[Images, Images]:
    both = [
        (np.asarray(of["image"], np.float32), of["label"])
        for of in (_loaded().train, _loaded().test)
    ]
    largest = both[0][0].max()
    pixels = [(x.reshape(len(x), -1) > 0).sum(axis=1) for x, _ in both]
    every = []
    for (x, y), count in zip(both, pixels, strict=True):
        heavy = y >= HEAVY if cell.cost else count > np.median(pixels[0])
        cost = np.where(heavy, cell.cost, 1.0) if cell.cost else count.astype(float)
        every.append(Images(x.reshape(len(x), -1) / largest, y, heavy, cost / cost.mean()))
    return every[0], every[1]


def draws(cell: Cell, data: Images, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The images of every gradient, (n, EXAMPLES), in the order in which they are begun, and its
    seconds, (n,); more than can be begun in SECONDS."""
    rng = seeds.generator(seed, "cost by content")
    n = int(3 * WORKERS * SECONDS)
    drawn = rng.integers(len(data.y), size=(n, EXAMPLES))
    if cell.sorted:
        halves = [np.flatnonzero(data.heavy == half) for half in (False, True)]
        of = data.heavy[drawn[:, 0]]
        for half, own in enumerate(halves):
            drawn[of == half] = rng.choice(own, size=(int((of == half).sum()), EXAMPLES))
    scale = np.log(1 + cell.variation**2) ** 0.5
    noise = np.exp(scale * rng.normal(size=n) - scale**2 / 2)
    return drawn, noise * data.cost[drawn].sum(axis=1) / EXAMPLES


def line(way: Way, takes: np.ndarray, until: float) -> Line:
    """The updates in so many seconds, of gradients that take `takes`, one after another."""
    version, begun, now = 0, 0, 0.0
    working, got, made = list[tuple[float, int, int, int]](), list[int](), list[Any]()

    def begin(worker: int) -> None:
        nonlocal begun
        heapq.heappush(working, (now + float(takes[begun]), worker, version, begun))
        begun += 1

    for worker in range(WORKERS):
        begin(worker)
    while working[0][0] <= until:
        now, worker, read, drawn = heapq.heappop(working)
        if version - read >= way.old:
            begin(worker)
            continue
        got.append(drawn)
        if len(got) == way.gradients:
            made.append((version - read, now, got))
            version, got = version + 1, []
            if way.waits:
                working.clear()
                for each in range(WORKERS):
                    begin(each)
                continue
        if way.again:
            begin(worker)
    return Line(*(np.array(each) for each in zip(*made, strict=True)))


def init(key: jax.Array) -> Any:
    a, b = jax.random.split(key)
    return {
        "in": jax.random.normal(a, (PIXELS**2, HIDDEN)) * (2 / PIXELS**2) ** 0.5,
        "b": jnp.zeros(HIDDEN),
        "out": jax.random.normal(b, (HIDDEN, LABELS)) / HIDDEN**0.5,
        "c": jnp.zeros(LABELS),
    }


def logits(params: Any, x: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ params["in"] + params["b"]) @ params["out"] + params["c"]


def losses(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """(B,) cross-entropies."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(params, x)), y[:, None], 1)[:, 0]


@partial(jax.jit, static_argnames="slots")
def trained(x: Any, y: Any, slots: int, of: Any, seed: Any, rate: Any, momentum: Any) -> jax.Array:
    """(1 + LOOKS, P) parameters at every look; `of` has (T,) staleness, looks and images."""
    first, tree = ravel_pytree(init(jax.random.key(seed)))

    def update(carry: Any, event: Any) -> tuple[Any, None]:
        (params, v, table, seen), (t, staleness, look, drawn) = carry, event
        old = table[(t - staleness) % slots] if slots > 1 else params
        v = momentum * v + jax.grad(lambda p: losses(tree(p), x[drawn], y[drawn]).mean())(old)
        params = params - rate * v
        table = table.at[(t + 1) % slots].set(params)
        return (params, v, table, seen.at[look].set(params)), None

    start = (jnp.stack([first] * n) for n in (slots, 1 + LOOKS))
    every = jnp.arange(len(of[0])), *of
    return jax.lax.scan(update, (first, jnp.zeros_like(first), *start), every)[0][3]


@jax.jit
def judged(seen: jax.Array, x: Any, y: Any, groups: Any) -> tuple[jax.Array, jax.Array]:
    """Of parameters (K, P) the mean loss and the mean error of every group, (N, G) bool: (K, G)."""
    _, tree = ravel_pytree(init(jax.random.key(0)))
    share = groups / groups.sum(axis=0)

    def one(p: jax.Array) -> tuple[jax.Array, jax.Array]:
        wrong = logits(tree(p), x).argmax(axis=1) != y
        return losses(tree(p), x, y) @ share, wrong @ share

    return jax.lax.map(one, seen)


def at_target(loss: np.ndarray) -> float:
    """(1 + LOOKS,) losses: the first look at TARGET, between two; infinite if there is none.

    Losses are taken to fall exponentially between looks.
    """
    there = np.flatnonzero(loss <= TARGET)
    if not len(there) or there[0] == 0:
        return 0.0 if len(there) else np.inf
    i = there[0]
    part = np.log(loss[i - 1] / TARGET) / np.log(loss[i - 1] / loss[i])
    return float(i - 1 + part)


class Arm(NamedTuple):
    """A way in a cell: all that runs of it share, and the events of every seed."""

    images: tuple[Images, Images]
    slots: int
    events: Mapping[int, tuple[np.ndarray, ...]]  # by seed: staleness, looks, images of updates


def arm_of(cell: Cell, way: Way) -> tuple[Arm, dict[int, Line]]:
    data = images(cell)
    drawn, lines = {}, {}
    for seed in (*CHOOSE, *REPORT):
        drawn[seed], takes = draws(cell, data[0], seed)
        lines[seed] = line(way, takes, SECONDS)
    late = max(int(of.staleness.max()) for of in lines.values())
    slots = int(2 ** np.ceil(np.log2(late + 2))) if late else 1
    longest = -(-max(len(of.seconds) for of in lines.values()) // 256) * 256
    events = {}
    for seed, of in lines.items():
        looks = np.ceil(of.seconds / SECONDS * LOOKS).astype(int)
        if len(np.unique(looks)) < LOOKS:
            raise ValueError(f"{way}: no update before some look")
        each = of.staleness, looks, drawn[seed][of.drawn].reshape(len(looks), -1)
        padding = longest - len(looks)  # of updates that nobody looks at
        events[seed] = tuple(
            np.concatenate([v, np.full((padding, *v.shape[1:]), fill, v.dtype)])
            for v, fill in zip(each, (0, 1 + LOOKS, 0), strict=True)
        )
    return Arm(data, slots, events), lines


def ran(arm: Arm, seed: int, setting: Rungs) -> dict[str, Any]:
    """What is told of one run; `setting` has rungs of the ladders of steps and of momenta."""
    momentum = momenta(setting[1])
    rate = rates(setting[0]) * (1 - momentum)
    train, test = arm.images
    seen = trained(train.x, train.y, arm.slots, arm.events[seed], seed, rate, momentum)
    some = slice(None, None, IMAGES // EVALUATED)
    halves = np.stack([~train.heavy[some], train.heavy[some]], axis=1)
    loss = np.asarray(judged(seen, train.x[some], train.y[some], halves)[0], float)
    loss = np.where(np.isfinite(loss), loss, np.inf)
    mean = loss @ halves.mean(axis=0)
    groups = np.stack([~test.heavy, test.heavy, *(test.y == k for k in range(LABELS))], axis=1)
    error = np.asarray(judged(seen[-1:], test.x, test.y, groups)[1][0], float).tolist()
    until = at_target(mean)
    at = min(until, float(LOOKS))
    tilt = np.interp(at, range(1 + LOOKS), np.log(loss[:, 1]) - np.log(loss[:, 0]))
    return {
        "seconds": until * SECONDS / LOOKS,
        "both": at_target(loss.max(axis=1)) * SECONDS / LOOKS,  # halves at the target
        "tilt": float(np.exp(tilt)),  # heavy half's loss over the other's, at the target or the end
        "end": float(mean[-1]),
        "light": float(loss[-1, 0]),
        "heavy": float(loss[-1, 1]),
        "light error": error[0],
        "heavy error": error[1],
        "errors": error[2:],  # by label
    }


def tuned(arm: Arm, start: Rungs) -> Rungs:
    """The best setting on the seeds that choose, from two starts; no neighbour is better."""

    @cache
    def cost(setting: Rungs) -> tuple[float, float]:
        each = [ran(arm, seed, setting) for seed in CHOOSE]
        seconds, end = (
            float(np.median([run[name] for run in each])) for name in ("seconds", "end")
        )
        return seconds, end

    def climbed(best: Rungs) -> Rungs:
        while True:
            least = min((*beside(best), *diagonal(best)), key=cost)
            if not cost(least) < (cost(best)[0] / WORSE, cost(best)[1]):
                return best
            best = least

    return min(climbed(start), climbed((start[0] - 2, start[1] + 3)), key=cost)


def row(cell: str, name: str) -> dict[str, Any]:
    """A way in a cell, at its best: every figure a list of the seeds that report."""
    way = WAYS[name]
    arm, lines = arm_of(CELLS[cell], way)
    step = min(way.gradients * EXAMPLES / 64, 1.0) if way.waits else 1 / 16
    best = tuned(arm, (round(np.log2(step)), 2 if way.waits else 0))
    runs = [ran(arm, seed, best) for seed in REPORT]
    chosen = [ran(arm, seed, best) for seed in CHOOSE]
    train, own = arm.images[0], [lines[seed] for seed in REPORT]
    learned = [
        arm.events[seed][2][: len(of.seconds)].ravel() for seed, of in zip(REPORT, own, strict=True)
    ]
    labels = [np.bincount(train.y[each], minlength=LABELS) / len(each) for each in learned]
    return {
        "cell": cell,
        "way": name,
        "step": rates(best[0]),
        "momentum": momenta(best[1]),
        "cost": {of: float(np.median([run[of] for run in chosen])) for of in ("seconds", "both")},
        "share": [float(train.heavy[each].mean() / train.heavy.mean()) for each in learned],
        "labels": (np.mean(labels, axis=0) / (np.bincount(train.y) / IMAGES)).tolist(),
        "updates": float(np.mean([len(of.seconds) for of in own])),
        "dropped": float(np.mean([1 - of.drawn.size / (1 + of.drawn.max()) for of in own])),
        "staleness": float(np.mean([of.staleness.mean() for of in own])),
        **{of: [run[of] for run in runs] for of in runs[0] if of != "errors"},
        "errors": np.mean([run["errors"] for run in runs], axis=0).tolist(),
    }


def word(found: Sequence[float]) -> str:
    """The third rule's word for a ratio with an interval."""
    return "holds" if found[2] < BOUND else "fails" if found[1] > BOUND else "open"


def judgement(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the rules say, a cell at a time and of the cells where costs differ."""
    found: dict[str, Any] = {"ways": {}, "claim": {}}
    sides: dict[str, list[tuple[Any, Any]]] = {"seconds": [], "both": []}
    for cell, of in CELLS.items():
        own = {each["way"]: each for each in rows if each["cell"] == cell}
        for name, each in own.items():
            share = ratio(each["share"], [1.0] * len(REPORT))
            tilt, error = (ratio(each[k], own["all"][k]) for k in ("tilt", "heavy error"))
            fair = FAIR[0] < share[1] and share[2] < FAIR[1]
            found["ways"][f"{cell}, {name}"] = {
                "share": [*share, "fair" if fair else "biased" if share[2] < 1 else "neither"],
                "tilt": [*tilt, "more" if tilt[1] > 1 else "not more"],
                "heavy error": [*error, "more" if error[1] > 1 else "not more"],
            }
        for clock in sides:
            best = [
                min((n for n in own if WAYS[n].waits == waits), key=lambda n: own[n]["cost"][clock])
                for waits in (True, False)
            ]
            both = own[best[0]][clock], own[best[1]][clock]
            if of.cost != 1:
                sides[clock].append(both)
            over = ratio(*both)
            found["claim"][f"{cell}, {clock}"] = [*best, *over, word(over)]
    for clock, cells in sides.items():
        over = mean_ratio(*zip(*cells, strict=True))
        found["claim"][f"where costs differ, {clock}"] = ["", "", *over, word(over)]
    return found


def table(record: Mapping[str, Any]) -> str:
    """In Markdown."""
    lines = [
        "| | dropped | heavy share | seconds | both halves | tilt | light, heavy error | setting |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in record["rows"]:
        said = record["rules"]["ways"][f"{each['cell']}, {each['way']}"]
        middle = {k: float(np.median(each[k])) for k in ("seconds", "both", *ERRORS)}
        cells = [
            f"{each['cell']}, {each['way']}",
            f"{100 * each['dropped']:.0f} %",
            f"{shown(said['share'][:3])} {said['share'][3]}",
            f"{middle['seconds']:.0f}",
            f"{middle['both']:.0f}",
            f"{shown(said['tilt'][:3])} {said['tilt'][3]}",
            f"{middle[ERRORS[0]]:.3f}, {middle[ERRORS[1]]:.3f} {shown(said[ERRORS[1]][:3])}",
            f"{each['step']:g}, {each['momentum']:g}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| | waits | does not | seconds over | |", "|---|---|---|---|---|"]
    for name, (waits, late, *over, says) in record["rules"]["claim"].items():
        lines.append(f"| {name} | {waits} | {late} | {shown(over)} | {says} |")
    return "\n".join(lines)


def main() -> None:
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("workdir", type=Path)
    parser.add_argument(
        "--out", type=Path, help="the record; by default cost_by_content.json there"
    )
    asked = parser.read()
    code, rows = blob(Path(__file__)), []
    with Study(asked.workdir, "cost_by_content", CHOOSE, REPORT) as study:
        for cell in CELLS:
            for name in WAYS:
                rows.append(study.remember(f"{cell}, {name} {code}", row, cell, name))
                print(f"{cell}, {name}: {np.median(rows[-1]['seconds']):.0f} s", flush=True)
    record = {"choose": CHOOSE, "report": REPORT, "rows": rows, "rules": judgement(rows)}
    write_json(asked.out or asked.workdir / "cost_by_content.json", record)
    print(table(record))


if __name__ == "__main__":
    main()
