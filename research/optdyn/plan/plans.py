"""A plan of one device: the mini-batch and the algorithms that train soonest, measured here.

A plan is made from programs in which one algorithm each was exchanged. It is then measured as a
whole, in turn with the config's algorithms, which remain where its gain is below the noise.
"""

import math
from typing import NamedTuple

import numpy as np

from optdyn.base.errors import ConfigError, Join
from optdyn.base.progress import Progress
from optdyn.base.trees import Json
from optdyn.experiment import Config, refuse_first
from optdyn.methods import PLAIN
from optdyn.methods.setup import Plan
from optdyn.plan import convergence, layers, phases, planner
from optdyn.plan.layers import Choice, Layers, Updates
from optdyn.plan.planner import Interval
from optdyn.problem.models.convolution import LOWERINGS
from optdyn.train import trainer
from optdyn.train.program import CHUNK
from optdyn.train.trainer import Run

CANDIDATES = 3  # mini-batches, where the config names none
SEARCHED = 4  # programs that find the largest mini-batch


class Start(NamedTuple):
    """A config's run and algorithms, before any program of it is made."""

    run: Run
    convolutions: Layers
    update: Updates
    choice: Choice  # of the config
    batch: int  # the config's, or all examples
    programs: int  # that a plan makes, about


class Device(NamedTuple):
    run: Run
    convolutions: Layers
    update: Updates
    choice: Choice  # of the config
    smallest: Choice  # of the fewest bytes
    batch: int  # the config's, or all examples
    fits: planner.BatchFit  # the largest mini-batch


class Verified(NamedTuple):
    """The choice for a mini-batch after a plan was measured as a whole."""

    choice: Choice
    bytes: int
    seconds: Interval  # an update
    planned: Choice
    config_fits: bool  # the config's choice, in memory
    gain: Interval | None  # the config's over planned seconds; None if they are not compared


def prepare(config: Config) -> Run:
    """Returns the run whose program is measured; raises `ConfigError` for an unplannable one."""
    methods = config.methods
    refused = {
        "method.name": not methods.simple or bool(methods.read),
        "parallel.api": config.parallel.api,
        "data.streaming": config.data.streaming,
        "replicas.count": config.replicas.count,
    }
    rule = "a plan is of one device of synchronous training that holds the examples (config."
    rule += f"method.name = {PLAIN!r}; no parallel.api, streaming or replicas)"
    refuse_first(config, (Join(key, wrong, rule) for key, wrong in refused.items()))
    return trainer.prepare(layers.with_lowering(config.with_(steps=CHUNK), "xla"))


def start(config: Config) -> Start:
    run = prepare(config)
    convolutions = layers.convolutions(run)
    choice = layers.choice_of_config(config.model.lowering, convolutions)
    # One program an exchange for each mini-batch, and those that look for the largest.
    exchanges = layers.exchanges(layers.distinct(convolutions), choice)
    count = (1 + len(exchanges)) * (len(config.plan.batches) or CANDIDATES) + SEARCHED
    update, batch = layers.updates(run, convolutions), min(config.batch_size, run.examples)
    return Start(run, convolutions, update, choice, batch, count)


def device(config: Config) -> Device:
    """Returns the programs, and the largest mini-batch within memory. Raises `ConfigError`."""
    run, convolutions, update, choice, batch, count = start(config)
    update = with_progress(update, count)
    smallest = layers.smallest(update, layers.distinct(convolutions), choice, batch)
    with ConfigError.at(f"config.plan.memory = {config.plan.memory}", planner.PlanError):
        fits = planner.largest(
            lambda b: update(b, smallest).bytes, config.plan.memory, run.examples
        )
    return Device(run, convolutions, update, choice, smallest, batch, fits)


def proof(device: Device) -> Json:
    """Returns the largest mini-batch, of which an update is run, beside one that does not fit."""
    fits, update = device.fits, device.update
    largest = update(fits.batch, device.smallest)
    terms = layers.terms(device.run, device.convolutions, fits.batch)
    return {
        "batch": fits.batch,
        "bytes": largest.bytes,
        "algorithms": device.smallest,
        "loss_of_an_update": float(largest.loop.run(1)[0]),
        "all_examples": fits.batch == device.run.examples,
        "formula": {**terms._asdict(), "total": sum(terms)},
        "data_bytes": largest.data,
        "too_large": {"batch": fits.over, "bytes": update(fits.over, device.smallest).bytes},
    }


