"""SAC's update against the same update in float64 NumPy, written from the equations; then padding, ends and waste."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_reference import Network, adam, backward, forward, softplus

from demosift.sac import agent as module
from demosift.sac.agent import RUNNING, SAC, TERMINAL, TIMEOUT, Layout, State, sample

SIZE = Layout(obs_dim=3, action_dim=2)
SMALL = SAC(
    hidden=(8, 7), learning_rate=1e-2, batch_size=6, target_rate=0.05, initial_temperature=0.3, target_entropy=-1.7
)
MASK = jnp.ones(SIZE.action_dim)


class Reference(NamedTuple):
    """An agent in NumPy: parameters, Adam's two moments of each, and the targets."""

    policy: list[np.ndarray]
    critics: list[list[np.ndarray]]
    log_temperature: np.ndarray
    targets: list[list[np.ndarray]]


class Gradients(NamedTuple):
    policy: list[np.ndarray]
    critics: list[list[np.ndarray]]
    log_temperature: np.ndarray


class Losses(NamedTuple):
    critics: list[float]
    policy: float
    log_temperature: float


def layers(arrays: list[np.ndarray]) -> Network:
    return list(zip(arrays[::2], arrays[1::2], strict=True))


def flat(gradient: Any) -> list[np.ndarray]:
    return [array for pair in gradient for array in pair]


