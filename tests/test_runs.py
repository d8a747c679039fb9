"""The run folder: which run it belongs to, what a kill or a bad disk leaves in it, and what is read back."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tree

from demosift import files
from demosift.files import Unusable, digest, json_line, plain
from demosift.policy import Layer, Policy
from demosift.results import checkpoint
from demosift.results.run import IDENTITY, Row, Run, RunFolder, load_run, read_run
from demosift.types import InputError


def config(**changes: Any) -> Row:
    identity = {
        "algorithm": "bc",
        "members": [{"algorithm": "bc", "seed": 0}],
        "data": [{"sha256": "ab"}],
        "normalise": "union",
        "precision": "bfloat16",
        "ensemble": 3,
        "expert_actions": False,
        "held_out": 0.2,
        "patience": 4,
        "log_every": 5,
        "checkpoint_every": 10,
        "evaluation": None,
    }
    assert tuple(identity) == IDENTITY
    return {**identity, "iterations": 20, **changes}


def state(value: float = 1.0) -> dict[str, np.ndarray]:
    return {"weights": np.full((2, 3), value, np.float32), "count": np.array([3], np.int32)}


def some_policy() -> Policy:
    shift, scale = np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32)
    layer = Layer(np.ones((1, 3, 4), np.float32), np.zeros((1, 4), np.float32))
    return Policy("tanh-gaussian", (layer,), shift, scale, mean_limit=7.0)


def claim(folder: RunFolder, config: Row, resume: bool = False) -> None:
    with folder.claim(config, resume):
        pass


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    claim(folder, config())
    return folder


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "bit flip":
        content[-3] ^= 1
    elif how == "header":
        content[0] ^= 0xFF
    path.write_bytes(content[: len(content) // 2] if how == "cut short" else b"" if how == "empty" else content)


class TestClaim:
    @pytest.mark.parametrize("key", IDENTITY)
    def test_another_run_is_refused(self, folder: RunFolder, key: str):
        before = tree(folder.path)
        for resume in (False, True):
            with pytest.raises(
                InputError, match=f"run: holds another run .differs in {key.replace('_', ' ')}.; choose"
            ):
                claim(folder, config(**{key: "other"}), resume)
        assert tree(folder.path) == before

    def test_the_same_run_wants_resume(self, folder: RunFolder):
        before = tree(folder.path)
        with pytest.raises(InputError, match="holds this run already; continue it with --resume"):
            claim(folder, config())
        assert tree(folder.path) == before
        claim(folder, config(iterations=40), resume=True)
        assert folder.read_config()["iterations"] == 40

    def test_what_cannot_be_written_is_refused_before_anything_is(self, folder: RunFolder):
        for path in (folder.metrics, folder.policy, folder.request):
            path.unlink(missing_ok=True)
            path.mkdir()
            before = tree(folder.path)
            with pytest.raises(InputError, match=f"{path.name}: is a folder"):
                claim(folder, config(iterations=40), resume=True)
            assert tree(folder.path) == before
            path.rmdir()

    def test_a_file_is_refused(self, tmp_path: Path):
        (tmp_path / "run").write_text("mine")
        with pytest.raises(InputError, match="run: is a file, not a folder"):
            claim(RunFolder(tmp_path / "run"), config())
        assert tree(tmp_path) == {"run": b"mine"}

    def test_a_folder_with_something_else_is_refused(self, tmp_path: Path):
        (tmp_path / "notes.txt").write_text("mine")
        for resume in (False, True):
            with pytest.raises(InputError, match="not empty and holds no run"):
                claim(RunFolder(tmp_path), config(), resume)
        assert tree(tmp_path) == {"notes.txt": b"mine"}

    def test_an_unreadable_configuration_is_refused(self, folder: RunFolder):
        folder.config.write_text("{")
        with pytest.raises(InputError, match=r"config.json: not JSON, or cut short"):
            claim(folder, config(), resume=True)
        assert tree(folder.path) == {"config.json": b"{"}

    def test_a_folder_that_cannot_be_made_is_refused(self, tmp_path: Path):
        (tmp_path / "file").write_text("mine")
        with pytest.raises(InputError, match="cannot write"):
            claim(RunFolder(tmp_path / "file/run"), config())

    def test_killed_while_claiming_can_be_claimed_again(self, tmp_path: Path):
        """A kill between the temporary file and its renaming leaves the temporary file."""
        (tmp_path / ".config.0123abcd.partial.json").write_text("{")
        claim(RunFolder(tmp_path), config(), resume=True)
        assert RunFolder(tmp_path).read_config() == config()

    def test_only_what_a_kill_left_is_swept(self, folder: RunFolder):
        """A user's own dotfiles stay, whatever they are called."""
        folder.checkpoints.write(10, state())
        ours = [".policy.safetensors.partial", "checkpoint/.0000000020.safetensors.partial", "scores/.0.partial"]
        for name in ours:
            (folder.path / name).mkdir(parents=True)
        (folder.path / ours[0] / "policy.safetensors").write_bytes(b"half")
        (folder.path / "checkpoint/.0000000020.0123abcd.partial.safetensors").write_bytes(b"half")
        theirs = [".partial", ".notes.partial.txt", "checkpoint/.mine.partial-of-it", ".thesis.partial/chapter"]
        for name in theirs:
            (folder.path / name).parent.mkdir(exist_ok=True)
            (folder.path / name).write_text("mine")
        claim(folder, config(), resume=True)
        assert {*tree(folder.path)} == {"config.json", "checkpoint/0000000010.safetensors", *theirs}

    def test_a_run_has_its_folder_to_itself(self, folder: RunFolder):
        with folder.claim(config(), resume=True):
            before = tree(folder.path)
            with pytest.raises(InputError, match="run: another process is writing there"):
                claim(RunFolder(folder.path), config(), resume=True)
            assert tree(folder.path) == before
        claim(folder, config(), resume=True)


