"""What is asked of Ray before anything is started with it. None is needed here."""

import contextlib
import os
import sys
from types import SimpleNamespace

import pytest

from optdyn.race import on_ray
from optdyn.race.on_ray import RayError, connected_ray
from optdyn.race.shards import PartLost


class ActorError(Exception):
    pass


@pytest.fixture
def installed(monkeypatch):
    """`installed(version, address)`: a Ray like that; how it was begun and what it was told."""

    def make(version, address="127.0.0.1"):
        begun = []
        fake = SimpleNamespace(
            __version__=version,
            init=lambda **given: begun.append(given),
            shutdown=lambda: begun.append("ended"),
            exceptions=SimpleNamespace(RayError=ActorError, RayActorError=ActorError),
            util=SimpleNamespace(get_node_ip_address=lambda: address),
        )
        monkeypatch.setitem(sys.modules, "ray", fake)
        monkeypatch.setattr(os, "environ", dict(os.environ))
        return begun

    return make


@pytest.mark.parametrize("address", ["", "auto", "10.0.0.1:6379"])
@pytest.mark.parametrize("version", ["2.9.3", "2.50.0", "2.51.2"])
def test_a_ray_that_asks_for_no_token_is_refused_in_a_line(installed, version, address):
    begun = installed(version)
    with (
        pytest.raises(RayError, match=f"^Ray {version} asks for no token, .*$"),
        connected_ray(address),
    ):
        pass
    assert not begun


def test_a_ray_of_this_machine_has_a_token_a_folder_and_a_port_of_its_own(installed, monkeypatch):
    begun = installed("2.52.0")
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "what others know"}
    with connected_ray(""):
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert os.environ["RAY_AUTH_TOKEN"] == on_ray.TOKEN and len(on_ray.TOKEN) == 64
        (given,) = begun
        assert given["address"] == "local" and not given["include_dashboard"]
        folder, _, inner = given["_temp_dir"].rpartition("/")  # Ray opens the inner one to all
        assert inner and os.stat(folder).st_mode & 0o077 == 0
    assert begun[1:] == ["ended"] and not os.path.exists(folder)


def test_a_ray_that_others_can_reach_is_ended(installed):
    begun = installed("9.0.0", "10.0.0.1")
    with pytest.raises(RayError, match=r"listens to others, on 10\.0\.0\.1"), connected_ray(""):
        pass
    assert begun[1:] == ["ended"]


def test_a_ray_of_others_is_met_with_their_token(installed):
    begun = installed("2.60.0", "10.0.0.1")
    os.environ["RAY_AUTH_TOKEN"] = "theirs"
    with connected_ray("10.0.0.1:6379"):
        assert os.environ["RAY_AUTH_MODE"] == "token" and os.environ["RAY_AUTH_TOKEN"] == "theirs"
        assert begun[0]["address"] == "10.0.0.1:6379"


@pytest.mark.parametrize(
    ("ended", "parts", "error", "message"),
    [
        (None, False, None, None),
        ("worker", False, RayError, "it lost its connection and did not die"),
        ("dead worker", False, RayError, "worker 1 cannot work: gone"),
        ("dead worker", True, RayError, "worker 1 cannot work: gone"),
        ("worker", True, PartLost, None),  # which noticed it first
        ("part", True, PartLost, None),
        ("dead part", True, PartLost, None),
    ],
)
def test_whoever_has_ended_for_good(ended, parts, error, message):
    def get(which):
        if which.startswith("dead"):
            raise ActorError("gone")

    fake = SimpleNamespace(
        wait=lambda handles, **_: ([one for one in handles if one == ended], []),
        get=get,
        exceptions=SimpleNamespace(RayActorError=ActorError),
    )
    workers = ["at work", ended if ended and "worker" in ended else "at work too"]
    keeping = ["kept", ended if ended and "part" in ended else "kept too"] if parts else []
    with pytest.raises(error, match=message) if error else contextlib.nullcontext():
        on_ray.check_alive(fake, workers, keeping)


def test_workers_are_asked_for_by_the_names_that_ray_has(monkeypatch):
    """A rename had reached one of them, and no race could begin."""

    class AskedError(Exception):
        pass

    def options(**asked):
        raise AskedError(*asked)

    ray = SimpleNamespace(remote=lambda actor: SimpleNamespace(options=options))
    monkeypatch.setattr(on_ray, "connected_ray", lambda address: contextlib.nullcontext(ray))
    config = SimpleNamespace(methods=SimpleNamespace(groups=2), with_=lambda **keys: None)
    with (
        pytest.raises(AskedError) as caught,
        on_ray.ray_workers(SimpleNamespace(config=config, code=None)),
    ):
        pass
    of_ray = {"num_cpus", "num_gpus", "scheduling_strategy", "runtime_env"}
    assert set(caught.value.args) == of_ray | {"max_restarts", "max_task_retries"}
