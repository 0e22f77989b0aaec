"""The notebooks' grids, under two minutes each: `--config=analysis/notebooks/grids.py:TABLE`."""

import itertools
from collections.abc import Iterator

import optdyn as od
from optdyn.train.grid import Point

MLP: Point = {"model.name": "mlp", "model.hidden": (32,)}
GROUPS = 8  # whose losses `implicit_momentum` compares with those of momentum 1 - 1/g


def get_config(table: str) -> od.Grid:
    return TABLES[table]()


def implicit_momentum() -> od.Grid:
    base = od.config("grids/implicit_momentum").base.with_(log_every=5, checkpoint_every=0)
    return od.Grid(base, [*fits(), *equivalents(), metered()])


def fits() -> Iterator[Point]:
    for model, replicas in (("quadratic", 2000), ("mlp", 200)):
        for point in od.config(f"grids/implicit_momentum:{model}").points:
            name = f"{model}-{point['name']}"
            yield {**point, "name": name, "replicas.count": replicas}


def asynchronous(groups: int) -> Point:
    return {
        "method.name": "asynchronous",
        "method.groups": groups,
        "cluster.nodes": groups,
        "cluster.service.name": "exponential",
    }


def equivalents() -> Iterator[Point]:
    """Yields asynchronous at rate alpha; synchronous at alpha / g, momentum 1 - 1/g, and alpha."""
    alpha = 0.05
    methods: dict[str, Point] = {
        "asynchronous": {
            **asynchronous(GROUPS),
            "optimizer.learning_rate": alpha,
        },
        "momentum": {
            "method.name": "sync",
            "optimizer.momentum": 1 - 1 / GROUPS,
            "optimizer.learning_rate": alpha / GROUPS,
        },
        "plain": {
            "method.name": "sync",
            "optimizer.learning_rate": alpha,
        },
    }
    for name, method in methods.items():
        for seed in range(5):
            yield {
                "name": f"{name}-seed{seed}",
                **MLP,
                **method,
                "steps": 200,
                "seed": seed,
            }


def metered() -> Point:
    return {
        "name": "meter",
        **MLP,
        **asynchronous(4),
        "data.train_examples": 0,
        "data.replacement": False,
        "batch_size": 64,
        "optimizer.learning_rate": 0.2,
        "steps": 2000,
        "log_every": 400,
        "probes.momentum": True,
        "probes.window": 400,
        "probes.every": 400,
    }


def tradeoff() -> od.Grid:
    """Returns the quickstart grid's batches of 64: momentum 0.9 and tuned, at 1 to 16 groups."""
    whole = od.config("grids/quickstart")
    trained = (point for point in whole.points if not point["name"].startswith(("fit", "meter")))
    return od.Grid(whole.base, [point for point in trained if point["batch_size"] == 64])


def daso() -> od.Grid:
    """Returns 20 epochs at 0.3 Gb/s: blocking, and an exchange every 2, 4, 8 batches throughout."""
    base = od.config("grids/daso").base.with_(
        {"method.cooldown_epochs": 2}, steps=20 * 31, checkpoint_every=0
    )
    return od.Grid(base, exchanges())


def exchanges() -> Iterator[Point]:
    for batches in (0, 2, 4, 8):
        for seed in range(3):
            yield {
                "name": f"every{batches}-seed{seed}" if batches else f"blocking-seed{seed}",
                "method.max_batches": max(batches, 1),
                "method.wait": max(batches // 4, 1),
                "method.warmup_epochs": 2 if batches else 20,
                "method.patience": 20,  # no plateau: B and W stay
                "cluster.bandwidth": 0.3e9 / 8,
                "seed": seed,
            }


def dynamic_batch() -> od.Grid:
    disturbed, unlike = (
        od.config(f"grids/dynamic_batch:{name}") for name in ("disturbed", "heterogeneity")
    )
    few_seeds = [point for point in disturbed.points if point["seed"] < 3]
    return od.Grid(disturbed.base, [*few_seeds, *unlike.points])


def local_parallelism() -> od.Grid:
    whole = od.config("grids/local")
    base = whole.base.with_({"data.train_evaluated": 1000}, steps=400, log_every=40)
    return od.Grid(base, [{**point, "model.width": 64} for point in whole.points])


def when_asynchrony_pays() -> od.Grid:
    base = od.Experiment(
        model=od.MLP(hidden=(32,)),
        data=od.MNIST5k(train_evaluated=1000, test_evaluated=100),
        method=od.Asynchronous(),
        checkpoint_every=0,
    )
    return od.Grid(base, penalties())


def penalties() -> Iterator[Point]:
    # Best long-run step and momentum of the page's map, and twice the updates that they take.
    best = {
        (4, 1): (0.088, 0.3, 2600),
        (4, 4): (0.062, 0.3, 3200),
        (4, 16): (0.044, 0.3, 4000),
        (64, 1): (1.4, 0.8, 200),
        (64, 4): (0.25, 0.3, 700),
        (64, 16): (0.18, 0.0, 1200),
    }
    for (batch, groups), (step, momentum, updates) in best.items():
        for factor, seed in itertools.product((0.5, 1.0, 2.0), range(3)):
            yield {
                "name": f"batch{batch}-g{groups}-step{factor * step:.3g}-seed{seed}",
                "batch_size": batch,
                "method.groups": groups,
                "cluster.nodes": groups,
                "optimizer.learning_rate": round(factor * step * (1 - momentum), 6),
                "optimizer.momentum": momentum,
                "steps": updates,
                "log_every": updates // 50,
                "seed": seed,
            }


TABLES = {
    table.__name__: table
    for table in (
        implicit_momentum,
        tradeoff,
        daso,
        dynamic_batch,
        local_parallelism,
        when_asynchrony_pays,
    )
}
