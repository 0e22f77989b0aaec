"""BibTeX of the papers that a run used: `optdyn cite DIR [DIR ...]`, for runs or sweeps.

They are the papers on its methods, compression, staleness rules and closed loop of momentum, after
an entry of optdyn. Docstrings name them by arXiv numbers, and `cli/references.bib` has entries;
papers without one there are printed as their number. A run may need fewer papers than are printed.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optdyn.base.errors import InputError, print_error
from optdyn.cli.main import docstring

REFERENCES = Path(__file__).with_name("references.bib")
NUMBER = re.compile(r"\b\d{4}\.\d{4,5}\b")
STALENESS = {"delay_compensation", "staleness_rate", "error_feedback"}  # transforms of a chain
POWERSGD, EF_SIGN_SGD = "1905.13727", "1901.09847"
OPTDYN = """\
@software{optdyn,
  author = {{The optdyn authors}},
  title = {optdyn: optimization dynamics of parallel training, in JAX},
  license = {MIT}
}"""


def references() -> dict[str, str]:
    entries = re.findall(r"^@\w+\{.*?^\}", REFERENCES.read_text(), re.M | re.S)
    return {NUMBER.findall(entry)[0]: entry for entry in entries}


def bare_entry(number: str) -> str:
    url = f"https://arxiv.org/abs/{number}"
    return f"@misc{{arxiv{number},\n  title = {{arXiv:{number}}},\n  url = {{{url}}}\n}}"


def papers(config: Mapping[str, Any]) -> list[str]:
    """Returns the arXiv numbers in docstrings of the parts of a run, without repetitions."""
    from optdyn.methods import Method, built_in  # here, for it takes long

    method, optimizer = config.get("method", {}), config.get("optimizer", {})
    names = [name for name in method.get("name", "").split("+") if name in built_in()]
    texts = [(Method.members[name].__doc__ or "").partition("\nFields:\n")[0] for name in names]
    for keys in (method, *(method.get(name) for name in names)):
        if isinstance(keys, Mapping) and (compression := keys.get("compression")):
            texts.append(POWERSGD if compression == "powersgd" else EF_SIGN_SGD)
    if optimizer.get("name") == "closed_loop":
        texts.append(docstring("optimizers.closed_loop"))
    if not STALENESS.isdisjoint(optimizer.get("chain", ())):
        texts.append(docstring("optimizers.staleness"))
    return list(dict.fromkeys(number for text in texts for number in NUMBER.findall(text)))


def main(arguments: Sequence[str]) -> int:
    from optdyn.base.files import read_json  # here, for it takes long

    if not arguments or arguments[0].startswith("-"):
        return print_error("optdyn cite DIR [DIR ...]: give the workdir of a run")
    configs = []
    for folder in map(Path, arguments):
        files = [folder / "config.json", *sorted(folder.glob("points/*/config.json"))]
        found = [file for file in files if file.exists()]
        if not found:
            return print_error(f"{folder}: no run in it; give the workdir of one")
        try:
            configs += [read_json(file) for file in found]
        except InputError as error:
            return print_error(error)
    numbers = dict.fromkeys(number for config in configs for number in papers(config))
    known = references()
    print("\n\n".join([OPTDYN, *(known.get(number) or bare_entry(number) for number in numbers)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
