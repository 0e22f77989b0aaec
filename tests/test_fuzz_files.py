"""Files that are truncated or hold what nobody wrote there: one line from whoever reads them.

Every case takes files that are well formed, spoils one at random, and has a command's own function
read it. What it cannot use it refuses by an `InputError` of one line, and else it does its work.
A run whose files are spoilt goes on to what it would have been, or is refused and left as it is.
"""

import contextlib
import gzip
import json
import random
import shutil
import signal
import traceback
from functools import cache, partial
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest

from optdyn.base.errors import InputError
from optdyn.base.files import write_json
from optdyn.base.progress import Watch
from optdyn.base.workdir_lock import LOCK
from optdyn.cli.points import dry_run_lines, plan
from optdyn.clock.trace import read_trace
from optdyn.problem.data import folder as own_images
from optdyn.race import race as racing
from optdyn.race.worker import Workers, make_compute
from optdyn.report import export, implicit_momentum, raced, report, tables
from optdyn.train import batched_runs, trainer, versions
from optdyn.train.checkpoints import latest
from optdyn.train.grid import Grid
from optdyn.train.hooks import WorkerTimeHook
from optdyn.train.trainer import train
from tests.train.runs import raise_at

CHECKPOINT_EVERY = 20

VALUES = (
    *(None, True, -1, 0, 1, 0.5, 1e308, 10**30, "", "x", "completed", "diverged", "unfinished"),
    *([], {}, [1], ["a"], {"a": 1}, [[1], [2, 3]], [None], float("nan"), float("inf"), "a\nb"),
)
TEXTS = (
    *(
        "",
        "\n",
        "null",
        "[]",
        "{}",
        "1",
        '"x"',
        "{",
        "[",
        "{}\n{}",
        "nan",
        '{"step": 1}',
        "\0" * 50,
    ),
    *("\ufeff{}", "[" * 100_000, '{"a": 1' + "0" * 5000 + "}", "worker,seconds\n", "worker\n1\n"),
    *("a,b\n1,2\n", "worker,seconds\nx,y\n", "worker,seconds\n0,nan\n", "worker,seconds\n0,1,2\n"),
)


def spoilt(path, rng):
    """Does something to the file; what it is."""
    content, kind = path.read_bytes(), rng.choice(("cut", "bytes", "text", "json", "json", "json"))
    if kind == "cut":
        path.write_bytes(content[: rng.randrange(len(content) + 1)])
    elif kind == "bytes":
        spot = bytearray(content)
        for _ in range(rng.randint(1, 5)):
            spot[rng.randrange(len(spot))] = rng.randrange(256)
        path.write_bytes(spot)
    elif kind == "text" or path.suffix not in (".json", ".jsonl"):
        path.write_bytes(rng.choice(TEXTS).encode())
    else:
        lines = content.decode().split("\n") if path.suffix == ".jsonl" else [content.decode()]
        place = rng.choice([n for n, line in enumerate(lines) if line])
        whole = part = json.loads(lines[place])
        while True:
            key = rng.choice(sorted(part))
            if not (isinstance(part[key], dict) and part[key] and rng.random() < 0.8):
                break
            part = part[key]
        kind = f"{key} = {rng.choice(('gone', 'another'))}"
        if kind.endswith("gone"):
            del part[key]
        else:
            part[key] = rng.choice(VALUES)
            kind = f"{key} = {part[key]!r}"
        lines[place] = json.dumps(whole)
        path.write_text("\n".join(lines))
    return f"{path.name} {kind}"


def one_of_many(folder, rng):
    path = rng.choice(sorted(path for path in folder.rglob("*") if path.name in NAMES))
    return spoilt(path, rng)


