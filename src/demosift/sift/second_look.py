"""A second look at the episodes: what looks like the expert's helps to judge the others.

A few expert episodes show a few goals, so a good episode with another goal looks unlike them. But the pile holds more
that can be trusted: the quarter of its episodes that rank best both by their weights and by how well they agree with
the rest. They join the expert's, and episodes are weighed again. An episode is as good as the better of its two looks:
like the expert's, or like what is like the expert's. Where an episode ends is learned from the larger set, too, and
from all of the pile: it stops early only if both say so, since a second hand may end elsewhere than the expert's.

How well an episode agrees with the rest counts as well, as far as agreement and the first look rank the pile alike:
where most of a pile is bad they do not, and agreement counts for nothing.

Only the ranking of episodes comes of it. The weights of rows stay those of the expert's own episodes.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from demosift.data import RowSource
from demosift.data.episodes import join
from demosift.data.rows import DatasetRows
from demosift.sift.agreement import measure_agreement
from demosift.sift.finish import FEWEST_EPISODES, Finish, measure_finish
from demosift.types import Dataset, Transitions

FEWEST_IN_PILE = 20  # of which a quarter can be trusted
TRUSTED = 0.25
SUPPORT = 2.0  # what agreement counts beside a mean log-weight, where the two rank a pile alike
MOST_ROWS = 60_000  # that are weighed again: every n-th of each episode where there are more

Sources = tuple[RowSource, RowSource]
Values = Float[np.ndarray, "episodes"]


class SecondLook(NamedTuple):
    """About the episodes of both sources, the expert's first."""

    log_weight: Values  # the mean of each episode's rows
    finish: Finish | None
    support: Values  # what agreement with the rest of the pile adds; nothing for the expert's
    trusted: int  # episodes of the pile that joined the expert's


def possible(sources: Sources) -> bool:
    expert, pile = (len(source.episode_ends) for source in sources)
    return expert >= FEWEST_EPISODES and pile >= FEWEST_IN_PILE


def look_again(
    sources: Sources, merit: Values, weigh: Callable[[Sources], Float[np.ndarray, "rows"]], seed: int
) -> SecondLook:
    """`merit`: of the pile's episodes, after the first look. `weigh`: gives the weights of the rows of two sets."""
    agreed = measure_agreement(sources[1], seed)
    agreement = agreed.combined
    standing = np.minimum(ranked(merit), ranked(agreement))
    trusted = np.zeros(len(merit), bool)
    trusted[np.argsort(-standing, kind="stable")[: round(TRUSTED * len(merit))]] = True
    stride = -(-sum(source.num_rows for source in sources) // MOST_ROWS)
    own = thinned(sources[0], np.ones(len(sources[0].episode_ends), bool), stride)
    friends, others = (thinned(sources[1], chosen, stride) for chosen in (trusted, ~trusted))
    divided = joined(own, friends), DatasetRows(others)
    weight = weigh(divided)
    ends = np.concatenate([divided[0].episode_ends, divided[0].num_rows + divided[1].episode_ends])
    starts = np.concatenate([[0], ends[:-1]])
    mean = np.add.reduceat(np.log(weight), starts) / (ends - starts)
    order = in_order(own.num_episodes, trusted)
    finish = measure_finish(divided, seed)
    return SecondLook(
        mean[order],
        None if finish is None else credit(finish._replace(share=finish.share[order]), agreed.finish),
        np.concatenate([np.zeros(own.num_episodes), support(merit, agreement)]),
        int(trusted.sum()),
    )


def credit(finish: Finish, agreed: Finish | None) -> Finish:
    """Each episode of the pile went as far as one of the two says, whichever says more."""
    if agreed is None:
        return finish
    own, pile = np.split(finish.share, [len(finish.share) - len(agreed.share)])
    return finish._replace(share=np.concatenate([own, np.maximum(pile, agreed.share)]))


def support(merit: Values, agreement: Values) -> Values:
    """Agreement, times the rank correlation of the two where that is positive."""
    alike = np.corrcoef(ranked(merit), ranked(agreement))[0, 1]
    return SUPPORT * max(float(alike), 0.0) * agreement


def ranked(values: Values) -> Values:
    """The place of each, from 0, the least."""
    return np.argsort(np.argsort(values, kind="stable")).astype(np.float64)


def in_order(num_expert: int, trusted: Bool[np.ndarray, "episodes"]) -> Int[np.ndarray, "episodes"]:
    """Where each episode of both sources stands among the expert's, the trusted ones and the others."""
    place = np.concatenate([np.flatnonzero(trusted), np.flatnonzero(~trusted)])
    return np.concatenate([np.arange(num_expert), num_expert + np.argsort(place)])


def thinned(source: RowSource, chosen: Bool[np.ndarray, "episodes"], stride: int) -> Dataset:
    """Every n-th row of the chosen episodes, counted from their last, in memory."""
    bounds = zip(source.episode_starts[chosen], source.episode_ends[chosen], strict=True)
    rows = [np.arange(end - 1, start - 1, -stride)[::-1] for start, end in bounds]
    obs, action = source.take(np.concatenate(rows))
    last = np.zeros(len(obs), bool)
    last[np.cumsum([len(own) for own in rows]) - 1] = True
    nothing = np.zeros(len(obs), np.float32)
    return Dataset(Transitions(obs, action, nothing, obs, np.zeros(len(obs), bool)), last, source=source.source)


def joined(first: Dataset, second: Dataset) -> DatasetRows:
    return DatasetRows(replace(join([first, second]), source=f"{first.source} and the best"))
