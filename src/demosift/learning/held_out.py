"""Held-out rows: what a policy is judged by where there are files and no simulator.

A share of the expert's rows is left out of training, and with them their copies in the supplementary set. While the
policy trains, its loss on these rows is measured:

    mean (a(s) - a)^2     of the action a(s) that the policy takes, in [-1, 1]
    -mean log p(a|s)      where actions are discrete

An ensemble is judged by the mean of its networks' actions or probabilities, with which it acts. Continuous actions are
not judged by their likelihood: its value depends on the standard deviations that a setting allows, so it cannot
compare settings.
"""

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from demosift.data.checks import one_line
from demosift.data.folds import find_copies, hash_rows, split_expert
from demosift.files import plain
from demosift.learning.algorithm import Metrics
from demosift.learning.program import Program
from demosift.learning.runner import Group, Trainee
from demosift.policy import Policy, map_arrays, named_arrays
from demosift.ranges import HALF
from demosift.results.checkpoint import Arrays, Checkpoint
from demosift.types import Dataset, Demonstrations, InputError

LEAST_ROWS = 20  # fewer say nothing about a policy
MOST_ROWS = 8_192  # of more, so many are measured, evenly spaced
LAST_CHECKS = 5  # by whose mean a setting is chosen
MOST_FOLDS = 10  # for shares of a tenth and more, so that twenty episodes are enough to leave out whole ones


def choose_held_out(data: Demonstrations, share: float) -> Bool[np.ndarray, "rows"]:
    """Which rows of the union to leave out: a share of the expert's, and their copies.

    They are the last of the folds into which `score` splits an expert set, so the start of a lone trajectory is kept.
    The choice depends on the data alone: settings and seeds are judged by the same rows.
    """
    expert, supplementary = data.expert, data.supplementary
    HALF.check("held_out", share)
    if len(expert) * share < LEAST_ROWS:
        raise InputError(f"{expert.source}: {few(len(expert) * share)}; leave out a larger share, or give more rows")
    part = Fraction(share).limit_denominator(MOST_FOLDS)
    if abs(part - share) > share / 10:  # a small share needs more folds: one of them is left out
        part = Fraction(1, round(1 / share))
    parts = [each.transitions for each in (expert, supplementary) if each is not None]
    copies = find_copies(np.concatenate([hash_rows(each.obs, each.action) for each in parts]), len(expert))
    first = copies.first[: len(expert)]
    fold = split_expert(expert.episode_ends, first, part.denominator, np.random.default_rng(0), expert.source)
    held = fold >= part.denominator - part.numerator
    if held.sum() < LEAST_ROWS:
        raise InputError(f"{expert.source}: {few(held.sum())}; leave out a larger share, or give more rows")
    left_out = np.append(held, False)[np.minimum(copies.first, len(expert))]
    if supplementary is not None and left_out[len(expert) :].all():
        raise InputError(f"{supplementary.source}: holds nothing but copies of the rows that are held out")
    return left_out


def few(num_rows: float) -> str:
    return f"held_out leaves out {int(num_rows)} rows of the expert, and {LEAST_ROWS} are needed to judge a policy"


def without(data: Demonstrations, left_out: Bool[np.ndarray, "rows"]) -> Demonstrations:
    """The data, and their weights, without these rows of the union."""
    here, there = np.split(left_out, [len(data.expert)])
    return replace(
        data,
        expert=drop(data.expert, here),
        supplementary=None if data.supplementary is None else drop(data.supplementary, there),
        weight=None if data.weight is None else data.weight[~left_out],
    )


def drop(dataset: Dataset, rows: Bool[np.ndarray, "rows"]) -> Dataset:
    """The other rows. The last one left of an episode ends it."""
    episode = np.repeat(np.arange(dataset.num_episodes), dataset.episode_ends - dataset.episode_starts)[~rows]
    kept = dataset.take(~rows)
    return replace(kept, timeout=np.append(np.diff(episode) > 0, True) & ~kept.transitions.terminal)


