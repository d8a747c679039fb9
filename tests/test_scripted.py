"""Environments that come with a program: operators, mixed piles, success, and Meta-World on MuJoCo 4."""

import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from test_policy import make_policy

from demosift.data import read_dataset
from demosift.policy import RandomPolicy, ScriptedPolicy
from demosift.simulation import environments
from demosift.simulation.evaluation import Evaluation, evaluate, load_policy
from demosift.simulation.scripted.catalogue import SCRIPTED
from demosift.simulation.scripted.operators import idle_steps
from demosift.simulation.simulate import Episode, Job, Rollouts
from demosift.tasks.operators import BAD_KINDS, OPERATORS, shares
from demosift.tasks.recipes import ORIGINS, make_task, write_task
from demosift.types import Dataset, EnvironmentSpec, InputError

# One of each package; another of the same package differs in data alone.
needs_ogbench = pytest.mark.skipif(importlib.util.find_spec("ogbench") is None, reason="it has no Python 3.13")
ONE_EACH = ["metaworld-reach", pytest.param("ogbench-button", marks=needs_ogbench), "babyai-goto"]


@pytest.fixture(scope="module")
def pool() -> Iterator[Rollouts]:
    """One worker for all tests, since environments of OGBench take seconds to make."""
    with Rollouts(1) as workers:
        yield workers


def operate(pool: Rollouts, name: str, jobs: Sequence[Job]) -> list[Episode]:
    spec = environments.resolve(name)
    return pool.submit(ScriptedPolicy(spec, OPERATORS), spec, jobs, record=True).result()


def actions(episode: Episode) -> np.ndarray:
    assert episode.transitions is not None
    return episode.transitions.action


@pytest.mark.parametrize("name", ONE_EACH)
def test_operators(pool, name: str):
    seed = 3
    episodes = operate(pool, name, [Job(member, seed) for member in range(len(OPERATORS))])
    expert, second, _, wrong, idle = episodes
    assert all(one.success and one.terminal for one in (expert, second, idle))
    assert not wrong.success
    assert not wrong.terminal
    assert wrong.length == SCRIPTED[name].max_episode_steps
    starts = [one.transitions.obs[0] for one in episodes if one.transitions]
    assert all(np.array_equal(start, starts[0]) for start in starts)
    assert second.length >= expert.length
    paused = idle_steps(seed, SCRIPTED[name].pause)[: idle.length]
    assert paused[0]
    paused = np.append(paused, np.zeros(idle.length - len(paused), bool))
    still, moving = actions(idle)[paused], actions(idle)[~paused]
    if still.dtype == np.int8:
        assert (still[:, -1] == 1).all()
        assert np.array_equal(moving, actions(expert))  # nothing but time was lost
    else:  # a moving arm takes some steps to come to rest
        assert (still[:, :3] == 0).all()
        assert abs(len(moving) - expert.length) <= 10


@pytest.mark.parametrize("name", ONE_EACH)
def test_an_episode_depends_on_its_seed_alone(pool, name: str):
    jobs = [Job(member, seed) for seed in (8, 9) for member in (OPERATORS.index("expert"), OPERATORS.index("noisy"))]
    there = operate(pool, name, jobs)
    back = operate(pool, name, jobs[::-1])[::-1]
    for first, second in zip(there, back, strict=True):
        assert first.transitions
        assert second.transitions
        assert all(np.array_equal(*pair) for pair in zip(first.transitions, second.transitions, strict=True))
    assert not np.array_equal(actions(there[0]), actions(there[2]))


@needs_ogbench
def test_cubes_begin_away_from_their_goals(pool):
    episodes = operate(pool, "ogbench-cube-single", [Job(0, seed) for seed in range(2)])
    assert all(episode.success and episode.length > 15 for episode in episodes)


def pile_of(task: str, seed: int, episodes: int) -> tuple[Dataset, Dataset]:
    made = make_task(task, seed, episodes=episodes)
    assert made.supplementary is not None
    return made.expert, made.supplementary


def episode_origins(dataset: Dataset) -> list[set[str]]:
    assert dataset.origin is not None
    bounds = zip(dataset.episode_starts, dataset.episode_ends, strict=True)
    return [{ORIGINS[code] for code in np.unique(dataset.origin.code[start:end])} for start, end in bounds]