class Tried:
    """Cases that do their work or are refused in a line; what does neither is in `failed`."""

    def __init__(self, longest=1000):
        self.longest, self.failed, self.refused, self.count = longest, [], 0, 0

    @contextlib.contextmanager
    def case(self, what):
        self.count += 1
        try:
            yield
        except InputError as error:
            self.refused += 1
            if "\n" in str(error) or len(str(error)) > self.longest:
                self.failed.append(f"{what}: {error!r:.300}")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.failed.append(f"{what}: {error!r:.300} ({where.filename}:{where.lineno})")

    def ends(self):
        """How many cases were refused, and how many were not."""
        lines = [f"{len(self.failed)} of {self.count}", *sorted(self.failed)]
        assert not self.failed, "\n".join(lines)
        return self.refused, self.count - self.refused


def tried_and_counted(original, aside, uses, seed, count, spoil=one_of_many):
    """How many cases were refused, and how many were not."""
    rng, tried = random.Random(seed), Tried()
    for _ in range(count):
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(original, aside)
        what, use = spoil(aside, rng), rng.choice(sorted(uses))
        with tried.case(f"{use}, {what}"):
            uses[use](aside)
    return tried.ends()


NAMES = (
    *("config.json", "metrics.jsonl", "summary.json", "trace.csv", "train.npz", "test.npz"),
    *("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"),
)


@pytest.fixture(scope="module")
def workdir(config, tmp_path_factory):
    """Two points, one of them interrupted."""
    folder = tmp_path_factory.mktemp("grid")
    for seed in range(2):
        summary = train(config({"seed": seed}), folder / "points" / f"seed={seed}")
    path = folder / "points" / "seed=1" / "summary.json"
    write_json(path, {**summary, "status": "interrupted", "signal": 15})
    return folder


@pytest.mark.parametrize(
    ("seed", "count", "reports", "least"),
    [(0, 60, {}, 12), pytest.param(1, 600, {"report": report.write}, 100, marks=pytest.mark.slow)],
)
def test_workdirs(config, workdir, tmp_path, seed, count, reports, least):
    seeds = Grid(config(), [{"seed": seed} for seed in range(2)])
    uses = {
        "train": lambda folder: train(config({"seed": 0}), folder / "points" / "seed=0"),
        "resume": lambda folder: train(config({"seed": 1}), folder / "points" / "seed=1"),
        "sweep": lambda folder: list(dry_run_lines(plan(seeds, folder), 1)),
        "results": tables.write_results,
    }
    found = tried_and_counted(workdir, tmp_path / "aside", uses | reports, seed, count)
    assert min(found) > least  # both of those refused and of those that were not


def test_traces(config, tmp_path):
    original = tmp_path / "original"
    original.mkdir()
    rng = np.random.default_rng(0)
    rows = zip(
        range(60), np.cumsum(rng.exponential(size=60)), rng.integers(1, 8, size=60), strict=True
    )
    lines = [f"0,{at:.6f},{share},{8 - share}" for n, at, share in rows]
    header = "worker,seconds,control.shares.0,control.shares.1"
    (original / "trace.csv").write_text("\n".join([header, *lines, ""]))
    values = {"method.name": "dynamic_batch", "cluster.nodes": 2, "batch_size": 8, "steps": 50}
    chosen = config(values | {"cluster.service.name": "trace"})

    def replay(folder):
        replayed = chosen.with_({"cluster.service.path": str(folder / "trace.csv")})
        return replayed.timeline(steps_per_epoch=10, update_bytes=0)

    uses = {"arrivals": lambda folder: read_trace(str(folder / "trace.csv"), 50), "replay": replay}
    replay(original)
    refused, _ = tried_and_counted(original, tmp_path / "aside", uses, seed=0, count=150)
    assert refused > 50


