"""Worker processes: what they compute, that it does not depend on how work is spread, and that none is left over."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from test_policy import make_policy

from demosift.policy import RandomPolicy
from demosift.processes import WorkerError
from demosift.simulation import environments
from demosift.simulation.simulate import Episode, Rollouts, Simulators, episode_seeds, rollout
from demosift.types import InputError

JOBS = [(member, 100 * member + index) for index in range(7) for member in (2, 0, 1)]  # more than live at once


@pytest.fixture(scope="module")
def pool():
    with Rollouts(2) as rollouts:
        yield rollouts


def assert_same(first: list[Episode], second: list[Episode]) -> None:
    for a, b in zip(first, second, strict=True):
        assert (a.member, a.seed, a.return_, a.length, a.terminal) == (
            b.member,
            b.seed,
            b.return_,
            b.length,
            b.terminal,
        )
        if a.transitions is not None and b.transitions is not None:
            for x, y in zip(a.transitions, b.transitions, strict=True):
                assert np.array_equal(x, y)


def test_rollout_is_the_textbook_loop(pool):
    """Pendulum: bounds of ±2, episodes that time out."""
    spec = environments.resolve("Pendulum-v1")
    policy = make_policy(3, 1, members=2)
    episodes = pool.submit(policy, spec, [(1, 5), (0, 6)], record=True).result()
    for episode, (member, seed) in zip(episodes, [(1, 5), (0, 6)], strict=True):
        env = environments.make(spec)
        obs, _ = env.reset(seed=seed)
        total, steps, truncated = 0.0, 0, False
        while not truncated:
            action = policy.member(member).act_members(np.asarray(obs, np.float32)[None, None])[0, 0]
            np.testing.assert_allclose(episode.transitions.obs[steps], obs, atol=1e-3)
            np.testing.assert_allclose(episode.transitions.action[steps], action, atol=1e-3)
            obs, reward, _, truncated, _ = env.step(2 * action)
            np.testing.assert_allclose(episode.transitions.next_obs[steps], obs, atol=1e-3)
            np.testing.assert_allclose(episode.transitions.reward[steps], float(reward), rtol=1e-3, atol=1e-3)
            total, steps = total + float(reward), steps + 1
        assert (episode.member, episode.seed, episode.length, episode.terminal) == (member, seed, 200, False)
        assert episode.return_ == pytest.approx(total, rel=1e-3)


def test_an_environment_that_is_used_again_takes_the_bounds_of_its_next_policy(pool):
    spec = environments.resolve("Pendulum-v1")
    narrow = replace(spec, action_low=(-0.5,), action_high=(0.5,))
    policy = make_policy(3, 1, members=1)
    for bounds in (spec, narrow, spec):
        used = pool.submit(policy, bounds, [(0, 5), (0, 6)], record=True).result()
        assert_same(used, rollout(policy, bounds, [(0, 5), (0, 6)], num_workers=1, record=True))


def test_discrete_actions_are_recorded_one_hot(pool):
    spec = environments.resolve("CartPole-v1")
    (episode,) = pool.submit(make_policy(4, 2, members=1, kind="categorical"), spec, [(0, 3)], record=True).result()
    rows = episode.transitions
    assert rows.action.dtype == np.int8
    assert (rows.action.sum(axis=1) == 1).all()
    assert np.array_equal(rows.obs[1:], rows.next_obs[:-1])
    assert episode.terminal
    assert rows.terminal.tolist() == [False] * (episode.length - 1) + [True]
    env = environments.make(spec)
    env.reset(seed=3)
    for action, next_obs in zip(rows.action, rows.next_obs, strict=True):
        np.testing.assert_array_equal(env.step(int(action.argmax()))[0], next_obs)


@pytest.mark.parametrize("kind", ["network", "random"])
def test_result_does_not_depend_on_how_jobs_are_spread(pool, kind):
    spec = environments.resolve("hopper")
    policy = make_policy(11, 3, hidden=(256, 256)) if kind == "network" else RandomPolicy(spec)
    jobs = JOBS if kind == "network" else [(0, seed) for _, seed in JOBS]
    two = pool.submit(policy, spec, jobs, record=True).result()
    assert len({episode.return_ for episode in two}) == len(jobs)
    assert_same(two, rollout(policy, spec, jobs, num_workers=1, record=True))
    assert_same(two, rollout(policy, spec, jobs, num_workers=3, record=True))
    assert_same(two[4:6], pool.submit(policy, spec, jobs[4:6]).result())  # in used environments, beside other episodes
    assert_same(two[::-1], pool.submit(policy, spec, jobs[::-1]).result())


def test_random_episodes_do_not_repeat_the_environments_own_stream():
    """Both are seeded with the episode's seed; the first action must not be the noise of the initial state."""
    spec = environments.resolve("Pendulum-v1")
    (episode,) = rollout(RandomPolicy(spec), spec, [(0, 5)], record=True)
    start = np.random.default_rng(5).uniform(-1, 1, 1).astype(np.float32)
    assert episode.transitions is not None
    assert not np.isclose(episode.transitions.action[0], start).any()


