"""Files that earlier releases wrote still open, and what was unfinished goes on; `tests/old/README.md` lists them.

They are never made again to please a test: what cannot be read here cannot be read on any user's disk.
"""

import json
import shlex
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tree
from safetensors.numpy import load_file

import demosift as ds
from demosift.algorithms import facts
from demosift.cli.main import main
from demosift.learning.trackers import Tracker
from demosift.report.table import result_table
from demosift.results.run import Row
from demosift.sac.agent import SAC
from demosift.sac.choosing import Schedule
from demosift.sac.collect import collect

HERE = Path(__file__).parent
PAPER = HERE.parent / "results/paper"
TOLERANCE = 1e-4  # float32 compiled for another processor; one step of Adam moves a parameter by 3e-4
TINY = "--hidden 8 8 --batch-size 16 --log-every 10 --checkpoint-every 10 --evaluate-every 20 --episodes 1"
GRID = (
    "full-replay --envs hopper --replay collected --pool 1 --iterations 40 --evaluate-every 20 --episodes 2 "
    "--early-episodes 1 --gradient-penalties 1 --set hidden=8,8 batch_size=16 --out grid"
)


@pytest.fixture(params=["0.1.0"])
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what a release wrote, as the working directory: the paths in its files are relative to it."""
    shutil.copytree(HERE / "old" / request.param, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


@pytest.fixture
def answers(old: Path) -> Mapping[str, np.ndarray]:
    """What the old release computed from its own files."""
    with np.load(old / "answers.npz") as stored:
        return dict(stored)


def pendulum() -> ds.Demonstrations:
    return ds.load("pendulum-expert.hdf5", "pendulum-supplementary.hdf5")


def actions(policy: Any, data: ds.Dataset) -> np.ndarray:
    return policy.act_members(np.repeat(data.transitions.obs[None], policy.num_members, axis=0))


def rows_of(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answer_of(capsys: pytest.CaptureFixture[str], command: str) -> dict[str, Any]:
    assert main([*shlex.split(command), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def distances(policy: Any, arrays: Mapping[str, np.ndarray]) -> list[float]:
    """How far a policy's layers are from those that the old release wrote, at most, array by array."""
    found = []
    for index, layer in enumerate(policy.layers):
        for part in ("kernel", "bias"):
            found.append(float(np.abs(getattr(layer, part) - arrays[f".policy.params.layers[{index}].{part}"]).max()))
    return found


# Runs


@pytest.mark.parametrize(("run", "data"), [("wbcu", "pendulum-expert.hdf5"), ("dwbc", "cartpole-expert.hdf5")])
def test_a_run_opens_acts_and_is_evaluated(old: Path, answers: Mapping[str, np.ndarray], run: str, data: str):
    found = ds.load_run(f"runs/{run}")
    assert found.metrics == rows_of(old / "runs" / run / "metrics.jsonl")
    assert found.config["algorithm"] == run
    np.testing.assert_allclose(actions(found.policy, ds.read_dataset(data)), answers[run], atol=TOLERANCE)
    evaluation = ds.evaluate(found, episodes=1, num_workers=1)
    assert evaluation.returns.shape == (len(found.members), 1)
    assert np.isfinite(evaluation.returns).all()


def test_runs_weigh_as_they_did(answers: Mapping[str, np.ndarray]):
    np.testing.assert_allclose(ds.weigh(ds.load_run("runs/wbcu"), pendulum()), answers["weight"], rtol=TOLERANCE)
    discrete = ds.load("cartpole-expert.hdf5", "cartpole-supplementary.hdf5")
    weight = ds.weigh(ds.load_run("runs/dwbc"), discrete)
    np.testing.assert_allclose(weight, answers["dwbc_weight"], rtol=TOLERANCE)


def test_the_report_of_runs_has_the_numbers_that_they_stored(old: Path, capsys: pytest.CaptureFixture[str]):
    (old / "runs/report.html").unlink()
    page = Path(answer_of(capsys, "report runs")["page"]).read_text()
    table = {row.environment: row for row in result_table("runs", facts())}
    assert table.keys() == {"Pendulum-v1", "CartPole-v1", "Hopper-v5"}
    for run, environment in (("wbcu", "Pendulum-v1"), ("dwbc", "CartPole-v1"), ("wbcu-two-stage", "Hopper-v5")):
        rows = rows_of(old / "runs" / run / "metrics.jsonl")
        last = [row["returns"] for row in rows if "returns" in row and row["iteration"] == 40]
        assert table[environment].return_mean == pytest.approx(np.mean(last))
        assert environment in page
    assert "noisy" in page, "the histogram of weights.json"


