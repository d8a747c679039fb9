"""A short run of the fuzzer, and every case that it once failed on."""

import os
import random
import shutil
import zipfile
from pathlib import Path

import fuzz
import fuzz_mutators
import pytest

CASES = 8  # of each format, always the same; `make fuzz` runs as many as there is time for


@pytest.mark.parametrize("name", fuzz.FORMATS)
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path: Path, name: str) -> None:
    sample = fuzz.make_sample(name, tmp_path)
    assert fuzz.attempt(name, lambda folder: shutil.copytree(sample, folder) and None, tmp_path / "work") == "read"
    outcomes = [fuzz.attempt(name, fuzz.Case(name, sample, i, 0).write, tmp_path / "work") for i in range(CASES)]
    assert set(outcomes) <= {"read", "refused"}


@pytest.mark.parametrize("path", sorted(fuzz.REGRESSIONS.glob("*.zip")), ids=lambda path: path.stem)
def test_what_failed_once(tmp_path: Path, path: Path) -> None:
    def unpack(folder: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)

    assert fuzz.attempt(path.stem.rsplit("-", 2)[0], unpack, tmp_path / "work") in ("read", "refused")


@pytest.mark.parametrize("wrong", ["raises", "prints", "writes", "copies"])
def test_the_fuzzer_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    """Each kind of failure that a case can show without ending the process."""

    def read(folder: Path, out: Path) -> None:
        if wrong == "raises":
            raise KeyError("x")
        if wrong == "prints":
            raise fuzz.InputError((folder.parent / "elsewhere" / "secret.txt").read_text())
        if wrong == "writes":
            (folder.parent / "new").touch()
        else:
            shutil.copy(folder.parent / "elsewhere" / "secret.txt", out)

    monkeypatch.setitem(fuzz.FORMATS, "x", fuzz.Format("x", lambda folder: None, read))
    assert fuzz.attempt("x", lambda folder: folder.mkdir(), tmp_path / "work") not in ("read", "refused")


def test_cases_are_made_from_their_numbers_alone(tmp_path: Path) -> None:
    sample = fuzz.make_sample("run", tmp_path)
    for folder in ("a", "b"):
        fuzz.Case("run", sample, 3, 5).write(tmp_path / folder)
    assert fuzz_tree(tmp_path / "a") == fuzz_tree(tmp_path / "b") != fuzz_tree(sample)


def fuzz_tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {os.path.relpath(path, folder): path.read_bytes() for path in files}


def test_json_that_is_none() -> None:
    value = {"a": f"{fuzz_mutators.RAW}NaN", "b": [f"{fuzz_mutators.RAW}1e999"]}
    assert fuzz_mutators.dumps(value) == '{"a": NaN, "b": [1e999]}'
    assert fuzz_mutators.spoil({"a": 1}, random.Random(0)) != {"a": 1}
