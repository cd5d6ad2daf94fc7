"""Print a script by which a shell completes the commands and options of unet-scaling, from their parsers.

Where it goes:
  unet-scaling completion bash > ~/.local/share/bash-completion/completions/unet-scaling
  unet-scaling completion zsh > ~/.unet-scaling.zsh      and in ~/.zshrc: source ~/.unet-scaling.zsh
"""

import shlex

from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.texts import COMMAND
from unet_scaling.base.validation import keys
from unet_scaling.study.study_file import study_file_model
from unet_scaling.subcommands import SUBCOMMANDS, module_of

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
    parser.add_argument("shell", choices=("bash", "zsh"))
    return parser


def completion_script(shell: str) -> str:
    """Return the script for this shell."""
    cases = []
    for name in SUBCOMMANDS:
        parser: CommandLine = module_of(name).command_line()
        words = parser.words()
        cases += [f"        {name})", f"            words={shlex.quote(' '.join(words))}"]
        if parser.names_below:
            studies = f"{shlex.quote(str(parser.names_below))}/*/study.json"
            cases.append(
                f'            for study in {studies}; do words="$words $(basename "${{study%/*}}")"; done'
            )
        if "--set" in words:
            cases.append('            if [ "$previous" = --set ]; then words=$settings; fi')
        cases.append("            ;;")
    script = _SCRIPT.format(
        command=COMMAND,
        settings=shlex.quote(" ".join(f"{key.dotted}=" for key in keys(study_file_model()))),
        commands=shlex.quote(" ".join([*SUBCOMMANDS, "--help", "--version"])),
        cases="\n".join(cases),
    )
    return (_ZSH_HEAD if shell == "zsh" else "") + script
