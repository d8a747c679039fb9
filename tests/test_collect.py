"""`collect` end to end on small problems: it learns, keeps its replay whole, and survives being killed."""

import dataclasses
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import Killed, tree

from demosift.cli.verbs import target_entropies
from demosift.data import read_dataset
from demosift.policy import Policy
from demosift.results.checkpoint import CheckpointFolder
from demosift.sac import choosing
from demosift.sac.agent import RUNNING, SAC, TERMINAL, TIMEOUT, Layout
from demosift.sac.checkpoint import ReplayCheckpoints
from demosift.sac.choosing import Schedule
from demosift.sac.collect import Collected, collect
from demosift.sac.replay import replay_dataset
from demosift.sac.training import MAX_TRAINING_SEED, Training, measure_speed
from demosift.simulation.environments import resolve
from demosift.simulation.simulate import Simulators, rollout
from demosift.types import Dataset, InputError

TINY = SAC(hidden=(16, 16), batch_size=16)
STEPS = 1200
FEW = Schedule(
    random_steps=64,
    evaluate_every=96,
    evaluation_episodes=2,
    num_finalists=2,
    choosing_episodes=2,
    reporting_episodes=2,
)


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory) -> tuple[Path, Collected]:
    """A run too short to learn, but complete in everything else."""
    out = tmp_path_factory.mktemp("collect") / "pendulum"
    schedule = Schedule(random_steps=100, evaluate_every=300, num_finalists=3, choosing_episodes=4)
    return out, collect(["Pendulum-v1"], out, steps=STEPS, num_envs=4, sac=TINY, schedule=schedule, progress=False)


def assert_episodes_are_whole(data: Dataset, longest: int) -> None:
    """Within an episode every next state is the next row's state: none is taken from another episode."""
    for episode in data.episodes():
        assert 0 < len(episode.reward) <= longest
        assert np.array_equal(episode.next_obs[:-1], episode.obs[1:])
        assert not episode.terminal[:-1].any()


@pytest.mark.long
def test_pendulum_is_solved(tmp_path):
    """An idle pendulum returns about -1200; below -200 or so the episodes' random starts decide."""
    out = tmp_path / "pendulum"
    schedule = Schedule(random_steps=500, evaluate_every=1000, num_finalists=3, choosing_episodes=20)
    sac = SAC(hidden=(64, 64), learning_rate=1e-3, batch_size=64)
    collected = collect(["Pendulum-v1"], out, steps=6000, num_envs=4, sac=sac, schedule=schedule, progress=False)
    assert collected.finished
    assert collected.step == 6000
    assert collected.results["Pendulum-v1"]["expert"]["reported"]["return_mean"] > -220
    curve = [json.loads(line) for line in (out / "curve.jsonl").read_text().splitlines()]
    assert [row["step"] for row in curve] == [1000, 2000, 3000, 4000, 5000, 6000]
    assert curve[0]["return_mean"] < -700
    returns = read_dataset(out / "replay.hdf5").returns()
    assert returns[:4].mean() < -700
    assert returns[-8:].mean() > -400, "the file runs from the first episodes to the last"
    medium, expert = (Policy.load(out / f"{name}.safetensors").metadata["step"] for name in ("medium", "expert"))
    assert json.loads(medium) < json.loads(expert)


def test_the_curve_has_every_evaluation(pendulum):
    out, collected = pendulum
    assert (collected.finished, collected.step) == (True, STEPS)
    curve = [json.loads(line) for line in (out / "curve.jsonl").read_text().splitlines()]
    assert [row["step"] for row in curve] == [300, 600, 900, 1200]
    assert {"return_std", "length_mean", "temperature", "critic_loss", "seed"} <= set(curve[0])


def test_expert_file_is_what_was_reported(pendulum):
    """The stored policy, run again on the reporting seeds, gives the reported return."""
    out, collected = pendulum
    policy = Policy.load(out / "expert.safetensors")
    reported = json.loads(policy.metadata["reported"])
    assert reported == collected.results["Pendulum-v1"]["expert"]["reported"]
    assert policy.environment == resolve("Pendulum-v1")
    jobs = [(0, choosing.REPORTING_SEED + i) for i in range(20)]
    returns = [episode.return_ for episode in rollout(policy, resolve("Pendulum-v1"), jobs, num_workers=2)]
    np.testing.assert_allclose(np.mean(returns), reported["return_mean"], rtol=1e-6)
    medium = Policy.load(out / "medium.safetensors")
    assert json.loads(medium.metadata["step"]) in (300, 600, 900, 1200)


