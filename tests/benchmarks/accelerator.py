"""What a device is to be fast at, in 8 minutes: `python -m tests.benchmarks.accelerator`.

    hand          the trainer's updates a second, and over a hand-written jitted step
    resnet        model FLOP utilization of ResNet-50 on 224 x 224 images, bfloat16
    transformer   the same of the 124M transformer on 1,024 tokens
    asynchronous  one asynchronous update of 16 and of 64 groups over one synchronous
    grid          updates a second of 64 points as one vmapped program over one by one
    sweep         64 points by launch.sweep, vmapped, over 64 processes one by one (2 are timed)
    replicas      replicas a second, files included
    meter         an update of the momentum meter over one without
    loading       examples a second of the loader alone, and streamed updates over those in memory

Every part is a process, so that none has the memory or the failures of another, and ends with the
peak of its memory. On a CPU all sizes are small: what counts there is that it runs. Utilization is
the model's own operations (`research/problem/costs.py`: no recomputing, attention in full) over the
seconds of an update and the device's published peak (`peaks.py`); where none is known, as of a CPU,
over the rate of a product of matrices that is measured beside it, and the table says so. What is
wanted is what others reach on an H200 or near it: llm.c 41 % and torch.compile 37 % with the
transformer, the best of an A100 19.5 % with ResNet-50.
`--only=hand,grid` takes some parts.
"""

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from ml_collections import ConfigDict

from optdyn.basics.errors import InputError
from optdyn.configs import gpt, resnet
from optdyn.problem import costs
from optdyn.problem.problem import Problem
from optdyn.training import batched_runs, program, replicas, trainer
from optdyn.training.program import CHUNK
from tests.benchmarks import loading, meter, sweep
from tests.benchmarks.peaks import product, published
from tests.benchmarks.record import publish
from tests.benchmarks.step_time import by_hand, config_of, in_turn, ours, spread
from tests.values import as_experiment

SECONDS = 460  # of all parts; starting and writing the record take some more
ON_CPU = "import jax, sys; sys.exit(jax.default_backend() == 'cpu')"
Row = dict[str, Any]


def large() -> bool:
    """Whether sizes are real: on whatever is no CPU."""
    return jax.default_backend() != "cpu"


def rounds() -> int:
    return 15 if large() else 3


def hand() -> Iterator[Row]:
    for model, n in {"mlp": CHUNK, "cnn": CHUNK if large() else 32}.items():
        seconds = in_turn({"ours": ours(config_of(model, 1), n), "by hand": by_hand(model, n)}, 5)
        rate = float(1 / np.median(seconds["ours"]))
        yield {"what": f"{model}, updates a second", "median": rate}
        ratio = spread(seconds["ours"] / seconds["by hand"])
        yield {"what": f"{model}, seconds over by hand", **ratio, "wanted": "<= 1.03"}


def utilization(
    config: ConfigDict, batches: list[int], updates: int, wanted: str, rate: str = ""
) -> Iterator[Row]:
    """Of the largest batch that fits; of both that are wanted one is enough."""
    for batch in batches:
        config.batch_size = batch
        try:
            (seconds,) = in_turn({"update": ours(config, updates)}, 3).values()
            break
        except (InputError, jax.errors.JaxRuntimeError) as error:
            if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE" not in str(error):
                raise
            print(f"  batches of {batch} do not fit", flush=True)
    else:
        raise MemoryError(f"not even batches of {batches[-1]} fit")
    operations, best = operations_of(config), float(np.median(seconds))
    dtype = config.model.dtype
    peak, of = published(jax.devices()[0].device_kind), "published peak"
    if peak is None:
        peak, of = product(4096 if large() else 1024, dtype), f"measured {dtype} product"
    rated = {"what": f"examples a second, batches of {batch}", "median": batch / best}
    yield rated | ({"wanted": rate} if rate and large() else {})
    yield {"what": "gigaFLOP an update, by the model", "median": operations / 1e9}
    used = spread(operations / seconds / peak)
    name = f"utilization of the {of}, {peak / 1e12:.3g} teraFLOP/s"
    yield {"what": name, **used, "wanted": wanted if large() else ""}


def operations_of(config: ConfigDict) -> float:
    """Floating-point operations of one update, without those that are done a second time."""
    plain = config.copy_and_resolve_references()
    plain.model.remat = False
    run = trainer.prepare(as_experiment(plain))
    batch = {
        name: jax.ShapeDtypeStruct((plain.batch_size, *leaf.shape[1:]), leaf.dtype)
        for name, leaf in run.data.train.items()
    }
    return operations(program.problem_of(as_experiment(plain), run.data.classes), run.params, batch)


