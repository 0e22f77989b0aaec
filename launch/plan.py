"""What to train with: `python -m launch.plan --config=configs/plan.py --workdir=DIR`.

Zou et al., "Distributed training of large-scale deep architectures" (arXiv 1709.06622), for one
device of `config.plan.memory` bytes and the network of `config.cluster`: the largest mini-batch,
the mini-batch and the algorithm of every convolution that train soonest, how many devices keep
`config.plan.efficiency` (lemma 1), and the parameter servers that hide their communication (lemma
2). Everything is measured on this machine, with the program that `launch.train` runs. The answer is
a table and DIR/plan.json; the same command prints it again.

Updates to train are those at `config.batch_size`; what they are at another mini-batch is known from
`config.plan.noise_scale`, or from `config.plan.runs` at several mini-batches. For want of both the
worst of all noise scales is reckoned with, under which no larger mini-batch pays. `--dry_run` says
what would be measured.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from optdyn.analysis import efficiency, tables
from optdyn.analysis import plan as plan_text
from optdyn.basics.errors import refuse
from optdyn.basics.files import as_json, read_json, write, write_json
from optdyn.basics.progress import end_line, number
from optdyn.basics.trees import bytes_of
from optdyn.config import ConfigError
from optdyn.experiment import Experiment
from optdyn.launch import app, dry
from optdyn.outputs.workdir import claim, text_of
from optdyn.parallel.first_process import own
from optdyn.timeline.network import exchange
from optdyn.training import trainer
from optdyn.training.checks import check
from optdyn.tuning import convergence, layers, planner, plans
from optdyn.tuning.convergence import Updates
from optdyn.tuning.planner import Interval

# What may differ among the runs of one convergence: that of training is chosen for the mini-batch.
VARIED = ("seed", "batch_size", "steps", "log_every", "checkpoint_every")


def run(config: Experiment, workdir: Path) -> dict[str, Any]:
    """The plan: measured, or as `plan.json` of this workdir has it.

    Nothing is written before it is known that an update of one example fits.
    """
    check(config)
    unlike = config.cluster.bandwidths or config.cluster.latencies
    refuse(
        (
            unlike and not (config.plan.overhead and config.plan.server_bandwidth),
            "config.cluster.bandwidths, config.cluster.latencies: the lemmas know one link, by "
            "config.cluster.bandwidth and latency, or config.plan.overhead and server_bandwidth",
        )
    )
    if (workdir / "config.json").exists():
        claim(workdir, config)
        if made := read_json(workdir / "plan.json"):
            return made
    updates, source = updates_to_train(config)
    of = plans.device(config)
    with own(workdir) as folder:
        claim(folder, config)
        write(folder / "config.json", text_of(config))
        return _measured(config, folder, of, updates, source)


def _measured(
    config: Experiment, workdir: Path, of: plans.Device, updates: Updates, source: str
) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "memory": config.plan.memory,
        "largest": plans.proof(of),
        "source": source,
    }
    plan |= plans.decision(config.plan, of, updates)
    (update,) = (row for row in plan["batches"] if row["batch"] == plan["batch"])
    plan |= cluster(config, bytes_of(of.run.params), update["seconds"]["median"])
    write_json(workdir / "plan.json", plan | trainer.provenance(of.run))
    return read_json(workdir / "plan.json")


def updates_to_train(config: Experiment) -> tuple[Updates, str]:
    """How many updates training takes at a mini-batch, and where that is from."""
    wanted, batch = config.plan, config.batch_size
    if wanted.runs and not wanted.updates:
        batches, reached = of_runs(config)
        if len(set(batches)) > 1:
            if wanted.noise_scale:
                raise ConfigError(
                    f"config.plan.noise_scale = {wanted.noise_scale}: the runs of {wanted.runs} at "
                    f"{len(set(batches))} mini-batches have their own; leave it 0"
                )
            noise = convergence.fit(batches, reached).noise
            source = f"{len(reached)} runs of {len(set(batches))} mini-batches, noise scale "
            return convergence.of_runs(batches, reached), source + f"{noise:.4g}"
        batch = batches[0]
        known, source = planner.interval(reached), f"{len(reached)} runs of mini-batch {batch}"
    elif wanted.updates:
        low, median, high = wanted.updates
        known, source = Interval(median, low, high), "config.plan.updates"
    else:
        known, source = Interval(*[config.steps] * 3), "config.steps"
    if not wanted.noise_scale:
        return convergence.unknown(known, batch), f"{source}, the worst of all noise scales"
    updates = convergence.of_noise(known, batch, wanted.noise_scale)
    return updates, f"{source}, noise scale {wanted.noise_scale:.4g}"


def of_runs(config: Experiment) -> tuple[list[int], list[float]]:
    """The mini-batch of every run of `config.plan.runs`, and its updates to `config.plan.loss`.

    Of runs at one mini-batch that differ in what an optimizer is tuned by, those of the best
    setting count.
    """
    wanted = config.plan
    every = tables.points(Path(wanted.runs))
    varied = tables.differing(every)
    for key in varied:
        if key not in VARIED and not efficiency.tunes(key):
            raise ConfigError(
                f"config.plan.runs = {wanted.runs!r}: its runs differ in {key}; they may in the "
                "seed, the mini-batch, and what an optimizer is tuned by"
            )
    tuned = [key for key in varied if efficiency.tunes(key)]
    keys = ["seed", "batch_size", efficiency.MOMENTUM, *tuned]
    named = efficiency.named(tables.runs(every, keys), keys)
    reached = efficiency.with_target(named, tables.metrics(every), wanted.loss)
    best = efficiency.best(reached)
    updates = best["updates_to_target"].to_numpy()
    if len(updates) < 2 or not np.isfinite(updates).all():
        raise ConfigError(
            f"config.plan.loss = {wanted.loss}: {np.isfinite(updates).sum()} of {len(updates)} "
            f"runs of {wanted.runs} reach it; all must, and there must be two or more"
        )
    return best["batch_size"].tolist(), updates.tolist()


def cluster(config: Experiment, size: int, seconds: float) -> dict[str, Any]:
    """Devices by lemma 1 and parameter servers by lemma 2, for T_C = `seconds`, S_p = `size`.

    Devices divide the mini-batch, so that a worker of lemma 2 computes for T_C / N_w.
    """
    wanted, alpha = config.plan, config.plan.efficiency
    overhead = wanted.overhead or exchange(config.cluster, size)
    ratio = overhead / seconds
    count = planner.gpus(ratio, alpha, wanted.devices)
    bandwidth = wanted.server_bandwidth or config.cluster.bandwidth
    needed = planner.parameter_servers(size, count, bandwidth, seconds / count) if bandwidth else 0
    return {
        "devices": {
            "count": count,
            "most": wanted.devices,
            "target_efficiency": alpha,
            "efficiency": planner.efficiency(ratio, count),
            "speedup": planner.speedup(ratio, count),
            "overhead_seconds": overhead,
            "overhead_ratio": ratio,
            "seconds_per_update": planner.seconds_per_update(seconds, overhead, count),
        },
        "servers": {
            "count": needed,
            "parameter_bytes": size,
            "workers": count,
            "bandwidth": bandwidth,
            "compute_seconds": seconds,
        },
    }


def described(config: Experiment) -> Iterator[str]:
    """Lines on what would be measured. Raises what `run` raises."""
    check(config)
    (known, source), of = updates_to_train(config), plans.start(config)
    kinds, batch, begun = layers.distinct(of.convolutions), of.batch, time.monotonic()
    need = of.update(batch, of.own).bytes
    each = time.monotonic() - begun
    wanted = ", ".join(f"{b:,}" for b in config.plan.batches)
    yield f"convolutions    {len(of.convolutions)}, of {len(kinds)} kinds"
    yield f"memory          {config.plan.memory:,} bytes; an update of {batch:,} takes {need:,}"
    yield f"mini-batches    {wanted or f'{batch:,}, the largest that fits, and one in between'}"
    yield f"updates         {known(batch).median:,.0f} at {batch:,}, from {source}"
    yield f"programs        about {of.programs}, to be made and measured"
    yield f"one of them     {number(each)} s to make, less than others if it was kept from before"


def main(config: Experiment, workdir: Path) -> int:
    app.one_run(config)
    plan = run(config, workdir)
    end_line()
    print(as_json(plan) if app.in_json() else plan_text.text(plan))
    return 0


def define() -> None:
    """The flag of this command besides those of all (`app.run`)."""
    flags.DEFINE_bool("json", False, "Print all figures as JSON in place of the tables.")


if __name__ == "__main__":
    define()
    app.run(dry.asked(main, described))
