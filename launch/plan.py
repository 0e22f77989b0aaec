"""What to train with: `python -m launch.plan --config=configs/plan.py --workdir=DIR`.

Zou et al., "Distributed training of large-scale deep architectures" (arXiv 1709.06622), for one
device of `config.plan.memory` bytes and the network of `config.cluster`: the largest mini-batch,
the algorithm of every convolution, how many devices keep `config.plan.efficiency` (lemma 1), the
parameter servers that hide their communication (lemma 2), and the time to train. Everything is
measured on this machine, with the program that `launch.train` runs. The answer is a table and
DIR/plan.json; the same command prints it again.
"""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from analysis import efficiency, tables
from analysis import plan as plan_text
from launch import app
from research import trainer
from research.checks import check
from research.config import ConfigError
from research.models.convolution import LOWERINGS
from research.program import CHUNK, parameter_bytes
from research.timeline.make import exchange
from research.trainer import Run
from research.tuning import layers, planner
from research.tuning.layers import Choice, Layers, Updates
from research.tuning.planner import Interval
from research.workdir import claim, read_json, write_json


def run(config: ConfigDict, workdir: Path) -> dict[str, Any]:
    """The plan: measured, or as `plan.json` of this workdir has it.

    Nothing is written before it is known that an update of one example fits.
    """
    check(config)
    if (workdir / "config.json").exists():
        claim(workdir, config)
        if made := read_json(workdir / "plan.json"):
            return made
    updates, source = updates_to_train(config)
    of = prepare(config)
    every = layers.convolutions(of)
    update, base = layers.updates(of, every), layers.own(config.model.lowering, every)
    first = min(config.batch_size, of.examples)
    say("bytes of programs")
    least = layers.least(update, layers.distinct(every), base, first)
    try:
        fits = planner.largest(lambda b: update(b, least).bytes, config.plan.memory, of.examples)
    except planner.PlanError as error:
        raise ConfigError(f"config.plan.memory = {config.plan.memory}: {error}") from error
    claim(workdir, config)
    plan = {"memory": config.plan.memory, "largest": proof(of, every, update, least, fits)}
    plan |= decision(config.plan, every, update, (base, least), (first, fits.batch))
    seconds = Interval(**plan["update"]["seconds"])
    plan |= cluster(config, parameter_bytes(of.params), seconds.median)
    total = planner.time_to_train(updates, seconds)
    plan["time"] = {"source": source, "updates": updates._asdict(), "seconds": total._asdict()}
    write_json(workdir / "plan.json", plan | trainer.provenance(of))
    return read_json(workdir / "plan.json")


def prepare(config: ConfigDict) -> Run:
    """The run whose program is measured; raises `ConfigError` where there is nothing to plan."""
    refused = {
        "strategy.name": config.strategy.name != "sync",
        "parallel.api": config.parallel.api,
        "data.streaming": config.data.streaming,
        "replicas.count": config.replicas.count,
    }
    for key in (key for key, bad in refused.items() if bad):
        raise ConfigError(
            f"config.{key}: a plan is of one device of synchronous training that holds the "
            "examples (config.strategy.name = 'sync'; no parallel.api, streaming or replicas)"
        )
    measured = config.copy_and_resolve_references()
    measured.steps, measured.model.lowering = CHUNK, "xla"
    return trainer.prepare(measured)


def updates_to_train(config: ConfigDict) -> tuple[Interval, str]:
    """How many updates training takes, and where that is from."""
    wanted = config.plan
    if wanted.updates:
        low, median, high = wanted.updates
        return Interval(median, low, high), "config.plan.updates"
    if not wanted.runs:
        return Interval(*[config.steps] * 3), "config.steps"
    every = tables.points(Path(wanted.runs))
    for key in tables.differing(every):
        if key != "seed":
            raise ConfigError(
                f"config.plan.runs = {wanted.runs!r}: its runs differ in {key}; only those that "
                "differ in nothing but the seed give an interval"
            )
    reached = efficiency.with_target(
        tables.runs(every, ["seed"]), tables.metrics(every), wanted.loss
    )["updates_to_target"]
    if len(reached) < 2 or not np.isfinite(reached).all():
        raise ConfigError(
            f"config.plan.loss = {wanted.loss}: {np.isfinite(reached).sum()} of {len(reached)} "
            f"runs of {wanted.runs} reach it; all must, and there must be two or more"
        )
    batch = every[0].config["batch_size"]
    return planner.interval(reached), f"{len(reached)} runs of mini-batch {batch}"


