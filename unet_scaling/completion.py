"""Print a script by which a shell completes the commands and options of unet-scaling, from their parsers.

Where it goes:
  unet-scaling completion bash > ~/.local/share/bash-completion/completions/unet-scaling
  unet-scaling completion zsh > ~/.unet-scaling.zsh      and in ~/.zshrc: source ~/.unet-scaling.zsh
"""

import importlib
import shlex
from collections.abc import Iterator

from unet_scaling.study.axes import study_file_model
from unet_scaling.study.command_line import COMMAND, CommandLine
from unet_scaling.study.keys import keys
from unet_scaling.subcommands import SUBCOMMANDS, Subcommand

SHELLS = ("bash", "zsh")
# zsh runs completions of bash by its own adapter.
_ZSH_HEAD = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -Uz bashcompinit && bashcompinit
"""
_SCRIPT = """\
_unet_scaling() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words=''
    local settings={settings}
    if [ "$COMP_CWORD" -eq 1 ]; then
        words={commands}
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    # shellcheck disable=SC2207  # mapfile is not in zsh, and no word has a space
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _unet_scaling {command}
"""


def main() -> None:
    print(completion_script(command_line().parse_args().shell), end="")


def command_line() -> CommandLine:
    parser = CommandLine(f"{COMMAND} completion", __doc__)
    parser.add_argument("shell", choices=SHELLS)
    parser.words = SHELLS
    return parser


def completion_script(shell: str) -> str:
    """Return the script for this shell."""
    names = [subcommand.name for subcommand in SUBCOMMANDS]
    script = _SCRIPT.format(
        command=COMMAND,
        settings=shlex.quote(" ".join(f"{key.dotted}=" for key in keys(study_file_model()))),
        commands=shlex.quote(" ".join([*names, "--help", "--version"])),
        cases="\n".join(line for subcommand in SUBCOMMANDS for line in _case(subcommand)),
    )
    return (_ZSH_HEAD if shell == "zsh" else "") + script


def _case(subcommand: Subcommand) -> Iterator[str]:
    """Yield the lines that set the words of a subcommand."""
    parser = importlib.import_module(subcommand.module).command_line()
    words = shlex.quote(" ".join([*parser.options(), *parser.subcommands(), *parser.words]))
    yield f"        {subcommand.name})"
    yield f"            words={words}"
    if parser.names_below:
        studies = f"{shlex.quote(str(parser.names_below))}/*/study.json"
        yield f'            for study in {studies}; do words="$words $(basename "${{study%/*}}")"; done'
    if "--set" in parser.options():
        yield '            if [ "$previous" = --set ]; then words=$settings; fi'
    yield "            ;;"
