"""The replay of an agent as a dataset."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from demosift.sac.agent import RUNNING, TERMINAL, TIMEOUT, Layout
from demosift.types import Dataset, Transitions


def replay_dataset(
    rows: Float[np.ndarray, "rounds envs width"], padded: Layout, size: Layout, cuts: Sequence[int] = ()
) -> Dataset:
    """The replay of one agent as a dataset of whole episodes, in the order in which they began.

    The agent filled its buffer from `envs` environments in turn, so neighbours in it belong to different episodes. Here
    each episode's rows stand together, and episodes that began in the same round are in the order of the environments.
    So the file still runs from the first random episodes to the last skilled ones. `cuts` are the rounds at which a run
    was resumed and its environments had to begin anew. An episode that a cut or the end of training interrupts ends
    with a timeout.
    """
    num_rounds, num_envs, _ = rows.shape
    end = rows[..., padded.end].copy()
    for last in (*(cut - 1 for cut in cuts if 0 < cut <= num_rounds), num_rounds - 1):
        end[last] = np.where(end[last] == RUNNING, TIMEOUT, end[last])
    began = np.zeros((num_rounds, num_envs), np.int64)
    began[1:] = np.where(end[:-1] != RUNNING, np.arange(1, num_rounds)[:, None], 0)
    began = np.maximum.accumulate(began, axis=0)
    number, env = np.indices(began.shape)
    order = np.lexsort((number.ravel(), env.ravel(), began.ravel()))
    flat, end = rows.reshape(-1, padded.width)[order], end.ravel()[order]
    transitions = Transitions(
        obs=flat[:, padded.obs][:, : size.obs_dim],
        action=flat[:, padded.action][:, : size.action_dim],
        reward=flat[:, padded.reward],
        next_obs=flat[:, padded.next_obs][:, : size.obs_dim],
        terminal=end == TERMINAL,
    )
    return Dataset(transitions, timeout=end == TIMEOUT)
