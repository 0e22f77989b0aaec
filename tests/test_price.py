"""`optdyn price`: the trainer's own seconds and bytes, closed forms, and the tables it prints."""

import json
import math
import runpy
import subprocess
import sys

import numpy as np
import pytest

import optdyn
from optdyn import methods
from optdyn.base.errors import ConfigError
from optdyn.cli import price as command
from optdyn.clock.cluster import Cluster
from optdyn.clock.service import Constant, Exponential, LogNormal
from optdyn.experiment import Config
from optdyn.price import price, who_pays
from optdyn.price.shapes import model_shapes, parameter_shapes
from optdyn.problem.data.kinds import MNIST5k
from optdyn.problem.models import Quadratic, ResMLP
from optdyn.train import trainer
from tests.own_flags import called

STEP, SIZE, NODES = 0.5, 124e6, 64
FIXED = Cluster(nodes=NODES, service=Constant())
DRAWN = FIXED.with_(service=LogNormal(0.3))
TEN = 10 * price.GIGABIT
SHAPES = parameter_shapes(SIZE)
MESSAGE = SHAPES.bytes / TEN  # seconds
AROUND = 2 * (NODES - 1) / NODES  # copies of the parameters that a node sends in an all-reduce


def experiment(name, cluster=FIXED, step=STEP, **keys):
    """Workers compute eight examples each, `step` seconds at speed 1."""
    workers = cluster.nodes * cluster.devices_per_node
    config = Config(cluster=cluster, batch_size=8 * workers)
    return price.with_method(price.with_step_seconds(config, step), name, **keys)


def priced(name, cluster=FIXED, **keys):
    return price.price(experiment(name, cluster, **keys), SHAPES)


def small(name, nodes=4, **keys):
    """A quadratic that is trained in a moment, on a network that is slow for it."""
    cluster = Cluster(nodes=nodes, service=LogNormal(0.3), bandwidth=1e4, latency=1e-3)
    model, data = Quadratic(dimension=6, noise=0.5), MNIST5k(train_examples=100)
    config = Config(model=model, data=data, cluster=cluster, batch_size=4 * nodes, steps=24)
    devices = {"cluster.devices_per_node": 2, "batch_size": 32} if "+" in name else {}
    return price.with_method(config.with_(devices, log_every=8), name, **keys)