def proof(
    of: Run, every: Layers, update: Updates, least: Choice, fits: planner.Fit
) -> dict[str, Any]:
    """The largest mini-batch, of which an update is run, beside those that do not fit."""
    made, terms = update(fits.batch, least), layers.terms(of, every, fits.batch)
    larger = {"too_large": fits.over, "quarter_more": math.ceil(1.25 * fits.batch)}
    return {
        "batch": fits.batch,
        "bytes": made.bytes,
        "algorithms": least,
        "loss_of_an_update": float(made.loop.run(1)[0]),
        "all_examples": fits.batch == of.examples,
        "formula": {**terms._asdict(), "total": sum(terms)},
        "data_bytes": made.data,
        **{name: {"batch": b, "bytes": update(b, least).bytes} for name, b in larger.items()},
    }


def decision(
    wanted: Any,
    every: Layers,
    update: Updates,
    choices: tuple[Choice, Choice],
    batches: tuple[int, int],
) -> dict[str, Any]:
    """The mini-batch and the algorithms of the highest throughput, predicted and measured.

    `choices` are the config's own and the one of the fewest bytes, `batches` the config's own and
    the largest that fits.
    """
    kinds, (base, least), (first, most) = layers.distinct(every), choices, batches
    first = min(first, most)
    made = {}
    for b in wanted.batches or sorted({first, round(math.sqrt(first * most)), most}):
        say(f"seconds of updates of {b} examples")
        around = base if update(b, base).bytes <= wanted.memory else least
        made[b] = layers.tables(update, kinds, around, b, wanted.memory, wanted.rounds)
    planned = planner.batch(
        made, lambda b: made[b].times, lambda b: made[b].memory, lambda b: made[b].bound
    )
    best = planned.best
    taken = layers.chosen(kinds, best.chosen)
    programs = {"planned": update(best.batch, taken).loop}
    if update(best.batch, base).bytes <= wanted.memory:
        programs["own"] = update(best.batch, base).loop
    measured = layers.measure(programs, wanted.rounds)
    return {
        "batches": [
            row._asdict()
            | {"bound": made[row.batch].bound, "chosen": layers.chosen(kinds, row.chosen)}
            for row in planned.rows
        ],
        "convolutions": described(every, made[best.batch], taken),
        "update": {
            "batch": best.batch,
            "bytes": update(best.batch, taken).bytes,
            "lowering": layers.lowering(every, taken),
            "predicted_seconds": best.seconds,
            "seconds": planner.interval(measured["planned"])._asdict(),
            "own_lowering": layers.lowering(every, base),
            "own_seconds": float(np.median(measured.get("own", math.inf))),
        },
    }


def described(every: Layers, made: layers.Tables, taken: Choice) -> list[dict[str, Any]]:
    """Each distinct convolution, with the tables' rows."""
    return [
        {
            "names": [name for name, layer in every.items() if layer == kind],
            **kind._asdict(),
            "seconds": dict(zip(LOWERINGS, made.times[i].tolist(), strict=True)),
            "bytes": dict(zip(LOWERINGS, made.memory[i].tolist(), strict=True)),
            "chosen": taken[i],
        }
        for i, kind in enumerate(layers.distinct(every))
    ]


def cluster(config: ConfigDict, size: int, seconds: float) -> dict[str, Any]:
    """Devices by lemma 1 and parameter servers by lemma 2, for T_C = `seconds`, S_p = `size`."""
    wanted, alpha = config.plan, config.plan.efficiency
    overhead = wanted.overhead or exchange(config.cluster, size)
    ratio = overhead / seconds
    count = planner.gpus(ratio, alpha, wanted.devices)
    bandwidth = wanted.server_bandwidth or config.cluster.bandwidth
    needed = planner.parameter_servers(size, count, bandwidth, seconds) if bandwidth else 0
    return {
        "devices": {
            "count": count,
            "most": wanted.devices,
            "target_efficiency": alpha,
            "efficiency": planner.efficiency(ratio, count),
            "speedup": planner.speedup(ratio, count),
            "overhead_seconds": overhead,
            "overhead_ratio": ratio,
        },
        "servers": {
            "count": needed,
            "parameter_bytes": size,
            "workers": count,
            "bandwidth": bandwidth,
            "compute_seconds": seconds,
        },
    }


def say(what: str) -> None:
    """On standard error, for who waits."""
    print(what, file=sys.stderr, flush=True)


def main(config: ConfigDict, workdir: Path) -> int:
    print(plan_text.text(run(config, workdir)))
    return 0


if __name__ == "__main__":
    app.run(main)