@pytest.mark.usefixtures("old")
def test_a_killed_run_ends_as_if_it_had_not_been():
    """By the old release itself, run to the end without a kill."""
    logged: list[Row] = []

    class Listener(Tracker):
        def log(self, rows: list[Row]) -> None:
            logged.extend(rows)

    killed = load_file("running/checkpoint/0000000020.safetensors")
    ended = load_file("runs/wbcu/checkpoint/0000000040.safetensors")
    expected = ds.load_run("runs/wbcu").metrics
    with ds.Evaluator("Pendulum-v1", every=20, episodes=1) as evaluator:
        resumed = ds.fit(
            ds.WBCU(hidden=(8, 8), batch_size=16),
            pendulum(),
            seeds=2,
            iterations=40,
            log_every=10,
            checkpoint_every=10,
            evaluator=evaluator,
            out="running",
            resume=True,
            callbacks=[Listener()],
            progress=False,
        )
    assert [row["iteration"] for row in logged if "returns" not in row] == [30, 30, 40, 40], "it goes on from 20"
    assert max(distances(resumed.policy, ended)) < TOLERANCE
    assert min(distances(resumed.policy, killed)) > 10 * TOLERANCE, "so the tolerance tells whether it was trained"
    assert resumed.metrics[:4] == expected[:4]
    assert [row.keys() for row in resumed.metrics] == [row.keys() for row in expected]
    for row, other in zip(resumed.metrics, expected, strict=True):
        if "returns" not in row:  # an episode may hang on the last bit of the policy
            assert row == pytest.approx(other, rel=1e-3, abs=TOLERANCE)
    np.testing.assert_array_equal(ds.load_run("running").policy.layers[0].kernel, resumed.policy.layers[0].kernel)


# Scores


