"""Plans the resources of training: `python -m launch.plan --config=configs/plan.py --workdir=DIR`.

Zou et al., "Distributed training of large-scale deep architectures" (arXiv 1709.06622), for a
device of `config.plan.memory` bytes and the network of `config.cluster`: the largest mini-batch,
the mini-batch and convolution algorithms that train fastest, the number of devices that keeps
`config.plan.efficiency` (lemma 1), and the parameter servers that hide their communication (lemma
2). All is measured on this machine with the program that `launch.train` runs. The result is a
table and DIR/plan.json; the same command prints it again.

Training takes `config.steps` updates at `config.batch_size`, and at other mini-batches as many as
`config.plan.noise_scale` implies. 0 is the worst noise scale, for which no larger mini-batch pays.
`--dry_run` says what would be measured.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from optdyn.base.errors import Join
from optdyn.base.files import as_json, read_json, write, write_json
from optdyn.base.progress import end_line, number
from optdyn.base.trees import bytes_of
from optdyn.cli import app, train
from optdyn.clock.network import round_trip
from optdyn.devices.first_process import hold_workdir
from optdyn.experiment import Config, refuse_first
from optdyn.plan import convergence, layers, planner, plans
from optdyn.plan.convergence import Updates
from optdyn.plan.planner import Interval
from optdyn.report import plan as plan_text
from optdyn.train import trainer
from optdyn.train.checks import check
from optdyn.train.workdir import claim, text_of


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Returns the plan, measured or from the workdir's `plan.json`."""
    check(config)
    line = "the lemmas know one link, by config.cluster.bandwidth and latency"
    keys = ("bandwidths", "latencies")
    joins = (Join(f"cluster.{key}", getattr(config.cluster, key), line) for key in keys)
    refuse_first(config, joins)
    if (workdir / "config.json").exists():
        claim(workdir, config)
        if stored := read_json(workdir / "plan.json"):
            return stored
    updates, source = updates_to_train(config)
    device = plans.device(config)
    with hold_workdir(workdir) as folder:
        claim(folder, config)
        write(folder / "config.json", text_of(config))
        plan: dict[str, Any] = {"memory": config.plan.memory}
        plan |= {"largest": plans.proof(device), "source": source}
        plan |= plans.decision(config.plan, device, updates)
        (update,) = (row for row in plan["batches"] if row["batch"] == plan["batch"])
        plan |= cluster(config, bytes_of(device.run.params), update["seconds"]["median"])
        write_json(folder / "plan.json", plan | trainer.provenance(device.run))
        return read_json(folder / "plan.json")


def updates_to_train(config: Config) -> tuple[Updates, str]:
    """Returns the updates that training takes, by mini-batch, and the source of that."""
    known, batch, noise = Interval(*[config.steps] * 3), config.batch_size, config.plan.noise_scale
    if not noise:
        return convergence.from_all_noise_scales(
            known, batch
        ), "config.steps, the worst of all noise scales"
    return convergence.from_noise_scale(
        known, batch, noise
    ), f"config.steps, noise scale {noise:.4g}"


def cluster(config: Config, size: int, seconds: float) -> dict[str, Any]:
    """Returns devices by lemma 1 and servers by lemma 2, for T_C = `seconds`, S_p = `size` bytes.

    Devices divide the mini-batch, so that a worker of lemma 2 computes for T_C / N_w.
    """
    alpha, most = config.plan.efficiency, config.plan.devices
    overhead = round_trip(config.cluster, size)
    ratio = overhead / seconds
    count = planner.gpus(ratio, alpha, most)
    bandwidth = config.cluster.bandwidth
    needed = planner.parameter_servers(size, count, bandwidth, seconds / count) if bandwidth else 0
    return {
        "devices": {
            "count": count,
            "most": most,
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


def dry_run_lines(config: Config) -> Iterator[str]:
    """Yields lines on what would be measured. Raises what `run` raises."""
    check(config)
    (known, source), start = updates_to_train(config), plans.start(config)
    kinds, batch, begun = layers.distinct(start.convolutions), start.batch, time.monotonic()
    need = start.update(batch, start.choice).bytes
    seconds = time.monotonic() - begun
    batches = ", ".join(f"{b:,}" for b in config.plan.batches)
    yield f"convolutions    {len(start.convolutions)}, of {len(kinds)} kinds"
    yield f"memory          {config.plan.memory:,} bytes; an update of {batch:,} takes {need:,}"
    yield f"mini-batches    {batches or f'{batch:,}, the largest that fits, and one in between'}"
    yield f"updates         {known(batch).median:,.0f} at {batch:,}, from {source}"
    yield f"programs        about {start.programs}, to be made and measured"
    yield f"one of them     {number(seconds)} s to make, less than others if it was cached"


def main(config: Config, workdir: Path) -> int:
    app.check_kind(config)
    plan = run(config, workdir)
    end_line()
    print(as_json(plan) if app.in_json() else plan_text.text(plan))
    return 0


if __name__ == "__main__":
    flags.DEFINE_bool("json", False, "Print all figures as JSON in place of the tables.")
    app.run(train.with_dry_run(main, dry_run_lines))