def numpy_sample(heads: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pre-tanh action u, the action, and its log-probability."""
    mean, log_std = np.split(heads, 2, axis=-1)
    log_std = np.clip(log_std, -5, 2)
    u = mean + np.exp(log_std) * noise
    log_normal = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    log_slope = 2 * (np.log(2) - u - softplus(-2 * u))
    return u, np.tanh(u), (log_normal - log_slope).sum(-1)


def reference_losses(
    agent: Reference, rows: np.ndarray, noise: np.ndarray, discount: float
) -> tuple[Losses, Gradients]:
    """J_Q, J_pi and J_alpha, and their gradients by hand, all at the same parameters."""
    obs, action = rows[:, SIZE.obs], rows[:, SIZE.action]
    next_obs, reward, end = rows[:, SIZE.next_obs], rows[:, SIZE.reward], rows[:, SIZE.end]
    count, alpha = len(rows), np.exp(agent.log_temperature)

    _, next_action, next_log_prob = numpy_sample(forward(layers(agent.policy), next_obs)[-1], noise[1])
    next_input = np.concatenate([next_obs, next_action], -1)
    next_values = [forward(layers(target), next_input)[-1][:, 0] for target in agent.targets]
    target = reward + discount * (end != TERMINAL) * (np.minimum(*next_values) - alpha * next_log_prob)

    critic_losses, critic_gradients = [], []
    for critic in agent.critics:
        values = forward(layers(critic), np.concatenate([obs, action], -1))
        error = values[-1][:, 0] - target
        critic_losses.append(0.5 * np.mean(error**2))
        critic_gradients.append(flat(backward(layers(critic), values, error[:, None] / count)[0]))

    policy_values = forward(layers(agent.policy), obs)
    u, fresh, log_prob = numpy_sample(policy_values[-1], noise[0])
    runs = [forward(layers(critic), np.concatenate([obs, fresh], -1)) for critic in agent.critics]
    values = np.stack([run[-1][:, 0] for run in runs])
    lowest = np.argmin(values, axis=0)
    fresh_bar = np.zeros_like(fresh)
    for index, (critic, run) in enumerate(zip(agent.critics, runs, strict=True)):
        output_bar = np.where(lowest == index, -1.0 / count, 0.0)[:, None]
        fresh_bar += backward(layers(critic), run, output_bar)[1][:, SIZE.obs_dim :]
    # d log pi / du = 2 tanh(u), from the log-determinant alone: with the noise given, the Gaussian's part holds still.
    u_bar = fresh_bar * (1 - fresh**2) + alpha / count * 2 * fresh
    mean, log_std = np.split(policy_values[-1], 2, axis=-1)
    inside = (log_std > -5) & (log_std < 2)
    log_std_bar = (u_bar * (u - mean) - alpha / count) * inside
    policy_gradient = flat(backward(layers(agent.policy), policy_values, np.concatenate([u_bar, log_std_bar], -1))[0])
    entropy_gap = np.mean(log_prob) + SMALL.target_entropy * SIZE.action_dim
    policy_loss = float(np.mean(alpha * log_prob - values.min(axis=0)))
    losses = Losses(critic_losses, policy_loss, float(-agent.log_temperature * entropy_gap))
    return losses, Gradients(policy_gradient, critic_gradients, np.asarray(-entropy_gap))


def zeros_like(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [np.zeros_like(array) for array in arrays]


class ReferenceRun:
    """Updates in NumPy. `policy_sees_new_critics` makes the other order, to see that the tests can tell."""

    def __init__(self, agent: Reference, sac: SAC, policy_sees_new_critics: bool = False):
        self.agent, self.sac, self.other_order = agent, sac, policy_sees_new_critics
        self.moments: dict[str, Any] = {}
        self.count = 0

    def descend(self, name: str, parameters: list[np.ndarray], gradients: list[np.ndarray]) -> list[np.ndarray]:
        first, second = self.moments.get(name, (zeros_like(parameters), zeros_like(parameters)))
        steps = [
            adam(p, g, m, v, self.count, self.sac.learning_rate, 1e-8)
            for p, g, m, v in zip(parameters, gradients, first, second, strict=True)
        ]
        self.moments[name] = [step[1] for step in steps], [step[2] for step in steps]
        return [step[0] for step in steps]

    def update(self, rows: np.ndarray, noise: np.ndarray) -> None:
        self.count += 1
        agent = self.agent
        _, gradients = reference_losses(agent, rows, noise, self.sac.discount)
        critics = [self.descend(f"critic {i}", agent.critics[i], gradients.critics[i]) for i in range(2)]
        if self.other_order:
            _, gradients = reference_losses(agent._replace(critics=critics), rows, noise, self.sac.discount)
        policy = self.descend("policy", agent.policy, gradients.policy)
        (temperature,) = self.descend("temperature", [agent.log_temperature], [gradients.log_temperature])
        tau = self.sac.target_rate
        targets = [
            [(1 - tau) * t + tau * q for t, q in zip(*pair, strict=True)]
            for pair in zip(agent.targets, critics, strict=True)
        ]
        self.agent = Reference(policy, critics, temperature, targets)


def to_reference(state: State) -> Reference:
    def arrays(tree: Any) -> list[np.ndarray]:
        return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]

    def pair(tree: Any) -> list[list[np.ndarray]]:
        return [[leaf[i] for leaf in arrays(tree)] for i in range(2)]

    temperature = np.asarray(state.log_temperature.params, np.float64)
    return Reference(arrays(state.policy.params), pair(state.critics.params), temperature, pair(state.targets))


def make_rows(rng: np.random.Generator, count: int, size: Layout = SIZE) -> np.ndarray:
    rows = rng.normal(size=(count, size.width))
    rows[:, size.action] = np.tanh(rows[:, size.action])
    rows[:, size.end] = rng.choice([RUNNING, TERMINAL, TIMEOUT], size=count)
    return rows.astype(np.float32)


@partial(jax.jit, static_argnums=(1, 2, 3))
def init(key: Any, size: Layout, padded: Layout, sac: SAC = SMALL) -> State:
    return sac.init(key, size, padded)


@jax.jit
def scattered(state: State, seed: int = 3) -> State:
    """Targets that differ from the critics, as they do in training."""
    leaves, structure = jax.tree.flatten(state.targets)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    moved = [leaf + 0.1 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return state._replace(targets=jax.tree.unflatten(structure, moved))


@pytest.fixture(scope="module")
def start() -> State:
    return scattered(init(jax.random.key(0), SIZE, SIZE))


@pytest.fixture(scope="module")
def update():
    return jax.jit(SMALL.update)


@pytest.fixture(scope="module")
def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(1)
    shape = (2, SMALL.batch_size, SIZE.action_dim)
    return [(make_rows(rng, SMALL.batch_size), rng.normal(size=shape).astype(np.float32)) for _ in range(4)]


def distance(state: State, agent: Reference) -> float:
    """The largest difference of any parameter or target, in steps of Adam."""
    ours, theirs = jax.tree.leaves(to_reference(state)), jax.tree.leaves(agent)
    return max(np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True)) / SMALL.learning_rate


def test_update_is_the_reference(start, update, batches):
    """Every parameter of every network, through several updates, so that Adam's moments and the targets count."""
    run = ReferenceRun(to_reference(start), SMALL)
    state = start
    for rows, noise in batches:
        losses, _ = reference_losses(run.agent, rows.astype(np.float64), noise.astype(np.float64), SMALL.discount)
        temperature = np.exp(run.agent.log_temperature)
        state, metrics = update(state, rows, noise, MASK)
        run.update(rows.astype(np.float64), noise.astype(np.float64))
        assert distance(state, run.agent) < 2e-3
        np.testing.assert_allclose(metrics.critic_loss, np.mean(losses.critics), rtol=1e-4)
        np.testing.assert_allclose(metrics.temperature, temperature, rtol=1e-4)


def test_order_of_the_update_matters_and_is_the_stated_one(start, update, batches):
    """The policy's gradient is taken at the critics from before the update; with the other order the numbers differ."""
    other = ReferenceRun(to_reference(start), SMALL, policy_sees_new_critics=True)
    state = start
    for rows, noise in batches:
        state, _ = update(state, rows, noise, MASK)
        other.update(rows.astype(np.float64), noise.astype(np.float64))
    assert distance(state, other.agent) > 0.1


def test_targets_follow_the_new_critics(start, update, batches):
    state, _ = update(start, *batches[0], MASK)
    for old, critic, new in zip(
        *map(jax.tree.leaves, (start.targets, state.critics.params, state.targets)), strict=True
    ):
        np.testing.assert_allclose(new, 0.95 * old + 0.05 * critic, rtol=1e-5, atol=1e-7)


def test_reference_gradients_are_derivatives(start, batches):
    """Finite differences of the reference's losses. The target y holds still, as a stop-gradient: it has no parameters
    of the critics, and J_pi none of the policy's that y depends on."""
    agent = to_reference(start)
    rows, noise = (array.astype(np.float64) for array in batches[0])
    _, gradients = reference_losses(agent, rows, noise, 0.99)
    rng, step = np.random.default_rng(0), 1e-6

    def loss(changed: Reference) -> Losses:
        return reference_losses(changed, rows, noise, 0.99)[0]

    def slope(arrays: list[np.ndarray], index: int, place: tuple[int, ...], rebuild, read) -> float:
        sides = []
        for sign in (1, -1):
            moved = [array.copy() for array in arrays]
            moved[index][place] += sign * step
            sides.append(read(loss(rebuild(moved))))
        return (sides[0] - sides[1]) / (2 * step)

    for index, array in enumerate(agent.policy):
        place = tuple(rng.integers(n) for n in array.shape)
        found = slope(agent.policy, index, place, lambda a: agent._replace(policy=a), lambda x: x.policy)
        np.testing.assert_allclose(gradients.policy[index][place], found, rtol=1e-5, atol=1e-8)
    for number in range(2):
        for index, array in enumerate(agent.critics[number]):
            place = tuple(rng.integers(n) for n in array.shape)

            def rebuild(arrays: list[np.ndarray], number: int = number) -> Reference:
                return agent._replace(critics=[arrays if i == number else agent.critics[i] for i in range(2)])

            found = slope(agent.critics[number], index, place, rebuild, lambda x, n=number: x.critics[n])
            np.testing.assert_allclose(gradients.critics[number][index][place], found, rtol=1e-5, atol=1e-8)


def test_only_terminals_stop_the_bootstrap(start, update, batches):
    rows, noise = batches[0]

    def critics_after(end: float, next_shift: float = 0.0) -> np.ndarray:
        changed = rows.copy()
        changed[:, SIZE.end] = end
        changed[:, SIZE.next_obs] += next_shift
        state, _ = update(start, changed, noise, MASK)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.critics)])

    assert np.array_equal(critics_after(TIMEOUT), critics_after(RUNNING))
    assert not np.allclose(critics_after(TERMINAL), critics_after(RUNNING))
    assert np.array_equal(critics_after(TERMINAL), critics_after(TERMINAL, next_shift=1.0))
    assert not np.allclose(critics_after(TIMEOUT), critics_after(TIMEOUT, next_shift=1.0))


