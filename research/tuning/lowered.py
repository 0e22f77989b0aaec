"""`config.model.lowering = 'measured'`: the fastest algorithm of each convolution, measured once.

The choice is that of a plan without a bound on memory, at the mini-batch that one device computes:
from programs with one algorithm exchanged at a time, measured once more as a whole, and given up if
it does not pay. A file keeps it for every model, mini-batch and machine. What is chosen is then
written out in the config, as if it had been given, so that a workdir says it.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from optdyn import own_code, room
from optdyn.config import default
from optdyn.outputs.files import WorkdirError, read_json, write_json
from optdyn.strategies.method import devices_of
from optdyn.tuning import layers, planner, plans


def resolved(config: ConfigDict, kept: Path, workdir: Path) -> str:
    """What stands for 'measured' in a run's config: as its workdir or the file `kept` has it.

    Otherwise it is measured; '' if the model has no convolutions. Raises what `plans.prepare` does.
    """
    before = read_json(workdir / "config.json")
    if _of(before.get("model", {})) == _of(config.model.to_dict()):
        return str(before["model"]["lowering"])
    alone = plain(config)
    name, known = key(alone), dict[str, Any]()
    with contextlib.suppress(WorkdirError):  # a file that cannot be read: measured anew
        known = read_json(kept)
    if name not in known:
        known[name] = fastest(alone)
        with contextlib.suppress(OSError):  # a folder that cannot be written: measured every time
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, known)
    return str(known[name])


def plain(config: ConfigDict) -> ConfigDict:
    """Synchronous training of the same model, on the mini-batch that one device computes."""
    alone = default()
    for name in ("model", "data", "loss", "plan"):
        alone[name] = config.copy_and_resolve_references()[name]
    nodes, devices = devices_of(config) if config.parallel.api else (1, 1)
    alone.batch_size = max(config.batch_size // (nodes * devices * config.parallel.accumulation), 1)
    alone.model.lowering, alone.data.streaming, alone.data.dirichlet = "", False, 0.0
    return alone


def key(config: ConfigDict) -> str:
    """All that a choice depends on, as text."""
    data = {name: config.data[name] for name in ("name", "image_size")}
    device = [jax.devices()[0].device_kind, os.cpu_count(), os.environ.get("NPROC", "")]
    about = [_of(config.model.to_dict()), data, config.batch_size, device, jax.__version__]
    own = own_code.fingerprint(config, ("model.name",))
    return json.dumps([*about, own] if own else about, sort_keys=True)


def fastest(config: ConfigDict) -> str:
    """Measures `config`, which is `plain`; '' if it has no convolutions."""
    run = plans.prepare(config)
    every = layers.convolutions(run)
    if not every:
        return ""
    kinds, own, batch = layers.distinct(every), layers.own("", every), config.batch_size
    update = plans.shown(layers.updates(run, every), 1 + len(layers.exchanged(kinds, own)))
    wanted = ConfigDict({"memory": room.available() / 2, "rounds": config.plan.rounds})
    made = layers.tables(update, kinds, own, batch, wanted.memory, wanted.rounds)
    planned = layers.chosen(kinds, planner.algorithms(*made).tolist())
    device = plans.Device(run, every, update, own, own, batch, planner.Fit(batch, batch + 1))
    return layers.lowering(every, plans.whole(device, batch, planned, wanted).taken)


def _of(model: Any) -> dict[str, Any]:
    """A model but for its lowering, as JSON has it."""
    return json.loads(json.dumps({k: v for k, v in model.items() if k != "lowering"}))
