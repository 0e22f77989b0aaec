"""The code blocks of the pages: they run, or if that takes too long, what they name there is."""

import os
import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from optdyn.base.fields import Text
from optdyn.cli import app, configs, main
from optdyn.train.checks import check
from optdyn.train.grid import Grid, named, resolve
from tests.blocks import MARK, PAGES, ROOT, PageCommand, blocks

OPTDYN = ("-c", "from optdyn.cli.main import main; main()")
TUTORIAL = ROOT / "docs" / "tutorial.md"  # tests/test_tutorial.py runs it
WITH = [page for page in PAGES if any(block.commands for block in blocks(page))]
RUN = [
    page
    for page in WITH
    if page != TUTORIAL
    and any(block.runs(each.line) for block in blocks(page) for each in block.commands)
]
BY_MODULE = {command.module: name for name, command in main.COMMANDS.items()}
SIZES = {"range(5)": "range(2)", "steps=1000": "steps=50"}  # of what is in blocks of Python


def names(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


def with_files(page, folder):
    """What the page has its reader save, saved; what lies in the checkout, as it lies there."""
    for name in ("research", "launch", "analysis", "configs", "tests"):
        (folder / name).symlink_to(ROOT / name)
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text)


def test_marks_are_above_blocks_that_have_what_they_name():
    for page in PAGES:
        of = list(blocks(page))
        assert len(MARK.findall(page.read_text())) == sum(bool(block.which) for block in of), page
        for block in of:
            for word in block.which:
                assert word == "all" or any(word in each.line for each in block.commands), word


@pytest.mark.parametrize("page", WITH, ids=names(WITH))
def test_commands_can_be_given(page, tmp_path, monkeypatch):
    """Their flags are there, and their configs whole: also of those that are not run."""
    with_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for block in blocks(page):
        for each in block.commands:
            can_be_given(each)
    for block in blocks(page):  # the next page's files of that name are others
        sys.modules.pop(block.file.removesuffix(".py"), None)


def can_be_given(command: PageCommand) -> None:
    arguments = [word for word in command.arguments if not re.search(r"\.\.\.|^[A-Z]+$", word)]
    name = BY_MODULE.get(command.module, command.module)
    if name == "optdyn":
        name, *arguments = arguments
    if name not in main.COMMANDS:
        return of_a_module(name, arguments)
    if name == "local":
        rest = arguments[arguments.index("--") + 1 :]
        module, own = (rest[0], 1) if rest[0] == "optdyn" else (rest[2], 3)
        assert own == 1 or rest[:2] == ["python", "-m"]
        can_be_given(PageCommand(command.line, {}, module, rest[own:]))
        arguments = arguments[: arguments.index("--")]
    rest, _ = app.split_keys(arguments)
    given = {word.partition("=")[0] for word in rest if word.startswith("--")}
    assert given <= set(main.flags_of(main.COMMANDS[name])), command.line
    if any(re.match("--config[.=]", word) for word in arguments):
        of_a_config(arguments)


def of_a_module(module: str, arguments: list[str]) -> None:
    """One that has a command line of its own: its source has every flag."""
    source = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text()
    for word in arguments:
        if word.startswith("--"):
            assert f'"{word.partition("=")[0]}"' in source, (module, word)


def of_a_config(arguments: list[str]) -> None:
    """The config with what is set in it; tests/test_grids.py has all points of a grid."""
    rest, changes = app.split_keys(arguments)
    (name,) = [word.partition("=")[2] for word in rest if word.startswith("--config=")] or ["price"]
    config = configs.config(name, {key: Text(value) for key, value in changes.items()})
    if isinstance(config, Grid):
        point, its = next(named(config))
        resolve(config, point, its)
    else:
        check(config)


def test_python_of_the_pages_runs(trained, mnist, capsys, monkeypatch, tmp_path):
    """With fewer updates and seeds; what a reader has, a loss and batches and runs, is given."""
    monkeypatch.setenv("OPTDYN_DATA_DIR", mnist["data.dir"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workdirs").symlink_to(trained[1])
    has = {
        "loss": lambda params, batch: jnp.mean((batch["x"] @ params["w"]) ** 2),
        "params": {"w": jnp.ones(3)},
        "batches": {"x": np.random.default_rng(0).normal(size=(100, 8, 3)).astype(np.float32)},
    }
    found = {}
    for page in PAGES:
        held = found[str(page.relative_to(ROOT))] = dict(has)
        for block in blocks(page):
            if block.language == "python" and not block.file:
                text = block.text
                for long, short in SIZES.items():
                    text = text.replace(long, short)
                code = compile(text, str(page), "exec")
                if block.runs(""):
                    exec(code, held)
    assert "async" in capsys.readouterr().out
    losses = found["docs/getting_started.md"]["infos"]["loss"]
    assert float(losses[-1]) < 0.1 * float(losses[0])
    assert len(found["docs/getting_started.md"]["table"]) > 1
    log = found["docs/from_torch.md"]["trained"].log
    assert log["train_loss"].iloc[-1] < 0.5 * np.log(2)  # a model that knows nothing has log 2
    assert (log["simulated_seconds"].diff()[1:] > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=names(RUN))
def test_commands_run(page, tmp_path):
    """In the order of the page, in a folder of their own."""
    with_files(page, tmp_path)
    for block in blocks(page):
        for each in block.commands:
            if not block.runs(each.line):
                continue
            start = OPTDYN if each.module == "optdyn" else ("-m", each.module)
            given = [sys.executable, *start, *each.arguments]
            path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
            environ = {**os.environ, "PATH": path, "PYTHONPATH": str(tmp_path), **each.environ}
            done = subprocess.run(given, cwd=tmp_path, env=environ, capture_output=True, text=True)
            assert done.returncode == 0, f"{each.line}\n{done.stderr}"
