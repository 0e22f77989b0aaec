"""The command `optdyn`: what it finds, what it refuses at once, what it prints."""

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pytest
from absl import flags

from optdyn.base.fields import Value
from optdyn.base.progress import number
from optdyn.cli import completion, configs, listing, main, sweep, train
from optdyn.cli.keys import keys
from optdyn.experiment import Config, differences, to_json
from optdyn.methods import built_in, load
from optdyn.train import trainer

ROOT = Path(__file__).parents[2]
# In this process modules were imported before; a shell starts a new one.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
SMALL = (
    *("--config=quickstart", "--config.model.name=quadratic", "--config.model.noise=0.5"),
    *("--config.batch_size=4", "--config.steps=40", "--config.log_every=10"),
    "--config.checkpoint_every=0",
)


def plain(config, prefix=""):
    """{dotted name: value} of a config; dicts of options are values."""
    found = {}
    for key, value in config.to_dict().items() if hasattr(config, "to_dict") else config.items():
        if isinstance(value, dict) and not key.endswith("options"):
            found |= plain(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def test_the_keys_that_are_listed_are_those_of_all_configs():
    """Each can be set where its owners are, and there are no others."""
    listed, usual = keys(), Config()
    found = set(plain(usual))
    for root in Value.roots:
        section = root.section
        members = {name: load(name) for name in built_in()} if section == "method" else root.members
        for name in members:
            its = set(plain(usual.with_({f"{section}.name": name})))
            found |= its
            for key in (key for key in its if key.startswith(f"{section}.")):
                assert not listed[key][2] or name in listed[key][2], (name, key)
        if section in ("model", "data", "cluster.service"):
            found |= {f"{section}.{key}" for key in root.custom.field_table()}
    assert set(listed) == found
    assert listed["method.groups"][0] == "Compute groups, each synchronous inside."
    assert listed["log_every"] == ("Updates between log points.", 50, ())


@pytest.mark.parametrize("module", [sweep, train])
def test_the_flags_read_off_the_files_are_those_that_are_defined(module):
    before = set(flags.FLAGS)
    module.define_flags()
    defined = set(flags.FLAGS) - before
    for name in defined:
        delattr(flags.FLAGS, name)
    assert {f"--{name}" for name in defined} == set(
        main.flags_in(module.__name__.removeprefix("optdyn."))
    )


def test_the_configs_read_off_the_files_are_those_that_there_are():
    for name, path in configs.configs().items():
        assert path == ROOT / "configs" / f"{name}.py"
    assert {"quickstart", "images", "grids/quickstart"} <= set(configs.configs())
    # Files beside them that have no run's config.
    assert not {"custom/law", "custom/method"} & set(configs.configs())


def test_every_command_is_a_module_that_explains_itself(optdyn):
    code, usage, _ = optdyn("--help")
    assert code == 0
    for name, command in main.COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.about)}$", usage, re.M)
        code, help_, _ = optdyn(name, "--help")
        assert code == 0 and help_.startswith(main.docstring(command.module)[:9])
        for flag, about in main.flags_of(command).items():
            assert f"  {flag}" in help_ and about in help_
        assert "python -m launch" not in help_ or name == "local"
        assert len(help_.splitlines()) < 50  # absl alone has a hundred flags
    assert optdyn()[1] == usage
    assert optdyn("--version") == (0, f"optdyn {main.version()}\n", "")