def operations(problem: Problem, params: Any, batch: Any) -> float:
    """Of one update by the whole gradient, from shapes alone."""
    found = costs.block_costs(problem, params, batch)
    return costs.of_groups(found, ((0, len(found.trunk)),)).total


def of_chunk(config: ConfigDict) -> ConfigDict:
    """As `step_time.repeated` takes it: one chunk of updates, data in memory."""
    config.steps = config.log_every = CHUNK
    config.checkpoint_every = config.optimizer.warmup_steps = 0
    config.data.streaming = False
    return config


def images(real: bool) -> ConfigDict:
    config = of_chunk(resnet.get_config("50,synthetic"))
    config.model.norm = "batch"
    if not real:
        config.model.update(stages=(1, 1), channels=(8, 16), dtype="float32")
        config.data.options.update(side=64, classes=10, examples=64)
    return config


def words(real: bool, size: str = "124m") -> ConfigDict:
    config = of_chunk(gpt.get_config(f"{size},synthetic"))
    config.model.dtype, config.model.remat = "bfloat16", False
    if not real:
        config.model.update(blocks=2, width=64, attention_heads=2, dtype="float32")
        config.data.options.update(vocabulary=256, length=64, examples=100)
        config.data.sequence_length = 64
    return config


def resnet50() -> Iterator[Row]:
    sizes = [512, 256, 128, 64] if large() else [8]
    yield from utilization(images(large()), sizes, 20 if large() else 2, ">= 0.12", ">= 5000")


def transformer() -> Iterator[Row]:
    sizes = [64, 32, 16, 8] if large() else [4]
    tokens = ">= 391"  # 400,000 a second, in sequences of 1,024
    yield from utilization(words(large()), sizes, 10 if large() else 2, ">= 0.35", tokens)


def asynchronous() -> Iterator[Row]:
    def of(model: str, groups: int) -> ConfigDict:
        if model != "transformer":
            return config_of(model, groups)
        config = words(large(), "10m")
        config.cluster.nodes, config.strategy.groups = groups, groups
        config.strategy.name = "asynchronous" if groups > 1 else "sync"
        config.batch_size = 32 if large() else 2
        return config

    sizes = {"mlp": CHUNK, "cnn": CHUNK, "transformer": 20} if large() else {"mlp": 32}
    for model, n in {**sizes, "transformer": sizes.get("transformer", 2)}.items():
        timers = {groups: ours(of(model, groups), n) for groups in (1, 16, 64)}
        seconds = in_turn({str(groups): timer for groups, timer in timers.items()}, rounds())
        for groups in ("16", "64"):
            wanted = "<= 1.05" if groups == "16" else ""
            ratio = spread(seconds[groups] / seconds["1"])
            yield {"what": f"{model}, {groups} groups over 1", **ratio, "wanted": wanted}


def grid() -> Iterator[Row]:
    points, runs = 64 if large() else 8, []
    for i in range(points):
        config = config_of("mlp", 1)
        config.model.hidden = (256, 256) if large() else (32,)
        config.seed, config.optimizer.learning_rate = i, 0.001 * (1 + i)
        runs.append(trainer.prepare(as_experiment(config)))
    found = batched_runs.measure(runs, points, 1)
    yield {"what": "updates a second, one by one", "median": found.threads}
    yield {"what": f"updates a second, {points} vmapped", "median": found.vmap}
    yield {"what": "vmapped over one by one", "median": found.vmap / found.threads}


def swept() -> Iterator[Row]:
    """Leaves the device alone: it is the processes'."""
    real = subprocess.run([sys.executable, "-c", ON_CPU]).returncode == 0
    points, updates, few = (64, 300, 2) if real else (4, 50, 2)
    one, _ = sweep.seconds(lambda folder: sweep.separate(few, updates, 1, folder))
    all_, _ = sweep.seconds(lambda folder: sweep.swept(points, updates, "vmap", folder))
    yield {"what": f"{points} points of {updates} updates as one sweep, s", "median": all_}
    yield {
        "what": f"{points} processes, s ({few} of them timed)",
        "median": one * points / few,
    }
    ratio = one * points / few / all_
    wanted = ">= 20" if real else ""
    yield {"what": "processes over sweep, wall clock", "median": ratio, "wanted": wanted}


