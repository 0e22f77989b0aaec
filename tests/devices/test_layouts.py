"""The same run on one device, on several in each idiom, and in several processes."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

from tests.devices import started

RUN = {
    "steps": 100,
    "log_every": 50,
    "checkpoint_every": 0,
    "data.train_examples": 1280,
    "data.train_evaluated": 100,
    "data.test_evaluated": 100,
    "optimizer.learning_rate": 0.02,
    "cluster.service.name": "constant",
}
MOMENTUM = {"optimizer.momentum": 0.9}  # of SGD
SHARES = {
    "method.name": "dynamic_batch",
    "cluster.nodes": 4,
    "cluster.speeds": [1.0, 1.0, 2.0, 4.0],
}
BLOCKING = {
    "method.name": "daso",
    "cluster.nodes": 4,
    "method.max_batches": 1,
    "method.wait": 0,
}


def on(api, devices, **keys):
    """On so many devices in that idiom, with more keys of `parallel`."""
    keys |= {"api": api} | ({"devices": devices} if devices else {})
    return {f"parallel.{key}": value for key, value in keys.items()}


SYNC = {
    **{f"{api}1": on(api, 1) for api in ("jit", "shard_map", "pmap")},
    **{"jit8": on("jit", 8), "shard_map2": on("shard_map", 2), "pmap2": on("pmap", 2)},
    "sharded-optimizer": on("jit", 8, shard_optimizer=True),
    "accumulated": on("shard_map", 2, accumulation=4),
    "shares simulated": SHARES,
    "shares-real": SHARES | on("shard_map", 0),
    "blocking-real": BLOCKING | on("shard_map", 0),
}
OTHER_SIZES = {
    **{"jit2": on("jit", 2), "shard_map8": on("shard_map", 8), "pmap8": on("pmap", 8)},
    "blocking": BLOCKING,
}
DASO = {
    "method.name": "daso",
    "steps": 200,
    "cluster.nodes": 2,
    "cluster.devices_per_node": 2,
    "method.warmup_epochs": 2,
    "method.cooldown_epochs": 2,
    "method.patience": 0,
}
REAL_DASO = DASO | {"parallel.api": "shard_map"}
MEASURED = {
    "method.name": "dynamic_batch",
    "cluster.nodes": 4,
    "cluster.service.name": "measured",
    "cluster.disturbances": [[3, 2, 3, 6]],  # in epochs of 20 updates
    "parallel.api": "shard_map",
}

# What the cluster is, simulated; and in which idioms, with 8 devices, it is real. Constant service:
# arrivals are the same however they are drawn.
GROUPS = {"method.name": "asynchronous", "method.groups": 2, "cluster.nodes": 8}
ONE_EACH = DASO | {"cluster.nodes": 4, "cluster.devices_per_node": 1}
STREAMING = {
    "method.name": "model_averaging",
    "method.fragments": 4,  # as many as there are arrays
    "method.delay": 1,
    "method.mixing": 0.25,
}
PUSH_SUM = {  # of nodes that have shards of their own
    "method.name": "gossip",
    "method.graph": "push",
    "method.gossip_order": "adapt",
    "data.dirichlet": 0.3,
}
SPEEDS = {"cluster.speeds": [1.0, 3.0, 2.0, 2.0]}
# Three stages of two devices each.
PIPELINE = {
    "method.name": "stale_pipeline",
    "model.hidden": [16, 12, 14],
    "cluster.nodes": 3,
    "cluster.devices_per_node": 2,
}
CONVOLUTIONS = {"model.name": "cnn", "model.channels": [2, 3], "model.hidden": [8]}
PIPELINES = {
    "stash": {"optimizer.chain": ["delay_compensation", "staleness_rate"]},
    "2bw": {"method.micro_batches": 4, **CONVOLUTIONS},
    # Adam's updates are of one size, so that of what is nearly 0 rounding has the say; small ones.
    "no_stash": {
        "optimizer.name": "adam",
        "optimizer.learning_rate": 1e-4,
        "cluster.nodes": 2,
    },
    "predict": {},
}


def of(base, name, more=(), apis=("shard_map",), **keys):
    """A method on that cluster with these keys of its own, and the idioms in which it is real."""
    method_keys = {f"method.{key}": value for key, value in keys.items()}
    return base | {"method.name": name} | method_keys | dict(more), apis


TWO_LAYERS = {"model.hidden": [16, 16]}
# All that is evaluated is compared: parameters, averages of norms, and an average of the former.
KEPT = {
    **{"model.name": "tests.own.nets:make", "model.norm_examples": 8, "steps": 40},
    **{"evaluation.statistics": "carried", "evaluation.average": "ema", "evaluation.decay": 0.9},
}
TOP_K = {"compression": "top_k", "compression_share": 0.2}
METHODS = {
    **{
        kind: of(PIPELINE, "stale_pipeline", values, pipeline=kind)
        for kind, values in PIPELINES.items()
    },
    "groups": (GROUPS, ("jit", "shard_map", "pmap")),
    "elastic": of(GROUPS, "elastic"),
    "async_local_sgd": of(GROUPS, "async_local_sgd", apis=("jit",), outer_momentum=0.5),
    "aged": of(GROUPS, "async_local_sgd", server="adam", age_decay=0.3, outer_learning_rate=0.01),
    "heloco": of(GROUPS, "async_local_sgd", server="heloco"),
    "decoupled": of(GROUPS, "decoupled", fragments=2, quorum=1),
    "ad_psgd": of(GROUPS, "ad_psgd", apis=("pmap",)),
    "buffered": of(GROUPS, "buffered", arrivals=2),
    "mindflayer": of(  # about half of the services, of the slowest of four, are longer
        GROUPS,
        "mindflayer",
        {"cluster.service.name": "lognormal", "cluster.service.variation": 1.0},
        arrivals=2,
        allotted=1.5,
    ),
    "ringleader": of(GROUPS, "ringleader"),
    "ringmaster": of(GROUPS, "ringmaster", delay_bound=2),
    "shares": (SHARES, ("pmap",)),
    "local": of(TWO_LAYERS, "local", {"cluster.devices_per_node": 4}, ("pmap",)),
    "nodes": (ONE_EACH, ("jit", "pmap", "overlap")),
    "nodes-of-two": (DASO, ("jit", "overlap")),
    "daso+dynamic_batch": of(DASO, "daso+dynamic_batch", SPEEDS),
    "daso+local": of(DASO, "daso+local", TWO_LAYERS),
    "daso+asynchronous": of(DASO, "daso+asynchronous", {"cluster.devices_per_node": 4}, groups=2),
    "averaging": of(DASO, "model_averaging"),
    "streaming": (DASO | STREAMING, ("jit", "overlap")),
    "streaming-nodes": (ONE_EACH | STREAMING, ("pmap",)),
    "diloco": of(DASO | STREAMING, "diloco"),
    "slowmo": of(DASO, "slowmo", apis=("jit",), inner_state="averaged"),
    "gossip": of(DASO, "gossip"),
    "push-sum": (ONE_EACH | PUSH_SUM, ("jit", "pmap")),
    "top_k": of(DASO, "slowmo", compression="top_k"),
    "sparseloco": of(DASO, "sparseloco", compression_share=0.1),
    "des_loc": of(DASO, "des_loc", second_moment_meetings=2),
    "eager": of(DASO, "eager"),
    "sparta": of(DASO, "sparta", averaged_share=0.2),
    # A coefficient that the last bit makes the larger one is another message: few updates.
    "demo": of(DASO, "demo", {"steps": 64}, coefficients=8, chunk=16, signed=False),
    # Which of two numbers is the larger, the last bit may say, too: from 3e-7 after 32 updates, 138
    # of 12,730 numbers are another message's after 64.
    "choco": of(DASO, "gossip", {"steps": 32}, gossip_order="adapt", **TOP_K),
    "compressed-groups": of(GROUPS, "asynchronous", **TOP_K),
    # Images of 4 x 4 pixels: of 28 x 28 the means that bases are renewed from have no full rank,
    # and the last bit turns the rest of a basis: by 0.05 of a parameter after the first renewal.
    "soap": (
        GROUPS
        | {"optimizer.name": "soap", "optimizer.learning_rate": 1e-3}
        | {"data.image_size": 4, "steps": 60},
        ("shard_map",),
    ),
    "correct": of(DASO | STREAMING, "model_averaging", mixing=0.0, merging="correct"),
    # A number between two levels that the last bit turns is another level: few meetings.
    "E3M0": of(DASO, "diloco", {"steps": 24}, compression_bits=4),
    "noloco": of(ONE_EACH, "slowmo+gossip", apis=("shard_map", "pmap"), graph="random"),
    "gasloc": of(DASO, "gasloc", {"cluster.nodes": 4}, graph="random"),
    # A sign that the last bit turns, as sums in another order may, is another message.
    "sign": of(ONE_EACH, "diloco", apis=("pmap",), compression="sign"),
    # The powers that it takes amplify: 10 times every 30 updates, from 2e-8 after 16.
    "powersgd": of(DASO, "model_averaging", {"steps": 64}, compression="powersgd"),
    "asynchronous+local": of(GROUPS, "asynchronous+local", TWO_LAYERS),
    "kept": (KEPT, ("jit", "shard_map")),
    "kept groups": of(GROUPS | KEPT, "asynchronous", apis=("jit", "pmap")),
    "kept nodes": of(DASO | KEPT, "diloco", apis=("shard_map",)),
    "kept shares": (SHARES | KEPT, ("pmap",)),
    "kept local": of(KEPT, "local", {"cluster.devices_per_node": 4}, ("pmap",)),
}
# Idioms of the same methods that take much the same way through a layout as one of those above.
SLOW = {
    "local": ("jit",),
    "daso+local": ("jit",),
    "daso+asynchronous": ("jit", "overlap"),
    "daso+dynamic_batch": ("overlap",),
    "diloco": ("overlap",),
    "averaging": ("jit",),
    "streaming": ("shard_map",),
    "streaming-nodes": ("jit", "shard_map"),
    "slowmo": ("shard_map",),
    "powersgd": ("jit",),
    "asynchronous+local": ("jit", "pmap"),
}
METERED = {"probes.momentum": True, "probes.window": 60, "probes.every": 80}
# Each way through a layout has a method here; `test_all_methods_in_all_idioms`, which is slow, has
# the others: workers as groups do, outer rules and compressions as streaming DiLoCo in nodes.
OFTEN = ("groups", "shares", "nodes", "daso+local", "stash", "kept", "kept nodes")
OWN = [f"{name} {METHODS[name][1][0]}" for name in ("groups", "shares")]
REAL = [(name, api) for name in OFTEN for api in METHODS[name][1]]
# The meter makes a second, large program of every run: always tried where groups arrive; where
# shares divide a batch, nodes have their own, and with all others if slow.
PROBED = {"groups": ("shard_map",)}
REPLAYED = ("daso-real", "measured")
METERED_STREAMS = {"shares-real": "shares simulated", "nodes pmap": "nodes simulated"}
# Held whole on every device, and streamed, each device its own.
STREAMED = {
    "shares-real": SYNC["shares-real"],
    "nodes pmap": ONE_EACH | {"parallel.api": "pmap"},
}
OTHERS_STREAMED = {
    **{name: SYNC[name] for name in ("shard_map2", "pmap2")},
    "shares pmap": SHARES | {"parallel.api": "pmap"},
    "nodes overlap": ONE_EACH | {"parallel.api": "overlap"},
    "push-sum pmap": ONE_EACH | PUSH_SUM | {"parallel.api": "pmap"},
    "daso+dynamic_batch shard_map": METHODS["daso+dynamic_batch"][0]
    | {"parallel.api": "shard_map"},
}

# Devices sum the 64 gradients of a batch in another order: a relative 2^-24 sqrt(64) an update,
# 5e-7. Momentum 0.9 keeps it for 10 updates, and 100 or 200 of random sign add up to 10 times that,
# 5e-5 of an update of size 1e-2. What is left of it was measured as at most 3e-7.
CLOSE = {"rtol": 0, "atol": 5e-6}


def train(configs, folder, data_dir, *launcher):
    base, whole = RUN | {"data.dir": data_dir}, {}
    for name, values in configs.items():
        momentum = {} if "optimizer.name" in values else MOMENTUM
        hidden = {} if "model.name" in values else {"model.hidden": [16]}
        whole[name] = base | momentum | hidden | values
    return started.parameters(whole, folder, *launcher)


@pytest.fixture(scope="module")
def data_dir(mnist):
    return mnist["data.dir"]


def replayed(values, trace, api=""):
    """The same, simulated or real, from what a real run recorded."""
    others = {k: v for k, v in values.items() if not k.startswith("cluster.service.")}
    return others | {
        "parallel.api": api,
        "cluster.service.name": "trace",
        "cluster.service.path": str(trace),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("layouts")


def both(name, more, slow=(), metered=None):
    """A method simulated, and in each of its idioms: with more keys, in all or those `metered`."""
    values, apis = METHODS[name]
    all_apis = (*apis, *slow)
    real = {
        f"{name} {api}": values
        | (more if api in (metered or all_apis) else {})
        | {"parallel.api": api}
        for api in all_apis
    }
    return {f"{name} simulated": values | more} | real


@pytest.fixture(scope="module")
def parameters(folder, data_dir):
    configs = {"sync": {}, **SYNC, "daso": DASO, "daso-real": REAL_DASO}
    configs["longer"] = {"steps": DASO["steps"]}
    configs["groups in parts"] = GROUPS | {"parallel.api": "jit", "parallel.shard_snapshots": True}
    for name in OFTEN:
        metered = PROBED.get(name)
        configs |= both(name, METERED if metered else {}, metered=metered)
    configs["measured"] = MEASURED
    configs["measured streamed"] = MEASURED | {"data.streaming": True}
    configs |= {f"{name} streamed": v | {"data.streaming": True} for name, v in STREAMED.items()}
    # In order: these are trained before.
    for name in REPLAYED:
        configs[f"{name}-replayed"] = replayed(configs[name], folder / name / "trace.csv")
    for name in OWN:
        trace, api = folder / name / "trace.csv", configs[name]["parallel.api"]
        configs[f"{name} again"] = replayed(configs[name], trace, api)
    return train(configs, folder, data_dir)


@pytest.mark.parametrize("name", SYNC)
def test_what_is_synchronous_gives_the_same_parameters(parameters, name):
    np.testing.assert_allclose(parameters[name], parameters["sync"], **CLOSE)


@pytest.mark.parametrize("api", ["jit", "shard_map", "pmap"])
def test_one_device_is_the_same_to_the_bit(parameters, api):
    np.testing.assert_array_equal(parameters[f"{api}1"], parameters["sync"])


def test_daso_is_simulated_as_it_is(parameters):
    np.testing.assert_allclose(parameters["daso-real"], parameters["daso"], **CLOSE)
    # The nodes really went their own ways: it is not synchronous SGD that agrees with itself.
    assert np.abs(parameters["daso"] - parameters["longer"]).max() > 1e-3


@pytest.mark.parametrize(("name", "api"), REAL)
def test_every_method_is_simulated_as_it_is(parameters, name, api):
    real, simulated = parameters[f"{name} {api}"], parameters[f"{name} simulated"]
    np.testing.assert_allclose(real, simulated, **CLOSE)
    assert np.abs(simulated[: len(parameters["sync"])] - parameters["sync"][: len(simulated)]).max()


def test_versions_in_parts_over_the_devices_are_read_as_whole_ones(parameters):
    found, whole = parameters["groups in parts"], parameters["groups simulated"]
    np.testing.assert_allclose(found, whole, **CLOSE)


@pytest.mark.parametrize(("name", "api"), [(n, api) for n in PROBED for api in PROBED[n]])
def test_the_momentum_meter_records_the_same(parameters, folder, name, api):
    same_records(folder, f"{name} {api}", f"{name} simulated")


@pytest.mark.slow
def test_all_methods_in_all_idioms(tmp_path, data_dir):
    others = [name for name in METHODS if not set(METHODS[name][1]) <= set(PROBED.get(name, ()))]
    metered = {name: {} if name in PIPELINES else METERED for name in others}
    configs = {name: both(name, metered[name], SLOW.get(name, ())) for name in others}
    simulated_and_real = {
        k: v for configs_of_method in configs.values() for k, v in configs_of_method.items()
    }
    streams = {
        f"{name} streamed": STREAMED[name] | METERED | {"data.streaming": True}
        for name in METERED_STREAMS
    }
    found = train(simulated_and_real | streams, tmp_path, data_dir)
    for name, simulated in METERED_STREAMS.items():
        same_records(tmp_path, f"{name} streamed", simulated)
    for method, (simulated, *real) in configs.items():
        for name in real:
            np.testing.assert_allclose(found[name], found[simulated], **CLOSE, err_msg=name)
            if metered[method]:
                same_records(tmp_path, name, simulated)
    real_configs = {
        name: values for name, values in simulated_and_real.items() if values.get("parallel.api")
    }
    again = {
        name: replayed(values, tmp_path / name / "trace.csv", values["parallel.api"])
        for name, values in real_configs.items()
    }
    (tmp_path / "again").mkdir()
    for name, flat in train(again, tmp_path / "again", data_dir).items():
        np.testing.assert_array_equal(flat, found[name], err_msg=name)


def same_records(folder, real, simulated):
    found, expected = (np.load(folder / name / "sketches.npy") for name in (real, simulated))
    # Parameters differ by 5e-6, gradients by as much times a curvature of some 10.
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-5, err_msg=real)
    assert np.abs(expected).max(axis=(0, 2)).min() > 1e-3  # all three are there


def test_another_process_runs_what_one_has_compiled(parameters, folder, data_dir):
    """XLA's CPU ends in a fault where a branch of a program that it loads has several sums."""
    name = "kept nodes shard_map"
    (folder / "again").mkdir()
    values = METHODS["kept nodes"][0] | {"parallel.api": "shard_map"}
    again = train({name: values}, folder / "again", data_dir)
    np.testing.assert_array_equal(again[name], parameters[name])