def test_own_images(tmp_path):
    originals = tmp_path / "npz", tmp_path / "idx"
    image, label = np.zeros((10, 4, 4), np.uint8), np.arange(10, dtype=np.uint8) % 3
    for original in originals:
        original.mkdir()
    for split in ("train", "test"):
        np.savez(originals[0] / f"{split}.npz", image=image, label=label)
    header = b"\0\0\x08\x03" + np.array(image.shape, ">u4").tobytes()
    packed = gzip.compress(header + image.tobytes())
    (originals[1] / "train-images-idx3-ubyte.gz").write_bytes(packed)
    header = b"\0\0\x08\x01" + np.array(label.shape, ">u4").tobytes()
    (originals[1] / "train-labels-idx1-ubyte").write_bytes(header + label.tobytes())
    for original in originals:
        uses = {"images": own_images.load, "scaled": lambda folder: own_images.load(folder, 6)}
        refused, _ = tried_and_counted(original, tmp_path / "aside", uses, seed=0, count=100)
        assert refused > 25


NODES = {"cluster.nodes": 2, "cluster.devices_per_node": 2}
KINDS = {
    "synchronous": {"method.name": "sync"},
    "metered": {"probes.momentum": True, "probes.window": 54, "probes.every": 80},
    "daso": NODES | {"method.name": "daso", "method.warmup_epochs": 1, "method.cooldown_epochs": 1},
    "measured": {"method.name": "dynamic_batch", "parallel.api": "shard_map"}
    | {"cluster.nodes": 1, "cluster.service.name": "measured"},
    "two in one program": {},
    "race": {"cluster.service.name": "race"},
    "streamed, large": {"data.streaming": True},
}


def in_turn(run):
    """The groups of a race in this process: whoever has waited longest arrives."""
    compute, asked = make_compute(run), {}

    def receive(seconds):
        group = min(asked, key=lambda group: asked[group][1].start)
        return group, compute(*asked.pop(group))

    def send(group, given, numbers):
        asked[group] = given, numbers

    return contextlib.nullcontext(Workers(send, receive))


def two(configs, workdir):
    caught = []
    stopped = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    try:
        runs = [trainer.prepare(config) for config in configs]
        watch = Watch(lambda: caught[0] if caught else 0, lambda step, text: None)
        folders = [workdir / str(n) for n in range(2)]
        return batched_runs.train(runs, folders, 2, [watch] * 2)
    finally:
        signal.signal(signal.SIGTERM, stopped)


def runner(config, kind):
    """What runs that kind in a workdir, or goes on with it."""
    chosen = config(KINDS[kind])
    if kind == "two in one program":
        return partial(two, [chosen, chosen.with_(seed=1)])
    if kind == "race":
        return lambda workdir: racing.race(chosen, workdir, in_turn)
    return partial(train, chosen)


TIMES = ("wall_seconds", "seconds", "served", "simulated_seconds", "simulated_seconds_per_step")


def recorded(workdir):
    """All that runs recorded and ended with, but for times by the clock."""

    def timeless(row):
        return {key: value for key, value in row.items() if key not in (*TIMES, "starts")}

    found = {}
    for path in sorted(workdir.rglob("*")):
        name = str(path.relative_to(workdir))
        if path.name == "metrics.jsonl":
            found[name] = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name == "trace.csv":
            found[name] = pd.read_csv(path).drop(columns=list(TIMES), errors="ignore").to_csv()
        elif path.name == "sketches.npy":
            found[name] = np.load(path).tolist()
        elif path.name == "summary.json":
            found[name] = timeless(json.loads(path.read_text()))
    return found


@pytest.fixture(scope="module")
def saved(config, tmp_path_factory):
    """`saved(kind)`: a workdir that was interrupted at update 40, and the same after its end."""

    @cache
    def make(kind):
        folder, run = tmp_path_factory.mktemp("saved"), runner(config, kind)
        with pytest.MonkeyPatch.context() as patch:
            raise_at(patch, 40, signal.SIGTERM)
            run(folder / "stopped")
        assert {latest(path.parent) for path in folder.rglob("config.json")} == {40}
        shutil.copytree(folder / "stopped", folder / "ended")
        run(folder / "ended")
        return folder

    return make


OF_RUNS = (
    *("metrics.jsonl", "trace.csv", "sketches.npy", "summary.json"),
    *("config.json", "history.json", "crc32.json"),
)


