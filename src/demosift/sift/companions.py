"""Companions of an expert who has shown too little: what one episode cannot tell about itself, a few like it can.

A single trajectory cannot be left out whole, so stretches of it are (`folds`). That does no harm where it repeats
itself, as a gait does. But a trajectory that passes through every state once is like itself and like no other: what is
left out is near the rest of it, so the models seem to know the expert well, and other good trajectories weigh next to
nothing beside it.

It shows in the weights: some episodes of the pile may happen to pass where the expert did, but not as many as four come
near it. Then the best four, by their weights and by how well they agree with the rest, may be its companions. They are
if they act like it: their actions in the most similar states must foretell the expert's. They join the expert's
episodes, and all rows are weighed again by models that leave out whole episodes. The new weights stand if they are
worth believing:

    told apart    the expert's episodes weigh more than what did not join: else nothing was learned
    recognised    each judged by models that never saw it, companions weigh nearly what the expert does, and the expert
                  at least what one of them does: strangers who are like each other know themselves better

Where the pile holds nothing like the expert, its best are strangers who fail one of these, and the first weights stand.
"""

import numpy as np
from jaxtyping import Bool, Float

from demosift.data import RowSource
from demosift.data.rows import Rows
from demosift.learning.neighbours import find_nearest
from demosift.sift.agreement import SIMILAR, STATE_COLUMNS, measure_agreement, whitened
from demosift.sift.second_look import joined, ranked, thinned

LONE = 2  # episodes of an expert who may need companions, at most: three and more are compared with each other
COMPANIONS = 4  # with the expert's episode, one for each of five folds
FEWEST_IN_PILE = 2 * COMPANIONS
APART = 1.0  # in mean log-weight: how far the fourth best of the pile is below an expert who is alone
FORESEEN = (
    0.25  # share of the expert's actions, as squared distances from the companions' mean, that these must foretell
)
TOLD = 0.5  # how far what did not join is below the expert's, if the second weights say anything
ALIKE = 0.5  # how far the least of the companions may be below the expert
STRANGE = 0.1  # how far the expert may be below all companions

Sources = tuple[RowSource, RowSource]
Values = Float[np.ndarray, "episodes"]


def find_companions(sources: Sources, mean: Values, seed: int) -> Bool[np.ndarray, "supplementary_episodes"] | None:
    """Which episodes of the pile may join the expert's; None where these need none, or where none acts like them.

    `mean`: the mean log-weight of each episode, the expert's first.
    """
    num_expert, num_pile = (len(source.episode_ends) for source in sources)
    own, merit = np.split(mean, [num_expert])
    if num_expert > LONE or num_pile < FEWEST_IN_PILE:
        return None
    if np.mean(own) - np.sort(merit)[-COMPANIONS] < APART:
        return None
    standing = np.minimum(ranked(merit), ranked(measure_agreement(sources[1], seed).combined))
    chosen = np.zeros(num_pile, bool)
    chosen[np.argsort(-standing, kind="stable")[:COMPANIONS]] = True
    parts = (thinned(sources[0], everything(sources[0]), 1), thinned(sources[1], chosen, 1))
    foretold = foresight(*((own.transitions.obs, own.transitions.action) for own in parts))
    return chosen if foretold >= FORESEEN else None


def foresight(expert: Rows, companions: Rows) -> float:
    """How much nearer the companions' actions in the most similar states are to the expert's than their mean is."""
    count = len(expert[0])
    state = whitened(np.concatenate([expert[0], companions[0]]).astype(np.float64), STATE_COLUMNS)
    taken, known = (rows[1].astype(np.float64) for rows in (expert, companions))
    index, _ = find_nearest(state[:count], state[count:], min(SIMILAR, len(known)))
    error, spread = (((guess - taken) ** 2).sum() for guess in (known[index].mean(axis=1), known.mean(axis=0)))
    return float(1 - error / max(spread, 1e-12))


def everything(source: RowSource) -> Bool[np.ndarray, "episodes"]:
    return np.ones(len(source.episode_ends), bool)


def with_companions(sources: Sources, chosen: Bool[np.ndarray, "supplementary_episodes"]) -> Sources:
    """The expert's episodes and their companions beside the whole pile."""
    return joined(thinned(sources[0], everything(sources[0]), 1), thinned(sources[1], chosen, 1)), sources[1]


def recognised(
    alone: Values, mean: Values, num_expert: int, chosen: Bool[np.ndarray, "supplementary_episodes"]
) -> bool:
    """Whether the second weights can be believed.

    `alone` and `mean`: mean log-weights of all episodes, the expert's first, by rows themselves and in their context.
    """
    expert, companions = np.mean(alone[:num_expert]), alone[num_expert:][chosen]
    told = np.mean(mean[:num_expert]) - np.mean(mean[num_expert:][~chosen])
    return bool(told >= TOLD and -STRANGE <= expert - np.min(companions) <= ALIKE)
