"""Members that train apart are the members that train in one program, on whichever core each of them is."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_demonstrations, tiny

from demosift.data.normaliser import Normaliser
from demosift.learning.cohort import Cohort
from demosift.learning.members import (
    Members,
    SharedSets,
    advance,
    every_member,
    init_members,
    load_members,
    stack_members,
)

STEPS = 10


def members_of(seeds: range, own_data: bool = False) -> Members:
    sources = [random_demonstrations() for _ in (seeds if own_data else range(1))]
    normalisers = [Normaliser.identity(source.expert.obs_dim) for source in sources]
    return stack_members(every_member([tiny("wbcu")], seeds, sources, normalisers))


@pytest.mark.parametrize("own_data", [False, True])
def test_apart_is_as_together(own_data: bool):
    members = members_of(range(3), own_data)
    cohort = Cohort(members, init_members(members))
    first = cohort.advance(0, STEPS)
    cohort.state = jax.tree.map(jnp.copy, cohort.state)  # as a checkpoint brings it back
    second = cohort.advance(STEPS, STEPS)
    state, expected_first = advance(members, init_members(members), 0, STEPS)
    state, expected_second = advance(members, state, STEPS, STEPS)
    for own, expected in ((first, expected_first), (second, expected_second), (cohort.state, state)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), own, expected)


def test_on_a_cpu_each_member_is_a_program_of_its_own():
    members = members_of(range(3))
    cohort = Cohort(members, init_members(members))
    assert [part.seed.tolist() for part in cohort.parts] == [[0], [1], [2]]
    assert all(part.shared is members.shared for part in cohort.parts)  # the data are there once
    assert cohort.over_parts(lambda place: 10 * place) == [0, 10, 20]


def test_elsewhere_one_program_has_them_all(monkeypatch: pytest.MonkeyPatch):
    members = members_of(range(3))
    state = init_members(members)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    cohort = Cohort(members, state)
    assert cohort.parts == [members]
    assert cohort.state is state
    assert cohort.threads is None


def test_members_that_share_data_have_it_once():
    """Three members, two sets: as with a copy for each, and each draws from its own set."""
    first, second = random_demonstrations(), random_demonstrations(seed=5, num_rows=40)
    weighted = [replace(data, weight=np.arange(1.0, 1.0 + len(data.union.reward))) for data in (first, second)]
    sources = [weighted[0], weighted[1], weighted[0]]
    normaliser = Normaliser.identity(first.expert.obs_dim)
    each = every_member([tiny("nbcu")], range(3), sources, [normaliser] * 3)
    data = load_members(each)
    assert data[2] is data[0]
    shared, apart = stack_members(each, data), stack_members(each, [own._replace() for own in data])
    assert isinstance(shared.shared, SharedSets)
    assert len(shared.shared.sets.union.reward) == 2
    assert shared.own.tolist() == [0, 1, 0]
    assert apart.shared is None
    key = jax.random.key(0)
    for place in range(3):
        one = shared.shared.of(shared.own[place])
        alone = jax.tree.map(lambda array, place=place: array[place], apart.own)
        batch, expected = (of.batch(of.draw(key, 64)) for of in (one, alone))
        jax.tree.map(np.testing.assert_array_equal, batch, expected)
    ended, expected = (advance(members, init_members(members), 0, STEPS) for members in (shared, apart))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ended, expected)


def test_what_fails_in_a_thread_is_raised():
    members = members_of(range(2))
    cohort = Cohort(members, init_members(members))

    def fail(place: int) -> None:
        raise FloatingPointError(place)

    with pytest.raises(FloatingPointError):
        cohort.over_parts(fail)
