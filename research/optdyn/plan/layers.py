"""What a plan is made from: a config's convolutions and its program of an update, measured.

Zou et al., "Distributed training of large-scale deep architectures" (arXiv 1709.06622):

    T_il, M_il         seconds and bytes of convolution i by algorithm l
    M_FM, M_MP, M_C    bytes of feature maps, of parameters, and of the classifier

Convolutions are measured where they stand, in the trainer's own program, because by themselves they
are compiled to other code (on a CPU, XLA's own is slower between neighbours). T_il and M_il are
what the program takes in addition with algorithm l in place of its own. Equal convolutions change
together.
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
from optdyn.problem import problem
from optdyn.problem.costs import block_costs
from optdyn.problem.models.convolution import LOWERINGS, Conv, default_lowering, serves
from optdyn.train import program
from optdyn.train.program import CHUNK
from optdyn.train.trainer import Run

Choice = tuple[str, ...]  # the algorithm of each of the `distinct` convolutions
Layers = Mapping[str, "Convolution"]  # every convolution by name, in the order they are computed in
Updates = Callable[[int, Choice], "UpdateProgram"]


class Convolution(NamedTuple):
    """A convolution, as it meets an example."""

    image: tuple[int, int, int]  # H, W, C
    kernel: tuple[int, int, int, int]  # kh, kw, C, O
    strides: tuple[int, ...]
    padding: str
    dtype: str
    first: bool  # of all: nobody needs the gradient by its input


class Terms(NamedTuple):
    """The terms of the paper's M_bound, in bytes."""

    feature_maps: float  # M_FM
    parameters: float  # M_MP: weights, gradients and the optimizer's state
    classifier: float  # M_C: all of that of the blocks after the last convolution


class UpdateProgram(NamedTuple):
    """The trainer's program of an update, for one mini-batch and one choice of algorithms."""

    bytes: int  # by the compiler: arguments, results that are not in their place, temporaries
    data: int  # of these, the examples and their order
    loop: Loop  # does so many updates and returns their losses, (CHUNK,)


class Tables(NamedTuple):
    """One mini-batch's tables for `planner.algorithms`; the last row is work without alternatives.

    Columns are LOWERINGS, rows otherwise distinct convolutions; each is beyond its least entry.
    """

    times: np.ndarray  # seconds
    memory: np.ndarray  # bytes
    bound: float  # M_bound in bytes: below what `memory` asks for if nothing fits


def convolutions(run: Run) -> Layers:
    """Every convolution of the model, by tracing it."""
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

    whole = run.program.problem
    h = jax.eval_shape(whole.input, head(run.data.train, 1))
    for name, module in whole.blocks:
        with nn.intercept_methods(partial(record, name)):
            h = jax.eval_shape(module.apply, {"params": run.params[name]}, h)
    return found


def distinct(layers: Layers) -> list[Convolution]:
    """The convolutions without repetition."""
    return list(dict.fromkeys(layers.values()))


def own(names: str, layers: Layers) -> Choice:
    """What `config.model.lowering` chooses; of equal convolutions, for the first of them."""
    each, every = (names or default_lowering()).split(","), list(layers.values())
    return tuple(each[every.index(kind) % len(each)] for kind in distinct(layers))


def lowering(layers: Layers, choice: Choice) -> str:
    """`config.model.lowering` of a choice."""
    names = dict(zip(distinct(layers), choice, strict=True))
    return ",".join(names[layer] for layer in layers.values())


def exchanged(kinds: Sequence[Convolution], base: Choice) -> dict[tuple[int, int], Choice]:
    """`base` with algorithm l, of LOWERINGS, for convolution i: by (i, l), for all that serve."""
    return {
        (i, column): (*base[:i], name, *base[i + 1 :])
        for i, kind in enumerate(kinds)
        for column, name in enumerate(LOWERINGS)
        if serves(name, kind.kernel, kind.strides)
    }


def chosen(kinds: Sequence[Convolution], columns: Sequence[int]) -> Choice:
    """The choice that the rows of `Tables` stand for."""
    return tuple(list(LOWERINGS)[column] for column in columns[: len(kinds)])


def least(update: Updates, kinds: Sequence[Convolution], base: Choice, batch: int) -> Choice:
    """The algorithm of every convolution that takes the program the fewest bytes."""
    return chosen(kinds, _beyond(update, kinds, base, batch).argmin(axis=1).tolist())