class HeldOut(Trainee):
    """A program whose policies are judged by rows of their own after every chunk.

    With `patience` each member's policy is that of its least loss so far, and the run is over when no member has
    improved in so many checks. The state of this is in the checkpoint.
    """

    def __init__(
        self, program: Program, rows: Sequence[Dataset], patience: int | None = None, stop_every: int = 1
    ) -> None:
        """`rows` has those of each member. A run is over only after a multiple of `stop_every` iterations."""
        self.program, self.patience, self.stop_every = program, patience, stop_every
        self.least = np.full(len(program), np.inf, np.float32)
        self.kept: Policy | None = None
        self.waited = self.position = 0
        normalisers = [member.normaliser for member in program.each[:: program.ensemble]]
        longest = min(MOST_ROWS, max(map(len, rows)))
        obs, action, share = [], [], []
        for own, normaliser in zip(rows, normalisers, strict=True):
            count = min(len(own), longest)
            index = np.linspace(0, len(own) - 1, count).round().astype(int)
            chosen = own.take(np.resize(index, longest)).transitions  # the repeated ones count for nothing
            obs.append(normaliser.apply(chosen.obs))
            action.append(chosen.action)
            share.append((np.arange(longest) < count) / count)
        self.rows = tuple(jnp.asarray(np.stack(arrays), jnp.float32) for arrays in (obs, action, share))

    def __len__(self) -> int:
        return len(self.program)

    def advance(self, position: int, steps: int) -> Metrics:
        metrics = self.program.advance(position, steps)
        loss = action_loss(self.program.networks(), *self.rows, self.program.ensemble)
        if self.patience is not None:
            self.position = position + steps
            self.compare(np.asarray(loss))
        return {**metrics, "held_out_loss": loss}

    def compare(self, loss: Float[np.ndarray, "members"]) -> None:
        better = loss < self.least
        self.least = np.where(better, loss, self.least)
        self.waited = 0 if better.any() else self.waited + 1
        if better.any():
            ((_, policy),) = self.program.policies()
            self.kept = policy if self.kept is None else replace_members(self.kept, policy, better)

    def is_over(self) -> bool:
        return self.patience is not None and self.waited >= self.patience and self.position % self.stop_every == 0

    def policies(self) -> list[Group]:
        return self.program.policies() if self.kept is None else [Group(list(range(len(self))), self.kept)]

    def capture(self) -> Arrays:
        arrays = self.program.capture()
        if self.kept is None:
            return arrays
        layers = {checkpoint_name(name): array for name, array in named_arrays(self.kept.layers)}
        return {**arrays, **layers, "held_out/least": self.least, "held_out/waited": np.array([self.waited])}

    def restore(self, checkpoint: Checkpoint) -> None:
        self.program.restore(checkpoint)
        if "held_out/least" not in checkpoint.arrays:  # no patience, or no loss was finite yet
            return
        ((_, policy),) = self.program.policies()
        try:
            least, waited = checkpoint.arrays["held_out/least"], checkpoint.arrays["held_out/waited"]
            if least.shape != (len(self),) or least.dtype.kind != "f" or waited.dtype.kind != "i":
                raise ValueError("held_out/least and held_out/waited")
            kept = iter([checkpoint.arrays[checkpoint_name(name)] for name, _ in named_arrays(policy.layers)])
            self.kept = with_layers(policy, map_arrays(lambda _: next(kept), policy.layers))
            self.least, self.waited = least, waited.item()
        except (KeyError, ValueError, IndexError, ZeroDivisionError) as error:
            raise InputError(f"the checkpoint does not fit this run: {one_line(error)}") from error
        self.position = checkpoint.position


def checkpoint_name(name: str) -> str:
    """`held_out/kernel/0` for the array `0/kernel`."""
    return "/".join(["held_out", *reversed(name.split("/"))])


