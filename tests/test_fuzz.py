"""Configs mutated at random: what cannot run is refused at once, in one line, and never crashes.

Every case is a base config with one to three keys changed, deleted or added. It must be refused by
an `InputError` of one line, or prepare, and if it is small do its first update. A few hundred cases
are tried by default, 5,000 of `python -m pytest -m slow tests/test_fuzz.py`.
"""

import copy
import random
import time
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import images, plan, quickstart, tune
from configs.grids import daso, dynamic_batch, local
from optdyn.cli import app
from optdyn.cli.keys import keys
from optdyn.experiment import Config
from optdyn.train import loop, memory_checks, trainer
from optdyn.train.checks import check
from optdyn.train.grid import named, resolve
from tests.own_flags import called
from tests.test_fuzz_files import Tried

ROOT = Path(__file__).parent.parent
NAMES = (  # that some key takes
    *("mlp", "cnn", "resmlp", "resnet", "transformer", "quadratic", "bfloat16", "batch", "group"),
    *("sync", "asynchronous", "daso", "dynamic_batch", "model_averaging", "local", "greedy"),
    *("daso+asynchronous", "local+asynchronous", "model_averaging+dynamic_batch", "backprop"),
    *("sgd", "adam", "rmsprop", "lamb", "lbfgs", "closed_loop", "noisy_sgd", "adafactor", "sam"),
    *("constant", "cosine", "linear", "exponential", "geometric", "trace", "measured"),
    *("lognormal", "gamma"),
    *("jit", "shard_map", "pmap", "gemm", "fft", "winograd", "gemm,fft", "crop", "crop_flip"),
    *("kjv", "mnist5k", "byte", "character", "proportional", "overlapping", "chunked", "equal"),
)

MEMORY = 2**28  # bytes that the machine is said to have, so that no case takes long
SECONDS = 30  # of this process's CPU, a case, compilation included: a hang, and no pace
SMALL = 20_000  # parameters x updates of a batch, of cases that do an update

NASTY = (
    *(None, "", "x", -1, 0, 1, 0.5, 1e308, 1e-308, float("nan"), float("inf"), -float("inf")),
    *(2**31 - 1, 2**31, 2**63, -(2**63), 10**30, 10**5000, True, False, 64.0, -0.0, 3, 7, 1e6),
    *((), (1,), ("a",), ((1,), (2,)), ((1, 2), (3,)), [0], [[]], (None,), (True,), (1, "a")),
    *({}, {"a": 1}, {"": {}}, {1: 2}, {"b1": 2.0}, {"nesterov": "x"}, {"name": 1}),
    *("x" * 5000, "a\nb", "a\0b", "/nosuch", "..", "/proc/self/mem", "\ud800", "a+b", "+", ":"),
    *("os:getcwd", "optdyn.methods.daso:DASO", "folder:", "folder:/nosuch", "tfds:", "tfds:../x"),
    *(b"bytes", object(), np.float32(1), np.int64(3), np.zeros(2), 1j, {1, 2}, lambda: 0, int),
    *((1.0,) * 3000, (1,) * 3000, range(3), float, "nan", "1", "adam", "daso+dynamic_batch"),
)
SOME = {  # sound by their kind
    int: [0, 1, 2, 3, 5, 8, 16, 100, 1000, 10**6, 2**31 - 1, -1],
    float: [0.0, 0.5, 1.0, 2.0, -0.5, 1e-30, 1e30, 1e-3, 1e9],
    tuple: [(), (0,), (1, 2), (0.5,), ((0.0, 1.0), (1.0, 0.0)), (1.0, 1.0)],
    bool: [True, False],
    str: ["", *NAMES],
}
SIZED = {"batch_size": 8, "steps": 40, "log_every": 10, "checkpoint_every": 20}
CHEAP = {**SIZED, "data.train_examples": 200, "data.train_evaluated": 50, "data.test_evaluated": 50}


def made(values=(), base=None):
    return (base or Config()).with_({**CHEAP, **dict(values)})


