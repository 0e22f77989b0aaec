"""Simulated seconds against real ones over links of a known rate (`links.md`).

    python -m analysis.benchmarks.links                # all rows, about 35 minutes on 2 quiet cores
    python -m analysis.benchmarks.links --minutes=9    # as many as fit; the same command goes on
    python -m analysis.benchmarks.links --only=delay,loss    # links that take time or lose packets

A process is a node, bound to a core, behind a link that `tc` shapes (`shaped.py`). Measured in
turn, by all nodes at once:

    link       a plain TCP transfer around the ring
    small      an all-reduce of 1 kB by the carrier of the method's messages; while the node
               computes, if the exchange is beside the computing
    step       updates of plain SGD on one node, without a network
    own        updates of the method on one node, with the work on its messages
    together   updates of the method on all nodes, over the links

The method's clock simulates a node that computes as long as `own`, with the bandwidth of `link` and
the latency of `small`: there and back, as gloo's receiver asks before it is sent to. Rows that the
record has are skipped, unless `--again`.
"""

import json
import os
import platform
import subprocess
import sys
import threading
import time
from argparse import SUPPRESS
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import pandas as pd
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import optdyn as od
from analysis.benchmarks import shaped
from analysis.benchmarks.record import options, publish
from optdyn import methods
from optdyn.base import processes
from optdyn.base.files import write_json
from optdyn.base.trees import bytes_of
from optdyn.cli import cache
from optdyn.clock.timeline import Timeline
from optdyn.devices import overlap
from optdyn.experiment import Config
from optdyn.price.shapes import model_shapes
from optdyn.train import loop, program, trainer
from optdyn.train.run import Run

MARK = "found: "
ROW_SECONDS, START_SECONDS = 150, 90  # that a row and a job's start may take, or it is ended
SMALL, BESIDE = 25, 8  # all-reduces of 1 kB, one after the other, by gloo and by the hosts
PLAIN = 0.25  # seconds of the link's rate in a plain transfer
MEASURED = ("link", "turn", "small", "sent", "step", "own", "together")
SECONDS = ["measured", "simulated", "step", "own", "waiting", "wire", "latency", "rest"]
WANTED = {"median": 1.10, "worst": 1.25}