def test_submissions_overlap_and_keep_apart(pool):
    hopper, cartpole = environments.resolve("hopper"), environments.resolve("CartPole-v1")
    first, second = make_policy(11, 3), make_policy(4, 2, kind="categorical")
    seen: list[tuple[int, int]] = []
    futures = [
        pool.submit(first, hopper, JOBS, progress=lambda *counts: seen.append(counts)),
        pool.submit(second, cartpole, JOBS[:4]),
    ]
    results = [future.result() for future in futures]
    assert_same(results[0], pool.submit(first, hopper, JOBS).result())
    assert_same(results[1], pool.submit(second, cartpole, JOBS[:4]).result())
    assert seen == [(count, len(JOBS)) for count in range(1, len(JOBS) + 1)]


def test_no_jobs(pool):
    assert pool.submit(make_policy(11, 3), environments.resolve("hopper"), []).result() == []


@pytest.mark.parametrize(
    ("policy", "env", "words"),
    [
        (make_policy(17, 6), "hopper", "17 observations and gives 6 .*Hopper-v5 has 11"),
        (make_policy(4, 2), "CartPole-v1", "continuous actions.*CartPole-v1.*discrete actions"),
        (make_policy(27, 8, environment=environments.resolve("ant")), "Ant-v5", "made for Ant-v5.*27.*105"),
        (make_policy(11, 3, members=2), "hopper", "member 2 does not exist"),
    ],
)
def test_policies_that_do_not_fit_are_refused(pool, policy, env, words):
    with pytest.raises(InputError, match=words):
        pool.submit(policy, environments.resolve(env), JOBS).result()


def test_episode_seeds():
    assert episode_seeds(3, "evaluate", 0, 5) == episode_seeds(9, "evaluate", 0, 5)[:3]
    families = [("evaluate", 0, 5), ("evaluate", 0, 6), ("evaluate", 1, 5), ("record", 0, 5)]
    assert len({seed for family in families for seed in episode_seeds(100, *family)}) == 400
    with pytest.raises(InputError, match="-1"):
        episode_seeds(1, "evaluate", -1)


def play(num_workers: int, steps: int = 150):
    specs = [environments.resolve(name) for name in ("CartPole-v1", "hopper", "Pendulum-v1", "CartPole-v1", "hopper")]
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, len(specs), 3)).astype(np.float32)
    with Simulators(specs, num_workers) as simulators:
        first = simulators.reset(range(5))
        return specs, actions, first, [simulators.step(action) for action in actions]


def test_simulators_reset_themselves_and_keep_the_true_successor():
    specs, actions, first, steps = play(2)
    assert first.shape == (5, 11)
    ends = 0
    for n, spec in enumerate(specs):
        env = environments.make(spec)
        size, action_size = environments.spaces(spec)
        obs, _ = env.reset(seed=n)
        assert np.array_equal(first[n, :size], np.asarray(obs, np.float32))
        for action, step in zip(actions[:, n, :action_size], steps, strict=True):
            next_obs, reward, terminal, timeout, _ = env.step(spec.scale_action(action))
            assert np.array_equal(step.next_obs[n, :size], np.asarray(next_obs, np.float32))
            assert step.reward[n] == np.float32(reward)
            assert (step.terminal[n], step.timeout[n]) == (terminal, timeout)
            obs = env.reset()[0] if terminal or timeout else next_obs
            ends += terminal or timeout
            assert np.array_equal(step.obs[n, :size], np.asarray(obs, np.float32))
            assert not step.obs[n, size:].any()
            assert not step.next_obs[n, size:].any()
    assert ends > 5


def test_time_limits_are_timeouts():
    with Simulators([environments.resolve("Pendulum-v1")]) as simulators:
        simulators.reset([0])
        steps = [simulators.step(np.zeros((1, 1))) for _ in range(201)]
    assert [bool(step.timeout[0]) for step in steps] == [False] * 199 + [True, False]
    assert not any(step.terminal[0] for step in steps)
    assert not np.array_equal(steps[199].obs, steps[199].next_obs)
    assert np.array_equal(steps[198].obs, steps[198].next_obs)