@pytest.mark.parametrize("name", STREAMED)
def test_devices_that_are_brought_their_own_examples_compute_the_same_to_the_bit(parameters, name):
    np.testing.assert_array_equal(parameters[f"{name} streamed"], parameters[name])


@pytest.mark.parametrize("name", ["measured", "measured streamed"])
def test_measured_shares_are_not_seen_in_the_parameters(parameters, folder, name):
    np.testing.assert_allclose(parameters[name], parameters["sync"], **CLOSE)
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").open()]
    measured = {row["step"]: row["worker_seconds"] for row in rows if "worker_seconds" in row}
    assert list(measured) == [20, 40, 60, 80, 100]  # the ends of epochs
    assert all(len(seconds) == 4 and min(seconds) > 0 for seconds in measured.values())
    work = pd.read_csv(folder / name / "trace.csv")["control.work.3"]
    np.testing.assert_array_equal(work, np.repeat([1, 1, 6, 6, 1], 20))


@pytest.mark.parametrize("name", REPLAYED)
def test_a_real_run_is_replayed_from_its_trace(parameters, folder, name):
    np.testing.assert_allclose(parameters[f"{name}-replayed"], parameters[name], **CLOSE)
    trace = pd.read_csv(folder / name / "trace.csv")
    replay = json.loads((folder / f"{name}-replayed" / "summary.json").read_text())
    assert len(trace) == replay["steps"]
    # The simulated seconds of the replay are the real ones of the run, less what it logged.
    assert replay["simulated_seconds"] == pytest.approx(trace["seconds"].iloc[-1])
    real = json.loads((folder / name / "summary.json").read_text())
    assert 0 < replay["simulated_seconds"] < real["wall_seconds"]
    columns = [column for column in trace if column.startswith("control.shares")]
    assert (trace[columns].sum(axis=1) == 64).all() or not columns


