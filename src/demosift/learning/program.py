"""A program: members that train together on the device, also in different environments, and their policies."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from demosift.learning.acting import numpy_policy
from demosift.learning.algorithm import Metrics, State
from demosift.learning.cohort import Cohort
from demosift.learning.members import (
    Member,
    Members,
    Precision,
    TrainingData,
    fill,
    init_members,
    load_members,
    named_arrays,
    stack_members,
    with_ensemble,
)
from demosift.learning.padding import Padded, Sizes, axis_kinds, mask_of, pad_data, pad_state, unpad_leaf
from demosift.learning.runner import Group, Trainee, finite_members
from demosift.policy import Policy
from demosift.results.checkpoint import Arrays, Checkpoint


class Program(Trainee):
    """Members of one algorithm. Those of different environments are padded to common sizes."""

    def __init__(self, members: Sequence[Member], precision: Precision = "float32", ensemble: int = 1) -> None:
        """With an `ensemble` every member is so many networks, whose policy acts by the mean of their actions."""
        self.each = with_ensemble(members, ensemble)
        self.ensemble = ensemble
        self.algorithm = self.each[0].algorithm
        self.groups = group_by_environment(self.each)
        self.sizes = [sizes_of(self.each[group[0]]) for group in self.groups]
        self.common = Sizes(*(max(size) for size in zip(*self.sizes, strict=True)))
        self.padded = len(set(self.sizes)) > 1
        self.kinds = axis_kinds(self.algorithm) if self.padded else []
        self.policy_kinds = axis_kinds(self.algorithm, self.algorithm.policy) if self.padded else []
        self.cohort = Cohort(*self._place(), precision)

    def __len__(self) -> int:
        return len(self.each) // self.ensemble

    def _place(self) -> tuple[Members, State]:
        data = load_members(self.each)
        if not self.padded:
            members = stack_members(self.each, data)
            return members, init_members(members)
        states, masks = {}, {}
        padded: dict[int, TrainingData] = {}  # by the data's own id: members that share data go on sharing them
        for group, sizes in zip(self.groups, self.sizes, strict=True):
            own = stack_members([self.each[i] for i in group], [data[i] for i in group])
            state = pad_state(init_members(own), self.kinds, sizes, self.common)
            for place, i in enumerate(group):
                states[i] = jax.tree.map(lambda leaf, place=place: leaf[place], state)
                masks[i] = [mask_of(kinds, sizes, self.common) for kinds in self.kinds]
                if id(data[i]) not in padded:
                    padded[id(data[i])] = pad_data(data[i], sizes, self.common)
        order = range(len(self.each))
        members = stack_members(self.each, [padded[id(each)] for each in data])
        stacked = [
            None if mask[0] is None else jnp.asarray(np.stack(mask))
            for mask in zip(*(masks[i] for i in order), strict=True)
        ]
        state = jax.tree.map(lambda *parts: jnp.asarray(np.stack(parts)), *(states[i] for i in order))
        return members._replace(algorithm=Padded(members.algorithm, stacked)), state

    def advance(self, position: int, steps: int) -> Metrics:
        """Start the next iterations. A padded policy's loss is left out of the metrics, since padding shifts it."""
        metrics = self.cohort.advance(position, steps)
        if self.ensemble > 1:
            metrics = {name: jnp.nanmean(value.reshape(-1, self.ensemble), axis=1) for name, value in metrics.items()}
        return {name: value for name, value in metrics.items() if not (self.padded and name == "policy_loss")}

    def networks(self) -> Any:
        """The policies as the algorithm has them, of all members together."""
        return self.algorithm.policy(self.cohort.state)

    def policies(self) -> list[Group]:
        """The policies of each environment; nothing else leaves the device."""
        leaves, structure = jax.tree.flatten(jax.device_get(self.networks()))
        found = []
        for group, sizes in zip(self.groups, self.sizes, strict=True):
            own = [np.asarray(leaf)[np.array(group)] for leaf in leaves]
            if self.padded:
                pairs = zip(own, self.policy_kinds, strict=True)
                own = [unpad_leaf(leaf, kinds, sizes, self.common) for leaf, kinds in pairs]
            shift, scale = (np.stack(parts) for parts in zip(*(self.each[i].normaliser for i in group), strict=True))
            network, environment = jax.tree.unflatten(structure, own), self.each[group[0]].environment
            policy = numpy_policy(network, shift, scale, environment)
            found.append(Group([i // self.ensemble for i in group[:: self.ensemble]], gather(policy, self.ensemble)))
        return found

    def capture(self) -> Arrays:
        """All that training needs to continue."""
        return named_arrays(self.cohort.state)

    def restore(self, checkpoint: Checkpoint) -> None:
        self.cohort.state = fill(self.cohort.state, checkpoint.arrays)


def gather(policy: Policy, size: int) -> Policy:
    """Networks that stand together become one member's ensemble. One that diverged leaves it, and as many with it of
    every other member: ensembles of one file are of one size. A member of which nothing is left keeps what it has.
    """
    if size == 1:
        return policy
    finite = finite_members(policy).reshape(-1, size)
    kept = min((count for count in finite.sum(axis=1) if count), default=size)
    if kept < size:
        warnings.warn(f"{size - kept} of {size} networks diverged and left the ensemble", stacklevel=2)
    chosen = np.argsort(~finite, axis=1, kind="stable")[:, :kept] + size * np.arange(len(finite))[:, None]
    return replace(policy.members(chosen.ravel().tolist()), ensemble=int(kept))


def group_by_environment(members: Sequence[Member]) -> list[list[int]]:
    """The places of each environment's members; members that name no environment are put together."""
    found: dict[object, list[int]] = {}
    for place, member in enumerate(members):
        spec = member.environment
        key = None if spec is None else (spec.id, repr(sorted(spec.kwargs.items())), spec.action_low, spec.action_high)
        found.setdefault((key, sizes_of(member)), []).append(place)
    return list(found.values())


def sizes_of(member: Member) -> Sizes:
    return Sizes(member.data.expert.obs_dim, member.data.expert.action_dim)