def test_config_says_what_was_run(pendulum):
    out, _ = pendulum
    config = json.loads((out / "config.json").read_text())
    assert config["steps"] == STEPS
    assert [setting["hidden"] for setting in config["settings"]] == [[16, 16]]
    assert config["expert"]["reported"]["episodes"] == 20
    assert {"versions", "hardware", "command", "wall_seconds", "device", "speed"} <= set(config)
    assert not (out / "checkpoint").exists()


def test_replay_is_whole_and_in_order(pendulum):
    out, _ = pendulum
    data = read_dataset(out / "replay.hdf5")
    assert len(data) == STEPS
    assert_episodes_are_whole(data, longest=200)
    assert data.environment == resolve("Pendulum-v1")
    assert not data.transitions.terminal.any()


def test_environments_and_seeds_train_together(tmp_path):
    """Two environments of different sizes with two seeds each: a folder for each, and no trace of padding."""
    collected = collect(
        ["hopper", "Pendulum-v1"], tmp_path / "out", steps=320, seeds=(3, 1), num_envs=8, sac=TINY, schedule=FEW
    )
    assert set(collected.results) == {"hopper", "Pendulum-v1"}
    for name, obs_dim, action_dim, longest in (("hopper", 11, 3, 1000), ("Pendulum-v1", 3, 1, 200)):
        folder = tmp_path / "out" / name
        data = read_dataset(folder / "replay.hdf5")
        assert (len(data), data.obs_dim, data.action_dim) == (320, obs_dim, action_dim)
        assert_episodes_are_whole(data, longest)
        curve = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
        assert {row["seed"] for row in curve} == {1, 3}
        seed = json.loads((folder / "config.json").read_text())["expert"]["seed"]
        assert data.attributes["seed"] == seed
        assert Policy.load(folder / "expert.safetensors").obs_dim == obs_dim
    hopper = read_dataset(tmp_path / "out" / "hopper" / "replay.hdf5")
    assert hopper.transitions.terminal.sum() > 3, "a random Hopper falls"


@pytest.mark.long
def test_a_member_does_not_depend_on_the_others():
    """The same seed alone and beside a larger environment: the same rows while actions are random, then nearly so."""
    specs = [resolve("Pendulum-v1"), resolve("hopper")]
    with (
        Training([[TINY]], specs[:1], [5], 4, 12, 24, 1) as alone,
        Training([[TINY], [TINY]], specs, [5, 6], 4, 12, 24, 1) as together,
    ):
        for _ in range(12):
            alone.play_round()
            together.play_round()
        a, b = alone.take_rows()[:, :, 0], together.take_rows()[:, :, 0]
    for name in ("obs", "action", "next_obs"):
        first, second = (rows[..., getattr(training.padded, name)] for rows, training in ((a, alone), (b, together)))
        assert np.array_equal(first[:6], second[:6, :, : first.shape[-1]])
        np.testing.assert_allclose(first, second[..., : first.shape[-1]], rtol=1e-2, atol=1e-3)
        assert not second[..., first.shape[-1] :].any()


def test_an_environment_whose_agents_all_diverge_takes_no_other_with_it(tmp_path):
    """They are evaluated once, before they learn."""
    sac = {"Pendulum-v1": [dataclasses.replace(TINY, learning_rate=1e30)], "hopper": [TINY]}
    schedule = dataclasses.replace(FEW, random_steps=120)
    with pytest.raises(InputError) as refused:
        collect(list(sac), tmp_path / "out", steps=640, num_envs=8, sac=sac, schedule=schedule)
    assert str(refused.value) == "collect: every agent of Pendulum-v1 diverged; the files of hopper are written"
    curve = [json.loads(line) for line in (tmp_path / "out/Pendulum-v1/curve.jsonl").read_text().splitlines()]
    assert [row["step"] for row in curve] == [96]
    assert not (tmp_path / "out/Pendulum-v1/config.json").exists()
    assert len(read_dataset(tmp_path / "out/hopper/replay.hdf5")) == 640
    assert Policy.load(tmp_path / "out/hopper/expert.safetensors").obs_dim == 11