TRAINED = {
    "sync": {},
    "asynchronous": {},
    "buffered": {"arrivals": 2},
    "mindflayer": {"arrivals": 2, "allotted": 1.1},
    "ringleader": {},
    "elastic": {"period": 3},
    "ad_psgd": {},
    "sparta": {"averaged_share": 0.4},
    "demo": {"coefficients": 2},
    "decoupled": {"period": 3, "quorum": 2},
    "model_averaging": {"period": 3, "inner_state": "averaged"},
    "diloco": {"period": 5, "compression": "sign"},
    "gossip": {"graph": "exponential"},
    "gasloc": {"period": 3, "graph": "random"},
    "dynamic_batch": {},
    "diloco+elastic": {"period": 2},
    "gossip+buffered": {"graph": "exponential", "groups": 2},
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_run_has_the_seconds_the_bytes_and_the_staleness(name, tmp_path):
    config = small(name, **TRAINED[name])
    trainer.train(config, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    found = price.price(config, model_shapes(config), config.steps)
    assert found.seconds == summary["simulated_seconds_per_step"]
    assert found.staleness == pytest.approx(summary["staleness_mean"])
    assert found.logged_bytes == pytest.approx(summary.get("sent_bytes", 0.0) / config.steps)
    assert found.computing + found.waiting + found.exchange == pytest.approx(1)
    assert found.epoch_seconds == pytest.approx(found.seconds * 100 / config.batch_size)


MEETING = ("model_averaging", "diloco", "slowmo", "eager", "sparseloco", "daso")


@pytest.mark.parametrize("name", [*MEETING, "sparta", "demo", "gossip", "gasloc", "diloco+elastic"])
def test_nobody_hears_a_node_that_is_alone(name, tmp_path):
    config = small(name, nodes=1, **TRAINED.get(name, {}))
    trainer.train(config, tmp_path)
    logged = json.loads((tmp_path / "summary.json").read_text())["sent_bytes"]
    inside = 0.0
    if "+" in name:  # of an exchange the six numbers travel there and back
        inside = 2 * 6 * 4 * trainer.prepare(config).timeline.plan.inner.exchange.sum()
    found = price.price(config, model_shapes(config), config.steps)
    assert logged == inside == found.logged_bytes * config.steps


def test_shares_are_of_the_seconds_of_the_same_update():
    """The slowest of 64 takes 0.96 s in the mean, half of which is waiting, and the ring 7.8 s."""
    draws = np.exp(np.random.default_rng(1).normal(size=(10**4, NODES)) * np.log(1.09) ** 0.5)
    slowest = STEP * draws.max(axis=1).mean() / np.exp(np.log(1.09) / 2)  # of mean 1
    for gigabits in (0.1, 1, 10):
        ring = AROUND * SHAPES.bytes / (gigabits * price.GIGABIT)
        config = experiment("sync", DRAWN.with_(bandwidth=gigabits * price.GIGABIT))
        found = price.price(config, SHAPES)
        shares = (STEP, slowest - STEP, ring)  # seconds
        parts = (found.computing, found.waiting, found.exchange)
        for seconds, part in zip(shares, parts, strict=True):
            assert part * found.seconds == pytest.approx(seconds, rel=0.02)  # of 512 updates


def test_an_experiments_price_is_that_of_its_training():
    chosen = optdyn.Experiment(
        model=Quadratic(dimension=6),
        data=MNIST5k(train_examples=100),
        method=optdyn.DiLoCo(period=4),
        cluster=Cluster(nodes=2, bandwidth=1e4),
        batch_size=4,
        steps=20,
    )
    seconds = chosen.price().seconds
    assert seconds == chosen.train().summary["simulated_seconds_per_step"]
    assert chosen.price(bandwidth=1e2).seconds > seconds > chosen.price(bandwidth=0.0).seconds
    link = tuple(tuple(1e4 for _ in range(2)) for _ in range(2))
    matrix = chosen.with_(cluster=Cluster(nodes=2, bandwidths=link))
    assert matrix.price(bandwidth=1e2).seconds == chosen.price(bandwidth=1e2).seconds
    settled = chosen.price(settled=True)
    assert settled == price.price(chosen, model_shapes(chosen))
    assert settled.seconds == pytest.approx(seconds, rel=0.3) and settled.seconds != seconds


@pytest.mark.parametrize(
    ("name", "keys", "copies"),
    [
        ("sync", {}, AROUND),
        ("model_averaging", {"period": 1}, AROUND),
        ("slowmo", {"period": 10}, AROUND / 10),
        ("diloco", {"period": 32}, AROUND / 32),
        ("diloco", {"period": 4, "compression": "bfloat16"}, AROUND / 2 / 4),
        ("diloco", {"period": 4, "compression": "sign"}, (NODES - 1) / 32 / 4),  # to every other
    ],
)
def test_a_ring_of_equal_workers_has_a_closed_form(name, keys, copies):
    """An update takes a step and 2 (n - 1) messages of an n-th of the parameters, in a row."""
    rel = 1e-3 if keys.get("compression") == "sign" else 1e-9  # its messages have a scale
    for gigabits in (0.1, 10):
        exchange = copies * SHAPES.bytes / (gigabits * price.GIGABIT)
        of_bandwidth = price.price_by_bandwidth(experiment(name, **keys), SHAPES)
        found = of_bandwidth(gigabits * price.GIGABIT)
        assert found.seconds == pytest.approx(STEP + exchange, rel=rel)
        assert found.computing == pytest.approx(STEP / found.seconds, rel=1e-9)
        assert found.waiting == pytest.approx(0, abs=1e-9)
        assert found.network_bytes == pytest.approx(copies * SHAPES.bytes, rel=rel)
        assert found.examples_per_second == pytest.approx(8 * NODES / found.seconds)


@pytest.mark.parametrize("cluster", [FIXED, DRAWN])
def test_workers_of_a_server_have_a_closed_form(cluster):
    """A step, of unit mean, and a message there and back, with every H-th: nobody waits."""
    cluster = cluster.with_(bandwidth=TEN)
    for name, period in (("asynchronous", 1), ("ringmaster", 1), ("elastic", 16), ("ad_psgd", 1)):
        found = priced(name, cluster, period=period)
        seconds = STEP + 2 * MESSAGE / period
        assert found.seconds == pytest.approx(seconds / NODES, rel=0.02)
        assert found.computing == pytest.approx(STEP / seconds, rel=0.01)
        assert found.network_bytes == pytest.approx(2 * SHAPES.bytes / period, rel=0.02)
        assert found.waiting == 0
    assert priced("asynchronous", cluster).staleness == pytest.approx(NODES - 1, abs=1)


def link(name, cluster=FIXED, **keys):
    """The parameters that the busiest link carries one way while every node makes a step."""
    return priced(name, cluster, **keys).link_bytes / SHAPES.bytes


@pytest.mark.parametrize(
    ("name", "keys", "copies"),
    [
        ("sync", {}, AROUND),
        ("diloco", {"period": 32}, AROUND / 32),
        ("diloco", {"period": 4, "compression": "sign"}, 63 / 32 / 4),
        ("daso", {}, AROUND / 4),
        ("asynchronous", {}, 64),  # to the one server
        ("elastic", {"period": 16}, 64 / 16),
        ("ad_psgd", {}, 2),  # to a peer, and to a node whose peer it is
        ("gossip", {"graph": "ring"}, 2),
        ("gossip", {"graph": "complete"}, 63),
        ("gossip", {"graph": "push"}, 1),
    ],
)
def test_the_busiest_link_carries_what_a_hand_counts(name, keys, copies):
    assert link(name, **keys) == pytest.approx(copies, rel=2e-3)  # a sign's message has a scale


def test_the_busiest_link_is_a_roots_a_servers_or_a_leaders():
    """Of 8 nodes, and of two groups of 4: a tree's root has 3 below it, a ring of 4 sends 3/2."""
    tree, server = (FIXED.with_(nodes=8, collective=kind) for kind in ("tree", "server"))
    assert link("sync", tree) == pytest.approx(3)
    assert link("sync", server) == pytest.approx(7)
    assert link("asynchronous", server) == link("asynchronous", tree) == pytest.approx(8)
    for kind, copies in (("ring", 3 / 2 + 1), ("tree", 2 + 1), ("server", 8)):
        cluster = FIXED.with_(nodes=8, collective=kind)
        two = experiment("asynchronous", cluster).with_({"method.groups": 2}, batch_size=32)
        found = price.price(two, SHAPES).link_bytes / SHAPES.bytes
        assert found == pytest.approx(copies), kind  # the leader sends its group's sum too


def test_a_servers_link_is_busy_as_long_as_its_clock_says():
    """Where all wait for it, it has there and back of every node's step one after the other."""
    cluster = Cluster(nodes=8, service=Constant(), server_bandwidth=TEN / 100)
    found = priced("asynchronous", cluster)
    busy = 2 * found.link_bytes / cluster.server_bandwidth
    assert 8 * found.seconds == pytest.approx(busy, rel=1e-4)  # but for the first step's computing


def test_parameters_that_are_read_for_nothing_go_over_the_servers_link():
    """Who is late has read and sends no gradient: a node has 2 messages, and one for each."""
    cluster = Cluster(nodes=8, service=LogNormal(0.3))
    method = experiment("mindflayer", cluster, arrivals=2, allotted=1.1)
    found = price.price(method, SHAPES)
    late = found.network_bytes / SHAPES.bytes - 2
    assert late > 0.2
    assert found.link_bytes == pytest.approx(8 * SHAPES.bytes * (1 + late))


@pytest.mark.parametrize("k", [1, 5, 8])
def test_what_k_sync_drops_is_waited_for(k):
    """The k-th of n exponential times has mean 1/n + ... + 1/(n - k + 1)."""
    n = 8
    cluster = Cluster(nodes=n, service=Exponential())
    found = priced("buffered", cluster, arrivals=k, waiting="k_sync")
    mean = sum(1 / (n - i) for i in range(k))
    assert found.seconds == pytest.approx(STEP * mean, rel=0.08)
    assert found.computing == pytest.approx(k / (n * mean), rel=0.08)
    assert found.waiting == pytest.approx(1 - found.computing) and found.exchange == 0


def test_daso_is_priced_in_its_cycling_phase():
    """Of four batches one waits for the message that the batch before sent."""
    cluster = FIXED.with_(bandwidth=TEN)
    found = priced("daso", cluster)
    exchange = AROUND * MESSAGE
    assert exchange > STEP
    assert found.seconds == pytest.approx((3 * STEP + exchange) / 4, rel=1e-9)
    assert found.logged_bytes == pytest.approx(SHAPES.bytes / 4, rel=1e-9)
    assert found.staleness == 1
    halved = priced("daso", cluster, transfer_dtype="bfloat16")
    assert halved.logged_bytes == pytest.approx(SHAPES.bytes / 8, rel=1e-9)


def test_a_stream_hides_what_is_shorter_than_its_delay():
    """Fragments of equal parts, each under way for one update of ten."""
    keys = {"period": 10, "fragments": 4, "delay": 1}
    found = price.price_by_bandwidth(experiment("diloco", **keys), SHAPES)
    hidden = AROUND * SHAPES.bytes / 4 / STEP
    assert found(1.01 * hidden).computing == pytest.approx(1)
    assert found(hidden / 2).seconds == pytest.approx(STEP + 4 * STEP / 10, rel=1e-3)
    assert found(hidden).staleness == 1
    assert found(hidden).logged_bytes == pytest.approx(SHAPES.bytes / 10, rel=1e-9)


def test_unlike_speeds():
    """Synchronous workers wait for the slow one, shares of a batch follow, others don't wait."""
    cluster = Cluster(nodes=2, service=Constant(), speeds=(1.0, 3.0))
    wanted = {"sync": 2 / 3, "model_averaging": 2 / 3, "dynamic_batch": 1, "asynchronous": 1}
    for name, share in wanted.items():
        found = priced(name, cluster)
        assert found.computing == pytest.approx(share, rel=1e-3), name
        a_second = 16 / STEP if share < 1 else 8 / STEP * 4
        assert found.examples_per_second == pytest.approx(a_second, rel=0.01), name


def test_nodes_of_several_devices():
    """Devices of a node add up over its own links; groups inside nodes arrive by themselves."""
    cluster = Cluster(nodes=4, devices_per_node=2, service=Constant(), bandwidth=TEN)
    cluster = cluster.with_(local_bandwidth=100 * price.GIGABIT)
    local = SHAPES.bytes / cluster.local_bandwidth
    found = priced("sync", cluster)
    # A ring of the two, one around the nodes, and the sum handed on.
    assert found.seconds == pytest.approx(STEP + local + 1.5 * MESSAGE + local)
    assert found.network_bytes == pytest.approx(1.5 * SHAPES.bytes)
    free = cluster.with_(bandwidth=0.0, local_bandwidth=0.0)
    for name in ("diloco+asynchronous", "gossip+elastic", "daso+async_local_sgd"):
        inside = priced(name, free)
        assert inside.computing == pytest.approx(1, rel=0.01), name
        assert inside.examples_per_second == pytest.approx(8 * 8 / STEP, rel=0.01)


def test_stragglers_bound_what_a_network_can_do():
    """Synchronous workers of log-normal times wait for one another, asynchronous ones do not."""
    of_bandwidth = price.price_by_bandwidth(experiment("sync", DRAWN), SHAPES)
    assert price.bandwidth_needed(of_bandwidth, [0.9]) == {0.9: math.inf}


@pytest.mark.parametrize("name", ["sync", "asynchronous", "async_local_sgd"])
def test_the_bandwidth_that_is_needed_is_the_closed_forms(name):
    """To 99 %, also of times that are drawn, where the mean of the draws must not count."""
    around = AROUND if name == "sync" else 2 / (8 if "local" in name else 1)
    cluster = FIXED if name == "sync" else DRAWN
    found = price.bandwidth_needed(
        price.price_by_bandwidth(experiment(name, cluster), SHAPES), price.SHARES
    )
    for share, gigabits in found.items():
        bytes_a_second = around * SHAPES.bytes / (STEP * (1 / share - 1))
        rel = price.RATIO - 1 if name == "sync" else 0.03
        assert gigabits == pytest.approx(bytes_a_second / price.GIGABIT, rel=rel)


# arXiv 2501.18512, table 4: Gbit/s for 50, 80, 90, 95 and 99 % by parameters, seconds a step and
# fragments, of two replicas: all gradients at every step, DiLoCo every 100, streamed, streamed with
# an update of delay, and that in 4 bits. They are of a grid whose steps are a factor of 1.21.
PRINTED = {
    (1e9, 0.1, 8): (
        (86.8, 152.6, 184.2, 222.3, 569.0),
        (1.4, 6.2, 13.3, 23.3, 86.8),
        (1.4, 5.2, 9.1, 16.0, 28.1),
        (1.4, 4.3, 6.2, 9.1, 11.0),
        (0.4, 0.9, 1.7, 2.0, 3.0),
    ),
    (1e10, 0.8, 16): (
        (104.8, 222.3, 222.3, 268.3, 471.5),
        (1.7, 7.5, 16.0, 33.9, 104.8),
        (1.7, 5.2, 9.1, 13.3, 19.3),
        (1.7, 3.6, 5.2, 6.2, 7.5),
        (0.4, 0.9, 1.4, 1.4, 1.7),
    ),
    (1e11, 4.9, 36): (
        (184.2, 323.8, 390.7, 390.7, 471.5),
        (3.0, 11.0, 23.3, 49.4, 184.2),
        (2.4, 6.2, 9.1, 11.0, 19.3),
        (1.7, 3.6, 4.3, 5.2, 5.2),
        (0.5, 0.9, 1.1, 1.1, 1.4),
    ),
}


@pytest.mark.parametrize("model", PRINTED)
def test_streaming_diloco_needs_what_its_paper_prints(model):
    """To a step of the paper's grid, but where the last layers' exchange alone is not hidden."""
    size, step, fragments = model
    two = Cluster(nodes=2, service=Constant(), overlap=2 / 3)  # the backward pass
    streamed = {"period": 100, "fragments": fragments}
    kinds = ({"period": 1}, {"period": 100}, streamed, *[streamed | {"delay": 1}] * 2)
    for n, (keys, printed) in enumerate(zip(kinds, PRINTED[model], strict=True)):
        config = experiment("diloco", two, step, compression="bfloat16", **keys)
        shapes = parameter_shapes(size / 4 if n == 4 else size)  # 4 of 16 bits
        found = price.bandwidth_needed(
            price.price_by_bandwidth(config, shapes), price.SHARES
        ).values()
        ratios = np.array(list(found)) / printed
        assert np.all(np.abs(np.log(ratios[:4])) < np.log(1.21)), (keys, ratios)
        assert 0.41 < ratios[4] < 1.21


def test_a_worker_has_as_many_examples_by_every_method():
    cluster = Cluster(nodes=4, devices_per_node=2, service=Constant())
    for name in methods.built_in():
        one = price.with_method(experiment("sync", cluster), name, arrivals=2)
        assert price.examples_of_worker(one) == 8
        assert price.examples_of_worker(price.with_nodes(one, 8)) == 8


def test_the_size_of_a_model_is_not_the_memory_of_its_price():
    """Shapes have no arrays: 124 billion parameters cost what 124 million do."""
    shapes = parameter_shapes(124e9)
    assert shapes.bytes == pytest.approx(4 * 124e9, rel=1e-6)
    assert price.price(experiment("diloco", period=8), shapes).computing > 0


@pytest.mark.parametrize("name", ["local", "stale_pipeline"])
def test_stages_are_priced_of_a_model(name):
    """The run's own timeline; one stage computes all the time, and sends nothing."""
    cluster = Cluster(nodes=2, service=Constant(), bandwidth=1e6)
    model, data = ResMLP(blocks=4, width=8), MNIST5k(train_examples=400, train_evaluated=10)
    config = Config(model=model, data=data, cluster=cluster, batch_size=16, steps=20)
    config = price.with_method(config, name)
    shapes = model_shapes(config)
    found = price.price(config, shapes, config.steps)
    assert found.seconds == float(trainer.prepare(config).timeline.seconds[-1]) / config.steps
    width = 4 * 16 * 8 * (1 if name == "local" else 2)  # bytes of activations, and of their slopes
    assert found.network_bytes == pytest.approx(width / 2)
    assert found.link_bytes == pytest.approx(4 * 16 * 8)  # one way over the only link
    alone = price.price(price.with_nodes(config, 1), shapes)
    assert alone.computing == pytest.approx(1, abs=0.01)
    assert alone.network_bytes == alone.link_bytes == 0
    with pytest.raises(ConfigError, match="blocks of a model"):
        price.price(config, SHAPES)


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("local", {}, "blocks of a model"),
        ("asynchronous", {"cluster.presence": 9.0}, "always there"),
        ("asynchronous", {"cluster.service.name": "race"}, "must be one of 'constant'"),
        ("diloco+local", {}, "blocks of a model"),
    ],
)
def test_what_has_no_price_says_why(name, keys, words):
    with pytest.raises(ConfigError, match=words) as refused:
        price.price(experiment(name).with_(keys), SHAPES)
    assert "\n" not in str(refused.value)


