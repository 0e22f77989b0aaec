"""Trajectories of replicas: one initialization, many draws of arrivals and batches.

Recorded at all updates t, for the fit of E d_t = mu E d_{t-1} - eta E G_t (arXiv 1605.09774), under
one random projection S (a count sketch), which biases nothing as the relation is linear:

    d_t = x_{t+1} - x_t                 displacement
    G_t = grad f(x_t)                   gradient of the whole training objective
"""

import shutil
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from optdyn.base import lookup, seeds
from optdyn.base.files import read_json, write, write_json, write_npz
from optdyn.base.progress import Progress, note_signals, say
from optdyn.base.trees import Array, Json, Tree, examples_in
from optdyn.clock.timeline import entries_at
from optdyn.core import Event, State
from optdyn.devices.first_process import hold_workdir
from optdyn.experiment import Config, ConfigError
from optdyn.problem.data import order
from optdyn.problem.problem import Examples, Params, Problem
from optdyn.train import history, trainer
from optdyn.train.checkpoints import saving
from optdyn.train.program import Program
from optdyn.train.trainer import Run
from optdyn.train.workdir import REPLICAS, claim, damaged, free_keys, text_of, write_checksums

SLICE = 1000  # examples at a time in the gradient of the whole objective
PART = 16  # replicas a file of an unfinished recording, rounded up to whole blocks

Arrays = Mapping[str, Array]
LossAndGradient = tuple[jax.Array, Params]  # of all examples


@lookup.files_read_once()
def record(config: Config, workdir: str | Path) -> Json:
    """Records `config.replicas.count` replicas of `config.steps` updates; returns the summary.

    `status` is `completed`, `diverged` (something recorded is not finite) or `interrupted`: the
    same call goes on. Writes `trajectories.npz`: `displacements` and `gradients`, (R, T, q)
    float32, and `losses`, (R, T).
    """
    if config.init_from:
        raise ConfigError("config.init_from: must be '' with config.replicas.count, of replicas")
    run = trainer.prepare(config, replicas=config.replicas.count)
    with hold_workdir(Path(workdir)) as folder, saving(folder):
        claim(folder, config, free_keys(config))
        finished = read_json(folder / "summary.json")
        if finished and not damaged(folder):
            say(f"already finished: {workdir}")
            return finished
        write(folder / "config.json", text_of(config))
        return _recorded(run, folder)


def _recorded(run: Run, workdir: Path) -> Json:
    config = run.config
    history.record_start(workdir, 0, config.steps)
    parts = workdir / "parts"
    parts.mkdir(exist_ok=True)
    size = -(-PART // config.replicas.block) * config.replicas.block
    starts = range(0, config.replicas.count, size)
    progress = Progress(workdir.name, len(starts), unit="part")
    with note_signals() as noted:
        for start in starts:
            path = parts / f"{start}.npz"
            if not _is_whole(path):
                write_npz(path, _part(run, start, size))
            progress.show(len(list(parts.glob("*.npz"))))
            if noted.stopped:
                say("saved: the same command goes on")
                return {"status": "interrupted", "signal": noted.stopped}
    arrays = _join(parts, starts)
    write_npz(workdir / REPLICAS, arrays)
    finite = all(np.isfinite(array).all() for array in arrays.values())
    summary = {
        "status": "completed" if finite else "diverged",
        "step": config.steps,
        "steps": config.steps,
        "replicas": config.replicas.count,
        "train_loss": float(arrays["losses"][:, -1].mean()),
        "staleness_mean": float(run.timeline.staleness.mean()),
        "staleness_histogram": np.bincount(run.timeline.staleness.ravel()).tolist(),
        **trainer.provenance(run),
        **history.summary_fields(workdir),
    }
    write_checksums(workdir, summary)
    write_json(workdir / "summary.json", summary)
    shutil.rmtree(parts)
    return summary


def _part(run: Run, start: int, size: int) -> Arrays:
    config, count = run.config, run.config.replicas.count
    chosen = np.arange(start, start + size) % count
    events = Event(
        entries_at(run.timeline.plan, chosen),
        {name: np.broadcast_to(v, (size, len(v))) for name, v in run.hypers.items()},
    )
    examples = {name: jnp.asarray(leaf) for name, leaf in run.data.train.items()}
    indices = np.stack([_indices(run, int(replica)) for replica in chosen])
    recorder = _recorder(run.program, config.replicas.block, config.replicas.subspace)
    key = seeds.key(config.seed, "subspace")
    arrays = recorder((run.params, examples, key), (events, indices))
    return {name: np.asarray(leaf)[: count - start] for name, leaf in arrays.items()}


def _indices(run: Run, replica: int) -> np.ndarray:
    config = run.config
    seed = seeds.number(config.seed, f"batches replicas{replica}")
    return order.batches(
        seed, 0, config.steps, config.batch_size, run.examples, config.data.replacement
    )


def _is_whole(path: Path) -> bool:
    try:
        with np.load(path) as arrays:
            return all(arrays[name].size for name in arrays)
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile, zlib.error):
        return False