def test_settings_are_agents(tmp_path):
    """Two settings of two seeds are four agents; a setting's number leads from the curve to its hyper-parameters."""
    settings = [TINY, dataclasses.replace(TINY, discount=0.5, target_entropy=-4.0)]
    collect(["Pendulum-v1"], tmp_path / "out", steps=320, seeds=(0, 1), num_envs=8, sac=settings, schedule=FEW)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    curve = [json.loads(line) for line in (tmp_path / "out" / "curve.jsonl").read_text().splitlines()]
    assert [(s["discount"], s["target_entropy"]) for s in config["settings"]] == [(0.99, -1.0), (0.5, -4.0)]
    last = {(row["setting"], row["seed"]): row["value"] for row in curve if row["step"] == 320}
    assert set(last) == set(itertools.product((0, 1), (0, 1)))
    assert len(set(last.values())) == 4
    assert all(last[0, seed] != last[1, seed] for seed in (0, 1)), "the setting reaches the update"
    expert = json.loads(Policy.load(tmp_path / "out" / "expert.safetensors").metadata["setting"])
    assert read_dataset(tmp_path / "out" / "replay.hdf5").attributes["setting"] == expert
    with pytest.raises(InputError, match="same layers and batch size"):
        collect(["Pendulum-v1"], tmp_path / "other", sac=[TINY, SAC()])
    assert not (tmp_path / "other").exists()


def test_the_learning_rate_falls_to_zero():
    """The rate falls over the last half of ten rounds; in the last of them the parameters hardly move."""
    moved = []
    with Training([[TINY]], [resolve("Pendulum-v1")], [0], 4, 10, 4, 1, annealed_share=0.5) as training:
        for _ in range(10):
            before = jax.device_get(training.state.critics.params)
            training.play_round()
            after = jax.device_get(training.state.critics.params)
            moves = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), before, after)
            moved.append(max(jax.tree.leaves(moves)))
        paces = [training._pace()]
    assert paces == [0.0]
    assert moved[9] < 0.5 * moved[5]


def make_streams(lengths: list[list[tuple[int, float]]], num_rounds: int, size: Layout) -> np.ndarray:
    """Rows whose observation is (environment, episode, step): each environment plays the given (length, end)."""
    rows = np.zeros((num_rounds, len(lengths), size.width), np.float32)
    for env, episodes in enumerate(lengths):
        number = 0
        for episode, (length, end) in enumerate(episodes):
            for step in range(length):
                rows[number, env, size.obs] = (env, episode, step)
                rows[number, env, size.next_obs] = (env, episode, step + 1)
                rows[number, env, size.end] = end if step == length - 1 else RUNNING
                number += 1
        assert number == num_rounds
    return rows


def test_replay_keeps_episodes_together_in_order_of_their_start():
    size = Layout(3, 1)
    lengths = [
        [(3, TERMINAL), (4, TIMEOUT), (1, RUNNING)],
        [(5, TIMEOUT), (3, TERMINAL)],
        [(2, TERMINAL), (6, RUNNING)],
    ]
    data = replay_dataset(make_streams(lengths, 8, size), size, size)
    assert len(data) == 24
    assert_episodes_are_whole(data, 6)
    starts = data.transitions.obs[data.episode_starts]
    # Rounds 0 (three environments), 2, 3, 5 and 7; then nothing is left open.
    assert starts[:, :2].tolist() == [[0, 0], [1, 0], [2, 0], [2, 1], [0, 1], [1, 1], [0, 2]]
    assert data.transitions.terminal[data.episode_ends - 1].tolist() == [True, False, True, False, False, True, False]
    assert (data.transitions.terminal ^ data.timeout)[data.episode_ends - 1].all()


def test_replay_ends_episodes_where_a_run_was_cut():
    size = Layout(3, 1)
    rows = make_streams([[(8, TIMEOUT)], [(4, TERMINAL), (4, RUNNING)]], 8, size)
    assert replay_dataset(rows, size, size).num_episodes == 3
    cut = replay_dataset(rows, size, size, cuts=[4])
    assert cut.num_episodes == 4
    assert np.flatnonzero(cut.timeout).tolist() == [3, 11, 15]
    assert np.flatnonzero(cut.transitions.terminal).tolist() == [7], "a terminal stays one"