def test_the_tables_are_narrow_and_say_what_has_no_price():
    keys = [{"period": h, "compression": c} for h in (1, 128) for c in ("", "bfloat16")]
    names = ["sync", "local", "async_local_sgd", "diloco+async_local_sgd"]
    config = experiment("sync", DRAWN)
    rows = list(price.rows(config, parameter_shapes(1e6), names, [1.0, 0.1], keys))
    assert [row["method"] for row in rows] == [
        *("sync", "local", "async_local_sgd", "async_local_sgd"),
        *["diloco+async_local_sgd"] * 4,
    ]
    lines = [*command.table(rows, [1.0, 0.1]), *command.notes(config, rows)]
    assert max(map(len, lines)) <= 120  # what a page has
    (note,) = [line for line in lines if line.startswith("No price of ")]
    assert note.startswith("No price of local: needs") and note.count("local") == 1
    fastest = max(rows, key=lambda r: r.get("prices", {1.0: {}})[1.0].get("examples_per_second", 0))
    assert lines[2].startswith(fastest["method"])
    assert json.loads(json.dumps(rows, allow_nan=False))  # plain values


def test_rho_is_an_all_reduce_over_the_computing_of_a_noise_scale():
    """A ring of 64 at 10 Gbit/s; 64 workers take 0.5 s for 8 examples each."""
    config, noise = experiment("sync"), 2048.0
    exchange = AROUND * SHAPES.bytes / TEN
    ten, slow = who_pays.pays(config, SHAPES.bytes, noise, [10.0, 1e-3])
    assert ten["rho"] == pytest.approx(exchange / (noise / 64 * STEP / 8), rel=1e-9)
    assert slow["rho"] == pytest.approx(1e4 * ten["rho"], rel=1e-9)
    assert (slow["DiLoCo"], slow["top-k"]) == (0.444, 0.402)  # the contest's slowest network
    (alone,) = who_pays.pays(price.with_nodes(config, 1), SHAPES.bytes, noise, [1.0])
    assert (alone["rho"], alone["top-k"]) == (0, pytest.approx(1.017 / 0.651))  # its fastest
    lines = list(command.pays_table([ten, slow], noise))
    assert lines[0].split() == ["Gbit/s", "rho", "DiLoCo", "top-k"] and max(map(len, lines)) <= 100