class MLPSize(NamedTuple):
    """An MLP whose exchange over such a link takes about as long as its computing."""

    hidden: tuple[int, ...]
    batch: int  # examples of a node, of which there are 4,000 for all

    def examples(self, nodes: int) -> int:
        return min(self.batch, 4000 // nodes)


SIZES = {
    20: MLPSize((64,), 2000),
    100: MLPSize((256, 128), 2000),
    1000: MLPSize((1024, 1024), 256),
    5000: MLPSize((2048, 2048), 128),
}


class LinkRow(NamedTuple):
    method: str
    megabits: int  # a second, of each link in each direction
    period: int = 1  # updates; of DASO its batches
    nodes: int = 2
    delay: float = 0.0  # ms that a packet is under way, each way
    loss: float = 0.0  # % of the packets to each node

    def __str__(self) -> str:
        far = [f"{name} {x:g}" for name, x in zip(self._fields[4:], self[4:], strict=True) if x > 0]
        return " ".join([*far, *map(str, self[:4])])

    @property
    def updates(self) -> int:
        return max(8, self.period, min(2 * self.period, 16))


# The methods, by updates from one exchange to the next.
METHODS: Mapping[str, Callable[[int], od.Method]] = {
    "sync": lambda h: od.Sync(),
    "local SGD": lambda h: od.ModelAveraging(period=h),
    "DiLoCo": lambda h: od.DiLoCo(period=h),
    "streaming": lambda h: od.DiLoCo(period=h, fragments=4, delay=h // 8),
    "DASO": lambda h: od.DASO(
        max_batches=h, wait=max(h // 4, 1), warmup_epochs=0, cooldown_epochs=0
    ),
    "top-k": lambda h: od.ModelAveraging(period=h, compression="top_k", compression_share=0.05),
    "gossip": lambda h: od.Gossip(graph="complete", gossip_order="adapt"),
}
BY_HOSTS = ("streaming", "DASO")  # whose exchange the hosts carry, beside the computing
PERIODS = {"sync": (1,), "gossip": (1,), "DASO": (2, 8, 32), "streaming": (8, 16, 32)}
PERIODS |= {"DiLoCo": (1, 8, 32, 128)}
DEFAULT_PERIODS = (1, 8, 32)
FAR = (("sync", 1), ("local SGD", 1), ("local SGD", 8), ("DiLoCo", 8))
DELAYS, LOSSES = (2.0, 20.0), (0.1, 1.0)


def all_rows() -> list[LinkRow]:
    pairs = [
        LinkRow(method, megabits, period)
        for megabits in SIZES
        for method in METHODS
        for period in PERIODS.get(method, DEFAULT_PERIODS)
    ]
    four = [
        LinkRow(method, megabits, period, nodes=4)
        for megabits in (100, 1000)
        for method, period in (("sync", 1), ("DiLoCo", 8), ("streaming", 8), ("gossip", 1))
    ]
    far = [
        LinkRow(method, megabits, period, **link)
        for link in [{"delay": ms} for ms in DELAYS] + [{"loss": share} for share in LOSSES]
        for megabits in (100, 1000)
        for method, period in FAR
    ]
    return pairs + four + far


def row_of(found: Mapping[str, Any]) -> LinkRow:
    return LinkRow(*(found[name] for name in LinkRow._fields))


def config_of(row: LinkRow, nodes: int, api: str, plain: bool = False) -> Config:
    """Returns the row's method, or plain SGD, on this number of nodes."""
    size = SIZES[row.megabits]
    return Config(
        model=od.MLP(hidden=size.hidden),
        optimizer=od.SGD(learning_rate=0.01),
        method=METHODS["sync" if plain else row.method](row.period),
        cluster=od.Cluster(nodes=nodes, service=od.Constant()),
        batch_size=size.examples(row.nodes) * nodes,
        steps=row.updates,
        log_every=row.updates,
        checkpoint_every=0,
        parallel=od.Parallel(api=api),
    )


def line_of(config: Config) -> Timeline:
    """Returns the timeline of a config by its method's clock, as one epoch."""
    shapes = model_shapes(config)
    model_info = methods.ModelInfo(shapes.problem, shapes.params, shapes.examples)
    return config.timeline(
        steps_per_epoch=config.steps, update_bytes=shapes.bytes, model_info=model_info
    )


def timer(run: Run, n: int, around: Callable[[], Any] = nullcontext) -> Callable[[], float]:
    """Returns a timer of the first n updates, called as the trainer calls them, inside `around`."""
    with around():
        state, examples, events, indices, _ = loop.advance_arguments(run, n)

    def padded(leaf: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [leaf, np.zeros((program.CHUNK - len(leaf), *leaf.shape[1:]), leaf.dtype)]
        )

    events = events._replace(plan=jax.tree.map(padded, line_of(run.config).plan))

    def once() -> float:
        nonlocal state
        with around():
            start = time.perf_counter()
            state, infos = run.program.advance(state, examples, events, indices, n)
        assert np.isfinite(np.asarray(infos["loss"])[:n]).all()
        return time.perf_counter() - start

    return once


def api_of(row: LinkRow) -> str:
    return "overlap" if row.method in BY_HOSTS else "shard_map"


@contextmanager
def single_process() -> Iterator[None]:
    """Makes a process of a job the only process, with one device, while it lasts."""
    carrier, local = ThreadPoolExecutor(1), jax.local_devices()[:1]
    with (
        mock.patch.object(jax, "process_count", return_value=1),
        mock.patch.object(jax, "devices", return_value=local),
        mock.patch.object(jax, "device_count", return_value=1),
        mock.patch.object(overlap.ring, "process_ring", return_value=carrier.submit),
    ):
        yield


def single_process_run(row: LinkRow, plain: bool = False) -> Run:
    """Returns the method, or plain SGD, on this process's device, as the same kind of program."""
    with single_process():
        return trainer.prepare(config_of(row, 1, "shard_map" if plain else api_of(row), plain))


def of_nodes(value: Any) -> np.ndarray:
    """Returns the values of all processes, (nodes, ...) float64."""
    return np.asarray(multihost_utils.process_allgather(np.float32(value))).astype(float)


def measure(
    row: LinkRow, ring: shaped.RingNeighbours, rounds: int, ordinary: bool = False
) -> dict[str, Any]:
    """Returns the measurements of the row's processes; all must call this together."""
    prefer = row.method not in BY_HOSTS and row.nodes <= (os.cpu_count() or 1)
    shaped.preferred(False)  # heartbeats would wait until all is compiled
    run = trainer.prepare(config_of(row, row.nodes, api_of(row)))
    n, size = row.updates, int(row.megabits * 1e6 / 8 * PLAIN)
    timers = {
        "step": timer(single_process_run(row, plain=True), n, single_process),
        "own": timer(single_process_run(row), n, single_process),
        "together": timer(run, n),
    }
    small = busy_sum(timers["step"]) if row.method in BY_HOSTS else small_sum()
    found: dict[str, list[float]] = {name: [] for name in MEASURED}
    for timed in timers.values():
        timed()  # compiles
    small(), ring.turns(20)
    shaped.preferred(prefer and not ordinary)
    for _ in range(rounds):
        found["link"].append(size / ring.ring(size))
        found["turn"].append(ring.turns(50))
        multihost_utils.sync_global_devices("together")
        found["small"] += [small() / (2 * (row.nodes - 1)) for _ in range(2)]
        for name, timed in timers.items():
            multihost_utils.sync_global_devices("together")
            before = shaped.sent_bytes(f"node{jax.process_index()}")
            found[name].append(timed() / n)
            if name == "together":
                after = shaped.sent_bytes(f"node{jax.process_index()}")
                found["sent"].append((after - before) / n)
    together = {name: of_nodes(values).tolist() for name, values in found.items()}
    return together | {"parameter_bytes": bytes_of(run.params)}


def small_sum() -> Callable[[], float]:
    """Returns a timer of an all-reduce of 1 kB by gloo, the mean of some."""

    def body(_: Any, x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, "node") / jax.lax.axis_size("node")

    mesh = Mesh(np.array(jax.devices()), "node")
    loop = partial(jax.lax.fori_loop, 0, SMALL, body)
    compiled = jax.jit(jax.shard_map(loop, mesh=mesh, in_specs=P(), out_specs=P()))
    ones = jax.device_put(np.ones(256, np.float32), NamedSharding(mesh, P()))

    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(ones))
        return (time.perf_counter() - start) / SMALL

    return once


def busy_sum(computing: Callable[[], float]) -> Callable[[], float]:
    """Returns a timer of an all-reduce of 1 kB by the hosts, beside the computing."""
    begin_sum = overlap.ring.joined()

    def once() -> float:
        beside = threading.Thread(target=computing)
        beside.start()
        time.sleep(0.01)
        start = time.perf_counter()
        for _ in range(BESIDE):
            begin_sum(partial(np.ones, 256, np.float32)).result()
        seconds = (time.perf_counter() - start) / BESIDE
        beside.join()
        return seconds

    return once


def work(rows: Iterable[LinkRow], rounds: int, ordinary: bool) -> None:
    cache.enable()
    processes.initialize()
    ring = shaped.neighbours(jax.process_index(), jax.process_count())
    for row in rows:
        found = measure(row, ring, rounds, ordinary)
        if processes.is_writer():
            print(MARK + json.dumps(row._asdict() | found), flush=True)


def simulated(row: LinkRow, **keys: Any) -> float:
    config = config_of(row, row.nodes, "").with_({f"cluster.{k}": v for k, v in keys.items()})
    return float(line_of(config).seconds[-1]) / row.updates


def account(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds an update of a row, measured and simulated, and their parts.

    They are those of the round with the median ratio of the two, since the machine's pace changes.
    """
    rounds = len(found["together"][0])
    accounts = sorted((_account(found, i) for i in range(rounds)), key=itemgetter("ratio"))
    ends = {"least": accounts[0]["ratio"], "most": accounts[-1]["ratio"]}
    return {**row_of(found)._asdict(), **accounts[rounds // 2], **ends}


def _account(found: Mapping[str, Any], i: int) -> dict[str, float]:
    row = row_of(found)
    step, computing, link, together = (
        np.array(found[name])[:, i] for name in ("step", "own", "link", "together")
    )

    def clock(service: np.ndarray, **network: float) -> float:
        mean = float(service.mean())
        seconds = mean / SIZES[row.megabits].examples(row.nodes)
        speeds = tuple((mean / service).tolist())
        return simulated(row, seconds_per_example=seconds, speeds=speeds, **network)

    bandwidth, latency = float(link.min()), float(np.median(found["small"]))
    computed, wired = clock(computing), clock(computing, bandwidth=bandwidth)
    whole = clock(computing, bandwidth=bandwidth, latency=latency)
    nominal = row.megabits * 1e6 / 8 * shaped.PAYLOAD / shaped.FRAME
    measured = float(together.max())  # until the last node has it
    return {
        "Mbit/s": bandwidth * 8e-6,
        "measured": measured,
        "simulated": whole,
        "ratio": measured / whole,
        "step": float(step.mean()),
        "own": float(computing.mean() - step.mean()),
        "waiting": computed - float(computing.mean()),
        "wire": wired - computed,
        "latency": whole - wired,
        "rest": measured - whole,
        "ratio by step": measured / clock(step, bandwidth=bandwidth, latency=latency),
        "ratio by rate": measured / clock(computing, bandwidth=nominal),
    }


def run_rows(rows: list[LinkRow], options: list[str], until: float) -> Iterator[dict[str, Any]]:
    """Yields the rows' measurements, a job a link; none begins after the second `until`."""
    link = attrgetter("nodes", "delay", "loss", "megabits")
    for (nodes, delay, loss, megabits), job_rows in groupby(sorted(rows, key=link), link):
        if time.monotonic() < until:
            with shaped.network(nodes, delay / 1e3) as network:
                network.shape(megabits * 1e6)
                if loss:
                    network.lose(loss / 100)
                yield from _job(network, list(job_rows), options, until)


def _job(
    network: shaped.Network, rows: list[LinkRow], options: list[str], until: float
) -> Iterator[dict[str, Any]]:
    worker = [sys.executable, "-m", "analysis.benchmarks.links", *options]
    worker.append(f"--work={json.dumps(rows)}")
    late, enough = threading.Event(), False
    with subprocess.Popen(
        shaped.job_command(network, worker), stdout=subprocess.PIPE, text=True
    ) as job:

        def end_late() -> None:
            late.set()
            job.terminate()  # what it does to its processes, and once more, kills them
            time.sleep(10)
            job.terminate()

        def watch(seconds: float) -> threading.Timer:
            timer = threading.Timer(seconds, end_late)
            timer.daemon = True
            timer.start()
            return timer

        timer = watch(START_SECONDS + ROW_SECONDS)
        try:
            assert job.stdout
            for line in job.stdout:
                if MARK not in line:
                    print(line, end="", file=sys.stderr)
                    continue
                timer.cancel()
                yield json.loads(line.partition(MARK)[2])
                if enough := time.monotonic() > until:
                    job.terminate()
                    break
                timer = watch(ROW_SECONDS)
            job.wait()
        finally:
            timer.cancel()
            if job.poll() is None:
                job.terminate()
    if late.is_set():
        raise SystemExit(f"a row of {rows[0].nodes} nodes took over {ROW_SECONDS} s, and was ended")
    if job.returncode and not enough:
        reason = f"the job of {rows[0].nodes} nodes ended with {job.returncode}"
        raise SystemExit(f"{reason}; the same command goes on")


def table_of(measured: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Returns a row a measurement, in ms an update."""
    table = pd.DataFrame([account(found) for found in measured])
    table[SECONDS] *= 1e3
    return table


def summary(table: pd.DataFrame) -> dict[str, Any]:
    """Returns the clocks' errors in either direction."""
    off = np.exp(np.abs(np.log(table["ratio"])))
    found = {"rows": len(off), "median": float(off.median()), "worst": float(off.max())}
    return found | {"median ratio": float(table["ratio"].median())}


def save(measured: Mapping[LinkRow, Mapping[str, Any]], out: Path, rounds: int) -> None:
    table = table_of(measured.values())
    about = {
        "rounds": rounds,
        "off": summary(table),
        "wanted": WANTED,
        "kernel": platform.release(),
    }
    publish(table, out, **about, found=list(measured.values()))


def main() -> None:
    parser = options(__doc__, "workdirs/links.json", rounds=5)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no row after so many")
    parser.add_argument(
        "--only", default="", help="rows that begin so, as sync, 'DASO 100 8' or 'loss 1'"
    )
    parser.add_argument(
        "--ordinary", action="store_true", help="threads of a process may take the core from others"
    )
    parser.add_argument("--again", action="store_true", help="also rows that the record has")
    parser.add_argument("--work", help=SUPPRESS)
    parser.add_argument("--inside", action="store_true", help=SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        rows = [LinkRow(*row) for row in json.loads(arguments.work)]
        return work(rows, arguments.rounds, arguments.ordinary)
    if not arguments.inside:
        command = [sys.executable, "-m", "analysis.benchmarks.links", *sys.argv[1:], "--inside"]
        command = shaped.in_namespace(command)
        os.execvp(command[0], command)
    kept = json.loads(arguments.out.read_text())["found"] if arguments.out.exists() else []
    measured = {row_of(found): found for found in kept}
    prefixes = tuple(arguments.only.split(","))
    rows = [row for row in all_rows() if str(row).startswith(prefixes)]
    if not rows:
        raise SystemExit(f"--only={arguments.only}: there is no row that begins so")
    rows = [row for row in rows if arguments.again or row not in measured]
    until = time.monotonic() + 60 * arguments.minutes
    job_options = [f"--rounds={arguments.rounds}", *["--ordinary"] * arguments.ordinary]
    for found in run_rows(rows, job_options, until):
        row = row_of(found)
        measured[row] = found | {"date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0]}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.out, {"found": list(measured.values())})
        print(row, "measured", file=sys.stderr, flush=True)
    save(measured, arguments.out, arguments.rounds)


if __name__ == "__main__":
    with processes.leaving_on_failure():
        main()
