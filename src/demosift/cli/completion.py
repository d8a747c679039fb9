"""`demosift completion SHELL`: what a shell needs to complete verbs, algorithms, flags and their choices.

The script is written from the parser, so it knows every flag, those of methods from other packages included. It runs
nothing while you type. In a script a place is the verb and the algorithm so far: "", "/score", "/train/bc".
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from demosift.cli.parsers import flags, positionals, subcommands


@dataclass(frozen=True)
class Flag:
    name: str
    about: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    path: str
    words: dict[str, str]  # what may stand here, with its meaning
    flags: tuple[Flag, ...]


def find_places(parser: argparse.ArgumentParser, path: str = "", default: str | None = None) -> list[Place]:
    """The parser's place and those below it. Flags of `default` may stand where no subcommand is named."""
    below = subcommands(parser)
    words = {name: sub.description or "" for name, sub in below.items()}
    words |= {str(choice): "" for action in positionals(parser) for choice in action.choices or () if not below}
    own = {name: action for name, action in flags(parser).items() if action.help is not argparse.SUPPRESS}
    if default in below:
        own = {**flags(below[default]), **own}
    found = tuple(
        Flag(name, action.help or "", action.nargs != 0, tuple(map(str, action.choices or ())))
        for name, action in own.items()
    )
    places = [Place(path, words, found)]
    for name, sub in below.items():
        places += find_places(sub, f"{path}/{name}", default)
    return places


def write_script(shell: str, parser: argparse.ArgumentParser, default: str) -> str:
    return SHELLS[shell](find_places(parser, default=default))


def one_line(text: str, longest: int = 90) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest - 1].rsplit(' ', 1)[0]}…"


def quoted(text: str) -> str:
    """For bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def walk(places: Iterable[Place]) -> str:
    """The pattern of all that leads from one place to the next."""
    return " | ".join(place.path for place in places if place.path)


def after_flags(places: Iterable[Place], files: str, choices: Callable[[tuple[str, ...]], str]) -> Iterable[str]:
    """The cases of the word after a flag: one of its choices, or a file."""
    for place in places:
        for flag in place.flags:
            if flag.choices:
                yield f'        "{place.path} --{flag.name}") {choices(flag.choices)} ;;'
        free = [f'"{place.path} --{flag.name}"' for flag in place.flags if flag.takes_value and not flag.choices]
        if free:
            yield f"        {' | '.join(free)}) {files} ;;"


def bash(places: list[Place]) -> str:
    here = [
        f'        "{place.path}") words={quoted(" ".join(place.words))}'
        f" flags={quoted(' '.join(f'--{flag.name}' for flag in place.flags))} ;;"
        for place in places
    ]
    return f"""\
# bash completion of demosift, written by: demosift completion bash
_demosift() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} place= words= flags= each
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD - 1}}"; do
        case "$place/$each" in
            {walk(places)}) place=$place/$each ;;
        esac
    done
    COMPREPLY=()
    case "$place $before" in
{chr(10).join(after_flags(places, "return", lambda names: f"words={quoted(' '.join(names))}"))}
        *) case "$place" in
{chr(10).join(here)}
        esac ;;
    esac
    [[ $word == -* ]] && words="$words $flags"
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _demosift demosift"""


def zsh(places: list[Place]) -> str:
    def described(name: str, about: str) -> str:
        return quoted(f"{name}:{one_line(about)}" if about else name)

    here = [
        f'        "{place.path}") found=({" ".join(described(*each) for each in place.words.items())})'
        f" flags=({' '.join(described(f'--{flag.name}', flag.about) for flag in place.flags)}) ;;"
        for place in places
    ]
    return f"""\
#compdef demosift
# zsh completion of demosift, written by: demosift completion zsh
_demosift() {{
    local place= each
    local -a found flags
    for each in "${{(@)words[2,CURRENT-1]}}"; do
        case "$place/$each" in
            {walk(places)}) place=$place/$each ;;
        esac
    done
    case "$place ${{words[CURRENT-1]}}" in
{chr(10).join(after_flags(places, "_files; return", lambda names: f"compadd -- {' '.join(names)}; return"))}
    esac
    case "$place" in
{chr(10).join(here)}
    esac
    [[ ${{words[CURRENT]}} == -* ]] && found+=("${{flags[@]}}")
    _describe demosift found || _files
}}
if [[ $funcstack[1] == _demosift ]]; then _demosift "$@"; else compdef _demosift demosift; fi"""


def fish(places: list[Place]) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = []
    for place in places:
        condition = f'__demosift_at "{place.path}"'
        at = f"complete -c demosift -n {quoted(condition)}"
        lines += [f"{at} -f -a {name} -d {quoted(one_line(about))}" for name, about in place.words.items()]
        for flag in place.flags:
            value = f" -x -a {quoted(' '.join(flag.choices))}" if flag.choices else " -r" if flag.takes_value else ""
            lines.append(f"{at} -l {flag.name}{value} -d {quoted(one_line(flag.about))}")
    return f"""\
# fish completion of demosift, written by: demosift completion fish
function __demosift_at
    set -l place ""
    for each in (commandline -opc)[2..]
        switch "$place/$each"
            case {" ".join(place.path for place in places if place.path)}
                set place "$place/$each"
        end
    end
    test "$place" = "$argv[1]"
end
{chr(10).join(lines)}"""


SHELLS: dict[str, Callable[[list[Place]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