def with_layers(policy: Policy, layers: Any) -> Policy:
    """The policy with other networks, perhaps more or fewer of them for a member."""
    size = len(next(named_arrays(layers))[1]) // policy.num_members
    shift, scale = (np.repeat(array[:: policy.ensemble], size, axis=0) for array in (policy.shift, policy.scale))
    return replace(policy, layers=layers, shift=shift, scale=scale, ensemble=size)


def replace_members(old: Policy, new: Policy, which: Bool[np.ndarray, "members"]) -> Policy:
    """The old policy with some members of the new one. Ensembles become as small as the smaller, if networks left."""
    size = min(old.ensemble, new.ensemble)

    def joined(old_array: np.ndarray, new_array: np.ndarray) -> np.ndarray:
        a, b = (each.reshape(len(which), -1, *each.shape[1:])[:, :size] for each in (old_array, new_array))
        return np.where(which.reshape(-1, *[1] * (a.ndim - 1)), b, a).reshape(-1, *old_array.shape[1:])

    return with_layers(old, map_arrays(joined, old.layers, new.layers))


def choose(rows: Sequence[Mapping[str, Any]], failed: Container[int], num_seeds: int, stopping: bool) -> dict[str, Any]:
    """The member to use: of the setting whose seeds have the least loss, the one that has the least itself.

    A member's loss is the mean of its last checks, or its least where the policy of the best check is kept. Members are
    numbered as in the policy, which has none that failed.
    """
    found: dict[int, list[float]] = {}
    for row in rows:
        if "held_out_loss" in row:
            found.setdefault(row["member"], []).append(np.inf if row["held_out_loss"] is None else row["held_out_loss"])
    if sorted(found) != list(range(len(found))) or len(found) % num_seeds:
        raise InputError("the metrics of the run lack the held-out loss of a member: a file of it is damaged")
    loss = [
        min(found[member]) if stopping else float(np.mean(found[member][-LAST_CHECKS:])) for member in sorted(found)
    ]
    of_setting = np.mean(np.reshape(loss, (-1, num_seeds)), axis=1).tolist()
    alive = [member for member in sorted(found) if member not in failed]
    best = min(alive, key=lambda member: (of_setting[member // num_seeds], loss[member]))
    return {"member": alive.index(best), "held_out_loss": plain(loss[best])}


@functools.partial(jax.jit, static_argnames="ensemble")
def action_loss(
    networks: Any,
    obs: Float[Array, "members rows obs"],
    action: Float[Array, "members rows action"],
    share: Float[Array, "members rows"],
    ensemble: int = 1,
) -> Float[Array, "members"]:
    """The loss of every member on its rows, whose shares sum to one. Networks of an ensemble stand together.

    A network that diverged leaves its ensemble, as it does when the policy acts.
    """

    def propose(network: Any, obs: Float[Array, "rows obs"]) -> Float[Array, "rows action"]:
        outputs = network.outputs(obs)
        if network.kind == "categorical":
            return jax.nn.softmax(outputs)
        mean = outputs[:, : outputs.shape[1] // 2]
        return jnp.tanh(mean if network.mean_limit is None else jnp.clip(mean, -network.mean_limit, network.mean_limit))

    def one(own: Any, obs: Array, action: Array, share: Array) -> Float[Array, ""]:
        taken = jnp.nanmean(over(lambda network: propose(network, obs), own), axis=0)
        if networks.kind == "categorical":
            error = -jnp.log(jnp.maximum(jnp.sum(taken * action, axis=-1), jnp.finfo(jnp.float32).tiny))
        else:
            error = jnp.mean((taken - action) ** 2, axis=-1)
        return jnp.sum(share * error)

    apart = jax.tree.map(lambda leaf: leaf.reshape(-1, ensemble, *leaf.shape[1:]), networks)
    return over(one, apart, obs, action, share)


def over(function: Callable[..., Array], *stacked: Any) -> Array:
    """Call a function for every entry: all at once on a GPU, in turn on a CPU, where batched products are slow."""
    if jax.default_backend() == "cpu":
        return jax.lax.map(lambda each: function(*each), stacked)
    return jax.vmap(function)(*stacked)
