"""Names, refusals, action scaling and normalised scores."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demosift.data.actions import stored_actions
from demosift.simulation import environments, state
from demosift.types import Dataset, EnvironmentSpec, InputError, Transitions


@pytest.mark.parametrize(
    ("name", "id", "obs_dim", "action_dim"),
    [
        ("hopper", "Hopper-v5", 11, 3),
        ("walker2d", "Walker2d-v5", 17, 6),
        ("halfcheetah", "HalfCheetah-v5", 17, 6),
        ("ant", "Ant-v5", 27, 8),
    ],
)
def test_short_names(name, id, obs_dim, action_dim):
    spec = environments.resolve(name)
    assert spec.id == id
    assert environments.spaces(spec) == (obs_dim, action_dim)
    assert environments.max_episode_steps(spec) == 1000
    assert environments.short_name(spec) == name
    assert spec.action_low == (-1,) * action_dim
    assert spec.action_high == (1,) * action_dim


def test_any_other_id():
    assert environments.spaces(environments.resolve("Ant-v5")) == (105, 8)
    assert environments.short_name(environments.resolve("Ant-v5")) == "Ant-v5"
    cartpole = environments.resolve("CartPole-v1")
    assert cartpole.num_actions == 2
    assert cartpole.discrete
    pendulum = environments.resolve("Pendulum-v1", g=9.0)
    assert pendulum.kwargs == {"g": 9.0}
    assert pendulum.action_high == (2.0,)
    assert environments.make(pendulum).unwrapped.g == 9.0  # pyright: ignore[reportAttributeAccessIssue]


def test_module_prefix_and_default_time_limit():
    spec = environments.resolve("own_environments:Endless-v0")
    assert environments.max_episode_steps(spec) == environments.DEFAULT_EPISODE_STEPS
    env = environments.make(spec)
    env.reset(seed=0)
    steps = next(step for step in range(1, 2000) if env.step(np.zeros(1, np.float32))[3])
    assert steps == environments.DEFAULT_EPISODE_STEPS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hoper", ["'hoper'", "hopper"]),
        ("Hopper-v9", ["'Hopper-v9'", "Hopper-v5"]),
        ("Hopper-v2", ["'Hopper-v2'", "cannot be made"]),
        ("no_such_module:Thing-v0", ["no_such_module"]),
        ("FrozenLake-v1", ["observation space Discrete", "flat Box"]),
        ("Blackjack-v1", ["observation space Tuple"]),
        ("own_environments:Image-v0", ["(8, 8, 3)", "uint8"]),
        ("own_environments:Dict-v0", ["observation space Dict"]),
        ("own_environments:MultiDiscrete-v0", ["action space MultiDiscrete"]),
        ("own_environments:Unbounded-v0", ["unbounded actions"]),
    ],
)
def test_refusals_are_one_line_that_names_the_id(name, words):
    with pytest.raises(InputError) as caught:
        environments.resolve(name)
    message = str(caught.value)
    assert "\n" not in message
    assert name in message
    for word in words:
        assert word in message


def test_unknown_argument_is_refused():
    with pytest.raises(InputError, match=r"Hopper-v5.*gravity"):
        environments.resolve("hopper", gravity=1)


def test_actions_scale_to_the_bounds_and_back():
    spec = EnvironmentSpec("own", action_low=(0.0, -1.0, -0.4), action_high=(10.0, 1.0, 0.4))
    action = np.array([[-1, -1, -1], [1, 1, 1], [0, 0.3, 0.5]], np.float32)
    native = spec.scale_action(action)
    np.testing.assert_allclose(native, [[0, -1, -0.4], [10, 1, 0.4], [5, 0.3, 0.2]], rtol=1e-6)
    assert spec.bounds is not None
    np.testing.assert_allclose(spec.bounds.to_unit(native), action, atol=1e-6)
    assert (spec.scale_action(np.full(3, 1.5, np.float32)) == native[1]).all()


def test_unit_bounds_leave_actions_exactly_alone():
    spec = environments.resolve("hopper")
    action = np.random.default_rng(0).uniform(-1, 1, (1000, 3)).astype(np.float32)
    assert (spec.scale_action(action) == action).all()


def test_discrete_actions_are_the_largest_score():
    spec = EnvironmentSpec("own", num_actions=3)
    assert spec.scale_action(np.array([[0.1, 0.9, 0.3], [0, 0, 1]])).tolist() == [1, 2]


def test_an_environment_is_given_the_action_that_a_file_would_hold():
    """To the bit, also where bounds are not symmetrical: the same action used to be rounded in two ways."""
    spec = EnvironmentSpec("own", action_low=(0.1, -0.7), action_high=(0.9, 2.3))
    action = np.random.default_rng(0).uniform(-1, 1, (1000, 2)).astype(np.float32)
    zeros = np.zeros(1000, np.float32)
    transitions = Transitions(zeros[:, None], action, zeros, zeros[:, None], zeros > 0)
    stored = stored_actions(Dataset(transitions, np.arange(1000) == 999, spec))
    assert (spec.scale_action(action) == stored).all()


def test_without_bounds_actions_are_in_the_environments_units():
    """A robomimic file names its environment and no bounds; a policy trained on it used to act NaN."""
    action = np.array([[-1, 0.25, 1.5]], np.float32)
    assert EnvironmentSpec("Hopper-v5").scale_action(action).tolist() == [[-1, 0.25, 1]]


def test_normalised_scores():
    random, expert = -20.272305, 3234.3
    scores = environments.normalised_score("hopper", np.array([random, expert, (random + expert) / 2]), "d4rl")
    assert scores is not None
    np.testing.assert_allclose(scores, [0, 1, 0.5])
    paper = environments.normalised_score(environments.resolve("ant"), 5228.631335, "paper")
    assert paper == pytest.approx(1)
    assert environments.normalised_score("CartPole-v1", 100.0) is None
    assert environments.normalised_score("Hopper-v5", 1000.0) == environments.normalised_score("hopper", 1000.0)
    assert environments.normalised_score("Hopper-v5", 1000.0) is not None
    assert environments.normalised_score("Ant-v5", 100.0) is None, "it has contact forces in its observations"
    assert environments.normalised_score(environments.resolve("Ant-v5"), 100.0, "d4rl") is None


def test_score_is_unknown_until_the_expert_is_measured(monkeypatch):
    known = {"demosift": {"hopper": {"random": {"mean": 10.0}, "expert": None}}}
    monkeypatch.setattr(environments, "reference_returns", lambda: known)
    assert environments.normalised_score("hopper", 1.0) is None
    known["demosift"]["hopper"]["expert"] = {"mean": 30.0}
    assert environments.normalised_score("hopper", 20.0) == 0.5


def test_committed_references_say_how_they_were_measured():
    measured = environments.reference_returns()["demosift"]
    assert set(measured) == set(environments.SHORT_NAMES)
    for env in measured.values():
        for result in filter(None, env.values()):
            assert result["episodes"] == 100
            assert result["standard_error"] > 0
            assert "demosift.tasks.reference" in result["command"]


@pytest.mark.parametrize("name", [*environments.SHORT_NAMES, "Pendulum-v1", "CartPole-v1"])
def test_an_environment_goes_on_from_its_state(name: str):
    """Another of its kind, elsewhere in its own episode, becomes the same to the last bit: also after later resets."""
    spec = environments.resolve(name)
    first, second = environments.make(spec), environments.make(spec)
    first.reset(seed=1)
    second.reset(seed=2)
    first.action_space.seed(0)

    def step(*envs: Any) -> list[tuple[Any, ...]]:
        action = first.action_space.sample()
        answers = []
        for env in envs:
            obs, *rest, _ = env.step(action)
            again = env.reset()[0] if rest[1] or rest[2] else obs
            answers.append((obs.tobytes(), *rest, again.tobytes()))
        return answers

    for _ in range(17):
        step(first)
    one, other = step(first, second)
    assert one != other
    told = state.capture(first)
    assert told is not None
    state.restore(second, told)
    for _ in range(300):
        one, other = step(first, second)
        assert one == other


def test_a_state_without_the_warm_start_would_not_do():
    """MuJoCo's solver starts from the last solution."""
    spec = environments.resolve("hopper")
    first, second = environments.make(spec), environments.make(spec)
    for env in (first, second):
        env.reset(seed=1)
    action = np.full(3, 0.5, np.float32)
    for _ in range(20):
        first.step(action)
    told = state.capture(first)
    assert told is not None
    state.restore(second, told)
    second.unwrapped.data.qacc_warmstart[:] = 0  # type: ignore[attr-defined]
    assert any(first.step(action)[0].tobytes() != second.step(action)[0].tobytes() for _ in range(50))


def test_an_environment_that_holds_other_things_has_no_state_to_tell():
    env = environments.make(environments.resolve("Pendulum-v1"))
    env.reset(seed=0)
    assert state.capture(env) is not None
    env.unwrapped.world = object()  # type: ignore[attr-defined]
    assert state.capture(env) is None


def test_no_library_of_the_working_folder_is_loaded(tmp_path: Path):
    """GLFW's package looks for libglfw.so there, and starts a process to load each one it finds."""
    (tmp_path / "libglfw.so").touch()
    code = """
import subprocess
started = []
subprocess.Popen = lambda *args, **kwargs: started.append(args)
from demosift.simulation import environments
environments.resolve("hopper")
import glfw.library
print(started, glfw.library.glfw._name)
"""
    clean = {name: value for name, value in os.environ.items() if name != "PYGLFW_LIBRARY"}
    said = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, env=clean, capture_output=True, text=True)
    started, _, library = said.stdout.strip().partition(" ")
    assert started == "[]", said.stderr
    assert Path(library).is_absolute()
