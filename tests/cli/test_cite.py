"""`optdyn cite`: every method's own paper has an entry, and a run has those that it used."""

import itertools
import json
import re

from optdyn import methods, optimizers
from optdyn.cli import cite


def written(folder, **keys):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(keys))
    return str(folder)


def test_every_methods_paper_has_an_entry():
    known = cite.references()
    firsts = {name: cite.papers({"method": {"name": name}})[:1] for name in methods.built_in()}
    assert [name for name, of in firsts.items() if not of] == ["sync", "sparta"]
    used = [{"method": {"compression": name}} for name in ("top_k", "powersgd")]
    used += [{"optimizer": {"name": "closed_loop"}}, {"optimizer": {"chain": ["staleness_rate"]}}]
    more = [cite.papers(config)[0] for config in used]
    assert set(itertools.chain(*firsts.values(), more)) <= set(known)  # its own
    assert optimizers.TRANSFORMS.keys() == cite.STALENESS
    keys = [re.match(r"@misc\{(\w+),$", entry.split("\n")[0])[1] for entry in known.values()]
    assert len(set(keys)) == len(keys) == cite.REFERENCES.read_text().count("eprint =")
    for number, entry in known.items():
        assert entry.count("{") == entry.count("}") and f"/abs/{number}}}" in entry


def test_a_run_cites_what_it_used(tmp_path, capsys):
    joined = {"name": "diloco+asynchronous", "diloco": {"compression": "powersgd"}}
    written(tmp_path / "w" / "points" / "a", method=joined, optimizer={"name": "sgd"})
    chain = {"name": "closed_loop", "chain": ["staleness_rate"]}
    written(tmp_path / "w" / "points" / "b", method={"name": "asynchronous"}, optimizer=chain)
    assert cite.main([str(tmp_path / "w")]) == 0
    out = capsys.readouterr().out
    used = ["2311.08105", "1605.09774", "1606.04487", "1905.13727", "1706.03471", "2206.07638"]
    for number in used:
        assert out.count(f"eprint = {{{number}}}") == 1
    assert "2104.05588" not in out and out.startswith("@software{optdyn,")


def test_what_cannot_be_cited_is_one_line(tmp_path, capsys):
    usage = "error: optdyn cite DIR [DIR ...]"
    for given, said in (
        ([], usage),
        ([f"--workdir={tmp_path}"], usage),
        ([str(tmp_path)], "no run in it"),
    ):
        assert cite.main(given) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and said in printed.err and printed.err.count("\n") == 1


def test_a_paper_without_an_entry_is_its_number():
    entry = cite.bare_entry("2605.09126")
    assert "title = {arXiv:2605.09126}" in entry and entry.count("{") == entry.count("}")