def resumed(out: str | Path, steps: int) -> None:
    schedule = dataclasses.replace(FEW, checkpoint_seconds=0.3, evaluate_every=400)
    kept: dict[str, Any] = {"resume": True, "keep_checkpoint": True, "num_workers": 1, "progress": False}
    collect(["Pendulum-v1"], out, steps=steps, num_envs=4, sac=TINY, schedule=schedule, **kept)


def newest(folder: Path) -> int:
    return max((int(path.stem) for path in CheckpointFolder(folder).states()), default=0)


@pytest.mark.long
def test_killed_run_resumes(tmp_path):
    """kill -9 in the middle: what was checkpointed is kept, no episode is cut, and the run can grow."""
    out = tmp_path / "run"
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_collect; "
    victim = subprocess.Popen([sys.executable, "-c", f"{code}test_collect.resumed({str(out)!r}, 1_000_000)"])
    deadline = time.monotonic() + 120
    while newest(out / "checkpoint") < 40:
        assert victim.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    with ReplayCheckpoints(out / "checkpoint") as checkpoints:
        found = checkpoints.read()
        assert found is not None
        done = found.position
        before = np.concatenate([*checkpoints.rows()])
    assert done >= 40
    assert len(before) == done
    steps = 4 * (done + 50)

    resumed(out, steps)
    data = read_dataset(out / "replay.hdf5")
    assert len(data) == steps
    assert_episodes_are_whole(data, 200)
    with ReplayCheckpoints(out / "checkpoint") as checkpoints:
        found = checkpoints.read()
        assert found is not None
        rows = np.concatenate([*checkpoints.rows()])
    assert found.note["cuts"] == []
    assert np.array_equal(rows[:done], before), "the run did not start from zero"
    again = replay_dataset(rows[:, :, 0], Layout(3, 1), Layout(3, 1))
    assert np.array_equal(again.timeout, data.timeout)
    evaluated = [json.loads(line)["step"] for line in (out / "curve.jsonl").read_text().splitlines()]
    assert evaluated == sorted({*range(400, steps, 400), steps}), "no evaluation is lost or made twice"


