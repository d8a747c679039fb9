"""Metrics sent elsewhere: what TensorBoard's files hold after a run."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import random_dataset, random_demonstrations, tiny

from demosift.cli.main import main
from demosift.data import write_dataset
from demosift.learning import trackers
from demosift.learning.fit import fit
from demosift.types import InputError


def test_tensorboard_gets_every_member(tmp_path: Path):
    pytest.importorskip("tensorboardX")
    fit(
        tiny("bc"),
        random_demonstrations(),
        seeds=2,
        iterations=20,
        log_every=10,
        callbacks=[trackers.TensorBoard(tmp_path)],
    )
    for member in range(2):
        (events,) = (tmp_path / f"member-{member}").iterdir()
        assert events.read_bytes().count(b"policy_loss") == 2  # of both rows of the log


def test_a_folder_that_cannot_be_written_is_known_before_training(tmp_path: Path):
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").touch()
    for place in ("file", "file/inside"):
        with pytest.raises(InputError, match=place):
            trackers.TensorBoard(tmp_path / place)
    trackers.TensorBoard(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_evaluation_is_sent_as_its_mean():
    row = {"iteration": 5, "member": 0, "returns": [1.0, 3.0], "lengths": [2, 2], "score": None}
    assert trackers.scalars(row) == {"return": 2.0}


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"demosift\[wandb\]"):
        trackers.WandB("project")


class Service:
    """Stands in for the wandb package: what it was asked for, and what it was sent."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.runs, self.sent = error, [], []

    def init(self, **asked: Any) -> SimpleNamespace:
        if self.error is not None:
            raise self.error
        self.runs.append(asked)
        return SimpleNamespace(log=self.sent.append)


def test_wandb_gets_a_run_when_training_starts(monkeypatch: pytest.MonkeyPatch):
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)  # type: ignore[arg-type]
    options: dict[str, Any] = {"iterations": 20, "log_every": 10, "callbacks": [trackers.WandB("project", {"a": 1})]}
    with pytest.raises(InputError, match="the seeds repeat"):
        fit(tiny("bc"), random_demonstrations(), seeds=[4, 4], **options)
    assert service.runs == [], "a refused command leaves no empty run"
    fit(tiny("bc"), random_demonstrations(), seeds=2, **options)
    assert service.runs == [{"project": "project", "config": {"a": 1}}]
    assert [row["iteration"] for row in service.sent] == [10, 20]
    assert {"0/policy_loss", "1/policy_loss"} <= set(service.sent[0])


def test_wandb_without_a_login_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class UsageError(Exception):
        pass

    monkeypatch.setitem(sys.modules, "wandb", Service(UsageError("api_key not configured (no-tty)\n  wandb login")))  # type: ignore[arg-type]
    write_dataset(random_dataset(0, 60), tmp_path / "expert.hdf5")
    command = ["train", "bc", "--expert", str(tmp_path / "expert.hdf5"), "--iterations", "10", "--hidden", "8"]
    assert main([*command, "--wandb", "project", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error == "demosift: W&B: cannot start a run: UsageError: api_key not configured (no-tty) wandb login\n"
