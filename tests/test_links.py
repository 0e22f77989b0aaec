"""The account of real seconds over links: what its terms are, and what goes over a link."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from analysis.benchmarks import links, shaped

PARAMETERS = 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10  # of the model at 100 Mbit/s


def found(row: links.LinkRow, own: list[float], together: list[float]) -> dict:
    """Of nodes that were measured thrice: links of 10 MB/s and faster, messages of 1 ms."""
    nodes = range(row.nodes)
    return row._asdict() | {
        "step": [[0.03] * 3 for _ in nodes],
        "own": [[each] * 3 for each in own],
        "link": [[1e7 + 1e6 * node] * 3 for node in nodes],
        "small": [[1e-3] * 3 for _ in nodes],
        "together": [[9.0, each, each] for each in together],  # one round was disturbed
    }


@pytest.mark.parametrize("nodes", (2, 4))
def test_the_account_of_synchronous_nodes_is_that_of_a_ring(nodes):
    own = [0.04, 0.05, 0.04, 0.03][:nodes]
    row = links.LinkRow("sync", 100, nodes=nodes)
    account = links.account(found(row, own, [0.2 + 0.01 * node for node in range(nodes)]))

    wire = 2 * (nodes - 1) / nodes * 4 * PARAMETERS / 1e7  # over the slowest link
    latency = 2 * (nodes - 1) * 1e-3
    assert account["wire"] == pytest.approx(wire)
    assert account["latency"] == pytest.approx(latency)
    assert account["simulated"] == pytest.approx(max(own) + wire + latency)
    assert account["waiting"] == pytest.approx(max(own) - sum(own) / nodes)
    # Who is last counts, and the middle round.
    assert account["measured"] == pytest.approx(0.2 + 0.01 * (nodes - 1))
    parts = ("step", "own", "waiting", "wire", "latency", "rest")
    assert sum(account[part] for part in parts) == pytest.approx(account["measured"])


def test_rare_exchanges_are_shared_by_the_updates_between_them():
    """Of DiLoCo by 8 in 16 updates there are two, of which one is the last."""
    often, rarely = (
        links.account(found(links.LinkRow("DiLoCo", 100, period), [0.05, 0.05], [0.1, 0.1]))
        for period in (1, 8)
    )
    assert often["wire"] == pytest.approx(8 * rarely["wire"])


def test_rows_have_names_of_which_none_is_anothers():
    assert str(links.LinkRow("sync", 100)) == "sync 100 1 2"
    rows = list(map(str, links.all_rows()))
    assert len(set(rows)) == len(rows)
    assert {"delay 20 DiLoCo 100 8 2", "loss 0.1 sync 1000 1 2"} < set(rows)


def test_the_relay_hands_a_packet_to_its_address_and_not_before_its_time():
    """Sockets in the place of tunnels: of three nodes, in order, and IPv4 alone."""

    def packet(node: int, text: bytes, version: int = 4) -> bytes:
        return bytes(10) + bytes([version << 4]) + bytes(18) + bytes([node + 1]) + text

    code = "import sys; from analysis.benchmarks.relay import relay; relay(eval(sys.argv[1]), 0.05)"
    with ExitStack() as stack:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3)]
        for end in sum(pairs, ()):
            stack.enter_context(end)
            end.settimeout(10)
        held = [far.fileno() for _, far in pairs]
        for end in held:
            os.set_blocking(end, False)
        done = subprocess.Popen([sys.executable, "-c", code, str(held)], pass_fds=held)
        stack.callback(done.wait)
        stack.callback(done.kill)
        (one, _), (two, _), (three, _) = pairs
        begun = time.perf_counter()
        sent = [
            packet(2, b"first"),
            packet(2, b"none", 6),
            packet(7, b"nobody"),
            packet(2, b"last"),
        ]
        for each in sent:
            one.send(each)
        two.send(packet(0, b"back"))
        assert [three.recv(99) for _ in range(2)] == [sent[0], sent[3]]
        assert one.recv(99) == packet(0, b"back")
        assert time.perf_counter() - begun >= 0.05


FAR = """
import json, subprocess, sys
from analysis.benchmarks import shaped

plain = "from analysis.benchmarks.shaped import neighbours; ring = neighbours(NODE, 2);"
plain += "ring.ring(20_000_000); print(ring.turns(50))"
with shaped.network(2, float(sys.argv[1])) as network:
    network.shape(1e9)
    if loss := float(sys.argv[2]):
        network.lose(loss)
    nodes = [
        subprocess.Popen(network.at_node(node, [sys.executable, "-c", code]), stdout=-1, text=True)
        for node, code in enumerate(plain.replace("NODE", str(node)) for node in range(2))
    ]
    turn = min(float(node.communicate()[0]) for node in nodes)
    shown = "tc -s -j qdisc show dev bridge0".split() if network.has_bridge else ["echo", "[]"]
    print(json.dumps([turn, json.loads(subprocess.check_output(shown))]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("delay", "loss"), [(0.0, 0.0), (0.02, 0.0), (0.0, 0.01)])
def test_links_take_as_long_and_lose_as_many_as_they_are_asked_to(delay, loss):
    if delay and not os.access("/dev/net/tun", os.W_OK):
        pytest.skip("no tunnel can be made here")
    try:
        command = shaped.in_namespace([sys.executable, "-c", FAR, str(delay), str(loss)])
    except OSError as error:
        pytest.skip(str(error))
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert not done.returncode, done.stderr
    turn, queues = json.loads(done.stdout)
    assert turn > 0.95 * delay  # both send at once, but the first time
    if loss:
        (links_own,) = [queue for queue in queues if queue["kind"] == "htb"]
        lost, passed = links_own["drops"], links_own["packets"]
        deviation = (loss * (1 - loss) / (lost + passed)) ** 0.5
        assert lost / (lost + passed) == pytest.approx(loss, abs=5 * deviation)
        assert links_own["bytes"] < passed * (shaped.FRAME + 1)  # none stands for several


def test_a_clock_that_is_too_slow_is_as_far_off_as_one_too_fast():
    table = links.pd.DataFrame({"ratio": [0.8, 1.0, 1.1]})
    off = links.summary(table)
    assert off["worst"] == pytest.approx(1.25)
    assert off["median"] == pytest.approx(1.1)


@pytest.mark.slow
def test_a_node_sends_what_a_ring_does_and_no_process_is_left(tmp_path):
    """Bytes that the kernel counts at a node's device, with headers and acknowledgements."""
    try:
        shaped.in_namespace(["true"])
    except OSError as error:
        pytest.skip(str(error))
    out = tmp_path / "links.json"
    command = [sys.executable, "-m", "analysis.benchmarks.links", "--rounds=1", "--only=sync"]
    subprocess.run([*command, "--minutes=0.01", f"--out={out}"], check=True, timeout=200)
    (one,) = json.loads(out.read_text())["found"]
    assert one["megabits"] == 20
    # 1,514 bytes on the wire are 1,448 of data, and each frame is acknowledged by 66 bytes at most.
    headers = shaped.FRAME / shaped.PAYLOAD
    for sent in one["sent"]:
        assert (
            one["parameter_bytes"] < sent[0] < one["parameter_bytes"] * (headers + 66 / 1448 + 0.02)
        )
    left = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True)
    assert "node0" not in left.stdout and "bridge0" not in left.stdout
    assert shaped.address(0) not in Path("/etc/hosts").read_text()
