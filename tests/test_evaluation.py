"""Evaluation: seeds, statistics, the table, and what may stand for a policy."""

import json

import numpy as np
import pytest
from test_policy import make_policy

from demosift.policy import NoisyPolicy, Policy, RandomPolicy
from demosift.results.run import Run
from demosift.simulation import environments
from demosift.simulation.evaluation import (
    Evaluation,
    Evaluator,
    evaluate,
    evaluation_jobs,
    load_policy,
    policy_and_environment,
)
from demosift.simulation.simulate import episode_seeds, rollout
from demosift.types import InputError

CARTPOLE = environments.resolve("CartPole-v1")


@pytest.fixture(scope="module")
def policy():
    return make_policy(4, 2, kind="categorical", environment=CARTPOLE)


@pytest.fixture(scope="module")
def evaluation(policy):
    return evaluate(policy, episodes=4, seed=7, num_workers=1)


def test_every_member_meets_the_same_episodes(policy, evaluation):
    seeds = episode_seeds(4, "evaluate", 7, 0)
    for member in range(3):
        episodes = rollout(policy, CARTPOLE, [(member, seed) for seed in seeds], num_workers=1)
        assert evaluation.returns[member].tolist() == [episode.return_ for episode in episodes]
        assert evaluation.lengths[member].tolist() == [episode.length for episode in episodes]
    twins = evaluate(policy.members([1, 1]), episodes=4, seed=7, num_workers=1)
    assert (twins.returns == evaluation.returns[1]).all()


def test_runs_and_paths_are_policies_too(policy, evaluation, tmp_path):
    policy.save(tmp_path / "run" / "policy.safetensors")
    run = Run({}, policy, [])
    for source in (run, tmp_path / "run", str(tmp_path / "run" / "policy.safetensors")):
        again = evaluate(source, "CartPole-v1", episodes=4, seed=7, num_workers=1)
        assert (again.returns == evaluation.returns).all()


def test_a_noisy_policy_is_played_with_its_noise():
    pendulum = environments.resolve("Pendulum-v1")
    steady = make_policy(3, 1, members=1, environment=pendulum)
    noisy = evaluate(NoisyPolicy(steady, 0.5), episodes=2, num_workers=1)
    jobs = evaluation_jobs(1, 2, 0)
    expected = rollout(NoisyPolicy(steady, 0.5), pendulum, jobs, num_workers=1)
    assert noisy.returns[0].tolist() == [episode.return_ for episode in expected]
    assert (noisy.returns != evaluate(steady, episodes=2, num_workers=1).returns).all()


def test_statistics():
    returns = np.array([[10.0, 30.0], [20.0, 40.0]])
    evaluation = Evaluation(environments.resolve("hopper"), returns, np.full((2, 2), 5))
    assert evaluation.mean == 25
    assert evaluation.std == pytest.approx(np.sqrt(50))  # of 20 and 30, the members' means
    assert Evaluation(CARTPOLE, returns[:1], np.full((1, 2), 5)).std is None


def test_scores_and_table(monkeypatch):
    known = {"demosift": {"hopper": {"random": {"mean": 0.0}, "expert": {"mean": 40.0}}}}
    monkeypatch.setattr(environments, "reference_returns", lambda: known)
    returns = np.array([[10.0, 30.0], [20.0, 40.0]])
    evaluation = Evaluation(environments.resolve("hopper"), returns, np.full((2, 2), 5))
    assert evaluation.scores is not None
    assert evaluation.scores.tolist() == [[0.25, 0.75], [0.5, 1.0]]
    table = str(evaluation).splitlines()
    assert "over a member's episodes" in table[0]
    assert table[2].split() == ["0", "20.0", "14.1", "5.0", "50.0%"]  # two episodes, 10 and 30
    # The spread over members is another quantity, so it stands in a line of its own that says so.
    assert table[4] == "return 25.0 ± 7.1, score 62.5% ± 17.7% (standard deviation over the 2 members' means)"
    alone = str(Evaluation(evaluation.environment, returns[:1], np.full((1, 2), 5)))
    assert "members' means" not in alone
    stored = json.loads(json.dumps(evaluation.to_json()))
    assert stored["score_mean"] == 0.625
    assert stored["returns"] == returns.tolist()


def test_without_a_reference_there_is_no_score(evaluation):
    assert evaluation.scores is None
    assert "score" not in str(evaluation)
    assert json.loads(json.dumps(evaluation.to_json()))["scores"] is None


def test_evaluator_rows_come_from_seed_and_iteration(policy):
    with Evaluator("CartPole-v1", every=100, episodes=3, seed=7, num_workers=1) as evaluator:
        first, second, again = [evaluator.submit(policy, iteration) for iteration in (100, 200, 100)]
        rows = first.result()
        assert rows == again.result()
        assert rows != second.result()
    assert [(row["iteration"], row["member"]) for row in rows] == [(100, 0), (100, 1), (100, 2)]
    expected = rollout(policy, CARTPOLE, evaluation_jobs(3, 3, 7, 100), num_workers=1)
    assert [value for row in rows for value in row["returns"]] == [episode.return_ for episode in expected]
    assert json.loads(json.dumps(evaluator.describe()))["episodes"] == 3


def test_policies_by_name(policy, tmp_path):
    assert isinstance(load_policy("random", "hopper"), RandomPolicy)
    policy.save(tmp_path / "p.safetensors")
    assert load_policy(tmp_path / "p.safetensors").num_members == 3
    assert load_policy(str(tmp_path / "p.safetensors"), member=1).num_members == 1


@pytest.mark.parametrize("env", environments.SHORT_NAMES)
def test_every_shipped_policy_is_there_and_fits(env):
    spec = environments.resolve(env)
    actions = []
    for level in ("expert", "medium"):
        shipped, stored = policy_and_environment(level, env)
        assert isinstance(shipped, Policy)
        assert shipped.environment == stored == spec
        assert shipped.num_members == 1
        actions.append(shipped.act_members(np.zeros((1, 1, shipped.obs_dim), np.float32)))
    assert not np.array_equal(*actions)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "nowhere: no such run folder or policy file"),
        (("expert",), "'expert' needs an environment"),
        (("expert", "CartPole-v1"), "no expert policy is shipped for 'CartPole-v1'"),
        (("random", "hopper", 0), "no members"),
    ],
)
def test_names_that_mean_nothing_are_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        load_policy(*arguments)


def test_a_folder_without_a_policy_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"policy\.safetensors: no such policy file"):
        load_policy(tmp_path)


def test_a_misfit_is_refused(policy):
    with pytest.raises(InputError, match=r"CartPole-v1.*4 observations.*Hopper-v5 has 11"):
        evaluate(policy, "hopper")
    with pytest.raises(InputError, match="which environment"):
        evaluate(make_policy())
    with pytest.raises(InputError, match="episodes: 0 is not"):
        evaluate(policy, episodes=0)
