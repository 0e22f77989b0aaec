"""What `launch.plan` has measured and decided, `plan.json`, as a text to be read."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

MIB = 2**20


def text(plan: dict[str, Any]) -> str:
    parts = (_memory(plan), _batches(plan), _convolutions(plan), _decided(plan))
    return "\n\n".join(part for part in parts if part)


def _memory(plan: dict[str, Any]) -> str:
    largest, terms = plan["largest"], plan["largest"]["formula"]
    sizes = {
        "M_GPU": plan["memory"],
        "M_FM": terms["feature_maps"],
        "M_MP": terms["parameters"],
        "M_C": terms["classifier"],
        "M_bound": plan["memory"] - terms["total"],
    }
    beyond = largest["bytes"] - terms["total"] - largest["data_bytes"]
    limit = "all examples" if largest["all_examples"] else "the largest that fits"
    lines = [
        f"mini-batch {largest['batch']}, {limit}, with {_names(largest['algorithms'])}: "
        f"{_mib(largest['bytes'])} MiB by the compiler, and an update of it ran",
        "by the formula, MiB: " + ", ".join(f"{k} {_mib(size)}" for k, size in sizes.items()),
        f"the program has besides {_mib(largest['data_bytes'])} of examples and their order, and "
        f"{_mib(beyond)} of workspace and of what the compiler keeps, less what it uses again",
    ]
    for larger in (largest["too_large"], largest["quarter_more"]):
        fits = "fits" if larger["bytes"] <= plan["memory"] else "does not fit"
        lines.append(f"mini-batch {larger['batch']}: {_mib(larger['bytes'])} MiB, {fits}")
    return "\n".join(lines)


def _batches(plan: dict[str, Any]) -> str:
    rows = [
        {
            "mini-batch": row["batch"],
            "ms an update": f"{1e3 * row['seconds']:.4g}" if row["feasible"] else "-",
            "examples/s": f"{row['examples_per_second']:.4g}" if row["feasible"] else "-",
            "algorithms": _names(row["chosen"]) if row["feasible"] else "does not fit",
        }
        for row in plan["batches"]
    ]
    return "predicted\n" + pd.DataFrame(rows).to_string(index=False)


def _convolutions(plan: dict[str, Any]) -> str:
    """Empty if there are none."""
    rows = [
        {
            "convolutions": " ".join(row["names"]),
            **{
                name: "-" if seconds is None else f"{1e3 * seconds:.3g}, {_mib(row['bytes'][name])}"
                for name, seconds in row["seconds"].items()
            },
            "chosen": row["chosen"],
        }
        for row in plan["convolutions"]
    ]
    title = f"mini-batch {plan['update']['batch']}: ms and MiB beyond the algorithm with the least"
    return f"{title}\n{pd.DataFrame(rows).to_string(index=False)}" if rows else ""


def _decided(plan: dict[str, Any]) -> str:
    update, devices, servers, time = (plan[k] for k in ("update", "devices", "servers", "time"))
    own = update["own_seconds"]
    as_it_is = f"takes {1e3 * own:.4g} ms" if own else "does not fit"
    needed = servers["count"] if servers["bandwidth"] else "none, as transfers take no time"
    return "\n".join(
        [
            f"an update of {update['batch']}: predicted {1e3 * update['predicted_seconds']:.4g} ms,"
            f" measured {_interval(update['seconds'], 1e3)} ms; config.model.lowering as it is "
            f"{as_it_is}",
            f"devices: {devices['count']}, at most {devices['most']}, with efficiency "
            f"{devices['efficiency']:.3f} (at least {devices['target_efficiency']}) and speed-up "
            f"{devices['speedup']:.4g}, for R_O = {devices['overhead_seconds']:.3g} s / "
            f"{servers['compute_seconds']:.3g} s = {devices['overhead_ratio']:.3g}",
            f"parameter servers: {needed}, for S_p = {servers['parameter_bytes']} bytes, N_w = "
            f"{servers['workers']}, B_ps = {servers['bandwidth']:.3g} bytes/s, T_C = "
            f"{servers['compute_seconds']:.3g} s",
            f"time to train: {_interval(time['seconds'])} s on one device, "
            f"{time['seconds']['median'] / devices['speedup']:.4g} s on {devices['count']}, for "
            f"{_interval(time['updates'])} updates ({time['source']})",
            f"use --config.batch_size={update['batch']} "
            f"--config.model.lowering={update['lowering']}",
        ]
    )


def _interval(value: dict[str, float], unit: float = 1) -> str:
    median, low, high = (f"{unit * value[key]:.4g}" for key in ("median", "low", "high"))
    return median if low == high else f"{median} ({low} to {high})"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "no convolutions"


def _mib(size: float) -> str:
    return f"{size / MIB:.4g}"
