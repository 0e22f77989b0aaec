"""`config.model.lowering = 'measured'`: the fastest algorithm of each convolution, measured once.

The choice is that of a plan without a bound on memory, at the mini-batch that one device computes.
A file keeps it for each model, mini-batch and machine; the config has it as if the user had set it.
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
    """Returns the choice for 'measured', from the workdir, the file `kept`, or measured now.

    It is '' if the model has no convolutions. Raises as `plans.prepare`.
    """
    before = read_json(workdir / "config.json")
    if _model_json(before.get("model", {})) == _model_json(config.to_dict()["model"]):
        return str(before["model"]["lowering"])
    synchronous = plain(config)
    name, known = key(synchronous), Json()
    with contextlib.suppress(WorkdirError):  # a file that cannot be read: measured anew
        known = read_json(kept)
    if name not in known:
        known[name] = fastest(synchronous)
        with contextlib.suppress(OSError):  # a folder that cannot be written: measured every time
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, known)
    return str(known[name])


def plain(config: Config) -> Config:
    """Returns synchronous training of the model, on the mini-batch that one device computes."""
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
    """Returns all that a choice depends on, as text."""
    data = {"name": config.data.name, "image_size": getattr(config.data, "image_size", 0)}
    device = [jax.devices()[0].device_kind, os.cpu_count(), os.environ.get("NPROC", "")]
    model = _model_json(config.to_dict()["model"])
    parts = [model, data, config.batch_size, device, jax.__version__]
    code = lookup.fingerprint(config, ("model.name",))
    return json.dumps([*parts, code] if code else parts, sort_keys=True)


def fastest(config: Config) -> str:
    """Measures the fastest choice for a `plain` config; '' if it has no convolutions."""
    run = plans.prepare(config)
    convolutions = layers.convolutions(run)
    if not convolutions:
        return ""
    kinds, batch = layers.distinct(convolutions), config.batch_size
    base = layers.choice_of_config("", convolutions)
    programs = 1 + len(layers.exchanges(kinds, base))
    update = plans.with_progress(layers.updates(run, convolutions), programs)
    plan = config.plan.with_(memory=int(memory_checks.available() / 2))
    tables = layers.tables(update, kinds, base, batch, plan.memory, plan.rounds)
    planned = layers.choice_of_columns(kinds, planner.algorithms(*tables).tolist())
    return layers.lowering(convolutions, plans.verify(update, base, batch, planned, plan).choice)


def _model_json(model: Mapping[str, object]) -> Json:
    return json.loads(json.dumps({k: v for k, v in model.items() if k != "lowering"}))
