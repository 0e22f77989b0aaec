"""Time an update, as ratios of programs run in turn: `python -m analysis.benchmarks.step_time`.

    asynchronous   one simulated asynchronous update, 16 groups, over one synchronous update
    hand-written   the trainer's update over a `lax.scan` of the same update in plain jax and optax
                   and of these the asynchronous one over the synchronous one
    torch          the trainer's update over torch's, eager and by `torch.compile`
                   (`--torch=PYTHON`, one that has torch)

MLP 784-256-256-10 and LeNet-5 on MNIST, batch 64, SGD with momentum 0.9.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

import optdyn as od
from analysis.benchmarks.record import Timer, in_turn, options, publish, spread
from optdyn.core import Event
from optdyn.problem.models.convolution import convolve, max_pool
from optdyn.train import trainer
from optdyn.train.program import CHUNK

BATCH = 64


def config_of(model: str, groups: int) -> od.Experiment:
    return od.Experiment(
        steps=CHUNK,
        log_every=CHUNK,
        checkpoint_every=0,
        batch_size=BATCH,
        model=od.MLP(hidden=(256, 256)) if model == "mlp" else od.CNN(hidden=(120, 84)),
        optimizer=od.SGD(learning_rate=0.01, momentum=0.9),
        cluster=od.Cluster(nodes=groups),
        method=od.Asynchronous(groups=groups) if groups > 1 else od.Sync(),
    )


def repeated(config: od.Experiment) -> Callable[[int], Any]:
    """Returns the trainer's compiled program, called for n updates as the trainer calls it."""
    run = trainer.prepare(config)
    layout, rng = run.program.layout, np.random.default_rng(0)
    indices = rng.integers(run.examples, size=(CHUNK, config.batch_size)).astype(np.int32)
    events = Event(run.timeline.plan, run.hypers)
    examples = layout.put_examples(run.data.train)
    state = layout.put_state(run.program.rule.init(run.params))

    def loop(updates: int) -> Any:
        nonlocal state
        for done in range(0, updates, CHUNK):
            n = min(updates - done, CHUNK)
            state, losses = run.program.advance(state, examples, events, indices, n)
        return state, losses

    return loop


def ours(config: od.Experiment, updates: int) -> Timer:
    """Returns a timer of the trainer's program: the mean seconds of `updates` updates."""
    loop = repeated(config)

    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(loop(updates))
        return (time.perf_counter() - start) / updates

    return once


def by_hand(
    model: str, updates: int, unroll: int = 1, turned: bool = False, groups: int = 0
) -> Timer:
    """Returns a timer of the program that a researcher would write for this model only.

    With `turned` dense weights are (outputs, inputs). With `groups` it is asynchronous: a drawn
    group delivers a gradient at the version that it last read, and reads the new one.
    """
    run = trainer.prepare(config_of(model, 1))
    images, labels = (jnp.asarray(run.data.train[name]) for name in ("image", "label"))
    rng = np.random.default_rng(0)
    indices = jnp.asarray(rng.integers(len(labels), size=(updates, BATCH)).astype(np.int32))
    slots = jnp.asarray(rng.integers(max(groups, 1), size=updates).astype(np.int32))
    tx = optax.sgd(0.01, momentum=0.9)

    def loss(params: list, x: jax.Array, y: jax.Array) -> jax.Array:
        x = x.astype(jnp.float32) / 255
        for i, (w, b) in enumerate(params):
            if w.ndim == 4:
                x = jax.nn.relu(max_pool(convolve(x, w) + b))
                continue
            x = x.reshape(len(x), -1) @ (w.T if turned else w) + b
            if i < len(params) - 1:
                x = jax.nn.relu(x)
        return optax.softmax_cross_entropy_with_integer_labels(x, y).mean()

    def train(params, opt_state, versions, images, labels, indices, slots):
        def step(carry, event):
            (params, opt_state, versions), (chosen, slot) = carry, event
            read = jax.tree.map(lambda v: v[slot], versions) if groups else params
            value, grads = jax.value_and_grad(loss)(read, images[chosen], labels[chosen])
            updates, opt_state = tx.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            if groups:
                versions = jax.tree.map(lambda v, p: v.at[slot].set(p), versions, params)
            return (params, opt_state, versions), value

        return jax.lax.scan(step, (params, opt_state, versions), (indices, slots), unroll=unroll)

    names = [name for name, _ in run.program.problem.blocks]
    leaves = [jax.tree.leaves(run.params[name])[::-1] for name in names]
    stored = [(w.T if turned and w.ndim == 2 else w, b) for w, b in leaves]
    params = [(jnp.array(w), jnp.array(b)) for w, b in stored]  # copies: the arguments are donated
    versions = jax.tree.map(lambda p: jnp.stack([p] * groups), params) if groups else ()
    state = (params, tx.init(params), versions)
    compiled = jax.jit(train, donate_argnums=(0, 1, 2))

    def once() -> float:
        nonlocal state
        start = time.perf_counter()
        state, losses = compiled(*state, images, labels, indices, slots)
        jax.block_until_ready((state, losses))
        return (time.perf_counter() - start) / updates

    return once


def by_torch(python: str, form: str, model: str, updates: int) -> Timer:
    script = Path(__file__).with_name("torch_updates.py")
    command = [python, str(script), str(os.cpu_count()), form]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    if process.stdin is None or process.stdout is None:
        raise OSError("torch: no pipes")
    into, out = process.stdin, process.stdout

    def once() -> float:
        print(model, updates, file=into, flush=True)
        return float(out.readline())

    return once


def measure(rounds: int, updates: dict[str, int], python: str | None) -> pd.DataFrame:
    """Returns a row a ratio: median and quartiles over the rounds, and milliseconds an update."""
    rows = []
    for model, n in updates.items():
        timers = {
            "sync": ours(config_of(model, 1), n),
            "asynchronous": ours(config_of(model, 16), n),
            "hand-written": by_hand(model, n),
            "hand-written asynchronous": by_hand(model, n, groups=16),
        }
        forms = {"torch eager": "eager", "torch.compile": "compiled"} if python else {}
        timers |= {name: by_torch(python, form, model, n) for name, form in forms.items()}
        seconds = in_turn(timers, rounds)
        pairs = [("asynchronous", "sync", 1.05), ("sync", "hand-written", 1.03)]
        pairs += [("hand-written asynchronous", "hand-written", 1.05)]
        pairs += [("asynchronous", "hand-written asynchronous", 1.03)]
        pairs += [("sync", name, 0.6) for name in forms]
        for name, over, aim in pairs:
            rows.append(
                {
                    "model": model,
                    "ratio": f"{name} / {over}",
                    **spread(seconds[name] / seconds[over]),
                    "wanted at most": aim,
                    "ms": 1e3 * np.median(seconds[name]),
                    "ms of the other": 1e3 * np.median(seconds[over]),
                }
            )
    return pd.DataFrame(rows)


def main() -> None:
    parser = options(__doc__, "workdirs/step_time.json", rounds=31)
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch")
    arguments = parser.parse_args()
    table = measure(arguments.rounds, {"mlp": 200, "cnn": 60}, arguments.torch)
    publish(table, arguments.out, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