def test_simulators_do_not_depend_on_the_number_of_workers():
    (_, _, first, one), (_, _, also_first, three) = play(1, 40), play(3, 40)
    assert np.array_equal(first, also_first)
    for a, b in zip(one, three, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_received_arrays_stay_as_they_are():
    with Simulators([environments.resolve("CartPole-v1")] * 2) as simulators:
        obs = simulators.reset([0, 1])
        kept = [obs, *(step.obs for step in (simulators.step(np.eye(2)) for _ in range(3)))]
        for earlier, later in pairwise(kept):
            assert not np.array_equal(earlier, later)
        simulators.send(np.eye(2))
        with pytest.raises(RuntimeError, match="twice"):
            simulators.send(np.eye(2))
        again = simulators.reset([0, 1])  # a step under way is dropped
        assert np.array_equal(again, obs)
        with pytest.raises(ValueError, match="3 seeds for 2"):
            simulators.reset([0, 1, 2])
        with pytest.raises(RuntimeError, match="without a send"):
            simulators.receive()
        with pytest.raises(ValueError, match=r"\(2, 1\), expected \(2, 2\)"):
            simulators.send(np.zeros((2, 1)))
    with pytest.raises(RuntimeError, match="closed"):
        simulators.reset([0, 1])


def pids(owner: Rollouts | Simulators) -> list[int]:
    return [worker.process.pid for worker in owner._workers]


def wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(map(is_alive, processes)):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether that worker runs: not another process that was given its number, nor one that only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return "demosift.processes" in file.read()
    except OSError:
        return False


def test_a_failing_environment_is_named_and_ends_everything():
    spec = environments.resolve("own_environments:Failing-v0")
    rollouts = Rollouts(2)
    processes = pids(rollouts)
    with pytest.raises(WorkerError, match=r"own_environments:Failing-v0.*the joints came apart") as caught:
        rollouts.submit(RandomPolicy(spec), spec, [(0, 0), (0, 1)]).result()
    assert "in step" in caught.value.__notes__[0]
    wait_until_gone(processes)
    with pytest.raises(RuntimeError, match="closed"):
        rollouts.submit(RandomPolicy(spec), spec, [(0, 0)]).result()

    simulators = Simulators([environments.resolve("CartPole-v1"), spec], 2)
    processes = pids(simulators)
    simulators.reset([0, 1])
    simulators.step(np.zeros((2, 2)))
    simulators.step(np.zeros((2, 2)))
    with pytest.raises(WorkerError, match="the joints came apart"):
        simulators.step(np.zeros((2, 2)))
    wait_until_gone(processes)


def test_a_killed_worker_is_reported():
    spec = environments.resolve("CartPole-v1")
    simulators = Simulators([spec, spec], 2)
    simulators.reset([0, 1])
    os.kill(pids(simulators)[1], signal.SIGKILL)
    with pytest.raises(WorkerError, match="died"):
        simulators.step(np.zeros((2, 2)))


def test_forgotten_pools_are_collected():
    rollouts = Rollouts(1)
    processes = pids(rollouts)
    del rollouts
    wait_until_gone(processes)


# No guard of __main__: a worker that imported the script again would start workers of its own.
SCRIPT = """
    import sys
    sys.path.append({tests!r})
    from demosift.simulation import environments
    from demosift.policy import RandomPolicy
    from demosift.simulation.simulate import Rollouts, Simulators
    spec = environments.resolve("own_environments:Endless-v0", max_episode_steps=10**9)
    simulators = Simulators([spec, spec], 2)
    simulators.reset([0, 1])
    with Rollouts(2) as pool:
        future = pool.submit(RandomPolicy(spec), spec, [(0, 0), (0, 1)])
        print(*(w.process.pid for owner in (simulators, pool) for w in owner._workers), flush=True)
        future.result()
"""


@pytest.fixture
def endless(tmp_path, interruptible):
    """A plain script amid an endless rollout, and the process ids of its workers."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.format(tests=os.path.dirname(__file__))))
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 4, process.communicate()
    time.sleep(1)  # well into the rollout
    assert process.poll() is None
    yield process, workers
    process.kill()
    for worker in filter(is_alive, workers):
        os.kill(worker, signal.SIGKILL)  # where the test failed
    process.communicate()


def test_workers_end_when_their_parent_is_killed(endless):
    process, workers = endless
    process.kill()
    wait_until_gone(workers)


def test_ctrl_c_leaves_nothing(endless):
    process, workers = endless
    os.kill(workers[0], signal.SIGINT)  # a terminal may send it to all; workers leave the decision to the parent
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    assert stderr.count("Traceback") == 1
    wait_until_gone(workers)


def test_workers_start_without_jax():
    code = "import sys, demosift.simulation.simulate, demosift.simulation.evaluation; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
