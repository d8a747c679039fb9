"""Completion as the shells do it: each runs its script and says what it would offer."""

import shutil
import subprocess
from pathlib import Path

import pytest

from demosift.cli.completion import SHELLS, write_script
from demosift.cli.main import DEFAULT_ALGORITHM, make_parser

# A line as typed so far, and words that are offered at its end, and words that are not.
LINES = [
    ("demosift ", "demo train score completion", "bc --json"),
    ("demosift tra", "train", "task"),
    ("demosift train ", "sift bc wbcu", "demo --expert"),
    ("demosift train --gradient-p", "", "--gradient-penalty"),  # no flag of sift
    ("demosift train --exp", "--expert", "--env"),
    ("demosift train wbcu --gradient-p", "--gradient-penalty", "--seeds"),
    ("demosift train wbcu --precision ", "float32 bfloat16", "bc --expert"),
    ("demosift train wbcu --precision b", "bfloat16", "float32"),
    ("demosift evaluate runs/first --me", "--member", "--methods"),
    ("demosift bench sc", "scores scale", "speed"),
    ("demosift completion ", "bash zsh fish", "demo"),
    ("demosift --v", "--version", "--help"),
]

BASH = r"""
source script.bash
complete -p demosift | grep -q -- '-o default -F _demosift' || exit 1
COMP_LINE=$1 COMP_POINT=${#1}
read -r -a COMP_WORDS <<<"$1"
[[ $1 == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_demosift demosift
printf '%s\n' "${COMPREPLY[@]}"
"""
FISH = 'source script.fish; complete -C "$argv[1]" | string replace -r "\\t.*" ""; true'
# zsh completes only in a terminal, so what its completion calls is replaced by something that prints.
ZSH = r"""
compdef() { }
_files() { }
compadd() { shift; show "$@" }
_describe() { show "${(@P)2}" }
show() { for each in "$@"; do each=${each%%:*}; [[ $each == "${words[CURRENT]}"* ]] && print -r -- $each; done; true }
source ./script.zsh
words=(${=1})
[[ $1 == *' ' ]] && words+=('')
CURRENT=${#words}
_demosift
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        text = write_script(shell, make_parser(["train"]), DEFAULT_ALGORITHM)
        (folder / f"script.{shell}").write_text(f"{text}\n")
    return folder


def offered(shell: str, line: str, scripts: Path) -> set[str]:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    commands = {
        "bash": [program, "--norc", "-c", BASH, "bash", line],
        "fish": [program, "--no-config", "-c", FISH, line],
        "zsh": [program, "-f", "-c", ZSH, "zsh", line],
    }
    done = subprocess.run(commands[shell], cwd=scripts, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_offered(shell: str, scripts: Path):
    for line, some, others in LINES:
        found = offered(shell, line, scripts)
        assert set(some.split()) <= found, line
        assert not set(others.split()) & found, line


def test_a_file_is_offered_where_one_belongs(scripts: Path):
    """bash completes file names itself where nothing is offered."""
    assert offered("bash", "demosift train bc --expert scr", scripts) == set()
    assert offered("bash", "demosift evaluate scr", scripts) == set()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_has_every_flag_of_every_verb(shell: str, scripts: Path):
    text = (scripts / f"script.{shell}").read_text()
    for name in ("early-episodes", "target-entropy", "filter-key", "nu-penalty", "no-disjoint", "from"):
        assert name in text
