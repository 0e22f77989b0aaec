"""The cache of compiled programs: where it is, that it changes no bit, that it stops nothing."""

import warnings

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from optdyn.base import seeds
from optdyn.cli import cache
from optdyn.train import program, trainer

OPTIONS = (
    *(cache.DIR, "jax_compilation_cache_max_size", "jax_persistent_cache_min_compile_time_secs"),
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture
def starting(monkeypatch, tmp_path):
    """`starting(home)`: as a new process with that folder for caches.

    What is set for this session's own cache is set again afterwards.
    """
    before = {name: getattr(jax.config, name) for name in OPTIONS}

    def start(home):
        for name in (cache.SET, cache.SWITCH):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(home))
        jax.config.update(cache.DIR, None)
        compilation_cache.reset_cache()
        cache.enable()

    with warnings.catch_warnings():
        yield start
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def programs(home):
    return sorted(home.glob("optdyn/*/*-cache"))


def test_a_run_is_the_same_with_a_cold_a_warm_a_broken_and_no_cache(config, starting, tmp_path):
    """To the bit; and what is broken is compiled again, without a word."""
    chosen, found = config({"steps": 20}), {}
    home, nowhere = tmp_path / "home", tmp_path / "file"
    nowhere.write_text("")

    def run(name, home):
        starting(home)
        jax.clear_caches()  # as one that has compiled nothing
        for made in (program._make, program._problem):
            made.cache_clear()
        summary = trainer.train(chosen, tmp_path / name)
        found[name] = summary["parameters_crc32"], summary["train_loss"]

    run("cold", home)
    kept = programs(home)
    assert len(kept) > 3
    times = {path: path.stat().st_mtime_ns for path in kept}
    run("warm", home)
    assert programs(home) == kept and times == {path: path.stat().st_mtime_ns for path in kept}
    for path in kept:
        path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2])
    with warnings.catch_warnings(record=True) as said:
        run("broken", home)
    assert not said
    run("none", nowhere)
    assert jax.config.jax_compilation_cache_dir is None
    assert len(set(found.values())) == 1, found


def test_every_version_and_every_kind_of_processor_has_its_own_folder(tmp_path, monkeypatch):
    """A program for a processor that can do more would end in an illegal instruction."""
    info, home = tmp_path / "cpuinfo", {"XDG_CACHE_HOME": "/somewhere"}
    monkeypatch.setattr(cache, "CPU", info)
    folders = []
    for flags in ("fpu avx2", "avx2 fpu", "fpu avx2 avx512f"):
        info.write_text(
            f"processor : 0\nmodel name : X\nflags\t\t: {flags}\ncpu MHz : {len(flags)}\n"
        )
        folders.append(cache.folder(home, "0.10.2", "0.10.2"))
    assert folders[0] == folders[1] != folders[2]  # the order says nothing
    assert cache.folder(home, "0.11.0", "0.10.2") not in folders
    assert all(str(path).startswith("/somewhere/optdyn/jax-0.10.2-") for path in folders)
    info.unlink()
    assert cache.folder(home, "0.10.2", "0.10.2") not in folders


@pytest.mark.parametrize("name, value", [(cache.SET, ""), (cache.SET, "/x"), (cache.SWITCH, "0")])
def test_what_the_environment_says_stays(starting, monkeypatch, tmp_path, name, value):
    starting(tmp_path / "file" / "below")
    (tmp_path / "home").mkdir()
    jax.config.update(cache.DIR, None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(name, value)
    cache.enable()
    assert jax.config.jax_compilation_cache_dir is None and not list((tmp_path / "home").iterdir())


def test_a_key_compiled_at_once_is_that_of_its_parts():
    """For all seeds that a config may have."""
    for seed in (0, 1, 2**31 - 1, 2**31, 2**32 - 1):
        expected = jax.random.fold_in(jax.random.key(seed), seeds._tag("init"))
        found = jax.random.key_data(seeds.key(seed, "init"))
        assert found.tolist() == jax.random.key_data(expected).tolist()