def test_the_command(tmp_path, monkeypatch, capsys):
    def ran(*arguments):
        """What `python -m optdyn.cli.price` does, in this process."""
        monkeypatch.delitem(sys.modules, command.__name__, raising=False)
        with called(monkeypatch, "optdyn price", arguments), pytest.raises(SystemExit) as ended:
            runpy.run_module(command.__name__, run_name="__main__")
        return subprocess.CompletedProcess(arguments, ended.value.code, *capsys.readouterr())

    out = tmp_path / "prices.json"
    done = ran(
        *("--parameters=1e6", "--step_seconds=0.5", "--methods=sync,diloco", "--nodes=4,8"),
        *("--periods=16", "--compression=none,top_k", "--bandwidths=1,10", f"--out={out}"),
        "--noise_scale=100",
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(out.read_text())
    assert [(row["nodes"], row["gigabits"]) for row in written["who_pays"]] == [
        *((4, 1), (4, 10), (8, 1), (8, 10))
    ]
    found = written["rows"]
    assert [(row["nodes"], row["method"], row.get("compression")) for row in found] == [
        (n, *row) for n in (4, 8) for row in (("sync", None), ("diloco", ""), ("diloco", "top_k"))
    ]
    assert "diloco 16 top_k, 8 nodes" in done.stdout and not done.stderr
    plain = ran("--parameters=1e6", "--methods=sync", "--bandwidths=1", "--json")
    (row,) = json.loads(plain.stdout)["rows"]
    assert (row["method"], list(row["prices"])) == ("sync", ["1.0"])
    same = ran("--parameters=1M", "--methods=sync", "--bandwidths=1")
    assert "64 nodes, 1,000,000 parameters" in same.stdout
    # The usual config's 1 ms an example knows nothing of a model's size.
    assert "--step_seconds has yours" in " ".join(same.stdout.split())
    for name, flag, words in (
        ("sync,dilloco", "--parameters=1e6", "diloco"),
        ("diloco", "--periods=0", "--periods"),
        ("diloco", "--periods=1.5", "whole number"),
        ("diloco", "--periods=1e9", "10,000"),
        ("diloco", "--compression=zip", "--compression"),
        ("sync", "--bandwidths=-1", "--bandwidths"),
        ("sync", "--parameters=nan", "finite"),
        ("sync", "--parameters=many", "--parameters: 'many' must be a finite number above 0"),
        ("sync", "--bandwith=1", "did you mean --bandwidths"),
        ("sync", "--noise_scale=0", "--noise_scale: 0.0 must be a finite number above 0"),
        ("all", "--parameters=-1", "error: --parameters:"),
        ("sync", "--out=nowhere/all.json", "--out: 'nowhere/all.json' must be a file in a folder"),
        (
            "local",
            "--parameters=1e6",
            "error: no price of local: config.method.name = 'local': needs",
        ),
    ):
        wrong = ran(f"--methods={name}", flag)
        assert wrong.returncode == 2 and words in wrong.stderr and not wrong.stdout
        assert wrong.stderr.startswith("error: ") and wrong.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "name",
    ["model_averaging", "diloco+gossip", "diloco+dynamic_batch", "daso", "daso+dynamic_batch"],
)
@pytest.mark.parametrize("period", [3, 700])
def test_a_settled_price_has_whole_periods(name, period):
    """Constant times: an update's computing, and one meeting in so many of them, by hand."""
    cluster = FIXED.with_(nodes=4, devices_per_node=2, bandwidth=1e7)
    keys = {"wait": 0} if "daso" in name else {}
    method = experiment(name, cluster, period=period, max_batches=period, **keys)
    found = price.price(method, SHAPES).seconds
    free = priced(name, cluster.with_(bandwidth=1e30), **keys).seconds
    meeting = 2 * SHAPES.bytes / 1e7  # to both neighbours of a ring, one after the other
    if "gossip" not in name:
        meeting *= 3 / 4  # an all-reduce
    assert found == pytest.approx(free + meeting / period, rel=1e-3)


