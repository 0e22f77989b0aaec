"""An update of LeNet where the operating system limits memory, by the compiler's count of bytes.

`python -m tests.tuning.limited LOWERING BOUND PART`: of PART of the largest mini-batch that fits in
BOUND bytes, in a process that may have an eighth of BOUND more than that beyond what it had before.
Prints `ran`, or the error that there is no memory.
"""

import resource
import sys
from pathlib import Path

import jax

from configs import plan as configs
from launch.plan import prepare
from research.tuning import layers, planner


def data_bytes() -> int:
    """What the limit is on: private memory of this process that can be written to."""
    status = Path("/proc/self/status").read_text().split("\n")
    (line,) = (line for line in status if line.startswith("VmData:"))
    return 1024 * int(line.split()[1])


def main(lowering: str, bound: float, part: float) -> None:
    config = configs.get_config()
    config.data.replacement = True  # mini-batches may be larger than the data
    run = prepare(config)
    every = layers.convolutions(run)
    update, choice = layers.updates(run, every), layers.own(lowering, every)
    fits = planner.largest(lambda b: update(b, choice).bytes, bound, 2**14)
    made = update(round(part * fits.batch), choice)
    jax.block_until_ready(update(1, choice).loop.run(1))  # starts the threads
    limit = data_bytes() + int(bound * 9 / 8)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        jax.block_until_ready(made.loop.run(1))
        print("ran")
    except jax.errors.JaxRuntimeError as error:
        print(error)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