def bases(folder):
    """Configs by name, each with the data that are prepared in the folder."""
    cnn = {"model.name": "cnn", "model.channels": (2, 4), "model.hidden": (8,)}
    mlp = {"model.hidden": (8,)}
    quadratic = {"model.name": "quadratic", "model.noise": 0.5, "model.dimension": 6}
    grouped = {"method.name": "asynchronous", "method.groups": 2, "cluster.nodes": 4}
    text = {"model.name": "transformer", "model.blocks": 2, "model.width": 8}
    text |= {"model.attention_heads": 2, "data.name": "kjv", "data.sequence_length": 16}
    learning = {"method.name": "local", "cluster.service.name": "constant", "model.name": "resmlp"}
    learning |= {"model.width": 8, "model.blocks": 2}
    of = {
        "quickstart": made(mlp, quickstart.get_config()),
        "images": made(cnn | {"data.name": "mnist5k"}, images.get_config()),
        "daso": made(mlp, next(points(daso.get_config()))),
        "dynamic_batch": made(
            mlp
            | {
                "cluster.disturbances": ((0, 1, 2, 3.0),),
                "cluster.nodes": 2,
                "cluster.speeds": (1.0, 2.0),
            },
            next(points(dynamic_batch.get_config())),
        ),
        "local": made(learning, next(points(local.get_config("mlp")))),
        "transformer": made(text),
        "quadratic": made(quadratic | grouped),
        "replicas": made(quadratic | grouped | {"replicas.count": 4, "data.replacement": True}),
        "metered": made(quadratic | {"probes.momentum": True, "probes.window": 60, "steps": 400}),
        "averaged": made(quadratic | {"method.name": "model_averaging", "cluster.nodes": 2}),
        "plan": made(cnn, plan.get_config()),
        "tune": made(mlp, tune.get_config()),
        "default": made(mlp),
    }
    return {name: config.with_({"data.dir": folder}) for name, config in of.items()}


def points(config):
    """The configs of a grid's points, which can run."""
    return (resolve(config, name, point) for name, point in named(config))


def leaves(tree, prefix=""):
    """Dotted names and values of all keys of a nested dict, and of those that hold others."""
    for key, value in tree.items():
        yield prefix + key, value
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")


def without(tree, name):
    """A nested dict without a dotted key."""
    first, _, rest = name.partition(".")
    if not rest:
        return {key: value for key, value in tree.items() if key != first}
    return tree | {first: without(tree[first], rest)}


def mutated(base, rng):
    """What makes the config with one to three changes, and what they are."""
    held, changes, deleted = dict(leaves(base.to_dict())), {}, []
    others = {key: default for key, (_, default, _) in keys().items() if key not in held}
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(sorted(held if rng.random() < 0.95 else others))
        kind, usual = rng.random(), held.get(name, others.get(name))
        if kind < 0.05 and name in held:
            deleted.append(name)
            continue
        if kind < 0.1 and isinstance(usual, dict):
            name = f"{name}.added"
        values = list(held.values())
        if kind >= 0.6:  # so that more than the kind is wrong, or nothing is
            values = [value for value in values if type(value) is type(usual)]
        some = NASTY if kind < 0.4 else values + SOME.get(type(usual), [])
        changes[name] = copy.deepcopy(rng.choice(some or NASTY))

    def make():
        config = base
        for name in deleted:  # as in a file
            config = Config().with_(without(config.to_dict(), name))
        return config.with_(changes)

    return make, {**dict.fromkeys(deleted, "deleted"), **changes}


def tried(make):
    """'prepared' or 'trained'; raises an `InputError` if it is refused."""
    parsed = make()
    check(parsed)
    if parsed.replicas.count:
        trainer.prepare(parsed, parsed.replicas.count)
        return "prepared"
    run = trainer.prepare(parsed)
    size = sum(leaf.size for leaf in jax.tree.leaves(run.params)) * parsed.batch_size
    if size > SMALL * 64 or parsed.parallel.api or parsed.probes.momentum:
        return "prepared"
    run.program.advance(*loop.advance_arguments(run, 1))
    return "trained"


def outcomes(folder, seed, count, names=()):
    """How many cases ended how; fails with all those that crashed, hung or said too much."""
    rng, of, cases, counted = random.Random(seed), bases(folder), Tried(2000), Counter()
    for number in range(count):
        name = rng.choice(names or sorted(of))
        make, changes = mutated(of[name], rng)
        what, begun = f"{number} {name} with other {', '.join(changes)}", time.process_time()
        with cases.case(what):
            counted[tried(make)] += 1
        if (took := time.process_time() - begun) > SECONDS:
            cases.failed.append(f"{what}: {took:.0f} s")
    counted["refused"], _ = cases.ends()
    return counted