def test_a_mixed_pile():
    expert, pile = pile_of("babyai-goto/mixed", 5, 40)
    assert (expert.num_episodes, pile.num_episodes) == (5, 40)
    assert episode_origins(expert) == 5 * [{"expert"}]
    kinds = [min(origins - {"interrupted"}) for origins in episode_origins(pile)]
    assert {kind: kinds.count(kind) for kind in kinds} == shares(40)
    assert kinds != sorted(kinds, key=kinds.index)  # in random order

    ends = pile.transitions.terminal[pile.episode_ends - 1]
    success = {kind: [bool(end) for end, own in zip(ends, kinds, strict=True) if own == kind] for kind in kinds}
    assert all(success["clean"] + success["second"] + success["idle"])
    assert not any(success["early-stop"] + success["wrong-goal"])
    length = pile.episode_ends - pile.episode_starts
    longest = max(size for size, kind in zip(length, kinds, strict=True) if kind == "clean")
    failed = [size for size, kind in zip(length, kinds, strict=True) if kind == "wrong-goal"]
    assert max(failed) <= longest

    assert pile.origin is not None
    idle = pile.origin.code == ORIGINS.index("idle")
    still = pile.transitions.action[:, -1] == 1
    assert np.array_equal(idle, still & np.isin(pile.origin.code, [ORIGINS.index(o) for o in ("idle", "interrupted")]))
    starts = {tuple(obs) for obs in expert.transitions.obs[expert.episode_starts].tolist()}
    assert starts.isdisjoint(map(tuple, pile.transitions.obs[pile.episode_starts].tolist()))


def test_shares():
    assert shares(200) == {"clean": 120, "second": 20, **dict.fromkeys(BAD_KINDS, 15)}
    for episodes in range(1, 50):
        assert sum(shares(episodes).values()) == episodes
    with pytest.raises(InputError, match="episodes: 0 is not"):
        make_task("babyai-goto/mixed", 0, episodes=0)


def test_mixed_files_are_the_same_each_time(tmp_path: Path):
    for folder, seed in (("first", 1), ("second", 1), ("other", 2)):
        write_task(make_task("babyai-pickup/mixed", seed, episodes=10), tmp_path / folder)
    for name in ("expert.hdf5", "supplementary.hdf5"):
        content = (tmp_path / "first" / name).read_bytes()
        assert content == (tmp_path / "second" / name).read_bytes()
        assert content != (tmp_path / "other" / name).read_bytes()
    read = read_dataset(tmp_path / "first" / "supplementary.hdf5")
    assert read.attributes["task"] == "babyai-pickup/mixed"
    assert read.attributes["episodes"] == 10
    assert read.environment == environments.resolve("babyai-pickup")
    assert read.discrete


def test_a_mixed_pile_of_an_arm():
    _, pile = pile_of("metaworld-reach/mixed", 0, 10)
    kinds = [min(origins - {"interrupted"}) for origins in episode_origins(pile)]
    assert {kind: kinds.count(kind) for kind in shares(10)} == shares(10)
    assert (pile.obs_dim, pile.action_dim) == (39, 4)
    assert np.abs(pile.transitions.action).max() <= 1


@pytest.mark.parametrize("task", ["hopper/mixed", "metaworld-push/noisy-expert", "metaworld-nosuch/mixed"])
def test_recipes_fit_their_environments(task: str):
    with pytest.raises(InputError, match=r"unknown task.*metaworld-push"):
        make_task(task, 0)


def test_evaluate_tells_success():
    result = evaluate("expert", env="babyai-goto", episodes=4, num_workers=1)
    assert result.successes is not None
    assert result.successes.all()
    assert result.to_json()["success_mean"] == 1
    assert result.rows(7)[0]["success"] == 1
    assert "100.0%" in str(result)
    spec = environments.resolve("babyai-goto")
    clumsy = make_policy(167, 7, members=2, environment=spec, kind="categorical")
    rates = evaluate(clumsy, episodes=3, num_workers=1)
    assert rates.successes is not None
    assert rates.successes.shape == (2, 3)
    assert "success" in str(rates)
    quiet = evaluate(RandomPolicy(environments.resolve("CartPole-v1")), episodes=2, num_workers=1)
    assert quiet.successes is None
    assert "success" not in quiet.rows(0)[0]
    assert "success" not in str(quiet)


