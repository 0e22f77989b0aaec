"""The measurements and decisions of `launch.plan`, `plan.json`, as a text."""

from typing import Any

import pandas as pd

from optdyn.plan import planner

MIB = 2**20


def text(plan: dict[str, Any]) -> str:
    batches = pd.DataFrame([_batch(row) for row in plan["batches"]]).to_string(index=False)
    updates = f"updates: {plan['source']}\n{batches}"
    parts = (_memory(plan), updates, _convolutions(plan), _decided(plan))
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
    names = ", ".join(largest["algorithms"]) or "no convolutions"
    lines = [
        f"mini-batch {largest['batch']}, {limit}, with {names}: "
        f"{_mib(largest['bytes'])} MiB by the compiler, and an update of it ran",
        "by the formula, MiB: " + ", ".join(f"{k} {_mib(size)}" for k, size in sizes.items()),
        f"the program has besides {_mib(largest['data_bytes'])} of examples and their order, and "
        f"{_mib(beyond)} of workspace and of what the compiler keeps, less what it uses again",
    ]
    larger = largest["too_large"]
    fits = "fits" if larger["bytes"] <= plan["memory"] else "does not fit"
    lines.append(f"mini-batch {larger['batch']}: {_mib(larger['bytes'])} MiB, {fits}")
    return "\n".join(lines)


def _batch(row: dict[str, Any]) -> dict[str, Any]:
    if not row["feasible"]:
        return {"mini-batch": row["batch"], "algorithms": "does not fit"} | dict.fromkeys(
            ("ms predicted", "ms", "gain", "examples/s", "updates", "s to train"), "-"
        )
    gain = row["gain"]
    return {
        "mini-batch": row["batch"],
        "algorithms": row["lowering"] or "no convolutions",
        "ms predicted": f"{1e3 * row['predicted_seconds']:.4g}",
        "ms": _interval(row["seconds"], 1e3),
        "gain": _interval(gain) if gain else "-",
        "examples/s": f"{row['examples_per_second']:.4g}",
        "updates": _interval(row["updates"]),
        "s to train": _interval(row["time"]),
    }


def _convolutions(plan: dict[str, Any]) -> str:
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
    title = f"mini-batch {plan['batch']}: ms and MiB beyond the algorithm with the least"
    return f"{title}\n{pd.DataFrame(rows).to_string(index=False)}" if rows else ""


def _decided(plan: dict[str, Any]) -> str:
    (update,) = (row for row in plan["batches"] if row["batch"] == plan["batch"])
    devices, servers = plan["devices"], plan["servers"]
    many, computing = devices["count"], servers["compute_seconds"]
    seconds = planner.seconds_per_update(computing, devices["overhead_seconds"], many)
    needed = servers["count"] if servers["bandwidth"] else "none, as transfers take no time"
    return "\n".join(
        [
            _measured(update),
            f"devices: {many}, at most {devices['most']}, with efficiency "
            f"{devices['efficiency']:.3f} (at least {devices['target_efficiency']}) and speed-up "
            f"{devices['speedup']:.4g}, for R_O = {devices['overhead_seconds']:.3g} s / "
            f"{computing:.3g} s = {devices['overhead_ratio']:.3g}",
            f"parameter servers: {needed}, for S_p = {servers['parameter_bytes']} bytes, N_w = "
            f"{servers['workers']}, B_ps = {servers['bandwidth']:.3g} bytes/s and T_C / N_w = "
            f"{computing / many:.3g} s of a worker's computing",
            f"time to train: {_interval(update['time'])} s on one device, "
            f"{update['updates']['median'] * seconds:.4g} s on {many}, for "
            f"{_interval(update['updates'])} updates of {update['batch']} ({plan['source']})",
            f"use --config.batch_size={update['batch']} "
            f"--config.model.lowering={update['lowering']}",
        ]
    )


def _measured(update: dict[str, Any]) -> str:
    planned, gain = update["planned"], update["gain"]
    begin = f"an update of {update['batch']}: "
    if update["own"] is None:
        return begin + f"{planned}, as config.model.lowering as it is does not fit"
    if gain is None:
        return begin + "planned with config.model.lowering as it is"
    times = f"{planned} takes 1 / {_interval(gain)} of the time of config.model.lowering as it is"
    if planned == update["lowering"]:
        return begin + times
    return begin + times + ", no more than measured noise: that is kept"


def _interval(value: dict[str, float], unit: float = 1) -> str:
    median, low, high = (f"{unit * value[key]:.4g}" for key in ("median", "low", "high"))
    return median if low == high else f"{median} ({low} to {high})"


def _mib(size: float) -> str:
    return f"{size / MIB:.4g}"
