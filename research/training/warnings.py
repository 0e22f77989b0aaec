"""Warnings about settings that can run and are probably mistakes."""

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping

from optdyn import strategies
from optdyn.basics.errors import shown
from optdyn.experiment import Experiment
from optdyn.problem import models
from optdyn.setup import Pieces
from optdyn.timeline import service

# Optimizers of optax whose updates are about as long as the learning rate, whatever the gradient.
NORMALIZED = (
    *("adabelief", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad", "lion", "nadam"),
    *("nadamw", "novograd", "radam", "rmsprop", "sign_sgd", "yogi"),
)
SENSIBLE = 0.05  # of a parameter, an update
# Of `cluster`, what its pieces say themselves: the seconds of computing and of messages.
BESIDE_PIECES = (
    *("seconds_per_example", "latency", "bandwidth", "local_latency", "local_bandwidth"),
    "collective",
)
NEEDED = {"absence": "presence", "day": "diurnal", "bandwidth_variation": "regions"}  # of `cluster`


def probable_mistakes(config: Experiment, given: Iterable[str] = ()) -> list[str]:
    """A line for everything in a checked config that is hardly meant.

    `given` are the dotted keys that the user has set for this very run, on the command line. Others
    may be set where nothing reads them: a config file serves several methods, and old commands
    resume.
    """
    name, rate = config.optimizer.name, config.optimizer.learning_rate
    found = list(_unread(config, given))
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
    norms = [each for each in config.optimizer.chain if "norm" in each]
    if norms and config.methods.by_block:
        found.append(
            f"config.optimizer.chain: each block has an optimizer of its own with "
            f"{config.methods.name!r}, so {norms[0]} is of the norm of a block, not of all"
        )
    return [*found, *_parts_of_examples(config)]


def _parts_of_examples(config: Experiment) -> Iterator[str]:
    """A warning where each worker has less than one example of a batch."""
    methods, cluster = config.methods, config.cluster
    workers = cluster.worker_count // config.methods.groups
    staged = cluster.nodes > 1 and methods.stages
    if config.batch_size < workers and not (staged or cluster.pieces != Pieces()):
        yield (
            f"config.batch_size = {config.batch_size}: {workers} workers share them, "
            f"{config.batch_size / workers:.2g} of an example each, which takes that part of an "
            "example's seconds here; no real worker can do so"
        )


def _unread(config: Experiment, given: Iterable[str]) -> Iterator[str]:
    """Keys of methods and models that those chosen do not have."""
    methods = {name: strategies.keys_of(strategies.load(name)) for name in strategies.built_in()}
    made = {name: inspect.signature(make).parameters for name, make in models.MODELS.items()}
    every = config.methods.every
    own = {key for method in every for key in strategies.keys_of(type(method))}
    read = {"strategy": own, "model": set(made.get(config.model.name, ()))}
    known: dict[str, Mapping[str, Collection[str]]] = {"strategy": methods, "model": made}
    given = list(dict.fromkeys(given))
    for key in given:
        section, _, rest = key.partition(".")
        others = [name for name, keys in known.get(section, {}).items() if rest in keys]
        if others and rest not in read[section]:
            part = getattr(config, section)
            value = part.keys[rest] if section == "strategy" else getattr(part, rest)
            yield (
                f"config.{key} = {shown(value)}: ignored, {part.name!r} "
                f"has no such key; {', '.join(others)} {'have' if len(others) > 1 else 'has'}"
            )
    law = config.cluster.service
    laws = {"cluster.variation": service.VARIED, "cluster.trace": ("trace",)}
    for key, readers in laws.items():
        if key in given and law not in readers:
            value = getattr(config.cluster, key.partition(".")[2])
            yield (
                f"config.{key} = {shown(value)}: ignored, config.cluster.service = {law!r} does "
                f"not read it; {' and '.join(map(repr, readers))} would"
            )
    for key, needed in NEEDED.items():
        if f"cluster.{key}" in given and not getattr(config.cluster, needed):
            value = getattr(config.cluster, key)
            yield (f"config.cluster.{key} = {value:g}: ignored, as config.cluster.{needed} is 0")
    if config.cluster.pieces != Pieces():
        for key in (key for key in BESIDE_PIECES if f"cluster.{key}" in given):
            yield (
                f"config.cluster.{key} = {shown(getattr(config.cluster, key))}: ignored, the "
                "seconds are those of config.cluster.pieces"
            )
