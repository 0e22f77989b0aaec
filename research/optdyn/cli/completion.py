"""Shell completion: `optdyn completion bash`, or zsh, or fish, prints a script.

    eval "$(optdyn completion bash)"        in ~/.bashrc; likewise zsh in ~/.zshrc
    optdyn completion fish | source         in ~/.config/fish/config.fish

It completes commands, flags, names of shipped configs, and keys such as `--config.method.gr`. The
script calls `optdyn completion words LINE`.
"""

import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress

from optdyn.base.errors import print_error
from optdyn.cli import configs, listing
from optdyn.cli.main import COMMANDS, flags_of

BASH = r"""
_optdyn() {
    local line=${COMP_LINE:0:COMP_POINT} word cut
    word=${line##*[[:space:]]}
    cut=${word%"${word##*[=:]}"}  # the shell's own words begin anew after these
    mapfile -t COMPREPLY < <(optdyn completion words "$line" 2>/dev/null)
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return 0
}
complete -o default -F _optdyn optdyn
"""
ZSH = r"""
_optdyn() {
    local -a found
    found=("${(@f)$(optdyn completion words "${BUFFER[1,CURSOR]}" 2>/dev/null)}")
    [[ -n ${found[1]} ]] && compadd -Q -S '' -- "${found[@]}" || _files
}
compdef _optdyn optdyn
"""
FISH = r"""
complete -c optdyn -a '(optdyn completion words (commandline -cp | string collect))'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def words(line: str) -> list[str]:
    """Returns the completions of the last word of a command line that is being typed."""
    try:
        typed = shlex.split(line)
    except ValueError:  # a quote that is still open
        return []
    last = "" if not typed or line[-1:].isspace() else typed.pop()
    if len(typed) < 2:
        return _beginning(last, COMMANDS)
    name = typed[1]
    if name in ("list", "completion"):
        return _beginning(last, listing.KINDS if name == "list" else SCRIPTS)
    if name not in COMMANDS:
        return []
    command = COMMANDS[name]
    if command.also and last.startswith("--config="):
        return _beginning(last, [f"--config={config}" for config in configs.configs()])
    flags = [f"{flag}=" for flag in flags_of(command) if flag.startswith("--")]
    if command.also and last.startswith("--config."):
        from optdyn.cli.keys import keys  # here, for it takes long

        base = "base." if last.startswith("--config.base.") else ""
        flags += [f"--config.{base}{key}=" for key in keys()]
    return _beginning(last, flags)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "words":
        with suppress(BrokenPipeError):
            print(*words(arguments[1]), sep="\n")
        return 0
    if len(arguments) != 1 or arguments[0] not in SCRIPTS:
        return print_error(f"optdyn completion {'|'.join(SCRIPTS)}")
    print(SCRIPTS[arguments[0]].strip())
    return 0


def _beginning(prefix: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(prefix)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
