"""Warnings about settings that can run and are probably mistakes."""

import math
import re
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from optdyn import optimizers
from optdyn.base import lookup
from optdyn.base.errors import and_list, short_repr
from optdyn.clock.cluster import Pieces
from optdyn.clock.timeline import Meeting, entries_at, plan_of
from optdyn.core import Event
from optdyn.experiment import Config
from optdyn.methods.compose import pieces, reading
from optdyn.methods.messages import SIMULATED
from optdyn.methods.method import Mixes, Periodic
from optdyn.problem import shared_data
from optdyn.train import trainer
from optdyn.train.run import Run

# Optimizers of optax whose updates are about as long as the learning rate, whatever the gradient.
NORMALIZED = (
    *("adabelief", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad", "lion", "nadam"),
    *("nadamw", "novograd", "radam", "rmsprop", "sign_sgd", "yogi"),
)
SENSIBLE = 0.05  # change of a parameter in an update
# Keys of `cluster` whose seconds its pieces have: those of computing and of messages.
BESIDE_PIECES = (
    *("seconds_per_example", "latency", "bandwidth", "local_latency", "local_bandwidth"),
    "collective",
)
NEEDED = {"absence": "presence", "day": "diurnal", "bandwidth_variation": "regions"}  # of `cluster`


def probable_mistakes(config: Config, keys: Iterable[str] = ()) -> list[str]:
    """Returns a line for each setting of a checked config that is probably a mistake.

    `keys` are the dotted keys set on the command line, for this run. Those of a file may be set
    where nothing reads them, as a file serves several methods.
    """
    name, rate = config.optimizer.name, config.optimizer.learning_rate
    found = list(_unread(config, keys))
    if name in NORMALIZED and rate > SENSIBLE:
        found.append(
            f"config.optimizer.learning_rate = {rate:g}: {name} moves every parameter by about as "
            "much in an update, whatever the gradient; 0.001 is usual"
        )
    if name.startswith("contrib.schedule_free"):
        found.append(
            f"config.optimizer.name = {name!r}: losses are of where gradients are taken, y, not "
            "of the average x that the paper evaluates"
        )
    norms = [name for name in config.optimizer.chain if "norm" in name]
    if norms and config.methods.by_block:
        found.append(
            f"config.optimizer.chain: each block has an optimizer of its own with "
            f"{config.methods.name!r}, so {norms[0]} is of the norm of a block, not of all"
        )
    more = (_parts_of_examples, _too_few_steps, _outer_momenta, _labels, _mixes_nothing)
    return [*found, *(line for lines in more for line in lines(config))]


def _parts_of_examples(config: Config) -> Iterator[str]:
    methods, cluster = config.methods, config.cluster
    workers = cluster.worker_count // config.methods.groups
    staged = cluster.nodes > 1 and methods.stages
    if config.batch_size < workers and not (staged or cluster.pieces != Pieces()):
        yield (
            f"config.batch_size = {config.batch_size}: {workers} workers share them, "
            f"{config.batch_size / workers:.2g} of an example each, which takes that part of an "
            "example's seconds here; no real worker can do so"
        )


def _too_few_steps(config: Config) -> Iterator[str]:
    steps, warmup = config.steps, config.optimizer.warmup_steps
    if warmup >= steps:
        yield (
            f"config.optimizer.warmup_steps = {warmup:,}: not less than config.steps = {steps:,}, "
            "so no update has the rate config.optimizer.learning_rate"
        )
    for method in config.methods.members:
        if isinstance(method, Periodic) and method.period > steps:
            yield (
                f"config.method.period = {method.period:,}: more than config.steps = {steps:,}, "
                "so the run ends before the first period does"
            )


def _outer_momenta(config: Config) -> Iterator[str]:
    keys = ("outer_momentum", "slow_momentum")
    values = [getattr(method, key, 0) for method in config.methods.members for key in keys]
    if len(momenta := [momentum for momentum in values if momentum]) > 1:
        times = math.prod(1 / (1 - momentum) for momentum in momenta)
        yield (
            f"config.method.name = {config.methods.name!r}: has outer momenta of "
            f"{and_list([f'{momentum:g}' for momentum in momenta])}, which compound: steps become "
            f"{times:.3g} times as long; one of them is usual, with the other 0"
        )


def _labels(config: Config) -> Iterator[str]:
    if shared_data.is_drawn(config):
        return
    data = shared_data.load(config)
    if "label" not in data.train:
        return
    if unseen := np.setdiff1d(data.test["label"], data.train["label"]).tolist():
        where = lookup.key_value("config.data.name", config.data.name)
        yield (
            f"{where}: no training example has the labels {short_repr(unseen)} of the test split, "
            "so none of them can be learnt"
        )


def _mixes_nothing(config: Config) -> Iterator[str]:
    methods = config.methods
    is_skipped = config.cluster.nodes == 1 or jax.process_count() > 1
    named = zip(methods.name.split("+"), methods.members, strict=True)
    is_users = any(
        lookup.is_user_name(name) and isinstance(method, Mixes) for name, method in named
    )
    if not is_users or is_skipped or methods.timeline_depends_on_log(config):
        return
    run = trainer.prepare(config)
    line = f"config.method.name = {methods.name!r}: its nodes train independently to the end, as"
    meeting = plan_of(run.timeline, Meeting)
    if meeting and not np.any(meeting.receive):
        yield f"{line} its clock has no update after which they receive anything"
    elif not _asks_others(run):
        yield f"{line} its mix asks for nothing over the axis 'node', as jax.lax.psum would"


def _asks_others(run: Run) -> bool:
    config, methods, line = run.config, run.config.methods, run.timeline
    options, chain = optimizers.options(config, methods.groups), optimizers.chain(config)
    optimizer = optimizers.optimizer(config.optimizer.name, tuple(run.hypers), options, chain)
    problem = run.program.problem
    _, update = pieces(methods, problem, optimizer)
    servers = methods.servers(problem)
    inner = reading(methods, lambda x, *_: (jnp.float32(0), x), update, line.slots, servers)
    assert methods.mix
    rule = methods.mix.mix(inner, SIMULATED)
    first = Event(*entries_at((line.plan, dict(run.hypers), line.staleness), 0))
    axes = [("node", config.cluster.nodes)]
    state = jax.eval_shape(rule.init, run.params)
    program = str(jax.make_jaxpr(rule.step, axis_env=axes)(state, first, {}))
    return bool(re.search(r"ax[ie]s\w*=\W*node", re.sub(r"axis_index\[.*?\]", "", program)))


def _unread(config: Config, keys: Iterable[str]) -> Iterator[str]:
    keys = list(dict.fromkeys(keys))
    for key, needed in NEEDED.items():
        if f"cluster.{key}" in keys and not getattr(config.cluster, needed):
            value = getattr(config.cluster, key)
            yield f"config.cluster.{key} = {value:g}: ignored, as config.cluster.{needed} is 0"
    if config.cluster.pieces != Pieces():
        for key in (key for key in BESIDE_PIECES if f"cluster.{key}" in keys):
            yield (
                f"config.cluster.{key} = {short_repr(getattr(config.cluster, key))}: ignored, the "
                "seconds are those of config.cluster.pieces"
            )