def pad_rows(rows: np.ndarray, size: Layout, padded: Layout) -> np.ndarray:
    wide = np.zeros((*rows.shape[:-1], padded.width), np.float32)
    for name in ("obs", "action", "next_obs"):
        part = rows[..., getattr(size, name)]
        first = getattr(padded, name).start
        wide[..., first : first + part.shape[-1]] = part
    wide[..., -2:] = rows[..., -2:]
    return wide


@pytest.mark.long
def test_padded_member_learns_what_it_learns_alone():
    """Beside a member of the padded size, under one vmap; and the padding's weights never move."""
    padded = Layout(obs_dim=5, action_dim=4)
    keys = jax.random.split(jax.random.key(5), 2)
    replay = make_rows(np.random.default_rng(2), 40)
    learn_keys = jax.random.split(jax.random.key(6), 2)
    alone, alone_metrics = jax.jit(SMALL.advance, static_argnums=3)(
        init(keys[0], SIZE, SIZE), replay, 40, 8, learn_keys[0], MASK
    )
    together = jax.tree.map(lambda *a: jnp.stack(a), init(keys[0], SIZE, padded), init(keys[1], padded, padded))
    replays = np.stack([pad_rows(replay, SIZE, padded), make_rows(np.random.default_rng(3), 40, padded)])
    masks = jnp.array([[1.0, 1.0, 0.0, 0.0], [1.0] * 4])
    advance = jax.jit(jax.vmap(lambda s, r, k, m: SMALL.advance(s, r, 40, 8, k, m)))
    both, metrics = advance(together, replays, learn_keys, masks)
    member = jax.tree.map(lambda a: a[0], both)

    policy, critics = member.policy.params, member.critics.params
    heads = [0, 1, 4, 5]
    inputs = [0, 1, 2, 5, 6]

    def check(a: Any, b: Any) -> None:
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)

    check(policy[0].kernel[:3], alone.policy.params[0].kernel)
    check(policy[1].kernel, alone.policy.params[1].kernel)
    check(policy[2].kernel[:, heads], alone.policy.params[2].kernel)
    check(critics[0].kernel[:, inputs], alone.critics.params[0].kernel)
    check(member.targets[1].kernel, alone.targets[1].kernel)
    check(member.log_temperature.params, alone.log_temperature.params)
    np.testing.assert_allclose(metrics.entropy[0], alone_metrics.entropy, rtol=1e-4)
    assert not np.any(policy[0].kernel[3:])
    assert not np.any(np.delete(policy[2].kernel, heads, axis=1))
    assert not np.any(np.delete(policy[2].bias, heads))
    assert not np.any(np.delete(critics[0].kernel, inputs, axis=1))

    unmasked, _ = advance(together, replays, learn_keys, jnp.ones_like(masks))
    assert not np.allclose(unmasked.policy.params[1].kernel[0], policy[1].kernel, atol=1e-3), "the mask does nothing"

    key = jax.random.key(9)
    wide = SMALL.act(policy, jnp.zeros((4, 5)), masks[0], key)
    check(wide[:, :2], SMALL.act(alone.policy.params, jnp.zeros((4, 3)), MASK, key))
    assert not np.any(wide[:, 2:])
    assert np.array_equal(SMALL.explore(4, masks[0], key)[:, :2], SMALL.explore(4, MASK, key))


