"""An editor whose source root is `research/` resolves our imports, without an installation."""

import ast
import subprocess
from pathlib import Path

import jedi

ROOT = Path(__file__).parents[1]
OURS = ("optdyn", "analysis", "configs", "launch", "tests")


def imported():
    """{module that an import of ours names: a file that has it}, over all files that git lists.

    Each is a file below one of the two folders that an editor looks in.
    """
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True)
    found = {}
    for file in listed.stdout.split():
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{file}: relative import"
                names = [node.module]
            found |= {name: file for name in names if name.split(".")[0] in OURS}
    return found


def test_an_editor_resolves_every_import_and_completes_the_public_names():
    project = jedi.Project(ROOT, sys_path=[], added_sys_path=["research"])
    modules = imported()
    assert len(modules) > 200
    for module, file in modules.items():
        places = [root / module.replace(".", "/") for root in (ROOT, ROOT / "research")]
        assert any(p.with_suffix(".py").exists() or p.is_dir() for p in places), (module, file)
    # The editor itself takes long: one of each folder.
    modules = {module.rpartition(".")[0]: module for module in modules}.values()
    lines = [f"import {module}" for module in modules]
    script = jedi.Script("\n".join(lines), path=ROOT / "probe.py", project=project)
    for at, line in enumerate(lines, 1):
        assert script.goto(at, len(line), follow_imports=True), line
    import optdyn

    typed = jedi.Script("import optdyn as od\nod.", path=ROOT / "probe.py", project=project)
    assert set(optdyn.__all__) <= {name.name for name in typed.complete(2, 3)}
    for begun, field in (
        ("DiLoCo(per", "period="),
        ("MLP(hid", "hidden="),
        ("Gamma(va", "variation="),
    ):
        typed = jedi.Script(f"import optdyn as od\nod.{begun}", path=ROOT / "a.py", project=project)
        assert field in [name.name for name in typed.complete(2, 3 + len(begun))]
