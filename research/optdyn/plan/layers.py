"""The measurements of a plan: a config's convolutions and its program of an update.

Zou et al., "Distributed training of large-scale deep architectures" (arXiv 1709.06622):

    T_il, M_il         seconds and bytes of convolution i by algorithm l
    M_FM, M_MP, M_C    bytes of feature maps, of parameters, and of the classifier

Convolutions are measured in the trainer's program, as XLA compiles them to other code by
themselves: T_il and M_il are what the program takes in addition with algorithm l in place of its
own. Equal convolutions change together.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.module import InterceptorContext

from optdyn.base.trees import Tree, bytes_of, head
from optdyn.clock.timeline import entries_at
from optdyn.core import Event
from optdyn.experiment import Config
from optdyn.plan import phases, planner
from optdyn.plan.phases import Loop
from optdyn.problem.costs import block_costs
from optdyn.problem.models.convolution import LOWERINGS, Conv, default_lowering, serves
from optdyn.problem.problem import batches
from optdyn.train import program
from optdyn.train.program import CHUNK
from optdyn.train.trainer import Run

Choice = tuple[str, ...]  # the algorithm of each of the `distinct` convolutions
Layers = Mapping[str, "Convolution"]  # every convolution by name, in the order they are computed in
Updates = Callable[[int, Choice], "UpdateProgram"]


class Convolution(NamedTuple):
    """A convolution and the image that it meets."""

    image: tuple[int, int, int]  # H, W, C
    kernel: tuple[int, int, int, int]  # kh, kw, C, O
    strides: tuple[int, ...]
    padding: str
    dtype: str
    first: bool  # of the model: the gradient by its input is not needed


class Terms(NamedTuple):
    """The terms of the paper's M_bound, in bytes."""

    feature_maps: float  # M_FM
    parameters: float  # M_MP: weights, gradients and the optimizer's state
    classifier: float  # M_C: feature maps and parameters after the last convolution


class UpdateProgram(NamedTuple):
    """The trainer's program of an update, for a mini-batch and a choice of algorithms."""

    bytes: int  # by the compiler: arguments, results that are not in their place, temporaries
    data: int  # of these, the examples and their order
    loop: Loop  # n updates, which return their losses, (CHUNK,)


class Tables(NamedTuple):
    """One mini-batch's tables for `planner.algorithms`; the last row is work without alternatives.

    Columns are LOWERINGS, rows otherwise distinct convolutions; each is beyond its least entry.
    """

    times: np.ndarray  # seconds
    memory: np.ndarray  # bytes
    bound: float  # M_bound in bytes: below what `memory` asks for if nothing fits


def convolutions(run: Run) -> Layers:
    """Traces the model and returns its convolutions by name."""
    found: dict[str, Convolution] = {}

    def record(
        block: str,
        call: Callable[..., Tree],
        arguments: tuple[Tree, ...],
        keywords: dict[str, Tree],
        context: InterceptorContext,
    ) -> Tree:
        conv = context.module
        if isinstance(conv, Conv) and context.method_name == "__call__":
            (x,) = arguments
            found["/".join((block, *conv.path))] = Convolution(
                x.shape[1:],
                (*conv.kernel_size, x.shape[-1], conv.features),
                tuple(conv.strides),
                conv.padding,
                str(jnp.dtype(conv.dtype or x.dtype)),
                not found,
            )
        return call(*arguments, **keywords)

    problem = run.program.problem
    h = jax.eval_shape(problem.input, head(run.data.train, 1))
    for name, module in problem.blocks:
        with nn.intercept_methods(partial(record, name)):
            h = jax.eval_shape(module.apply, {"params": run.params[name]}, h)
    return found


def distinct(layers: Layers) -> list[Convolution]:
    return list(dict.fromkeys(layers.values()))


def choice_of_config(lowering: str, layers: Layers) -> Choice:
    """Returns the choice of `config.model.lowering`; equal convolutions have that of the first."""
    names, convolutions = (lowering or default_lowering()).split(","), list(layers.values())
    return tuple(names[convolutions.index(kind) % len(names)] for kind in distinct(layers))


def lowering(layers: Layers, choice: Choice) -> str:
    names = dict(zip(distinct(layers), choice, strict=True))
    return ",".join(names[layer] for layer in layers.values())


def exchanges(kinds: Sequence[Convolution], base: Choice) -> dict[tuple[int, int], Choice]:
    """Returns `base` with algorithm l of LOWERINGS for convolution i, if it serves, by (i, l)."""
    return {
        (i, column): (*base[:i], name, *base[i + 1 :])
        for i, kind in enumerate(kinds)
        for column, name in enumerate(LOWERINGS)
        if serves(name, kind.kernel, kind.strides)
    }


def choice_of_columns(kinds: Sequence[Convolution], columns: Sequence[int]) -> Choice:
    """Returns the choice of a column of `Tables` for each row."""
    return tuple(list(LOWERINGS)[column] for column in columns[: len(kinds)])


def smallest(update: Updates, kinds: Sequence[Convolution], base: Choice, batch: int) -> Choice:
    """Returns the algorithm of each convolution with which the program takes the fewest bytes."""
    return choice_of_columns(kinds, _beyond(update, kinds, base, batch).argmin(axis=1).tolist())