def test_des_loc_is_priced_over_whole_turns_of_its_moments():
    """In six meetings parameters go six times and first moments twice; SGD has no second ones."""
    settled = priced("des_loc", FIXED, period=100)
    plain = priced("model_averaging", FIXED, period=100)
    assert settled.network_bytes == pytest.approx(plain.network_bytes * 8 / 6, rel=1e-9)


def test_the_first_updates_that_always_meet_are_not_settled():
    config = experiment("model_averaging", DRAWN, period=32)
    early = config.with_({"method.synchronous_updates": 200})
    assert price.price(early, SHAPES) == price.price(config, SHAPES)


def test_the_methods_own_groups_are_priced_as_they_are():
    """4 groups of 2 of 8 workers; on twice the nodes they are 4 of 4, and groups of 1 are of 1."""
    cluster = FIXED.with_(nodes=8)
    config = experiment("asynchronous", cluster)
    four = config.with_({"method.groups": 4}, batch_size=16)
    (row,) = price.rows(four, SHAPES, ["asynchronous"], [1.0])
    assert (row["groups"], row["batch_size"]) == (4, 16)
    assert (
        row["prices"][1.0]
        == price.price(four.with_({"cluster.bandwidth": price.GIGABIT}), SHAPES)._asdict()
    )
    (other,) = price.rows(four, SHAPES, ["ringmaster"], [1.0])
    assert (other["groups"], other["batch_size"]) == (8, 8)
    more, alone = price.with_nodes(four, 16), price.with_nodes(config, 16)
    assert (more.methods.groups, more.batch_size) == (4, 32)
    assert (alone.methods.groups, alone.batch_size) == (16, 8)


def test_slowdowns_by_epochs_have_a_price_of_a_run_only():
    slowed = {"cluster.disturbance_probability": 1.0, "cluster.disturbance_seconds": (5.0, 5.0)}
    config = experiment("dynamic_batch", FIXED.with_(nodes=4)).with_(slowed, steps=40)
    with pytest.raises(ConfigError, match="by epochs have no steady state"):
        price.price(config, SHAPES)
    assert price.price(config, SHAPES, steps=40).seconds > STEP