class TestCheckpoints:
    def test_the_newest_is_read(self, folder: RunFolder):
        for iteration in (10, 20, 30):
            folder.checkpoints.write(iteration, state(iteration))
        assert [path.name for path in folder.checkpoints.states()] == [
            "0000000020.safetensors",
            "0000000030.safetensors",
        ]
        iteration, arrays, _ = folder.checkpoints.read() or (0, {}, {})
        assert iteration == 30
        assert digest(arrays) == digest(state(30))

    def test_none_before_the_first(self, folder: RunFolder):
        assert folder.checkpoints.read() is None

    @pytest.mark.parametrize("how", ["bit flip", "header", "cut short", "empty"])
    def test_a_damaged_one_is_passed_over(self, folder: RunFolder, how: str):
        for iteration in (10, 20):
            folder.checkpoints.write(iteration, state(iteration))
        damage(folder.checkpoints.states()[-1], how)
        assert (folder.checkpoints.read() or (0,))[0] == 10
        damage(folder.checkpoints.states()[0], how)
        assert folder.checkpoints.read() is None

    def test_without_the_digest_a_bit_flip_would_pass(self, folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(checkpoint, "digest", lambda arrays: "")
        folder.checkpoints.write(10, state())
        damage(folder.checkpoints.states()[0], "bit flip")
        _, arrays, _ = folder.checkpoints.read() or (0, {}, {})
        assert digest(arrays) != digest(state())

    @pytest.mark.parametrize("call", ["replace", "fsync"])
    def test_a_full_disk_is_said_and_costs_no_checkpoint(
        self, folder: RunFolder, call: str, monkeypatch: pytest.MonkeyPatch
    ):
        folder.checkpoints.write(10, state(10))
        before = tree(folder.path)

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises(InputError, match=r"0000000020.safetensors: cannot write: No space left on device"):
                folder.checkpoints.write(20, state(20))
        assert tree(folder.path) == before
        assert (folder.checkpoints.read() or (0,))[0] == 10

    def test_what_a_kill_left_half_written_is_no_checkpoint(self, folder: RunFolder):
        folder.checkpoints.write(10, state())
        (folder.checkpoints.path / ".0000000020.0123abcd.partial.safetensors").write_bytes(b"half")
        assert (folder.checkpoints.read() or (0,))[0] == 10

    def test_a_note_comes_back_and_is_covered_by_the_digest(self, folder: RunFolder):
        note = {"members": [{"failure": None, "evaluations": [1.5]}]}
        folder.checkpoints.write(10, state(), note)
        found = folder.checkpoints.read()
        assert found is not None
        assert found.note == note
        path = folder.checkpoints.states()[0]
        path.write_bytes(path.read_bytes().replace(b"1.5", b"2.5"))
        assert folder.checkpoints.read() is None

    def test_the_iteration_is_covered_by_the_digest(self, folder: RunFolder):
        folder.checkpoints.write(10, state())
        path = folder.checkpoints.states()[0]
        path.write_bytes(path.read_bytes().replace(b'iteration\\": 10', b'iteration\\": 30'))
        path.rename(path.with_name("0000000030.safetensors"))
        assert folder.checkpoints.read() is None

    def test_the_metrics_are_in_it(self, folder: RunFolder):
        rows = [{"iteration": 10, "member": 0, "loss": 0.1}]
        folder.checkpoints.write(10, state(), {"metrics": rows})
        found = folder.checkpoints.read()
        assert found is not None
        assert found.note == {"metrics": rows}
        assert digest(found.arrays) == digest(state())

    @pytest.mark.parametrize("name", ["progress", "note"])
    def test_notes_of_earlier_releases_are_read(self, folder: RunFolder, name: str):
        """Notes used to be bytes of JSON inside a tensor."""
        folder.checkpoints.write(10, {**state(), name: np.frombuffer(b'{"curve": [1]}', np.uint8)})
        found = folder.checkpoints.read()
        assert found is not None
        assert found.note == {"curve": [1]}
        assert digest(found.arrays) == digest(state())


class TestMetrics:
    ROWS: tuple[Row, ...] = (
        {"iteration": 5, "member": 0, "loss": 1.0},
        {"iteration": 5, "member": 0, "returns": [1.0, 2.0]},
        {"iteration": 10, "member": 0, "loss": 0.5},
        {"iteration": 10, "member": 0, "returns": [3.0]},
        {"iteration": 15, "member": 0, "loss": 0.2},
    )

    def test_cut_back_to_the_checkpoint(self, folder: RunFolder):
        """With its own evaluation, or without it."""
        folder.append_metrics(self.ROWS)
        assert folder.cut_metrics(10, evaluated=True) == list(self.ROWS[:4])
        assert folder.cut_metrics(10, evaluated=False) == list(self.ROWS[:3])
        assert folder.read_metrics() == list(self.ROWS[:3])
        assert folder.cut_metrics(0, evaluated=True) == []
        assert folder.metrics.read_bytes() == b""

    @pytest.mark.parametrize("rest", ['{"iteration": 20, "mem', "\x00\x00\x00", '{"iteration": 20}'])
    def test_a_last_line_cut_short_is_dropped(self, folder: RunFolder, rest: str):
        folder.append_metrics(self.ROWS)
        whole = folder.metrics.read_bytes()
        with folder.metrics.open("a") as file:
            file.write(rest)
        assert folder.cut_metrics(15, evaluated=True) == list(self.ROWS)
        assert folder.metrics.read_bytes() == whole

    def test_only_a_line_that_is_not_whole_ends_the_metrics(self, folder: RunFolder):
        """A return that is not finite is null in the file: the report refuses such a run, but it can be continued."""
        rows = [{"iteration": 5, "member": 0, "returns": [float("inf")]}, {"iteration": 10, "member": 0, "loss": 0.5}]
        folder.append_metrics(rows)
        assert folder.cut_metrics(10, evaluated=True) == [{**rows[0], "returns": [None]}, rows[1]]
        with pytest.raises(Unusable, match=r"^run/metrics.jsonl, line 1: returns must be a list of numbers"):
            read_run(folder.path, "run")

    def test_a_full_disk_is_said(self, folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match=r"metrics.jsonl: cannot write: No space left on device"):
            folder.append_metrics(self.ROWS)

    def test_what_is_not_finite_is_null(self):
        row = {"a": float("nan"), "b": np.float32(np.inf), "c": np.array([1.0, np.nan]), "d": 3, "e": "x", "f": True}
        assert json.loads(json_line(row)) == {"a": None, "b": None, "c": [1.0, None], "d": 3, "e": "x", "f": True}
        assert plain((np.int32(2), [np.nan])) == [2, [None]]


class TestDigest:
    def test_every_part_counts(self):
        first = digest(state())
        assert first == digest(dict(reversed(state().items())))
        changed = state()
        changed["weights"][1, 2] = np.nextafter(np.float32(1), np.float32(2))
        others = [
            changed,
            {**state(), "weights": np.ones((3, 2), np.float32)},
            {**state(), "count": np.array([3], np.int64)},
            {"other": state()["weights"], "count": state()["count"]},
        ]
        assert len({first, *(digest(other) for other in others)}) == 5


class TestRun:
    def run(self) -> Run:
        return Run(config(), some_policy(), list(TestMetrics.ROWS), state())

    def test_saved_and_loaded(self, tmp_path: Path):
        self.run().save(tmp_path / "run")
        loaded = load_run(tmp_path / "run")
        assert loaded.config == config()
        assert loaded.members == [{"algorithm": "bc", "seed": 0}]
        assert loaded.metrics == list(TestMetrics.ROWS)
        assert [row["iteration"] for row in loaded.evaluations] == [5, 10]
        assert loaded.state is not None
        assert digest(loaded.state) == digest(state())

    def test_saving_over_a_run_is_refused(self, tmp_path: Path):
        self.run().save(tmp_path / "run")
        before = tree(tmp_path)
        with pytest.raises(InputError, match="holds this run already"):
            self.run().save(tmp_path / "run")
        assert tree(tmp_path) == before

    def test_saving_again_gives_the_same_bytes(self, tmp_path: Path):
        self.run().save(tmp_path / "a")
        load_run(tmp_path / "a").save(tmp_path / "b")
        assert tree(tmp_path / "a") == tree(tmp_path / "b")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"hello": "world"}', r"algorithm is missing"),
            ("[]", "not the config of a run"),
            ('{"algorithm": "bc", "iterations": 5, "members": [{"algorithm": "bc"}]}', "members is missing"),
            (json.dumps(config(rate=7)).replace("7", "1e999"), "a number is not finite"),
        ],
    )
    def test_another_programs_config_is_refused(self, tmp_path: Path, text: str, message: str):
        """Every reader applies the same check."""
        (tmp_path / "config.json").write_text(text)
        for read in (load_run, lambda path: read_run(path, str(path)), lambda path: claim(RunFolder(path), config())):
            with pytest.raises(InputError, match=f"config.json: .*{message}"):
                read(tmp_path)

    def test_no_run_to_load(self, tmp_path: Path):
        with pytest.raises(InputError, match=r"no run here \(config.json is missing\)"):
            load_run(tmp_path)
        claim(RunFolder(tmp_path / "unfinished"), config())
        with pytest.raises(InputError, match=r"policy.safetensors: no such policy file"):
            load_run(tmp_path / "unfinished")


def test_provenance_names_versions_and_hardware():
    answer = files.provenance()
    assert answer["versions"]["jax"] == files.installed_version("jax")
    assert files.installed_version("no-such-package") is None
    assert answer["hardware"]["cores"] == os.cpu_count()
    json.dumps(answer, allow_nan=False)


def test_a_copy_of_the_source_can_be_told_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    own = files.source_commit()
    monkeypatch.setenv("DEMOSIFT_COMMIT", "abc")
    assert own is None or files.source_commit() == own
    (tmp_path / "files.py").touch()
    monkeypatch.setattr(files, "__file__", str(tmp_path / "files.py"))
    assert files.source_commit() == "abc"
