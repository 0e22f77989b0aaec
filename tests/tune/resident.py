"""Memory that an update of LeNet takes, by the operating system's count of resident bytes.

`python -m tests.tune.resident LOWERING BOUND PART`: of PART of the largest mini-batch that fits
in BOUND bytes by the compiler's count. Prints the peak of the update beyond what the process held,
over BOUND.
"""

import sys
from pathlib import Path

import jax

from configs import plan as configs
from optdyn.plan import layers, planner
from optdyn.plan.plans import prepare


def resident(line: str) -> int:
    """Bytes of VmRSS, held now, or of VmHWM, the most held."""
    status = dict(one.split(":", 1) for one in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status[line].split()[0])


def main(lowering: str, bound: float, part: float) -> None:
    # Mini-batches may be larger than the data.
    run = prepare(configs.get_config().with_({"data.replacement": True}))
    convolutions = layers.convolutions(run)
    update, choice = (
        layers.updates(run, convolutions),
        layers.choice_of_config(lowering, convolutions),
    )
    fits = planner.largest(lambda b: update(b, choice).bytes, bound, 2**14)
    made = update(round(part * fits.batch), choice)
    jax.block_until_ready(update(1, choice).loop.run(1))  # starts the threads
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    jax.block_until_ready(made.loop.run(1))
    print((resident("VmHWM") - before) / bound)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