def _beyond(update: Updates, kinds: Sequence[Convolution], base: Choice, batch: int) -> np.ndarray:
    """Returns the bytes with algorithm l for convolution i, beyond those of `base`, (i, l)."""
    beyond = np.full((len(kinds), len(LOWERINGS)), math.inf)
    choices = exchanges(kinds, base)
    size = update(batch, base).bytes
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compiles
        programs = pool.map(partial(update, batch), choices.values())
    for place, other in zip(choices, programs, strict=True):
        beyond[place] = other.bytes - size
    return beyond


def tables(
    update: Updates,
    kinds: Sequence[Convolution],
    base: Choice,
    batch: int,
    memory: float,
    rounds: int,
) -> Tables:
    """Measures T_il, M_il and M_bound with `base` and with one exchange at a time.

    An exchange that does not fit in `memory` is not chosen, even beside smaller ones. M_bound is
    lowered until the choice of `planner.algorithms` fits as well. If none fits, `base` remains.
    """
    size = update(batch, base).bytes
    if size > memory:
        nothing = np.full((len(kinds) + 1, len(LOWERINGS)), math.inf)
        return Tables(nothing, nothing, 0.0)
    beyond = _beyond(update, kinds, base, batch)
    choices = {
        place: choice
        for place, choice in exchanges(kinds, base).items()
        if size + beyond[place] <= memory
    }
    programs = {
        ",".join(choice): update(batch, choice).loop for choice in {base, *choices.values()}
    }
    timings = phases.measure(programs, rounds)
    seconds = {name: np.median(samples) for name, samples in timings.items()}
    times, before = np.full_like(beyond, math.inf), seconds[",".join(base)]
    for place, choice in choices.items():
        times[place] = seconds[",".join(choice)] - before
    rest = before + times.min(axis=1).sum()
    bound = memory - size - beyond.min(axis=1).sum()
    tables = Tables(_with_rest(times, max(rest, 0.0)), _with_rest(beyond, 0.0), bound)
    while tables.bound >= 0:
        columns = planner.algorithms(*tables).tolist()
        over = update(batch, choice_of_columns(kinds, columns)).bytes - memory
        if over <= 0:
            return tables
        tables = tables._replace(bound=tables.bound - over)
    is_base = [[name == algorithm for name in LOWERINGS] for algorithm in base]
    is_base.append([True] * len(LOWERINGS))
    return Tables(np.where(is_base, tables.times, math.inf), tables.memory, math.inf)


def _with_rest(table: np.ndarray, rest: float) -> np.ndarray:
    """Returns rows beyond their least entry, and one more without alternatives."""
    last = np.where(np.arange(table.shape[1]) == 0, rest, math.inf)
    return np.vstack([table - table.min(axis=1, keepdims=True), last])


def terms(run: Run, layers: Layers, batch: int) -> Terms:
    """Returns M_FM, M_MP and M_C of the mini-batch; activations are those that backward reads."""
    problem = run.program.problem
    costs = block_costs(problem, run.params, head(run.data.train, 1))
    kept = {cost.name: cost.activation_bytes for cost in (*costs.trunk, *costs.heads[-1:])}
    state = jax.eval_shape(run.program.rule.init, run.params)
    copies = 1 + bytes_of(state) / bytes_of(run.params)
    names = [name for name, _ in problem.blocks]
    last = max((names.index(name.split("/")[0]) for name in layers), default=-1)
    (maps, weights), classifier = (
        (
            batch * sum(kept.get(name, 0) for name in part),
            copies * sum(bytes_of(run.params[name]) for name in part),
        )
        for part in (names[: last + 1], names[last + 1 :])
    )
    return Terms(maps, weights, sum(classifier))


def with_lowering(config: Config, lowering: str) -> Config:
    has = "lowering" in config.model.field_table()
    return config.with_({"model.lowering": lowering}) if has else config


def updates(run: Run, layers: Layers) -> Updates:
    """Returns (batch, choice) -> program, compiled once, for a run of one device."""
    examples = run.program.layout.put_examples(run.data.train)
    hypers = {name: values[:CHUNK] for name, values in run.hypers.items()}
    events = Event(entries_at(run.timeline.plan, slice(CHUNK)), hypers)

    @cache
    def update(batch: int, choice: Choice) -> UpdateProgram:
        config = with_lowering(run.config.with_(batch_size=batch), lowering(layers, choice))
        built = program.make(config, run.data.classes, run.timeline.slots, run.traits)
        state = built.rule.init(jax.tree.map(jnp.copy, run.params))  # donated
        indices = batches(config, run.examples, 0, CHUNK, draws=run.traits.draws)
        advance: Any = built.advance
        compiled = advance.lower(state, examples, events, indices, np.int32(0)).compile()
        size = compiled.memory_analysis()
        results = size.output_size_in_bytes - size.alias_size_in_bytes
        total = size.argument_size_in_bytes + results + size.temp_size_in_bytes

        def advanced(n: int) -> jax.Array:
            nonlocal state
            state, infos = compiled(state, examples, events, indices, np.int32(n))
            return infos["loss"]

        data = bytes_of((examples, indices))
        return UpdateProgram(total, data, Loop(advanced))

    return update
