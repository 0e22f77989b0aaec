"""The notebooks: whole without being run, and, slowly, run."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from analysis.notebooks import grids, network, small
from optdyn.experiment import Config, to_json
from optdyn.train.grid import named, resolve

FOLDER = Path(small.__file__).parent
GRIDS = [  # those that read a sweep of `grids.py`
    "daso",
    "dynamic_batch",
    "implicit_momentum",
    "local_parallelism",
    "tradeoff",
    "when_asynchrony_pays",
]
QUESTIONS = ["momentum", "my_cluster", "own_loop", "period", "price"]  # those of Python alone
NAMES = sorted([*GRIDS, *QUESTIONS])
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def _in_their_folder(monkeypatch):
    """A notebook's kernel runs in its folder, and imports what lies beside it."""
    monkeypatch.setitem(sys.modules, "small", small)
    monkeypatch.setitem(sys.modules, "grids", grids)
    monkeypatch.setitem(sys.modules, "network", network)


def cells(name: str, kind: str) -> list[str]:
    read = json.loads((FOLDER / f"{name}.ipynb").read_text())
    return ["".join(cell["source"]) for cell in read["cells"] if cell["cell_type"] == kind]


def imported(tree: ast.AST) -> dict[str, object]:
    """What the imports bind; an import that does not exist raises."""
    bound: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound[alias.asname or alias.name] = importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                bound[alias.asname or alias.name] = getattr(module, alias.name)
    return bound


def run(code: str, names: dict[str, object]) -> object:
    """Runs a cell and returns the value of its last line, as Jupyter shows it."""
    *body, last = ast.parse(code).body
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        exec(compile(ast.Module([last], []), "cell", "exec"), names)
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_all_are_known():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    assert sorted(grids.TABLES) == GRIDS


@pytest.mark.parametrize("name", NAMES)
def test_cells_compile_and_use_what_exists(name):
    tree = ast.parse("\n".join(cells(name, "code")))
    bound = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = bound.get(node.value.id)
            if isinstance(module, ModuleType):
                assert hasattr(module, node.attr), f"{module.__name__}.{node.attr}"
    for value in bound.values():
        assert value is not None
    assert (f'sweep("{name}")' in "".join(cells(name, "code"))) == (name in GRIDS)


@pytest.mark.parametrize("name", NAMES)
def test_stored_pictures_are_small_and_all_there(name):
    path = FOLDER / f"{name}.ipynb"
    assert path.stat().st_size < 300_000
    read = json.loads(path.read_text())
    code = [cell for cell in read["cells"] if cell["cell_type"] == "code"]
    for cell in code:
        kinds = [kind for output in cell["outputs"] for kind in output.get("data", {})]
        last = ast.unparse(ast.parse("".join(cell["source"])).body[-1])
        shows = last.startswith(("show(", "picture("))
        assert ("image/png" in kinds) == shows
        assert not any(output["output_type"] == "error" for output in cell["outputs"])


@pytest.mark.parametrize("name", GRIDS)
def test_grids_can_run(name):
    config = grids.get_config(name)
    assert all(resolve(config, point, values) for point, values in named(config))


def test_a_failed_sweep_says_why(monkeypatch, tmp_path, capsys):
    (tmp_path / "daso" / "points" / "blocking-seed0").mkdir(parents=True)
    (tmp_path / "daso" / "points" / "blocking-seed0" / "config.json").write_text(
        to_json(Config().with_(seed=7))
    )
    monkeypatch.setenv(small.FOLDER, str(tmp_path))
    with pytest.raises(subprocess.CalledProcessError):
        small.sweep("daso")
    assert "holds another run" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_from_nothing(name, monkeypatch, tmp_path):
    monkeypatch.setenv(small.FOLDER, str(tmp_path))
    names: dict[str, object] = {"__name__": "__main__"}
    shown = [run(code, names) for code in cells(name, "code")]
    pictures = [value for value in shown if isinstance(value, small.Shown)]
    assert len(pictures) >= 2
    assert all(picture._repr_png_().startswith(PNG) for picture in pictures)
