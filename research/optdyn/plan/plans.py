"""A plan of one device: the mini-batch and the algorithms that train soonest, measured here.

A plan is made from programs in which one algorithm each was exchanged. It is then measured as a
whole, in turn with the config's own algorithms, and given up for those where its gain is below the
noise. Of the mini-batches so measured the one with the least updates(B) seconds(B) is taken.
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

CANDIDATES = 3  # mini-batches, where the config has none
SEARCHED = 4  # that tell the largest mini-batch


class Start(NamedTuple):
    """What is known of a config before any program of it is made."""

    run: Run
    convolutions: Layers
    update: Updates
    own: Choice  # of the config
    batch: int  # the config's, or all examples
    programs: int  # that a plan makes, nearly


class Device(NamedTuple):
    """What a config's plans are made of."""

    run: Run
    convolutions: Layers
    update: Updates
    own: Choice  # of the config
    least: Choice  # of the fewest bytes
    batch: int  # the config's, or all examples
    fits: planner.BatchFit  # the largest mini-batch


class Whole(NamedTuple):
    """What was planned of a mini-batch, measured once more as a whole."""

    taken: Choice
    bytes: int
    seconds: Interval  # an update
    planned: Choice
    own_fits: bool  # in memory
    gain: Interval | None  # own over planned seconds; None if there was nothing to compare


def prepare(config: Config) -> Run:
    """The run whose program is measured; raises `ConfigError` where there is nothing to plan."""
    methods = config.methods
    refused = {
        "method.name": not methods.simple or bool(methods.read),
        "parallel.api": config.parallel.api,
        "data.streaming": config.data.streaming,
        "replicas.count": config.replicas.count,
    }
    said = "a plan is of one device of synchronous training that holds the examples (config."
    said += f"method.name = {PLAIN!r}; no parallel.api, streaming or replicas)"
    refuse_first(config, (Join(key, wrong, said) for key, wrong in refused.items()))
    return trainer.prepare(layers.lowered(config.with_(steps=CHUNK), "xla"))


def start(config: Config) -> Start:
    """Raises as `prepare`."""
    run = prepare(config)
    every = layers.convolutions(run)
    own = layers.own(config.model.lowering, every)
    # Of each mini-batch one an exchange, and those that look for the largest.
    exchanges = layers.exchanged(layers.distinct(every), own)
    count = (1 + len(exchanges)) * (len(config.plan.batches) or CANDIDATES) + SEARCHED
    first = min(config.batch_size, run.examples)
    return Start(run, every, layers.updates(run, every), own, first, count)


def device(config: Config) -> Device:
    """The config's programs, and the largest mini-batch within `config.plan.memory`.

    Raises `ConfigError` if no update of one example fits, and as `prepare`.
    """
    run, every, update, own, first, count = start(config)
    update = shown(update, count)
    least = layers.least(update, layers.distinct(every), own, first)
    with ConfigError.at(f"config.plan.memory = {config.plan.memory}", planner.PlanError):
        fits = planner.largest(lambda b: update(b, least).bytes, config.plan.memory, run.examples)
    return Device(run, every, update, own, least, first, fits)


def proof(of: Device) -> Json:
    """The largest mini-batch, of which an update is run, beside one that does not fit."""
    fits, update = of.fits, of.update
    made, terms = update(fits.batch, of.least), layers.terms(of.run, of.convolutions, fits.batch)
    return {
        "batch": fits.batch,
        "bytes": made.bytes,
        "algorithms": of.least,
        "loss_of_an_update": float(made.loop.run(1)[0]),
        "all_examples": fits.batch == of.run.examples,
        "formula": {**terms._asdict(), "total": sum(terms)},
        "data_bytes": made.data,
        "too_large": {"batch": fits.over, "bytes": update(fits.over, of.least).bytes},
    }


