"""Members that train apart are the members that train in one program, on whichever core each of them is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_demonstrations, tiny

from demosift.data.normaliser import Normaliser
from demosift.learning.cohort import Cohort
from demosift.learning.members import Members, advance, every_member, init_members, stack_members

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


def test_what_fails_in_a_thread_is_raised():
    members = members_of(range(2))
    cohort = Cohort(members, init_members(members))

    def fail(place: int) -> None:
        raise FloatingPointError(place)

    with pytest.raises(FloatingPointError):
        cohort.over_parts(fail)