def decision(plan: Plan, device: Device, updates: convergence.Updates) -> Json:
    """Returns the mini-batch and the algorithms that train soonest; `plan` is `config.plan`."""
    kinds, most = layers.distinct(device.convolutions), device.fits.batch
    first = min(device.batch, most)
    tables = {}
    for b in plan.batches or sorted({first, round(math.sqrt(first * most)), most}):
        fits = device.update(b, device.choice).bytes <= plan.memory
        base = device.choice if fits else device.smallest
        tables[b] = layers.tables(device.update, kinds, base, b, plan.memory, plan.rounds)
    rows = planner.batches(
        tables, lambda b: tables[b].times, lambda b: tables[b].memory, lambda b: tables[b].bound
    )
    verified = {}
    for row in rows:
        if row.feasible:
            planned = layers.choice_of_columns(kinds, row.columns)
            verified[row.batch] = verify(device.update, device.choice, row.batch, planned, plan)
    measured = [
        row._replace(seconds=verified[row.batch].seconds.median) if row.feasible else row
        for row in rows
    ]
    best = planner.soonest(measured, lambda b: updates(b).median).batch
    return {
        "batches": [_batch_json(device, row, verified.get(row.batch), updates) for row in rows],
        "convolutions": _convolutions_json(device, tables[best], verified[best].choice),
        "batch": best,
    }


def verify(update: Updates, choice: Choice, batch: int, planned: Choice, plan: Plan) -> Verified:
    """Measures a planned choice in turn with the config's, and keeps it if that pays."""
    programs = {"planned": update(batch, planned)}
    config_fits = update(batch, choice).bytes <= plan.memory
    if config_fits and planned != choice:
        programs["config"] = update(batch, choice)
    seconds = phases.measure({name: p.loop for name, p in programs.items()}, plan.rounds)
    gain = planner.gain(seconds["config"], seconds["planned"]) if "config" in programs else None
    kept = "planned" if gain is None or planner.pays(gain) else "config"
    return Verified(
        choice=planned if kept == "planned" else choice,
        bytes=programs[kept].bytes,
        seconds=planner.interval(seconds[kept]),
        planned=planned,
        config_fits=config_fits,
        gain=gain,
    )


def _batch_json(
    device: Device, row: planner.Candidate, found: Verified | None, updates: convergence.Updates
) -> Json:
    predicted = {"batch": row.batch, "feasible": row.feasible, "predicted_seconds": row.seconds}
    if found is None:
        return predicted
    convolutions = device.convolutions
    return predicted | {
        "planned": layers.lowering(convolutions, found.planned),
        "own": layers.lowering(convolutions, device.choice) if found.config_fits else None,
        "gain": found.gain and found.gain._asdict(),
        "lowering": layers.lowering(convolutions, found.choice),
        "bytes": found.bytes,
        "seconds": found.seconds._asdict(),
        "examples_per_second": row.batch / found.seconds.median,
        "updates": updates(row.batch)._asdict(),
        "time": planner.time_to_train(updates(row.batch), found.seconds)._asdict(),
    }


def _convolutions_json(device: Device, tables: layers.Tables, choice: Choice) -> list[Json]:
    return [
        {
            "names": [name for name, layer in device.convolutions.items() if layer == kind],
            **kind._asdict(),
            "seconds": dict(zip(LOWERINGS, np.asarray(tables.times[i]).tolist(), strict=True)),
            "bytes": dict(zip(LOWERINGS, np.asarray(tables.memory[i]).tolist(), strict=True)),
            "chosen": choice[i],
        }
        for i, kind in enumerate(layers.distinct(device.convolutions))
    ]


def with_progress(update: Updates, total: int) -> Updates:
    """Returns `update`, with a line on standard error that counts its programs."""
    line, programs = Progress("plan", total, unit="program"), set[tuple[int, Choice]]()

    def counted(batch: int, choice: Choice) -> layers.UpdateProgram:
        found = update(batch, choice)
        if (batch, choice) not in programs:
            programs.add((batch, choice))
            line.show(min(len(programs), total - 1), f"mini-batch {batch:,}")
        return found

    return counted