def test_scan_is_a_loop_over_drawn_batches(start, monkeypatch):
    """`advance` draws rows below `num_rows` only, and its updates are `update` one after the other."""
    replay = make_rows(np.random.default_rng(4), 30)
    replay[20:] = np.nan

    def loop(step, state, xs):
        metrics = []
        for rows, noise in zip(*xs, strict=True):
            state, one = step(state, (rows, noise))
            metrics.append(one)
        return state, jax.tree.map(lambda *m: jnp.stack(m), *metrics)

    def advance() -> State:
        return jax.jit(lambda s, r, k: SMALL.advance(s, r, 20, 2, k, MASK)[0])(start, replay, jax.random.key(0))

    scanned = advance()
    monkeypatch.setattr(module.jax.lax, "scan", loop)
    for a, b in zip(jax.tree.leaves(scanned), jax.tree.leaves(advance()), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_log_probability_keeps_its_digits_where_tanh_saturates():
    heads = np.array([[0.3, -0.2, -1.0, 0.5], [12.0, -15.0, -1.0, -9.0]], np.float32)
    noise = np.array([[0.5, -1.0], [0.2, 0.1]], np.float32)
    action, log_prob = sample(jnp.asarray(heads), jnp.asarray(noise), MASK)
    u, expected_action, expected = numpy_sample(heads.astype(np.float64), noise.astype(np.float64))
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5)
    np.testing.assert_allclose(action, expected_action, rtol=1e-5)
    std = np.exp(heads[0, 2:].astype(np.float64))
    gaussian = np.exp(-0.5 * noise[0] ** 2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(log_prob[0], np.log(gaussian / (1 - np.tanh(u[0]) ** 2)).sum(), rtol=1e-5)


def test_every_layer_starts_within_its_fan_in():
    """Also where it is padded: the bound is the one of its own inputs, and the padding is zero."""
    state = init(jax.random.key(1), Layout(11, 3), Layout(27, 8), SAC())
    for layer, inputs in zip(state.policy.params, (11, 256, 256), strict=True):
        for array in layer:
            assert 0.9 < np.abs(array).max() * inputs**0.5 <= 1.0 or array.size < 50
    first = np.asarray(state.critics.params[0].kernel)
    assert 0.9 < np.abs(first).max() * 14**0.5 <= 1.0
    assert not first[:, 11:27].any()
    assert not first[:, 30:].any()
    assert not np.allclose(first[0], first[1])
    for critic, target in zip(jax.tree.leaves(state.critics.params), jax.tree.leaves(state.targets), strict=True):
        assert np.array_equal(critic, target)


def count_product_flop(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            ((contracted, _), _) = equation.params["dimension_numbers"]
            sizes = [equation.invars[0].aval.shape[axis] for axis in contracted]
            total += 2 * int(np.prod(sizes)) * int(np.prod(equation.outvars[0].aval.shape))
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", None)
            total += count_product_flop(inner) if hasattr(inner, "eqns") else 0
    return total


def test_update_multiplies_nothing_it_does_not_need():
    """All matrix products of an update, counted in its program: 16 of the hidden size and the small layers'."""
    sac, size = SAC(), Layout(17, 6)
    state = jax.eval_shape(lambda key: sac.init(key, size, size), jax.random.key(0))
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((256, size.width), (2, 256, 6), (6,))]
    program = jax.make_jaxpr(sac.update)(state, *shapes)
    assert count_product_flop(program.jaxpr) == sac.update_flop(size)
    assert 16 * 2 * 256**3 < sac.update_flop(size) < 1.1 * 16 * 2 * 256**3
