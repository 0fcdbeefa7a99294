"""``rise completion``: a script that teaches a shell to complete this command."""

import argparse
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass

KINDS = {
    "DIR": "folder", "FILE": "file", "PATH": "file", "RUNS": "file", "EXPERIMENT": "experiment",
}  # fmt: skip
ASK = "rise list experiments --names 2>/dev/null"


@dataclass(frozen=True)
class Argument:
    """An option, or a positional argument where there are no flags."""

    flags: tuple[str, ...]
    kind: str
    """flag, words, folder, file, experiment, or other"""
    words: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Command:
    """A subcommand as a shell needs to know it; the root has an empty name."""

    name: str
    help: str
    arguments: tuple[Argument, ...]

    @property
    def options(self) -> list[str]:
        """All its flags."""
        return [flag for argument in self.arguments for flag in argument.flags]


def describe(parser: argparse.ArgumentParser) -> tuple[Command, ...]:
    """The program itself, as the command with no name, and its subcommands."""
    found = [Command("", "", tuple(_arguments(parser)))]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                found.append(Command(name, helps.get(name, ""), tuple(_arguments(below))))
    return tuple(found)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[Argument]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
            continue
        words = tuple(map(str, action.choices or ()))
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        kind = "words" if words else KINDS.get(metavar, "other")
        if action.option_strings and action.nargs == 0:
            kind = "flag"
        text = (action.help or "").split("(default")[0].partition(";")[0].strip()
        yield Argument(tuple(action.option_strings), kind, words, " ".join(text.split()))


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script of a shell for this parser."""
    return SHELLS[shell](describe(parser))


BASH = """\
# bash completion for rise; in ~/.bashrc: source <(rise completion bash)
_rise() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command= word words=
    local IFS=$' \\t\\n'
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case $word in {names}) command=$word; break ;; esac
    done
    COMPREPLY=()
    case "$command $prev" in
{values}
    esac
    case $command in
{commands}
    esac
    local IFS=$'\\n'
    COMPREPLY+=($(IFS=$' \\t\\n'; compgen -W "$words" -- "$cur"))
}}
_rise_files() {{
    local IFS=$'\\n'
    compopt -o filenames 2>/dev/null
    COMPREPLY+=($(compgen "$1" -- "$cur"))
}}
complete -F _rise rise
"""

BASH_KINDS = {
    "folder": "_rise_files -d",
    "file": "_rise_files -f",
    "experiment": f'words="$words $({ASK})"; _rise_files -f',
    "other": ":",
}


def bash(commands: tuple[Command, ...]) -> str:
    """The script for bash."""
    values, bodies = [], []
    names = [command.name for command in commands if command.name]
    for command in commands:
        words = [] if command.name else names
        actions = []
        for argument in command.arguments:
            if not argument.flags:
                words = [*words, *argument.words]
                actions += [BASH_KINDS[argument.kind]] if argument.kind in KINDS.values() else []
            elif argument.kind != "flag":
                places = "|".join(f'"{command.name} {flag}"' for flag in argument.flags)
                values.append(f"        {places}) {_bash_value(argument)}; return ;;")
        shown = shlex.quote(" ".join([*words, *command.options]))
        body = "; ".join([f"words={shown}", *dict.fromkeys(actions)])
        bodies.append(f"        {command.name or chr(34) * 2}) {body} ;;")
    return BASH.format(names="|".join(names), values="\n".join(values), commands="\n".join(bodies))


def _bash_value(argument: Argument) -> str:
    if argument.kind == "words":
        return f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(argument.words))} -- "$cur"))'
    return BASH_KINDS[argument.kind]


ZSH = """\
#compdef rise
# zsh completion for rise; in ~/.zshrc after compinit: source <(rise completion zsh)
_rise_experiments() {{
    compadd -- ${{(f)"$({ask})"}}
    _files -g '*.toml'
}}
_rise() {{
    local curcontext=$curcontext state line
    typeset -A opt_args
    _arguments -C {options} '1:command:->command' '*::argument:->arguments'
    case $state in
        command) local -a commands=({commands}); _describe command commands ;;
        arguments)
            case $line[1] in
{cases}
            esac ;;
    esac
}}
compdef _rise rise
"""

ZSH_KINDS = {
    "folder": "_files -/",
    "file": "_files",
    "experiment": "_rise_experiments",
    "other": "",
}


def zsh(commands: tuple[Command, ...]) -> str:
    """The script for zsh."""
    root, *below = commands
    cases = [
        f"                {c.name}) _arguments {' '.join(map(_zsh_argument, c.arguments))} ;;"
        for c in below
    ]
    return ZSH.format(
        ask=ASK,
        options=" ".join(map(_zsh_argument, root.arguments)),
        commands=" ".join(shlex.quote(f"{c.name}:{c.help}") for c in below),
        cases="\n".join(cases),
    )


def _zsh_argument(argument: Argument) -> str:
    """A specification of ``_arguments``: options may be repeated, words in it lose their colons."""
    text = argument.help.replace("[", "(").replace("]", ")").replace(":", "")
    if argument.kind == "words":
        value = f":value:({' '.join(argument.words)})"
    else:
        value = "" if argument.kind == "flag" else f":value:{ZSH_KINDS[argument.kind]}"
    if not argument.flags:
        return shlex.quote(f"*{value}")
    return " ".join(shlex.quote(f"*{flag}[{text}]{value}") for flag in argument.flags)


def fish(commands: tuple[Command, ...]) -> str:
    """The script for fish."""
    lines = [
        "# fish completion for rise; rise completion fish > ~/.config/fish/completions/rise.fish",
        "complete -c rise -f",
    ]
    for command in commands:
        here = f"__fish_seen_subcommand_from {command.name}" if command.name else ""
        if command.name:
            quoted = shlex.quote(command.help)
            lines.append(f"complete -c rise -n __fish_use_subcommand -a {command.name} -d {quoted}")
        for argument in command.arguments:
            lines.append(_fish_argument(argument, here or "__fish_use_subcommand"))
    return "\n".join(lines) + "\n"


FISH_KINDS = {
    "folder": "-a '(__fish_complete_directories)'",
    "file": "-F",
    "experiment": f"-F -a '({ASK})'",
    "other": "",
    "flag": "",
}


def _fish_argument(argument: Argument, condition: str) -> str:
    parts = ["complete -c rise", f"-n {shlex.quote(condition)}"]
    for flag in argument.flags:
        parts.append(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}")
    if argument.flags and argument.kind != "flag":
        parts.append("-r")
    if argument.kind == "words":
        parts.append(f"-a {shlex.quote(' '.join(argument.words))}")
    else:
        parts.append(FISH_KINDS[argument.kind])
    parts.append(f"-d {shlex.quote(argument.help)}" if argument.flags and argument.help else "")
    return " ".join(filter(None, parts))


SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


NAME = "completion"
SUMMARY = "print a script for completion in bash, zsh or fish"
DESCRIPTION = """\
Prints a script that teaches a shell to complete commands, options, their values and the names of
experiments. Load it once (bash: source <(rise completion bash)), or in the shell's start file."""
EXAMPLES: tuple[str, ...] = (
    "rise completion bash",
    "rise completion zsh",
    "rise completion fish",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise completion``."""
    shells = ["bash", "zsh", "fish"]
    parser.add_argument("shell", choices=shells, metavar="SHELL", help=", ".join(shells))


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """The job: print the script."""

    def job() -> int:

        print(script(args.root, args.shell), end="")
        return 0

    return job