@pytest.fixture
def folder(mnist, tmp_path, monkeypatch):
    """Prepared data of the session, on a machine of little memory, where paths are of a test."""
    here = tmp_path / "here"  # where `data.dir` may prepare data, as it may in `..`
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(memory_checks, "available", lambda: MEMORY)
    return mnist["data.dir"]


QUICK = ("quadratic", "averaged", "replicas", "metered")  # bases that compile soon


@pytest.mark.slow
def test_the_bases_are_sound(folder):
    for name, config in bases(folder).items():
        assert tried(lambda config=config: config) in ("prepared", "trained"), name


@pytest.mark.parametrize(
    ("seed", "count", "names", "trained"),
    [
        (0, 200, QUICK, 3),
        *(pytest.param(seed, 1000, (), 50, marks=pytest.mark.slow) for seed in range(1, 6)),
    ],
)
def test_configs(folder, seed, count, names, trained):
    counted = outcomes(folder, seed, count, names)
    assert counted["refused"] > count / 2 and counted["trained"] > trained  # else nothing is tried


@pytest.fixture
def command(monkeypatch, capsys):
    """`command(arguments) -> (exit code, stderr)` of a command that only prepares the run."""

    def run(arguments):
        with called(monkeypatch, "launch.train", arguments), pytest.raises(SystemExit) as exited:
            app.run(checked)
        return exited.value.code, capsys.readouterr().err

    return run


def checked(config, workdir):
    check(config)
    return 0


WORDS = (
    *("", "x", "-1", "0", "1", "1.5", "1e400", "nan", "inf", "None", "True", "()", "(1,)", "(1"),
    *("{}", "{'a': 1}", "9" * 400, "1" + "0" * 5000, "a\nb", "\u00e9", "--", "=", "1,2", "0x10"),
    *("__import__('os')", "1_0", "1 2", "'", "lambda: 0", "[" * 500, "-", "~", "$HOME", "{0}"),
)
FILES = (
    *("", "x", "nosuch.py", ".", "/", "configs/quickstart.py:x", "configs/images.py:cifar", ":"),
    *("configs/plan.py:", "configs/tune.py:small", "configs/grids/local.py:x", "configs", "a\nb"),
)


def words(rng, folder):
    """Arguments of a command line, as nobody means them."""
    known = sorted(keys())
    file = (
        f"{ROOT}/configs/quickstart.py"
        if rng.random() < 0.8
        else rng.choice(FILES).replace("configs", f"{ROOT}/configs")
    )
    given = [f"--config={file}", f"--workdir={folder}/none"]
    for _ in range(rng.randint(1, 3)):
        key = rng.choice((*known, "nosuch", "model.nosuch", "optimizer.options.b1", "", "."))
        given.append(f"--config.{key}{rng.choice(('=', '=', '=', ' ', ''))}{rng.choice(WORDS)}")
    return given


def typed(command, folder, seed, count):
    """Fails with command lines that end in a traceback or in several lines; how many are refused.

    So many are tried.
    """
    rng, failed, refused = random.Random(seed), [], 0
    for _ in range(count):
        arguments = words(rng, folder)
        shown = f"{arguments[0]} {str(arguments[2:])[:300]}"
        try:
            code, said = command(arguments)
        except BaseException as error:
            failed.append(f"{shown}: {type(error).__name__}: {str(error)[:300]}")
            continue
        refused += code == 2
        if code not in (0, 2) or (code == 2 and said.count("\n") != 1):
            failed.append(f"{shown}: {code} {said[:300]!r}")
    assert not failed, "\n".join([f"{len(failed)} of {count}", *failed])
    return refused


@pytest.mark.parametrize(
    ("seed", "count", "refused"), [(0, 60, 20), pytest.param(1, 1000, 300, marks=pytest.mark.slow)]
)
def test_command_lines(command, folder, seed, count, refused):
    assert typed(command, folder, seed, count) > refused