def _join(parts: Path, starts: range) -> Arrays:
    stored = [np.load(parts / f"{start}.npz") for start in starts]
    keys = ("displacements", "gradients", "losses")
    return {key: np.concatenate([part[key] for part in stored]) for key in keys}


@lru_cache(maxsize=32)
def _recorder(program: Program, block: int, subspace: int) -> Callable[..., Arrays]:
    def replicas(shared: tuple[Tree, ...], draws: tuple[Event, Array]) -> Arrays:
        one = partial(_trajectory, program, subspace, *shared)
        many = {"batch_size": block} if block > 1 else {}
        return jax.lax.map(lambda draw: one(*draw), draws, **many)

    return jax.jit(replicas)


def _trajectory(
    program: Program,
    subspace: int,
    params: Params,
    examples: Examples,
    key: jax.Array,
    events: Event,
    indices: jax.Array,
) -> Arrays:
    """Returns S d_t and S G_t, (T, q), and f(x_t), (T,), of one replica."""
    project = sketch(key, params, subspace)
    state = program.rule.init(params)

    def step(state: State, inputs: tuple[Event, jax.Array]) -> tuple[State, Arrays]:
        event, chosen = inputs
        loss, gradient = whole_gradient(program.problem, state.params, examples)
        batch = program.problem.batch(examples, chosen)
        after, _ = program.rule.step(state, event, batch)
        moved = jax.tree.map(jnp.subtract, after.params, state.params)
        return after, {
            "displacements": project(moved),
            "gradients": project(gradient),
            "losses": loss,
        }

    return jax.lax.scan(step, state, (events, indices))[1]


def whole_gradient(problem: Problem, params: Params, examples: Examples) -> LossAndGradient:
    """Returns f and grad f over all examples, a slice at a time."""
    count = examples_in(examples)
    slices = -(-count // SLICE)
    positions = jnp.arange(slices * SLICE if slices > 1 else count).reshape(slices, -1)

    def part(params: Params, chosen: jax.Array) -> jax.Array:
        batch = {name: leaf[chosen % count] for name, leaf in examples.items()}
        losses = problem.losses(problem.outputs(params, batch), batch)
        return jnp.sum(jnp.where(chosen < count, losses, 0)) / count

    def add(total: LossAndGradient, chosen: jax.Array) -> tuple[LossAndGradient, None]:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(part)(params, chosen)), None

    if slices == 1:
        return jax.value_and_grad(part)(params, positions[0])
    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
    return jax.lax.scan(add, zero, positions)[0]


def sketch(key: jax.Array, params: Params, size: int) -> Callable[[Params], jax.Array]:
    """Returns the count sketch to q = min(size, p) numbers: signs are drawn, i adds to i mod q."""
    flat, _ = ravel_pytree(params)
    q = min(size, len(flat))
    signs = jax.random.rademacher(key, (len(flat),), flat.dtype)
    pad = -len(flat) % q

    def project(tree: Params) -> jax.Array:
        return jnp.pad(signs * ravel_pytree(tree)[0], (0, pad)).reshape(-1, q).sum(axis=0)

    return project