def test_any_successful_step_counts():
    assert environments.success({"is_success": 1.0}) is True
    assert environments.success({"success": np.bool_(False)}) is False
    assert environments.success({}) is None
    told = [Episode(0, seed, 0.0, 1, False, success=success) for seed, success in enumerate((True, False))]
    result = Evaluation.of(environments.resolve("babyai-goto"), told)
    assert result.to_json()["success_mean"] == 0.5


def test_programs_have_no_members_and_no_medium():
    with pytest.raises(InputError, match="expert policy has no members"):
        load_policy("expert", "babyai-goto", member=0)
    with pytest.raises(InputError, match="no medium policy is shipped for 'babyai-goto'"):
        load_policy("medium", "babyai-goto")


def test_welds_of_meta_world():
    """Its own line fails where MuJoCo has 12 numbers for a weld; ours writes the same 11 and leaves the rest."""
    environments.resolve("metaworld-reach")
    from demosift.simulation.scripted import metaworld

    sawyer = metaworld.MetaWorld("reach").sawyer
    welds = sawyer.model.eq_type == importlib.import_module("mujoco").mjtEq.mjEQ_WELD
    assert welds.any()
    data = sawyer.model.eq_data
    assert (data[welds, :11] == metaworld.WELD).all()
    data[:] = 7
    others = data[~welds].copy()
    sawyer.reset_mocap_welds()
    assert (data[welds, :11] == metaworld.WELD).all()
    assert (data[welds, 11:] == 7).all()
    assert np.array_equal(data[~welds], others)
    # The hand follows its target, as the weld is there to make it do.
    env = metaworld.MetaWorld("reach")
    before = env.start(0)
    heights = [env.advance(np.array([0, 0, 1, 0], np.float32))[0][2] for _ in range(20)]
    assert heights[-1] > before[2] + 0.1


def test_every_name_is_one_that_its_package_knows():
    for name in ("metaworld-reach", "babyai-goto"):
        environments.resolve(name)
    from minigrid.envs import babyai as levels

    from demosift.simulation.scripted import catalogue, metaworld

    assert {f"{task}-v3" for task in catalogue.METAWORLD} <= set(metaworld.ENV_POLICY_MAP)
    assert set(catalogue.METAWORLD) >= metaworld.USES_GOAL
    assert all(hasattr(levels, kwargs["level"]) for kwargs in catalogue.BABYAI.values())


def test_a_missing_package_is_told(monkeypatch):
    monkeypatch.delitem(sys.modules, "demosift.simulation.scripted.metaworld", raising=False)
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    with pytest.raises(InputError, match="Meta-World is missing: pip install --no-deps metaworld"):
        environments.make(EnvironmentSpec("metaworld-push"))


def test_the_curation_script_measures_what_is_missing(tmp_path: Path, capsys):
    path = Path(__file__).parent.parent / "results/robot/curation.py"
    spec = importlib.util.spec_from_file_location("curation", path)
    assert spec is not None
    assert spec.loader is not None
    curation = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(curation)
    out = tmp_path / "curation.json"
    given = ["--tasks", "babyai-goto/mixed", "--pile", "20", "--piles", str(tmp_path / "piles"), "--out", str(out)]
    curation.main([*given, "--rankings", "truth"])
    truth = json.loads(out.read_text())["babyai-goto/mixed"]["rankings"]["truth"]
    assert truth["precision"] == 1
    assert truth["dropped"] == {kind: [count * (kind in BAD_KINDS), count] for kind, count in shares(20).items()}
    curation.main([*given, "--rankings", "random", "truth"])
    both = json.loads(out.read_text())["babyai-goto/mixed"]["rankings"]
    assert both["truth"] == truth
    assert both["random"]["precision"] < 1
    capsys.readouterr()
    curation.main([*given, "--table"])
    assert "| **1.000** of 1 |" in capsys.readouterr().out
