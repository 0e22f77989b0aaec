"""Time `od.compare` without a workdir against plain JAX: `python -m analysis.benchmarks.compare`.

20 seeds of an MLP 784-32-10 on MNIST5k make 600 asynchronous updates of 16 groups. Plain JAX makes
the same updates and evaluations by one jitted scan and one jitted loss, a thread a core. Each is
timed in a new process, with compilation, without imports and the loading of data.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

import optdyn as od
from analysis.benchmarks.record import options, publish, spread
from optdyn.problem import shared_data

SEEDS, STEPS, GROUPS, BATCH, HIDDEN = 20, 600, 16, 64, 32
EXPERIMENT = od.Experiment(
    model=od.MLP(hidden=(HIDDEN,)),
    data=od.MNIST5k(),
    optimizer=od.SGD(learning_rate=0.05),
    cluster=od.Cluster(workers=GROUPS, service=od.Exponential()),
    method=od.Asynchronous(groups=GROUPS),
    batch_size=BATCH,
    steps=STEPS,
)


def losses_of_compare() -> list[float]:
    found = od.compare({"16 groups": EXPERIMENT}, seeds=range(SEEDS))
    return [run.log["train_loss"].iloc[-1] for run in found["16 groups"]]


def losses_of_plain_jax() -> list[float]:
    """Returns the last training loss of each seed, by a loop in plain JAX."""
    data, log_every = shared_data.load(EXPERIMENT), EXPERIMENT.log_every
    images, labels = (jnp.asarray(data.train[name]) for name in ("image", "label"))
    sets = [jax.device_put(split) for split in (data.train, data.test)]  # as many as by default
    tx = optax.sgd(EXPERIMENT.optimizer.learning_rate, momentum=EXPERIMENT.optimizer.momentum)

    def outputs(params: Any, x: jax.Array) -> jax.Array:
        (w, b), (v, c) = params
        x = x.reshape(len(x), -1).astype(jnp.float32) / 255
        return jax.nn.relu(x @ w + b) @ v + c

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        logits = outputs(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @partial(jax.jit, donate_argnums=0)
    def train(state: Any, chosen: jax.Array, groups: jax.Array) -> Any:
        def step(state: Any, event: Any) -> Any:
            (params, opt_state, versions), (batch, group) = state, event
            read = jax.tree.map(lambda v: v[group], versions)
            value, grads = jax.value_and_grad(loss)(read, images[batch], labels[batch])
            updates, opt_state = tx.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            versions = jax.tree.map(lambda v, p: v.at[group].set(p), versions, params)
            return (params, opt_state, versions), value

        return jax.lax.scan(step, state, (chosen, groups))

    @jax.jit
    def evaluate(params: Any, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return loss(params, x, y), (outputs(params, x).argmax(-1) == y).mean()

    @jax.jit
    def init(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        normal = jax.nn.initializers.lecun_normal()
        hidden = normal(first, (784, HIDDEN)), jnp.zeros(HIDDEN)
        params = [hidden, (normal(second, (HIDDEN, 10)), jnp.zeros(10))]
        return params, tx.init(params), jax.tree.map(lambda p: jnp.stack([p] * GROUPS), params)

    def end(seed: int) -> float:
        rng, state, log = np.random.default_rng(seed), init(jax.random.key(seed)), []
        order = [rng.permutation(len(labels)) for _ in range(-(-STEPS * BATCH // len(labels)))]
        chosen = np.concatenate(order)[: STEPS * BATCH].reshape(STEPS, BATCH)
        groups = rng.integers(GROUPS, size=STEPS)
        for step in range(0, STEPS + log_every, log_every):
            if step:
                window = slice(step - log_every, step)
                state, losses = train(state, chosen[window], groups[window])
                assert np.isfinite(losses).all()
            figures = [evaluate(state[0], s["image"], s["label"]) for s in sets]
            log.append([float(figure) for pair in figures for figure in pair])
        return log[-1][0]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(end, range(SEEDS)))


def seconds_of(way: str) -> float:
    command = [sys.executable, "-m", "analysis.benchmarks.compare", f"--way={way}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def time_here(way: str) -> float:
    """Returns the seconds of `compare` or `plain` in this process."""
    shared_data.load(EXPERIMENT)
    jnp.zeros(1).block_until_ready()
    start, used = time.perf_counter(), time.process_time()
    ends = losses_of_compare() if way == "compare" else losses_of_plain_jax()
    seconds = time.perf_counter() - start
    used = time.process_time() - used
    print(f"{way}: training loss {np.median(ends):.3g}, {used:.3g} s of CPUs", file=sys.stderr)
    return seconds


def measure(rounds: int) -> pd.DataFrame:
    found = np.array([[seconds_of(way) for way in ("compare", "plain")] for _ in range(rounds)])
    ours, theirs = found.T
    return pd.DataFrame(
        {"what": what, **spread(values)}
        for what, values in [
            ("seconds of compare", ours),
            ("seconds of plain JAX", theirs),
            ("compare / plain JAX", ours / theirs),
        ]
    )


def main() -> None:
    parser = options(__doc__, "workdirs/compare.json", rounds=9)
    parser.add_argument("--way", choices=["compare", "plain"], help="only this one, here")
    arguments = parser.parse_args()
    if arguments.way:
        print(time_here(arguments.way))
    else:
        publish(measure(arguments.rounds), arguments.out, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
