"""DASO's exchange beside its computing, over a slow link: `python -m analysis.benchmarks.overlap`.

Two processes, nodes of one device, make updates and exchange every eight of them, with the wait of
as many, over a link whose rate is chosen so that exchange and computing take equally long:

    computing     the updates, of nodes that never meet
    exchange      as many sums over the nodes as the others take, one after the other
    overlapped    the updates and the sums, `config.parallel.api = 'overlap'`
    blocking      the same, where every sum is waited for
    in the loop   the updates and the sums of 'shard_map', in a condition of the compiled loop

The link is `tc`'s token bucket on the loopback of a network namespace of the benchmark's own (to be
root is enough), or where there is none a transport that sleeps, which 'in the loop' is not of. The
record says which. The table has medians and quartiles over the rounds, each of which runs all.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jax.experimental import multihost_utils

import optdyn as od
from analysis.benchmarks.record import publish
from analysis.benchmarks.step_time import Timer, in_turn, spread
from optdyn.base import processes
from optdyn.clock.timeline import Meeting
from optdyn.devices import ring
from optdyn.train import loop, trainer
from optdyn.train.program import parameter_bytes
from optdyn.train.run import Run

PERIOD, EXCHANGES = 8, 4
UPDATES = PERIOD * EXCHANGES + 1  # the first is sent after the first, the last received at the last
SHAPER = "tc qdisc replace dev lo root tbf burst 256kb limit 512kb rate"
OWN = "ip link set lo up && tc qdisc add dev lo root tbf burst 256kb limit 512kb rate 100gbit"
LINKS = ("tbf on lo in a network namespace", "a transport that sleeps")
PROMPT = ring.all_reduce
WANTED = 0.65


def run_of(api: str, hidden: int, batch: int) -> Run:
    config = od.Experiment(
        steps=UPDATES,
        log_every=UPDATES,
        checkpoint_every=0,
        batch_size=batch,
        model=od.MLP(hidden=(hidden, hidden)),
        method=od.DASO(warmup_epochs=0, cooldown_epochs=0),
        cluster=od.Cluster(nodes=2, devices_per_node=1),
        parallel=od.Parallel(api=api),
    )
    return trainer.prepare(config)


def meetings(exchanged: bool, wait: int) -> Meeting:
    """Those of so many updates, padded as the trainer does."""
    at = PERIOD * np.arange(EXCHANGES) if exchanged else np.arange(0)
    send, waited = np.zeros(loop.CHUNK, bool), np.zeros(loop.CHUNK, np.int32)
    receive = np.zeros_like(send)
    send[at + PERIOD - wait] = receive[at + PERIOD] = True
    waited[at + PERIOD] = wait
    return Meeting(send, receive, waited)


def updates(run: Run, exchanged: bool, wait: int) -> Timer:
    """Seconds of them all, as the trainer calls them; all of what is sent arrives."""
    state, examples, events, indices, n = loop.first(run, UPDATES)
    events = events._replace(plan=meetings(exchanged, wait))

    def work() -> None:
        nonlocal state
        state, infos = run.program.advance(state, examples, events, indices, n)
        assert np.isfinite(infos["loss"][:n]).all()

    return timed(work)


def exchanges(numbers: int) -> Timer:
    message = np.ones(numbers, np.float32)

    def work() -> None:
        for _ in range(EXCHANGES):
            ring.joined()(message.copy).result()

    return timed(work)


def timed(work: Callable[[], None]) -> Timer:
    def once() -> float:
        multihost_utils.sync_global_devices("together")
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun

    return once


def slowed(link: str, rate: float) -> None:
    """Every exchange of so many bytes is to take a second, from now on."""
    if link == LINKS[0]:
        if processes.is_writer():  # both directions go through the one queue of the loopback
            subprocess.run([*SHAPER.split(), f"{16 * rate:.0f}bit"], check=True)
    else:
        ring.all_reduce = partial(_slept, rate)
    multihost_utils.sync_global_devices("slowed")


def _slept(rate: float, whole: np.ndarray, *rest: Any) -> None:
    begun = time.monotonic()
    PROMPT(whole, *rest)
    time.sleep(max(0.0, whole.nbytes / rate - (time.monotonic() - begun)))


def median(timer: Timer, times: int) -> float:
    """The same in both processes: that of the first."""
    each = np.float64([timer() for _ in range(times)])
    return float(multihost_utils.broadcast_one_to_all(np.median(each)))


def work(arguments: argparse.Namespace) -> None:
    """One of the two processes."""
    processes.initialize()
    run = run_of("overlap", arguments.hidden, arguments.batch)
    size = parameter_bytes(run.params)
    timers = {
        "computing": updates(run, False, 0),
        "exchange": exchanges(size // 4),
        "overlapped": updates(run, True, PERIOD),
        "blocking": updates(run, True, 0),
    }
    if arguments.link == LINKS[0]:
        inside = run_of("shard_map", arguments.hidden, arguments.batch)
        timers["in the loop"] = updates(inside, True, PERIOD)
    for timer in timers.values():
        timer()  # compiles
    rate = EXCHANGES * size / median(timers["computing"], 9)
    for _ in range(2):  # the second time by what came of the first
        slowed(arguments.link, rate)
        ratio = median(timers["exchange"], 3) / median(timers["computing"], 9)
        rate *= ratio
    slowed(arguments.link, rate)
    seconds = in_turn(timers, arguments.rounds)
    if processes.is_writer():
        found = {name: list(each) for name, each in seconds.items()}
        about = {"link": arguments.link, "bytes": size, "bytes_a_second": rate}
        arguments.work.write_text(json.dumps(about | {"seconds": found}))


def table_of(seconds: dict[str, np.ndarray]) -> pd.DataFrame:
    rows = [{"of": f"{name}, s", **spread(each)} for name, each in seconds.items()]
    both = seconds["computing"] + seconds["exchange"]
    for name in ("overlapped", "blocking", "in the loop"):
        if name in seconds:
            wanted = {"wanted": f"at most {WANTED}"} if name == "overlapped" else {"wanted": ""}
            ratios = spread(seconds[name] / both)
            rows.append({"of": f"{name} / (computing + exchange)", **ratios, **wanted})
    return pd.DataFrame(rows).fillna("")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--hidden", type=int, default=1024, help="units of the MLP's two layers")
    parser.add_argument("--batch", type=int, default=512, help="examples of two processes together")
    parser.add_argument("--out", type=Path, default=Path("workdirs/overlap.json"))
    parser.add_argument("--link", choices=LINKS, help="which; without it, the first there is")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        return work(arguments)
    load = os.getloadavg()[0]
    alone = ["unshare", "--net", "sh", "-c", f'{OWN} && exec "$@"', "sh"]
    allowed = subprocess.run([*alone, "true"], capture_output=True).returncode == 0
    link = arguments.link or LINKS[0 if allowed else 1]
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        options = [f"--{name}={getattr(arguments, name)}" for name in ("rounds", "hidden", "batch")]
        command = [sys.executable, "-m", "launch.local", "--processes=2", "--", sys.executable]
        command += [
            "-m",
            "analysis.benchmarks.overlap",
            *options,
            f"--link={link}",
            f"--work={found}",
        ]
        subprocess.run([*(alone if link == LINKS[0] else []), *command], check=True)
        about = json.loads(found.read_text())
    seconds = {name: np.array(each) for name, each in about.pop("seconds").items()}
    about |= {"updates": UPDATES, "exchanges": EXCHANGES, "load_before": load}
    publish(table_of(seconds), arguments.out, rounds=arguments.rounds, **about)


if __name__ == "__main__":
    with processes.leaving_on_failure():
        main()