@pytest.mark.parametrize("name", OWN)
def test_a_real_run_again_from_its_own_trace_is_the_same_to_the_bit(parameters, folder, name):
    np.testing.assert_array_equal(parameters[f"{name} again"], parameters[name])
    trace = (folder / name / "trace.csv").read_text().splitlines()
    again = (folder / f"{name} again" / "trace.csv").read_text().splitlines()
    assert trace[0] == again[0] and len(trace) == len(again)


@pytest.mark.slow
def test_other_sizes_and_other_streams(tmp_path, data_dir):
    streamed = {f"{k} streamed": v | {"data.streaming": True} for k, v in OTHERS_STREAMED.items()}
    found = train({"sync": {}, **OTHER_SIZES, **OTHERS_STREAMED, **streamed}, tmp_path, data_dir)
    for name in OTHER_SIZES:
        np.testing.assert_allclose(found[name], found["sync"], **CLOSE, err_msg=name)
    for name in OTHERS_STREAMED:
        np.testing.assert_array_equal(found[f"{name} streamed"], found[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices"), [(2, 1), (4, 1), (2, 2)])
def test_processes_agree_with_one(tmp_path, data_dir, parameters, processes, devices):
    launcher = [sys.executable, "-m", "launch.local", f"--processes={processes}"]
    launcher += [f"--devices_per_process={devices}", "--"]
    configs = {api: {"parallel.api": api} for api in ("jit", "shard_map", "pmap")}
    if processes * devices == 4:
        configs["nodes overlap"] = ONE_EACH | {"parallel.api": "overlap"}
        configs |= {"daso": REAL_DASO, "shares": SYNC["shares-real"], "measured": MEASURED}
        streamed = {name: configs[name] for name in ("shard_map", "pmap", "daso", "measured")}
        configs |= {f"{k} streamed": v | {"data.streaming": True} for k, v in streamed.items()}
    if devices == 2:
        configs["streaming overlap"] = DASO | STREAMING | {"parallel.api": "overlap"}
    groups = GROUPS | {"cluster.nodes": 2 * processes * devices}
    configs |= {f"groups {api}": groups | {"parallel.api": api} for api in METHODS["groups"][1]}
    found = train(configs, tmp_path, data_dir, *launcher)
    alone = {"groups": groups, "streaming simulated": DASO | STREAMING}
    simulated = train(alone, tmp_path, data_dir) | parameters
    for name, flat in found.items():
        kinds = (kind for kind in ("daso", "groups", "nodes", "streaming") if kind in name)
        kind = next(kinds, "sync")
        expected = simulated[f"{kind} simulated" if kind in METHODS and kind != "groups" else kind]
        np.testing.assert_allclose(flat, expected, **CLOSE)


@pytest.mark.slow
def test_a_process_reads_its_own_examples_only(tmp_path, data_dir):
    values = RUN | MOMENTUM | SYNC["shares-real"] | {"data.dir": data_dir, "data.streaming": True}
    values["model.hidden"] = [16]
    values |= {"steps": 60, "cluster.nodes": 2, "cluster.speeds": [1.0, 3.0]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    launcher = [sys.executable, "-m", "launch.local", "--processes=2", "--"]
    started.start(
        "tests.devices.rows_read", [str(tmp_path / "config.json"), str(tmp_path)], launcher, ""
    )
    trace = pd.read_csv(tmp_path / "run" / "trace.csv")
    shares = trace[["control.shares.0", "control.shares.1"]].to_numpy()
    read = [json.loads((tmp_path / f"{process}.json").read_text()) for process in (0, 1)]
    sizes = [[len(numbers) for numbers in blocks] for blocks in read]
    np.testing.assert_array_equal(np.transpose(sizes), shares.reshape(3, 20, 2).sum(axis=1))
    assert sizes == [[640, 320, 320], [640, 960, 960]]
    for epoch in range(3):
        assert sorted(read[0][epoch] + read[1][epoch]) == list(range(1280))
