"""The account of real seconds over links: what its terms are, and what goes over a link."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import links, shaped

PARAMETERS = 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10  # of the model at 100 Mbit/s


def found(row: links.Row, own: list[float], together: list[float]) -> dict:
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
    row = links.Row("sync", 100, nodes=nodes)
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
        links.account(found(links.Row("DiLoCo", 100, period), [0.05, 0.05], [0.1, 0.1]))
        for period in (1, 8)
    )
    assert often["wire"] == pytest.approx(8 * rarely["wire"])


def test_a_clock_that_is_too_slow_is_as_far_off_as_one_too_fast():
    table = links.pd.DataFrame({"ratio": [0.8, 1.0, 1.1]})
    off = links.summary(table)
    assert off["worst"] == pytest.approx(1.25)
    assert off["median"] == pytest.approx(1.1)


@pytest.mark.slow
def test_a_node_sends_what_a_ring_does_and_no_process_is_left(tmp_path):
    """Bytes that the kernel counts at a node's device, with headers and acknowledgements."""
    try:
        shaped.alone(["true"])
    except OSError as error:
        pytest.skip(str(error))
    out = tmp_path / "links.json"
    command = [sys.executable, "-m", "tests.benchmarks.links", "--rounds=1", "--only=sync"]
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
