"""Metrics sent elsewhere: what TensorBoard's files hold after a run."""

from pathlib import Path

import pytest
from conftest import random_demonstrations, tiny

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
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(InputError, match=r"demosift\[wandb\]"):
        trackers.WandB("project")