def decision(wanted: Plan, of: Device, updates: convergence.Updates) -> Json:
    """The mini-batch and the algorithms that train soonest; `wanted` is `config.plan`."""
    kinds, most = layers.distinct(of.convolutions), of.fits.batch
    first = min(of.batch, most)
    made = {}
    for b in wanted.batches or sorted({first, round(math.sqrt(first * most)), most}):
        around = of.own if of.update(b, of.own).bytes <= wanted.memory else of.least
        made[b] = layers.tables(of.update, kinds, around, b, wanted.memory, wanted.rounds)
    rows = planner.batches(
        made, lambda b: made[b].times, lambda b: made[b].memory, lambda b: made[b].bound
    )
    wholes = {
        row.batch: whole(of.update, of.own, row.batch, layers.chosen(kinds, row.chosen), wanted)
        for row in rows
        if row.feasible
    }
    measured = [
        row._replace(seconds=wholes[row.batch].seconds.median) if row.feasible else row
        for row in rows
    ]
    best = planner.soonest(measured, lambda b: updates(b).median).batch
    return {
        "batches": [described(of, row, wholes.get(row.batch), updates) for row in rows],
        "convolutions": tabled(of, made[best], wholes[best].taken),
        "batch": best,
    }


def whole(update: Updates, own: Choice, batch: int, planned: Choice, wanted: Plan) -> Whole:
    """Measures a planned choice in turn with the config's own, and keeps it if that pays."""
    programs = {"planned": update(batch, planned)}
    own_fits = update(batch, own).bytes <= wanted.memory
    if own_fits and planned != own:
        programs["own"] = update(batch, own)
    seconds = phases.measure({name: p.loop for name, p in programs.items()}, wanted.rounds)
    gain = planner.gain(seconds["own"], seconds["planned"]) if "own" in programs else None
    taken = "planned" if gain is None or planner.pays(gain) else "own"
    return Whole(
        taken=planned if taken == "planned" else own,
        bytes=programs[taken].bytes,
        seconds=planner.interval(seconds[taken]),
        planned=planned,
        own_fits=own_fits,
        gain=gain,
    )


def described(
    of: Device, row: planner.Candidate, found: Whole | None, updates: convergence.Updates
) -> Json:
    """A candidate mini-batch, predicted and measured, as JSON has it."""
    about = {"batch": row.batch, "feasible": row.feasible, "predicted_seconds": row.seconds}
    if found is None:
        return about
    return about | {
        "planned": layers.lowering(of.convolutions, found.planned),
        "own": layers.lowering(of.convolutions, of.own) if found.own_fits else None,
        "gain": found.gain and found.gain._asdict(),
        "lowering": layers.lowering(of.convolutions, found.taken),
        "bytes": found.bytes,
        "seconds": found.seconds._asdict(),
        "examples_per_second": row.batch / found.seconds.median,
        "updates": updates(row.batch)._asdict(),
        "time": planner.time_to_train(updates(row.batch), found.seconds)._asdict(),
    }


def tabled(of: Device, made: layers.Tables, taken: Choice) -> list[Json]:
    """Each distinct convolution, with the tables' rows."""
    return [
        {
            "names": [name for name, layer in of.convolutions.items() if layer == kind],
            **kind._asdict(),
            "seconds": dict(zip(LOWERINGS, np.asarray(made.times[i]).tolist(), strict=True)),
            "bytes": dict(zip(LOWERINGS, np.asarray(made.memory[i]).tolist(), strict=True)),
            "chosen": taken[i],
        }
        for i, kind in enumerate(layers.distinct(of.convolutions))
    ]


def shown(update: Updates, total: int) -> Updates:
    """`update`, with a line on standard error that counts its programs."""
    line, made = Progress("plan", total, unit="program"), set[tuple[int, Choice]]()

    def counted(batch: int, choice: Choice) -> layers.UpdateProgram:
        found = update(batch, choice)
        if (batch, choice) not in made:
            made.add((batch, choice))
            line.show(min(len(made), total - 1), f"mini-batch {batch:,}")
        return found

    return counted