def recorded() -> Iterator[Row]:
    config = config_of("mlp", 16)
    config.optimizer.momentum = 0.0
    config.steps = config.log_every = 64 if large() else 16
    config.model.hidden = (32,)
    config.data.train_examples = 250
    for block in (1, 64) if large() else (1, 4):
        config.replicas.update(count=256 if large() else 8, block=block)
        for _ in range(2):  # the first one compiles
            with tempfile.TemporaryDirectory() as folder:
                begun = time.perf_counter()
                replicas.record(as_experiment(config), Path(folder) / "replicas")
                seconds = time.perf_counter() - begun
        rate = config.replicas.count / seconds
        yield {"what": f"of {config.steps} updates, {block} at a time", "median": rate}


def metered() -> Iterator[Row]:
    for model in ("mlp", "cnn") if large() else ("mlp",):
        for row in meter.measure(model, rounds()):
            most = row.pop("wanted at most")
            name = f"{row.pop('model')}, {row.pop('ratio')} with it over without"
            yield {"what": name, **row, "wanted": f"<= {most:g}" if most == most else ""}


def loaded() -> Iterator[Row]:
    shapes = {"CIFAR": (32, "18"), "ImageNet": (224, "50")} if large() else {"small": (32, "18")}
    for name, (side, depth) in shapes.items():
        config = resnet.get_config(f"{depth},synthetic")
        config.model.update(norm="batch", stem="whole" if side == 32 else "quarter")
        config.data.options.update(side=side, classes=10, examples=2560 if large() else 100)
        config.batch_size, n = (128, 20) if large() else (8, 2)
        config.checkpoint_every = config.optimizer.warmup_steps = 0
        config.steps = config.log_every = loading.STEPS
        if not large():
            config.model.update(stages=(1, 1), channels=(8, 16), dtype="float32")
        timers = {}
        for way in ("loader", "streamed", "memory"):
            config.data.streaming = way != "memory"
            own = config.copy_and_resolve_references()
            timers[way] = loading.loader(own) if way == "loader" else loading.updates(own, n)
        seconds = in_turn(timers, rounds())
        rates = {way: float(config.batch_size / np.median(each)) for way, each in seconds.items()}
        yield {"what": f"{name}-shaped, examples a second of the loader", "median": rates["loader"]}
        yield {"what": f"{name}-shaped, examples a second trained on", "median": rates["memory"]}
        ratio = spread(seconds["streamed"] / seconds["memory"])
        yield {"what": f"{name}-shaped, streamed over in memory, seconds", **ratio}


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "hand": hand,
    "resnet": resnet50,
    "transformer": transformer,
    "asynchronous": asynchronous,
    "grid": grid,
    "sweep": swept,
    "replicas": recorded,
    "meter": metered,
    "loading": loaded,
}


def peak_memory() -> Row:
    """Of the device, or where it does not say of the process."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return {"what": "peak memory of the device, GB", "median": stats["peak_bytes_in_use"] / 1e9}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"what": "peak memory of the process, GB", "median": most / 1e9}


def alone(part: str) -> None:
    """Prints what a part finds, a line of JSON each."""
    for row in PARTS[part]():
        print(json.dumps({"part": part, **row}), flush=True)
    if part != "sweep":
        print(json.dumps({"part": part, **peak_memory()}), flush=True)


def measured(part: str, seconds: float) -> list[Row]:
    """What a part finds in a process of its own, until it ends, fails or has had its seconds."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, f"--part={part}"]
    usual = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # the sweep's processes want some, too
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        env = {**usual, **os.environ}
        process = subprocess.Popen(command, stdout=out, stderr=err, env=env, start_new_session=True)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        err.seek(0)
        lines, said = out.read().splitlines(), err.read().strip().splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    if process.returncode:
        why = said[-1] if said and process.returncode > 0 else f"stopped after {seconds:.0f} s"
        rows.append({"part": part, "what": f"failed: {why[:200]}"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of all parts")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("workdirs/accelerator.json"))
    given = parser.parse_args()
    if given.part:
        return alone(given.part)
    asked, rows = given.only.split(","), []
    if strange := sorted({*asked} - {*PARTS}):
        parser.error(f"--only={strange[0]}: must be of {', '.join(PARTS)}")
    begun = time.monotonic()
    for part in asked:
        left = given.seconds - (time.monotonic() - begun)
        print(f"{part} ... ({left:.0f} s left)", flush=True)
        found = measured(part, left) if left > 0 else [{"part": part, "what": "no time left"}]
        for row in found:
            print("  ", row["what"], *([f"{row['median']:.4g}"] if "median" in row else []))
        rows += found
    table = pd.DataFrame(rows).fillna({"quartiles": "", "wanted": ""})
    publish(table, given.out, seconds=time.monotonic() - begun, parts=asked)
    return None


if __name__ == "__main__":
    main()