@pytest.mark.parametrize(
    "given, expected",
    [
        (["trian"], "no command 'trian'; did you mean train?"),
        (["train", "--wrkdir=x"], "flag 'wrkdir'; did you mean --workdir?"),
        (["train", "--steps=3"], "flag 'steps'; did you mean --config.steps?"),
        (["train", "--optimizer=adam"], "'optimizer'; did you mean --config.optimizer.name?"),
        (["train", "--data.options.a=1"], "did you mean --config.data.options.a?"),
        (["list", "method"], "; did you mean methods?"),
        (["report", "--wrkdir=x"], "error: no flag --wrkdir; did you mean --workdir?"),
        (["report", "--out=x"], "error: the following arguments are required: --workdir"),
        (["export", "--workdir=x", "--to=wand"], "invalid choice: 'wand' (choose from 'wandb', "),
        (["report", "--workdir={tmp}/nosuch"], "nosuch: no run in it; give the workdir of"),
        (["papers", "--wrkdir=x"], "flag 'wrkdir'; did you mean --workdir?"),
        (
            ["papers", "--workdir=x", "--scale=ful"],
            "--scale=ful: value should be one of <small|full>",
        ),
        (["list", "things"], "KIND is models, data, losses"),
        (["list", "keys", "nosuch"], "there are no keys that begin with or have 'nosuch'"),
        (["completion", "csh"], "optdyn completion bash|zsh|fish"),
        (["config", "{tmp}/a", "{tmp}/b"], "a/config.json: cannot be read"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(optdyn, tmp_path, given, expected):
    code, out, errors = optdyn(*(argument.format(tmp=tmp_path) for argument in given))
    assert code == 2 and out == ""
    assert errors.startswith("error: ") and errors.count("\n") == 1 and expected in errors
    assert not list(tmp_path.iterdir())


def test_help_and_errors_of_commands_import_nothing_that_takes_long():
    """Seconds are not asserted, but what they go into."""
    script = """
import sys
from optdyn.cli import main
for line in sys.argv[1:]:
    sys.argv = line.split()
    try:
        main.main()
    except SystemExit as exited:
        assert exited.code == (0 if "words" in line else 2), line
long = {"jax", "flax", "optax", "orbax", "pandas", "scipy", "matplotlib"} & set(sys.modules)
assert not long, long
"""
    lines = [
        *("optdyn --help", "optdyn train --help", "optdyn sweep --help", "optdyn trian"),
        *("optdyn list nosuch", "optdyn completion words optdyn"),
    ]
    subprocess.run([sys.executable, "-c", script, *lines], check=True, cwd=ROOT)


def test_a_run_imports_nothing_that_only_other_commands_need(tmp_path):
    """scipy.optimize alone is a tenth of the seconds until the first update of a small run."""
    script = """
import sys
from optdyn.cli import main
sys.argv = sys.argv[1:]
try:
    main.main()
except SystemExit as exited:
    assert not exited.code
long = {"pandas", "matplotlib", "scipy.optimize", "scipy.stats", "ray"} & set(sys.modules)
assert not long, long
"""
    given = ["--config=quickstart", "--config.steps=1", f"--workdir={tmp_path / 'run'}"]
    command = [sys.executable, "-c", script, "optdyn", "train", *given]
    subprocess.run(command, check=True, cwd=ROOT)


def test_a_command_leaves_the_process_as_it_was(optdyn):
    """Signals above all: one that dies of a broken pipe later on takes its tests with it."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    path, folder = list(sys.path), os.getcwd()
    for given in (["list", "keys"], ["config", "--config=quickstart"], ["trian"]):
        optdyn(*given)
        assert handlers == {number: signal.getsignal(number) for number in handlers}
        assert (sys.argv[1:], sys.path, os.getcwd()) == (given, path, folder)


def test_what_is_cut_off_ends_without_a_word():
    """As by `| head -1`, of more than a pipe holds."""
    command = [sys.executable, "-c", "from optdyn.cli import main; main.main()", "list", "keys"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 128 + signal.SIGPIPE


def test_a_run_is_that_of_the_module(optdyn, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "/usr/bin/optdyn", "train"])
    code, out, errors = optdyn("train", *SMALL, f"--workdir={tmp_path / 'a'}")
    assert code == 0, errors
    values = json.loads((tmp_path / "a" / "config.json").read_text())
    again = train.run(Config().with_(plain(values)), tmp_path / "b")
    made = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert made["parameters_crc32"] == again["parameters_crc32"]
    assert out.splitlines() == [
        f"completed: 40 updates, {number(made['simulated_seconds'])} simulated seconds",
        f"training loss {made['train_loss']:.4g}, test loss {made['test_loss']:.4g}",
        f"next: optdyn report --workdir={shlex.quote(str(tmp_path / 'a'))}",
    ]


def test_it_finds_own_modules_and_nothing_hides_its_own(tmp_path):
    """Started as an installed script is, in a folder with names like those of the packages."""
    script = tmp_path / "bin" / "optdyn"
    script.parent.mkdir()
    script.write_text("from optdyn.cli.main import main\nmain()\n")
    here = tmp_path / "here"
    for name in ("analysis", "configs", "research", "launch"):
        (here / name).mkdir(parents=True)
        (here / name / "__init__.py").write_text("raise ImportError('not this one')")
    (here / "mine.py").write_text("from optdyn.methods.sync import Sync\n")
    given = [*SMALL, "--config.method.name=mine:Sync", "--workdir=work"]
    subprocess.run(
        [sys.executable, str(script), "train", *given],
        cwd=here,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
    )
    assert json.loads((here / "work" / "summary.json").read_text())["status"] == "completed"


def test_one_name_is_installed():
    """`optdyn`, with the configs in it as files, whatever else there is in a checkout."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["sources"] == {
        "research/optdyn": "optdyn",
        "configs": "optdyn/configs",
    }
    assert [path.name for path in (ROOT / "research").iterdir()] == ["optdyn"]


def test_a_config_has_a_path_or_a_name(tmp_path, monkeypatch):
    """What is run as Python is called so: no other file takes the place of a shipped config."""
    monkeypatch.chdir(tmp_path)
    shipped = ROOT / "configs" / "quickstart.py"
    assert configs.config_file("quickstart") == shipped
    (tmp_path / "quickstart").write_text("")
    assert configs.config_file("quickstart") == shipped
    (tmp_path / "quickstart.py").write_text("")
    assert configs.config_file("quickstart.py") == Path("quickstart.py")
    (tmp_path / "mine.py").write_text(
        "import optdyn as od\ndef get_config(text): return od.Experiment(note=text)\n"
    )
    assert configs.config("mine.py:a:b").note == "a:b"


def test_a_config_from_python_is_that_of_the_command(tmp_path):
    first = configs.config("quickstart").with_(steps=7)
    assert configs.config("quickstart").steps == 2000
    assert configs.config("text:small").steps == 300
    (tmp_path / "config.json").write_text(to_json(first))
    assert configs.config(str(tmp_path / "config.json")) == first


@pytest.mark.parametrize(
    "text, value",
    [("0.9", 0.9), ("3", 3), ("true", True), ("(1, 2)", (1, 2)), ("adam", "adam"), ("", "")],
)
@pytest.mark.parametrize("between", ["=", " "])
def test_options_are_set_key_by_key(optdyn, text, value, between):
    key = "--config.optimizer.options.key"
    given = [f"{key}={text}"] if between == "=" else [key, text]
    rest = [f"--config.optimizer.schedule_options.other={text}", "--changed"]
    code, out, errors = optdyn("config", "--config=quickstart", *given, *rest)
    assert code == 0, errors
    changed = json.loads(out)
    assert changed["optimizer.options"] == {"key": json.loads(json.dumps(value))}
    assert changed["optimizer.schedule_options"] == {"other": json.loads(json.dumps(value))}
    given = [key.replace("config", "config.base"), text]
    code, out, errors = optdyn("config", "--config=grids/quickstart", *given, "--changed")
    assert code == 0, errors
    assert json.loads(out)["base"]["optimizer.options"] == {"key": json.loads(json.dumps(value))}


def test_the_config_that_is_printed_is_that_of_the_run(optdyn, tmp_path):
    changes = ["--config.steps=7", "--config.model.hidden=(3,)"]
    code, out, _ = optdyn("config", "--config=quickstart", *changes)
    assert code == 0
    usual = Config().with_({"method.name": "asynchronous"})
    found = json.loads(out)
    names = {"method.name", *differences(found, json.loads(to_json(usual)))}
    code, changed, _ = optdyn("config", "--config=quickstart", *changes, "--changed")
    assert code == 0 and set(json.loads(changed)) == names
    assert json.loads(changed)["model.hidden"] == [3] and json.loads(changed)["steps"] == 7
    for folder, steps in (("a", 7), ("b", 8)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps({**found, "steps": steps}))
    assert optdyn("config", tmp_path / "a", tmp_path / "b") == (0, "steps: 7 -> 8\n", "")
    assert optdyn("config", tmp_path / "a", tmp_path / "a")[1] == "the configs are the same\n"
    del found["cluster"]["overlap"]
    (tmp_path / "b" / "config.json").write_text(json.dumps(found))
    errors = f"error: {tmp_path}/b/config.json has no cluster.overlap\n"
    assert optdyn("config", tmp_path / "a", tmp_path / "b") == (2, "", errors)


def test_a_dry_run_says_what_it_takes_and_writes_nothing(optdyn, tmp_path, monkeypatch):
    """Of 784-8-10: 784 x 8 + 8 + 8 x 10 + 10 parameters; 4 groups hold as many versions of it."""
    monkeypatch.chdir(tmp_path)
    given = ["--config=quickstart", "--config.model.hidden=(8,)", "--config.method.groups=4"]
    given += ["--config.steps=50", "--config.data.test_evaluated=100", "--workdir=new", "--dry_run"]
    code, out, errors = optdyn("train", *given, "--config.cluster.day=8")
    assert code == 0 and "config.cluster.day = 8: ignored" in errors
    parameters = 784 * 8 + 8 + 8 * 10 + 10
    figures = dict(re.findall(r"^(\S.*?)  +([\d,.]*\d)", out, re.M))
    assert figures["parameters"] == f"{parameters:,}" and f"{4 * parameters:,} bytes" in out
    state = int(figures["state"].replace(",", ""))
    assert 4 * 4 * parameters <= state < 4 * 6 * parameters
    assert int(figures["program"].replace(",", "")) > state
    assert figures["updates"] == "50" and "0.8 epochs of 4,000 examples" in out
    assert float(figures["an update"]) > 0 and "2 of them" in out
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_real_devices_says_what_is_known_of_them(optdyn):
    """Their loop is not one program whose memory XLA could tell; the arrays are as in any run."""
    small = ["--config=quickstart", "--config.method.name=sync", "--config.cluster.nodes=1"]
    small += ["--config.steps=50", "--config.data.test_evaluated=100", "--workdir=a"]
    figures = {}
    for api in ("", "shard_map"):
        code, out, errors = optdyn("train", *small, f"--config.parallel.api={api}", "--dry_run")
        assert code == 0, errors
        figures[api] = dict(re.findall(r"^(\S.*?)  +([\d,.]*\d)", out, re.M))
    assert set(figures[""]) - set(figures["shard_map"]) == {"program"}
    for name in ("parameters", "state", "memory", "updates"):
        assert figures[""][name] == figures["shard_map"][name]


def test_a_dry_run_of_tuning_and_of_planning_writes_nothing(optdyn, tmp_path, monkeypatch):
    """8 workers; a program for the config's own lowering and for each other one, and searches."""
    monkeypatch.chdir(tmp_path)
    code, out, errors = optdyn("tune", "--config=tune:small,server", "--workdir=new", "--dry_run")
    assert code == 0, errors
    assert re.search(r"^groups +1, 2, 4, 8$", out, re.M)
    assert re.search(r"^predictive +momentum and learning rate from the measured", out, re.M)
    given = ["--config=plan", "--config.plan.batches=(8,16)", "--config.steps=10"]
    code, out, errors = optdyn("plan", *given, "--workdir=new", "--dry_run")
    assert code == 0, errors
    assert re.search(r"^mini-batches +8, 16$", out, re.M)
    assert re.search(r"^updates +10 at \d+, from config.steps", out, re.M)
    programs = re.search(r"programs +about (\d+)", out)
    kinds = int(re.search(r"convolutions +\d+, of (\d+) kinds", out)[1])
    assert int(programs[1]) > 2 * kinds
    assert not list(tmp_path.iterdir())


def test_memory_that_runs_out_is_one_line(optdyn, tmp_path, monkeypatch):
    def train(*_):
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Out of memory allocating 26481283896 bytes."
        )

    monkeypatch.setattr(trainer, "train", train)
    code, out, errors = optdyn("train", "--config=quickstart", f"--workdir={tmp_path / 'new'}")
    assert (code, out) == (1, "") and "Traceback" not in errors
    assert "out of memory, of 26,481,283,896 bytes at once; less is taken with" in errors


def test_a_dry_run_refuses_what_the_run_would(optdyn, tmp_path):
    for command, key, words in (
        ("train", ["--config.method.groups=7"], "config.method.groups = 7: must divide"),
        ("plan", [], "config.method.name = 'asynchronous': a plan is of one device"),
    ):
        given = ["--config=quickstart", *key, f"--workdir={tmp_path / 'new'}", "--dry_run"]
        code, out, errors = optdyn(command, *given)
        assert (code, out) == (2, "") and words in errors


SOME = {
    "models": {"mlp", "transformer"},
    "data": {"mnist5k", "tfds", "text"},
    "losses": {"cross_entropy", "huber"},
    "metrics": {"accuracy", "squared_error"},
    "optimizers": {"adam", "contrib.muon", "closed_loop"},
    "schedules": {"cosine", "piecewise"},
    "transforms": {"delay_compensation", "staleness_rate"},
    "methods": {"sync", "daso"},
    "names": {"rennala", "snoo"},
    "laws": {"constant", "geometric", "trace"},
    "configs": {"quickstart", "grids/quickstart"},
}


@pytest.mark.parametrize("kind", listing.KINDS)
def test_lists_have_a_line_each(optdyn, kind):
    code, out, errors = optdyn("list", kind)
    assert code == 0, errors
    names = [line.split()[0] for line in out.splitlines()]
    assert all(re.fullmatch(r"\S+ +\S.*|[\w.]+", line) for line in out.splitlines())
    if kind in listing.REGISTERED:
        lines = listing.registry(kind)
        assert all(lines.values()) and set(lines) == set(names)
    expected = SOME[kind] if kind in SOME else set(keys())
    assert expected <= set(names) and len(names) == len(set(names))
    assert kind != "optimizers" or not any("scale_by" in name for name in names)


def test_keys_are_listed_with_defaults_and_comments(optdyn):
    _, out, _ = optdyn("list", "keys", "method.gro")
    methods = "ad_psgd, async_local_sgd, asynchronous, buffered, decoupled, elastic, mindflayer"
    about = "Compute groups, each synchronous inside."
    assert out == f"method.groups  = 1  {about}  ({methods}, ringleader, ringmaster)\n"


def test_a_word_finds_every_key_that_has_it(optdyn):
    listed = json.loads(optdyn("list", "keys", "--json")[1])
    found = json.loads(optdyn("list", "keys", "Momentum", "--json")[1])
    assert found == {k: v for k, v in listed.items() if "momentum" in f"{k} {v}".lower()}
    assert {"optimizer.momentum", "probes.steer", "method.outer_momentum"} <= set(found)
    sections = [name.partition(".")[0] for name in listed]
    assert len(list(itertools.groupby(sections))) == len(set(sections))
    assert set(json.loads(optdyn("list", "keys", "method.outer", "--json")[1])) == {
        name for name in listed if name.startswith("method.outer")
    }


@pytest.mark.parametrize(
    "line, expected",
    [
        ("optdyn tr", ["train"]),
        ("optdyn list key", ["keys"]),
        ("optdyn train --config=qu", ["--config=quickstart"]),
        ("optdyn train --config.method.gro", ["--config.method.groups="]),
        ("optdyn sweep --config.base.method.gro", ["--config.base.method.groups="]),
        ("optdyn sweep --tog", ["--together="]),
        ("optdyn report --tar", ["--target="]),
        ("optdyn submit --sha", ["--shard=", "--shards="]),
        ("optdyn nosuch --c", []),
        ("optdyn train --config='a", []),
        ("optdyn train --workdir=", ["--workdir="]),
    ],
)
def test_words_that_may_follow(line, expected):
    assert sorted(completion.words(line)) == expected


def test_the_shell_completes_what_it_cuts_at_equals_signs(tmp_path):
    """bash has `--config`, `=` and `qu` as words of their own, and replaces the last."""
    program = tmp_path / "optdyn"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m optdyn.cli.main "$@"\n')
    program.chmod(0o755)
    script = f"""
{completion.BASH}
complete_line() {{ COMP_LINE=$1 COMP_POINT=${{#1}} _optdyn; echo "${{COMPREPLY[@]}}"; }}
complete_line "optdyn train --config=qu" 2>/dev/null
complete_line "optdyn train --config.method.gro" 2>/dev/null
"""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["quickstart", "--config.method.groups="], done.stderr