def damaged(workdir, rng):
    """Does something to a file of a run, or to all of a checkpoint; what it is."""
    paths = [path for path in sorted(workdir.rglob("*")) if path.is_file() and path.name != LOCK]
    above = [path for path in paths if path.name in OF_RUNS and "checkpoints" not in path.parts]
    path = rng.choice(above if rng.random() < 0.7 else paths)
    content = path.read_bytes()
    lines = content.split(b"\n")
    acts = ["cut", "rows", "twice", "swapped", "emptied", "zeros", "gone", "spoilt", "spoilt"]
    act = rng.choice(acts)
    if act == "cut":
        length = rng.choice((rng.randrange(128), rng.randrange(len(content) + 1)))
        path.write_bytes(content[:length])
    elif act == "rows":
        path.write_bytes(b"\n".join([*lines[: rng.randrange(len(lines))], b""]))
    elif act == "twice":
        at = rng.randrange(len(lines))
        path.write_bytes(b"\n".join([*lines[: at + 1], *lines[at:]]))
    elif act == "swapped":
        a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[a], lines[b] = lines[b], lines[a]
        path.write_bytes(b"\n".join(lines))
    elif act == "emptied":
        path.write_bytes(b"")
    elif act == "zeros":
        at = rng.randrange(len(content) + 1)
        path.write_bytes(content[:at] + bytes(rng.randint(1, 50)) + content[at:])
    elif act == "gone" and path.name == "run.json":
        shutil.rmtree(path.parent)
    elif act == "gone":
        path.unlink()
    elif content:
        act = spoilt(path, rng)
    return f"{path.relative_to(workdir)} {act}"


@pytest.mark.parametrize(
    ("seed", "count", "least_refused", "least_gone_on"),
    [(0, 42, 7, 14), pytest.param(1, 500, 80, 160, marks=pytest.mark.slow)],
)
def test_runs_go_on_to_what_they_would_have_been(
    saved, config, files, tmp_path, monkeypatch, seed, count, least_refused, least_gone_on
):
    aside = tmp_path / "w"
    monkeypatch.setattr(versions, "LARGE", 0)
    monkeypatch.setattr(WorkerTimeHook, "measure", lambda *_: np.ones(1))
    rng, tried = random.Random(seed), Tried()

    def left(folder):
        return {name: held for name, held in files(folder).items() if LOCK not in name}

    for number in range(count):
        kind = list(KINDS)[number * len(KINDS) // count]  # one after the other: programs are kept
        whole, run = saved(kind), runner(config, kind)
        state = rng.choice(("stopped", "ended"))
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(whole / state, aside)
        what = f"{kind}, {state}: {damaged(aside, rng)}"
        before, refused = left(aside), tried.refused
        with tried.case(what):
            run(aside)
            if recorded(aside) != recorded(whole / "ended"):
                tried.failed.append(f"{what}: another run")
        if tried.refused > refused and left(aside) != before and kind != "two in one program":
            tried.failed.append(f"{what}: refused and changed")
    refused, gone_on = tried.ends()
    assert refused > least_refused and gone_on > least_gone_on


@pytest.mark.parametrize(
    ("kind", "seed", "count"),
    [
        *((kind, 2, 12) for kind in ("metered", "race")),
        *(pytest.param(kind, 3, 150, marks=pytest.mark.slow) for kind in KINDS),
    ],
)
def test_reports_of_spoilt_runs(saved, tmp_path, kind, seed, count):
    def folder_of(folder):
        return folder / "0" if kind.startswith("two") else folder

    uses = {
        "report": report.write,
        "tables": tables.load,
        "tidy": tables.tidy,
        "momentum": lambda folder: implicit_momentum.of_folder(folder_of(folder)),
        "race": lambda folder: raced.load(folder_of(folder)),
        "export": lambda folder: export.to_wandb(
            MagicMock(), tables.points(folder), "x", folder, offline=True
        ),
    }
    tried_and_counted(saved(kind) / "ended", tmp_path / "w", uses, seed, count, damaged)