def test_scores_filter_what_they_filtered(old: Path, capsys: pytest.CaptureFixture[str]):
    answer = answer_of(capsys, "filter task/supplementary.hdf5 --scores scores --top 0.5 --out again.hdf5")
    assert answer["kept_rows"] == 160
    again, before = ds.read_dataset("again.hdf5"), ds.read_dataset("filtered.hdf5")
    for one, other in zip((*again.transitions, again.timeout), (*before.transitions, before.timeout), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.origin is not None
    assert set(again.origin.names) >= {"expert", "replay"}


def test_the_page_of_scores_is_drawn_again(old: Path, capsys: pytest.CaptureFixture[str]):
    (old / "scores/report.html").unlink()
    page = Path(answer_of(capsys, "report scores")["page"]).read_text()
    assert json.loads((old / "scores/summary.json").read_text())["diagnosis"]["headline"] in page


def test_a_run_on_scores_goes_on(old: Path, capsys: pytest.CaptureFixture[str]):
    """It is refused where the weights that are read now are not those it was trained on."""
    data = "--expert task/expert.hdf5 --supplementary task/supplementary.hdf5 --scores scores"
    command = f"train wbcu-two-stage {data} --out runs/wbcu-two-stage {TINY} --iterations 50 --resume"
    answer = answer_of(capsys, command)
    assert [row["iteration"] for row in answer["last"]] == [50, 50]
    assert answer["last"][0]["weight_mean"] > 0


# Grids


def test_the_report_of_a_grid_has_the_numbers_of_its_cells(old: Path, capsys: pytest.CaptureFixture[str]):
    before = json.loads((old / "grid/tables/full-replay.json").read_text())
    for made in ("tables", "figures"):
        shutil.rmtree(old / "grid" / made)
    page = Path(answer_of(capsys, "report grid")["page"]).read_text()
    again = json.loads((old / "grid/tables/full-replay.json").read_text())
    for row, expected in zip(again["rows"], before["rows"], strict=True):
        for key in ("method", "score", "last", "best", "iqm"):
            assert row[key] == pytest.approx(expected[key])
        assert row["environments"]["hopper"]["returns"] == expected["environments"]["hopper"]["returns"]
    assert "WBCU" in page
    assert list((old / "grid/figures").iterdir())


def test_a_grid_continues_what_was_unfinished_and_nothing_else(old: Path, capsys: pytest.CaptureFixture[str]):
    finished = tree(old / "grid/cells")
    (checkpoint,) = (old / "grid/unfinished").glob("*/checkpoint/*.safetensors")
    reached = json.loads(load_file(checkpoint)["progress"].tobytes())
    recorded = tree(old / "grid/data")
    answer = answer_of(capsys, f"reproduce {GRID} --seeds 2 --methods wbcu --add --workers 1")
    assert (answer["cells"], answer["ran"], answer["done"], answer["failed"]) == (2, 1, 2, {})
    assert not list((old / "grid/unfinished").iterdir())
    assert tree(old / "grid/data") == recorded
    cells = tree(old / "grid/cells")
    assert {name: cells[name] for name in finished} == finished
    (name,) = cells.keys() - finished.keys()
    cell = json.loads(cells[name])
    expected = json.loads((old / "ended/cells" / name).read_text())
    assert cell["wall_seconds"] > reached["wall_seconds"] > 10, "training before the stop counts"
    assert cell["evaluations"][0] == reached["members"][0]["evaluations"][0]
    for row, other in zip(cell["evaluations"], expected["evaluations"], strict=True):
        assert row["metrics"] == pytest.approx(other["metrics"], rel=1e-3)


# Policies and collecting


def test_policies_act_and_are_exported(old: Path, answers: Mapping[str, np.ndarray], capsys: Any):
    expert = ds.read_dataset("task/expert.hdf5")
    np.testing.assert_allclose(
        actions(ds.load_policy("collected/expert.safetensors"), expert), answers["expert"], atol=TOLERANCE
    )
    pytest.importorskip("onnxruntime", reason="ONNX is not installed: pip install 'demosift[onnx]'")
    for number, policy in enumerate(("collected/expert.safetensors", "runs/wbcu", "runs/dwbc")):
        answer_of(capsys, f"export {policy} --out {number}.onnx")
        assert (old / f"{number}.onnx").is_file()


@pytest.mark.usefixtures("old")
def test_a_collected_folder_is_a_source_of_tasks():
    task = ds.make_task("hopper/full-replay", seed=0, pool=1, replay="collected")
    assert task.supplementary is not None
    stored = ds.read_dataset("task/supplementary.hdf5")
    for one, other in zip(task.supplementary.transitions, stored.transitions, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_killed_collection_goes_on(old: Path):
    """The newest checkpoint is of round 39, with 8 environments; a third evaluation had begun."""
    before = rows_of(old / "collecting/curve.jsonl")
    few = Schedule(64, 96, 2, num_finalists=2, choosing_episodes=2, reporting_episodes=2)
    tiny = SAC(hidden=(8, 8), batch_size=16)
    done = collect(
        ["Pendulum-v1"], "collecting", steps=480, num_envs=8, sac=tiny, schedule=few, resume=True, num_workers=1
    )
    assert (done.finished, done.step) == (True, 480)
    curve = rows_of(old / "collecting/curve.jsonl")
    assert [row["step"] for row in curve] == [96, 192, 288, 384, 480]
    assert curve[: len(before)] == before
    replay = ds.read_dataset("collecting/replay.hdf5")
    lengths = replay.episode_ends - replay.episode_starts
    assert lengths.tolist() == [39] * 8 + [21] * 8, "environments begin new episodes after a kill"
    assert ds.load_policy("collecting/expert.safetensors").environment == ds.resolve("Pendulum-v1")


# The committed results


@pytest.mark.skipif(not PAPER.is_dir(), reason="a source archive comes without the results")
@pytest.mark.long
def test_the_papers_report_is_made_again_byte_for_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The figures, too, where the pinned Matplotlib draws them."""
    folder = tmp_path / "paper"
    shutil.copytree(PAPER, folder, ignore=shutil.ignore_patterns("tables", "figures", "report.html", "data"))
    answer_of(capsys, f"report {shlex.quote(str(folder))}")
    expected = {name: content for name, content in tree(PAPER).items() if not name.startswith("data/")}
    made = tree(folder)
    assert made.keys() == expected.keys()
    pinned = f"matplotlib=={version('matplotlib')}" in (HERE.parent / "constraints.txt").read_text().splitlines()
    compared = [name for name in made if pinned or Path(name).suffix not in (".png", ".svg")]
    assert [name for name in compared if made[name] != expected[name]] == []