@pytest.fixture
def kill_in_round(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rounds in which training ends as by a kill, the next one first."""
    rounds: list[int] = []
    play = Training.play_round

    def play_or_die(self: Training) -> None:
        if rounds and self.num_rounds == rounds[0]:
            raise Killed(rounds.pop(0))
        play(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "play_round", play_or_die)
        yield rounds


def collect_two(out: Path, **changes: Any) -> Collected:
    """Two environments of different sizes: episodes of Hopper end all the time, Pendulum's by the limit of time."""
    schedule = dataclasses.replace(FEW, checkpoint_seconds=1e-9)
    kept: dict[str, Any] = {"keep_checkpoint": True, "num_workers": 1, "progress": False, **changes}
    return collect(["hopper", "Pendulum-v1"], out, steps=880, num_envs=4, sac=TINY, schedule=schedule, **kept)


def results_of(out: Path) -> dict[str, bytes]:
    """What an unbroken run must have the same bytes of; the configuration holds a clock."""
    return {name: content for name, content in tree(out).items() if "checkpoint" not in name and "config" not in name}


@pytest.mark.long
def test_killed_and_resumed_it_ends_with_the_same_bytes(tmp_path: Path, kill_in_round: list[int]):
    collect_two(tmp_path / "whole")
    kill_in_round += [10, 55, 203]  # while actions are random; while it learns; amid Pendulum's second episodes
    for _ in list(kill_in_round):
        with pytest.raises(Killed):
            collect_two(tmp_path / "broken", resume=True)
        assert newest(tmp_path / "broken/checkpoint") > 0  # one that is still being written puts off the next
    collect_two(tmp_path / "broken", resume=True)
    assert {"hopper/expert.safetensors", "hopper/replay.hdf5", "Pendulum-v1/curve.jsonl"} <= {
        *results_of(tmp_path / "whole")
    }
    assert results_of(tmp_path / "broken") == results_of(tmp_path / "whole")


@pytest.mark.long
def test_where_no_state_is_told_episodes_are_cut(
    tmp_path: Path, kill_in_round: list[int], monkeypatch: pytest.MonkeyPatch
):
    """As with environments of other simulators, and with checkpoints of earlier releases."""
    monkeypatch.setattr(Simulators, "capture", lambda self: None)
    kill_in_round.append(55)
    with pytest.raises(Killed):
        collect_two(tmp_path, resume=True)
    cut = newest(tmp_path / "checkpoint")
    assert collect_two(tmp_path, resume=True).finished
    with ReplayCheckpoints(tmp_path / "checkpoint") as checkpoints:
        found = checkpoints.read()
    assert found is not None
    assert found.note["cuts"] == [cut]
    assert_episodes_are_whole(read_dataset(tmp_path / "Pendulum-v1/replay.hdf5"), 200)


def write_checkpoints(folder: Path) -> None:
    with ReplayCheckpoints(folder) as checkpoints:
        for number in (10, 20, 30):
            rows = np.full((10, 2, 1, 4), number, np.float32)
            arrays = {"weight": np.full((2, 3), number, np.float32), "rows": rows}
            checkpoints.write(number, arrays, note_at(number))


def note_at(step: int) -> dict[str, Any]:
    returns = dict.fromkeys(("return_mean", "return_std", "return_min"), 0.0)
    row = {"environment": "Pendulum-v1", "step": step, "setting": 0, "seed": 0, **returns}
    return {"identity": {}, "curve": [row], "cuts": [], "wall_seconds": 1.0}


def spoil(path: Path) -> None:
    """Flip one bit near the end: the length and the header stay right."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["0000000030", "rows-00000020"])
def test_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, kind):
    write_checkpoints(tmp_path)
    spoil(tmp_path / f"{kind}.safetensors")
    with ReplayCheckpoints(tmp_path) as checkpoints:
        found = checkpoints.read()
        assert found is not None
        assert found.position == 20
        assert [row["step"] for row in found.note["curve"]] == [20]
        assert (found.arrays["weight"] == 20).all()
        rows = np.concatenate([*checkpoints.rows()])
    assert rows[:, 0, 0, 0].tolist() == [10.0] * 10 + [20.0] * 10


def test_checkpoint_cut_short_or_damaged_all_over(tmp_path):
    write_checkpoints(tmp_path)
    newest = tmp_path / "0000000030.safetensors"
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    with ReplayCheckpoints(tmp_path) as checkpoints:
        found = checkpoints.read()
        assert found is not None
        assert found.position == 20
    spoil(tmp_path / "rows-00000000.safetensors")  # the older states need it, too
    with ReplayCheckpoints(tmp_path) as checkpoints, pytest.raises(InputError, match="every checkpoint is damaged"):
        checkpoints.read()
    assert len(CheckpointFolder(tmp_path).states()) == 2, "old states go"


def test_time_limit_cuts_a_run_into_pieces(tmp_path):
    out = tmp_path / "run"

    def piece(steps: int, **options: Any) -> Collected:
        settings: dict[str, Any] = {
            "num_envs": 4,
            "sac": TINY,
            "schedule": FEW,
            "num_workers": 1,
            "keep_checkpoint": True,
        }
        return collect(["Pendulum-v1"], out, steps=steps, **{**settings, **options})

    def evaluated() -> list[int]:
        return [json.loads(line)["step"] for line in (out / "curve.jsonl").read_text().splitlines()]

    first = piece(10**6, time_limit=0)
    assert (first.finished, first.step) == (False, 4), "one round, however little time there is"
    assert not (out / "expert.safetensors").exists()
    again = piece(4, resume=True)
    assert (again.finished, again.step) == (True, 4)
    assert evaluated() == [4]
    longer = piece(12, resume=True)
    assert (longer.finished, longer.step) == (True, 12)
    assert evaluated() == [4, 12]
    assert len(read_dataset(out / "replay.hdf5")) == 12

    with pytest.raises(InputError, match="the checkpoint is of another run: its seeds are not"):
        piece(12, resume=True, seeds=[1])
    with pytest.raises(InputError, match="has 12 steps already, more than the 8 asked for"):
        piece(8, resume=True)
    with pytest.raises(InputError, match="the folder is not empty"):
        piece(12)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["CartPole-v1"], {}, "'CartPole-v1' has discrete actions"),
        (["Hoper-v5"], {}, "unknown environment 'Hoper-v5'"),
        (["own_environments:Image-v0"], {}, "observation space"),
        (["hopper", "Hopper-v5"], {}, "different environments"),
        ([], {}, "different environments"),
        (["hopper"], {"seeds": (1, 1)}, "seeds: 1 is given twice"),
        (["hopper"], {"seeds": (-1,)}, "seeds: -1 is not a whole number from 0"),
        (["hopper"], {"steps": 0}, "steps"),
        (["hopper"], {"schedule": Schedule(evaluate_every=0)}, "evaluate_every"),
    ],
)
def test_refusals_write_nothing(tmp_path, names, options, message):
    with pytest.raises(InputError, match=message):
        collect(names, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_written_is_known_before_training(tmp_path: Path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InputError, match=r"config\.json: is a folder"):
        collect(["Pendulum-v1"], tmp_path, steps=16, resume=True)
    assert not any((tmp_path / "checkpoint").iterdir())


def test_resume_needs_a_checkpoint(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds no checkpoint"):
        collect(["hopper"], tmp_path, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        collect(["hopper"], tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "notes.txt"]


def test_the_seeds_of_training_choosing_and_reporting_are_apart():
    with Training([[TINY]], [resolve("Pendulum-v1")], [0, 7], 16, 1, 16, 1) as training:
        assert max(training._reset_seeds()) < MAX_TRAINING_SEED
    evaluations = Schedule().evaluation_episodes * 10**8 // 16  # as many rounds as a hundred million steps
    assert MAX_TRAINING_SEED <= choosing.EVALUATION_SEED
    assert choosing.EVALUATION_SEED + evaluations < choosing.CHOOSING_SEED
    assert choosing.CHOOSING_SEED + Schedule().choosing_episodes < choosing.REPORTING_SEED


@pytest.mark.long
def test_speed_is_measured():
    speed = measure_speed("Pendulum-v1", seconds=0.5)
    assert speed["steps_per_second"] > 0
    assert 0 < speed["ratio"] < 1.5
    assert 0 <= speed["waiting_for_simulation"] + speed["waiting_for_learning"] <= 1.01
    assert speed["bound_by"] in ("simulation", "learning")


@pytest.mark.long
def test_environments_may_have_their_own_settings(tmp_path):
    other = dataclasses.replace(TINY, target_entropy=-3.0)
    sac = {"Pendulum-v1": [TINY], "hopper": [TINY, other]}
    out = tmp_path / "out"
    collect(list(sac), out, steps=320, seeds=(0, 1), num_envs=8, sac=sac, schedule=FEW)
    for name, number in (("Pendulum-v1", 1), ("hopper", 2)):
        config = json.loads((out / name / "config.json").read_text())
        curve = [json.loads(line) for line in (out / name / "curve.jsonl").read_text().splitlines()]
        assert [setting["target_entropy"] for setting in config["settings"]] == [-1.0, -3.0][:number]
        assert {(row["setting"], row["seed"]) for row in curve} == set(itertools.product(range(number), (0, 1)))
        assert "--target-entropy Pendulum-v1=-1.0 hopper=-1.0 hopper=-3.0 --out" in config["command"]
    with pytest.raises(InputError, match="settings for hopper, but the environments are Pendulum-v1"):
        collect(["Pendulum-v1"], tmp_path / "none", sac={"hopper": [TINY]})
    assert not (tmp_path / "none").exists()


def test_target_entropies_of_the_command_line():
    envs = ["hopper", "ant"]
    assert target_entropies(["-1"], envs) == {"hopper": [-1], "ant": [-1]}
    assert target_entropies(["hopper=-2", "hopper=-3"], envs) == {"hopper": [-2, -3], "ant": [-1]}
    assert target_entropies(["-0.5", "ant=-2"], envs) == {"hopper": [-0.5], "ant": [-2]}
    for text, match in (("walker2d=-1", "is none of the environments"), ("hopper=x", "'x' is not a number")):
        with pytest.raises(InputError, match=match):
            target_entropies([text], envs)
