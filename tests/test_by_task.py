"""Several tasks in one dataset: each is scored by itself, in real LeRobot layouts and by a column of other formats."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import tree
from layouts import Episode, lerobot_v2, lerobot_v3

from demosift.cli.main import main
from demosift.data import tasks_of
from demosift.results.scores import read_scores, standing
from demosift.sift.filtering import filter_dataset
from demosift.sift.scorers import NeighbourScorer
from demosift.sift.scoring import score
from demosift.sift.second_look import SUPPORT
from demosift.types import InputError

STEPS = 24
SETTINGS: dict[str, Any] = {"scorer": NeighbourScorer(), "members": 1, "progress": False}


def episodes(count: int, bad: tuple[int, ...] = ()) -> dict[int, Episode]:
    """Even episodes walk to the left, odd ones to the right: an expert of one task is a bad example of the other.

    Bad episodes walk the other task's way.
    """
    rng = np.random.default_rng(0)
    found = {}
    for number in range(count):
        way = (1 if number % 2 else -1) * (-1 if number in bad else 1)
        place = rng.normal(size=(STEPS + 1, 3))
        found[number] = {
            "robot0_eef_pos": place,
            "object": rng.normal(size=(STEPS + 1, 2)),
            "actions": np.clip(0.5 * way + 0.1 * rng.normal(size=(STEPS, 2)), -1, 1),
            "rewards": np.zeros(STEPS),
        }
    return found


def put(folder: Path, version: str, content: dict[int, Episode]) -> str:
    return str(lerobot_v2(folder, content) if version == "v2.1" else lerobot_v3(folder, [content]))


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_tasks_are_told_by_name(tmp_path: Path, version: str):
    source = put(tmp_path / "data", version, episodes(4))
    assert tasks_of(source) == {0: "task 0", 1: "task 1", 2: "task 0", 3: "task 1"}
    assert tasks_of(source, "task_index") == {0: "0", 1: "1", 2: "0", 3: "1"}
    with pytest.raises(InputError, match="colour: no such column"):
        tasks_of(source, "colour")


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_each_task_is_scored_by_itself(tmp_path: Path, version: str):
    """The two tasks contradict each other, so together the scores cannot be right, and task by task they are."""
    bad = (8, 10, 9, 11)
    source, out = put(tmp_path / "data", version, episodes(16, bad)), tmp_path / "scores"
    sets = f"{source}::episodes=0-3", f"{source}::without=0-3"
    scored = score(*sets, out=out, **SETTINGS)
    columns = scored.episodes()
    wrong = np.isin(columns["number"], bad)
    pile = columns["source"] == "supplementary"
    assert columns["log_weight"][pile & wrong].max() < columns["log_weight"][pile & ~wrong].min()
    together = score(*sets, task_column="none", **SETTINGS).episodes()["log_weight"]
    assert together[pile & wrong].max() > together[pile & ~wrong].min()
    # The rows of a task have the weights that the task alone would have.
    alone = score(f"{source}::episodes=0,2", f"{source}::episodes=4,6,8,10,12,14", task_column="none", **SETTINGS)
    even = np.repeat(columns["number"] % 2 == 0, columns["rows"])
    np.testing.assert_array_equal(scored.weight[even], alone.weight)
    assert sorted(columns["rank"][pile & wrong]) == [9, 10, 11, 12]
    assert columns["task"][pile].tolist() == [f"task {n % 2}" for n in columns["number"][pile]]
    assert pq.read_table(out / "episodes.parquet")["task"].to_pylist() == columns["task"].tolist()
    told = scored.summary["tasks"]
    assert [(one["task"], one["by"], one["expert_episodes"]) for one in told] == [
        ("task 0", "the expert", 2),
        ("task 1", "the expert", 2),
    ]
    assert "2 tasks, each by itself: 2 against its expert" in str(scored)
    page = (out / "report.html").read_text()
    assert "Task by task" in page
    assert "<td>task 1</td>" in page
    # What is kept, in the dataset's own format and for other programs.
    read = read_scores(source, out)
    assert sorted(read.order[:4]) == [0, 1, 2, 3]  # named as the expert's
    kept = filter_dataset(source, out, f"lerobot:{tmp_path / 'kept'}", episodes=12)
    assert kept.kept_episodes == 12
    assert not set(np.flatnonzero(np.isin(read.numbers, bad))) & set(read.order[:12])
    assert set(tasks_of(str(tmp_path / "kept")).values()) == {"task 0", "task 1"}
    filter_dataset(source, out, tmp_path / "weights", weights=True)
    assert not set(json.loads((tmp_path / "weights/episodes.json").read_text())) & set(bad)


def test_tasks_without_an_expert(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """By agreement where there are enough episodes, and otherwise not at all: the weight is 1, and it is said."""
    source = put(tmp_path / "data", "v3.0", episodes(16, bad=(11,)))
    flags = ["--scorer", "neighbours", "--members", "1", "--json"]
    assert main(["score", source, "--expert-episodes", "0,2", *flags, "--out", str(tmp_path / "a")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["by"] for one in answer["tasks"]] == ["the expert", "agreement"]
    assert any("1 of 2 tasks ('task 1') has no expert episode: scored by agreement" in w for w in answer["warnings"])
    read = read_scores(source, tmp_path / "a")
    assert read.settled is not None
    assert np.flatnonzero(read.settled).tolist() == [0, 2]  # nobody named those that stood in for an expert
    odd = np.flatnonzero(read.numbers % 2)
    assert read.numbers[odd[np.argmin(read.merit[odd])]] == 11
    few = put(tmp_path / "few", "v2.1", {n: own for n, own in episodes(16).items() if n % 2 == 0 or n < 7})
    ask = [few, "--expert-episodes", "0,2", "--bad-episodes", "4,1", *flags]
    assert main(["score", *ask, "--out", str(tmp_path / "b")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["by"] for one in answer["tasks"]] == ["the expert", "nothing"]
    assert any("not scored, every row weighs 1" in warning for warning in answer["warnings"])
    read = read_scores(few, tmp_path / "b")
    weights = dict(zip(read.numbers.tolist(), np.split(read.weight, read.episode_ends[:-1]), strict=True))
    assert all((weights[number] == 1).all() for number in (3, 5))
    assert all((weights[number] == 0).all() for number in (1, 4))
    assert main(["report", str(tmp_path / "b")]) == 0


def test_nobody_is_an_expert(tmp_path: Path):
    source = put(tmp_path / "data", "v3.0", episodes(16, bad=(10, 11)))
    scored = score(None, source, out=tmp_path / "scores", **SETTINGS)
    columns = scored.episodes()
    assert sorted(columns["number"].tolist()) == list(range(16))
    assert [one["by"] for one in scored.summary["tasks"]] == ["agreement", "agreement"]
    assert {10, 11} <= set(columns["number"][columns["agreement_rank"] == 8].tolist())
    # Agreement counts beside the weights of those that agree, so the two are dropped first.
    np.testing.assert_array_equal(columns["support"], SUPPORT * columns["agreement"])
    read = read_scores(source, tmp_path / "scores")
    assert set(read.numbers[read.order[-2:]].tolist()) == {10, 11}
    assert filter_dataset(source, tmp_path / "scores", f"lerobot:{tmp_path / 'kept'}", episodes=14).kept_episodes == 14
    with pytest.raises(InputError, match="each of its 2 tasks has fewer than 5 episodes"):
        score(None, put(tmp_path / "few", "v3.0", episodes(8)), **SETTINGS)


def test_a_column_of_another_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Any fact about episodes tells tasks apart, as the attribute of a robomimic file; nonsense is refused."""
    import h5py
    from layouts import robomimic_file

    content = {n: {**own, "image": np.zeros((STEPS + 1, 4, 4, 3), np.uint8)} for n, own in episodes(12).items()}
    path = robomimic_file(tmp_path / "demos.hdf5", content, images=False)
    with h5py.File(path, "a") as file:
        for number in content:
            file[f"data/demo_{number}"].attrs["goal"] = ["left", "right"][number % 2]
    sets = f"{path}::episodes=0-3", f"{path}::without=0-3"
    scored = score(*sets, task_column="goal", **SETTINGS)
    assert [one["task"] for one in scored.summary["tasks"]] == ["left", "right"]
    assert "tasks" not in score(*sets, **SETTINGS).summary
    before = tree(tmp_path)
    ask = ["score", str(path), "--expert-episodes", "0-3", "--out", str(tmp_path / "x")]
    for column, message in (("colour", "no such column"), ("num_samples", "tells no tasks apart")):
        assert main([*ask, "--task-column", column]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
        assert tree(tmp_path) == before


def test_standing_compares_shares_of_tasks():
    task = np.array(["a", "b", "a", "b", "b", "b"])
    found = standing(np.array([1.0, 50.0, 2.0, 60.0, 40.0, 70.0]), task)
    np.testing.assert_allclose(found, [-0.75, -0.625, -0.25, -0.375, -0.875, -0.125])
    assert np.array_equal(standing(np.array([3.0, 1.0]), None), [3.0, 1.0])