def _beyond(update: Updates, kinds: Sequence[Convolution], base: Choice, batch: int) -> np.ndarray:
    """Bytes of the program with algorithm l for convolution i, beyond those of `base`."""
    beyond = np.full((len(kinds), len(LOWERINGS)), math.inf)
    choices = exchanged(kinds, base)
    size = update(batch, base).bytes
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compiles
        made = pool.map(partial(update, batch), choices.values())
    for place, other in zip(choices, made, strict=True):
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
    """T_il, M_il and M_bound, from the program with `base` and with one exchange at a time.

    What does not fit in `memory` is not timed and not chosen, even beside smaller ones. M_bound is
    lowered until the program of the choice that `planner.algorithms` makes fits, too: bytes are not
    quite the sum that it takes them for. If nothing else does, `base` remains.
    """
    size = update(batch, base).bytes
    if size > memory:
        nothing = np.full((len(kinds) + 1, len(LOWERINGS)), math.inf)
        return Tables(nothing, nothing, 0.0)
    beyond = _beyond(update, kinds, base, batch)
    choices = {
        place: choice
        for place, choice in exchanged(kinds, base).items()
        if size + beyond[place] <= memory
    }
    programs = {
        ",".join(choice): update(batch, choice).loop for choice in {base, *choices.values()}
    }
    seconds = {name: np.median(taken) for name, taken in phases.measure(programs, rounds).items()}
    times, before = np.full_like(beyond, math.inf), seconds[",".join(base)]
    for place, choice in choices.items():
        times[place] = seconds[",".join(choice)] - before
    rest = before + times.min(axis=1).sum()
    bound = memory - size - beyond.min(axis=1).sum()
    made = Tables(_with_rest(times, max(rest, 0.0)), _with_rest(beyond, 0.0), bound)
    while made.bound >= 0:
        columns = planner.algorithms(*made).tolist()
        over = update(batch, chosen(kinds, columns)).bytes - memory
        if over <= 0:
            return made
        made = made._replace(bound=made.bound - over)
    is_base = [[name == own for name in LOWERINGS] for own in base] + [[True] * len(LOWERINGS)]
    return Tables(np.where(is_base, made.times, math.inf), made.memory, math.inf)


def _with_rest(table: np.ndarray, rest: float) -> np.ndarray:
    """Rows beyond their least entry, and one more that has no choice."""
    last = np.where(np.arange(table.shape[1]) == 0, rest, math.inf)
    return np.vstack([table - table.min(axis=1, keepdims=True), last])


def terms(run: Run, layers: Layers, batch: int) -> Terms:
    """M_FM, M_MP and M_C: what is kept of one example from forward to backward, times the batch."""
    whole = run.program.problem
    made = block_costs(whole, run.params, head(run.data.train, 1))
    kept = {cost.name: cost.activation_bytes for cost in (*made.trunk, *made.heads[-1:])}
    state = jax.eval_shape(run.program.rule.init, run.params)
    copies = 1 + bytes_of(state) / bytes_of(run.params)
    names = [name for name, _ in whole.blocks]
    last = max((names.index(name.split("/")[0]) for name in layers), default=-1)
    (maps, weights), classifier = (
        (
            batch * sum(kept.get(name, 0) for name in part),
            copies * sum(bytes_of(run.params[name]) for name in part),
        )
        for part in (names[: last + 1], names[last + 1 :])
    )
    return Terms(maps, weights, sum(classifier))


def lowered(config: Config, lowering: str) -> Config:
    """The experiment whose convolutions, where its model may have some, are computed so."""
    has = "lowering" in config.model.field_table()
    return config.with_({"model.lowering": lowering}) if has else config


def updates(run: Run, layers: Layers) -> Updates:
    """The program for a mini-batch and a choice, compiled when it is first asked for.

    The run is one of one device and of at least CHUNK steps.
    """
    examples = run.program.layout.put_examples(run.data.train)
    hypers = {name: values[:CHUNK] for name, values in run.hypers.items()}
    events = Event(entries_at(run.timeline.plan, slice(CHUNK)), hypers)

    @cache
    def update(batch: int, choice: Choice) -> UpdateProgram:
        config = lowered(run.config.with_(batch_size=batch), lowering(layers, choice))
        made = program.make(config, run.data.classes, run.timeline.slots)
        state = made.rule.init(jax.tree.map(jnp.copy, run.params))  # donated
        indices = problem.batches(config, run.examples, 0, CHUNK)
        advance: Any = made.advance
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
