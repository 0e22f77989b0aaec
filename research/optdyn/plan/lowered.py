"""`config.model.lowering = 'measured'`: the fastest algorithm of each convolution, measured once.

The choice is that of a plan without a bound on memory, at the mini-batch that one device computes:
from programs with one algorithm exchanged at a time, measured once more as a whole, and given up if
it does not pay. A file keeps it for every model, mini-batch and machine. What is chosen is then
written out in the config, as if it had been given, so that a workdir says it.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import jax

from optdyn.base import lookup
from optdyn.base.files import WorkdirError, read_json, write_json
from optdyn.base.trees import Json
from optdyn.experiment import Config
from optdyn.plan import layers, planner, plans
from optdyn.train import memory_checks


def resolved(config: Config, kept: Path, workdir: Path) -> str:
    """What stands for 'measured' in a run's config: as its workdir or the file `kept` has it.

    Otherwise it is measured; '' if the model has no convolutions. Raises what `plans.prepare` does.
    """
    before = read_json(workdir / "config.json")
    if _of(before.get("model", {})) == _of(config.to_dict()["model"]):
        return str(before["model"]["lowering"])
    alone = plain(config)
    name, known = key(alone), Json()
    with contextlib.suppress(WorkdirError):  # a file that cannot be read: measured anew
        known = read_json(kept)
    if name not in known:
        known[name] = fastest(alone)
        with contextlib.suppress(OSError):  # a folder that cannot be written: measured every time
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, known)
    return str(known[name])


def plain(config: Config) -> Config:
    """Synchronous training of the same model, on the mini-batch that one device computes."""
    nodes, devices = config.methods.devices(config) if config.parallel.api else (1, 1)
    batch = max(config.batch_size // (nodes * devices * config.parallel.accumulation), 1)
    return Config(
        model=config.model.with_(lowering="") if config.model.lowering else config.model,
        data=config.data.with_(streaming=False, dirichlet=0.0),
        loss=config.loss,
        plan=config.plan,
        batch_size=batch,
    )


def key(config: Config) -> str:
    """All that a choice depends on, as text."""
    data = {"name": config.data.name, "image_size": getattr(config.data, "image_size", 0)}
    device = [jax.devices()[0].device_kind, os.cpu_count(), os.environ.get("NPROC", "")]
    about = [_of(config.to_dict()["model"]), data, config.batch_size, device, jax.__version__]
    own = lookup.fingerprint(config, ("model.name",))
    return json.dumps([*about, own] if own else about, sort_keys=True)


def fastest(config: Config) -> str:
    """Measures `config`, which is `plain`; '' if it has no convolutions."""
    run = plans.prepare(config)
    every = layers.convolutions(run)
    if not every:
        return ""
    kinds, own, batch = layers.distinct(every), layers.own("", every), config.batch_size
    update = plans.shown(layers.updates(run, every), 1 + len(layers.exchanged(kinds, own)))
    wanted = config.plan.with_(memory=int(memory_checks.available() / 2))
    made = layers.tables(update, kinds, own, batch, wanted.memory, wanted.rounds)
    planned = layers.chosen(kinds, planner.algorithms(*made).tolist())
    return layers.lowering(every, plans.whole(update, own, batch, planned, wanted).taken)


def _of(model: Mapping[str, object]) -> Json:
    """A model but for its lowering, as JSON has it."""
    return json.loads(json.dumps({k: v for k, v in model.items() if k != "lowering"}))
