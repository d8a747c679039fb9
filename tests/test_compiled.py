"""Compiled programs that are kept: found again, never other bytes, never an error, in one's own folder alone."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from conftest import folder_bytes, random_demonstrations

from demosift.data import write_dataset
from demosift.errors import InputError
from demosift.files import own_folder
from demosift.learning import compiled
from demosift.learning.compiled import FOLDER, SWITCH, Programs, given_folder, keep_programs

KEY, VALUE = "jit__advance-0123", b"machine code" * 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "cache" / FOLDER
    place.mkdir(mode=0o700, parents=True)
    return place


def test_what_was_kept_is_found_by_its_key_in_another_process(folder: Path):
    Programs(folder).put(KEY, VALUE)
    assert Programs(folder).get(KEY) == VALUE
    assert Programs(folder).get("another") is None


DAMAGE = {
    "a bit": lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:],
    "cut short": lambda content: content[:-1],
    "longer": lambda content: content + b"0",
    "nothing left": lambda content: b"",
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_not_there_and_is_kept_anew(folder: Path, how: str):
    programs = Programs(folder)
    programs.put(KEY, VALUE)
    path = programs.place(KEY)
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    assert programs.get(KEY) is None
    programs.put(KEY, VALUE)
    assert programs.get(KEY) == VALUE


def test_the_file_of_another_program_is_not_taken_for_this_one(folder: Path):
    programs = Programs(folder)
    programs.put("another", VALUE)
    programs.place("another").rename(programs.place(KEY))
    assert programs.get(KEY) is None


@pytest.mark.parametrize("what", ["folder", "link", "pipe"])
def test_what_is_no_file_is_not_there(folder: Path, what: str):
    programs = Programs(folder)
    programs.put("another", VALUE)
    path = programs.place(KEY)
    {"folder": path.mkdir, "link": lambda: path.symlink_to(programs.place("another")), "pipe": lambda: os.mkfifo(path)}[
        what
    ]()
    assert programs.get(KEY) is None
    programs.put(KEY, VALUE)


def test_a_file_of_another_user_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch):
    programs = Programs(folder)
    programs.put(KEY, VALUE)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert programs.get(KEY) is None


def test_code_for_another_processor_is_not_found(folder: Path, monkeypatch: pytest.MonkeyPatch):
    Programs(folder).put(KEY, VALUE)
    monkeypatch.setattr(compiled, "machine", lambda: "another")
    assert Programs(folder).get(KEY) is None


def test_what_was_not_used_for_longest_goes_first(folder: Path):
    programs = Programs(folder, limit=4 * len(VALUE))
    for number in range(3):
        programs.put(str(number), VALUE)
        os.utime(programs.place(str(number)), (number, number))
    assert programs.get("0") == VALUE
    programs.put("3", VALUE)
    assert [programs.get(str(number)) is not None for number in range(4)] == [True, False, True, True]
    programs.put("large", 5 * VALUE)
    assert programs.get("large") is None
    assert sum(path.stat().st_size for path in folder.iterdir()) <= programs.limit


@pytest.mark.parametrize("error", [OSError(errno.EROFS, "read-only"), InputError("the disk is full")])
def test_a_disk_that_is_full_or_read_only_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception):
    programs = Programs(folder)
    programs.put(KEY, VALUE)

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(compiled, "atomic_write", refuse)
    monkeypatch.setattr(os, "utime", refuse if isinstance(error, OSError) else os.utime)
    programs.put("another", VALUE)
    assert programs.get("another") is None
    assert programs.get(KEY) == VALUE


def test_of_two_writers_one_writes_and_what_a_killed_one_left_goes(folder: Path):
    programs = Programs(folder)
    workshop = folder / f".{programs.place(KEY).name}.partial"
    with own_folder(workshop):  # by the other, which is at it
        (workshop / programs.place(KEY).name).write_bytes(b"half")
        programs.put(KEY, VALUE)
        assert programs.get(KEY) is None
        programs.put("another", VALUE)
        assert workshop.exists()
    programs.put("another", VALUE)
    assert [path.name for path in folder.iterdir()] == [programs.place("another").name]


@pytest.fixture
def unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which JAX has no cache yet."""
    before = given_folder()
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("DEMOSIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr("jax._src.compilation_cache.get_file_cache", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.usefixtures("unset")
def test_the_folder_is_made_for_its_user_alone(tmp_path: Path):
    assert keep_programs()
    assert given_folder() == str(tmp_path / "cache" / FOLDER)
    assert (tmp_path / "cache" / FOLDER).stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("unset")
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_not_used(folder: Path, mode: int):
    folder.chmod(mode)
    assert not keep_programs()
    assert given_folder() is None
    Programs(folder).put(KEY, VALUE)  # opened to others meanwhile
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("unset")
def test_a_folder_of_another_user_or_a_link_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert not keep_programs()
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")
    assert not keep_programs()
    folder.unlink()
    folder.write_text("a file")
    assert not keep_programs()
    assert given_folder() is None


@pytest.mark.usefixtures("unset")
def test_the_switch_and_a_cache_of_the_users_own_come_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(SWITCH, "off")
    assert not keep_programs()
    monkeypatch.delenv(SWITCH)
    jax.config.update("jax_compilation_cache_dir", "/a/folder")
    assert not keep_programs()
    assert given_folder() == "/a/folder"


# Trains in a process of its own, in which nothing can be unpickled, and says how many programs were found.
TRAIN = """
import pickle, sys, _pickle
import cloudpickle, jax
from demosift.cli.main import main

found = []
jax.monitoring.register_event_listener(lambda name, **_: found.append(name))
def refuse(*_, **__):
    raise AssertionError("unpickled")
for module in (pickle, _pickle, cloudpickle):
    for name in ("load", "loads", "Unpickler"):
        setattr(module, name, refuse)
sys.addaudithook(lambda event, _: refuse() if event == "pickle.find_class" else None)
code = main(sys.argv[1:])
print("found", found.count("/jax/compilation_cache/cache_hits"))
sys.exit(code)
"""


def test_results_have_the_same_bytes_with_kept_programs_without_and_with_damaged_ones(tmp_path: Path):
    data, expert, cache = random_demonstrations(), tmp_path / "expert.hdf5", tmp_path / "cache"
    write_dataset(data.expert, expert)
    flags = "--hidden 8 8 --batch-size 16 --iterations 10 --log-every 5 --checkpoint-every 5 --evaluate-every 0"

    def train(name: str, switch: str = "") -> tuple[dict[str, bytes], int]:
        given = [
            "train",
            "bc",
            "--expert",
            str(tmp_path / "expert.hdf5"),
            "--out",
            str(tmp_path / name),
            *flags.split(),
        ]
        environment = {**os.environ, "DEMOSIFT_CACHE": str(cache), SWITCH: switch}
        answer = subprocess.run(
            [sys.executable, "-c", TRAIN, *given], env=environment, capture_output=True, text=True, check=False
        )
        assert (answer.returncode, answer.stderr) == (0, "")
        return folder_bytes(tmp_path / name), int(answer.stdout.split()[-1])

    plain, none = train("off", "off")
    assert none == 0
    assert not cache.exists()
    assert train("first") == (plain, 0)
    again, found = train("again")
    assert again == plain
    assert found > 0
    for path in (cache / FOLDER).iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert train("damaged") == (plain, 0)
