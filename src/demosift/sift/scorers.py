"""The scorers: ways to say how much a row looks like the expert's. A new one is a class here and a line in `SCORERS`.

A scorer fits all models of a plan to a pool, each on the rows that it does not leave out, and returns something that
gives a model's log-ratios of any rows: perhaps several per row, of which `calibration` makes a weight. None of them is
shown rewards, or anything else but states and actions.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from jaxtyping import Float, Int, Shaped
from sklearn.ensemble import HistGradientBoostingClassifier

from demosift.sift.calibration import Coefficients, fit_coefficients
from demosift.sift.discriminators import ActionDiscriminator, Discriminator, LikelihoodDiscriminator, Part
from demosift.sift.neighbours import ActionCloseness, StateCloseness, make_references
from demosift.sift.sample import Pool
from demosift.sift.training import Report, Trained, Trainer, logit, make_slots, training_rows
from demosift.types import InputError

Obs = Float[np.ndarray, "rows obs"]
Action = Shaped[np.ndarray, "rows action"]
Features = Float[np.ndarray, "features rows"]

EVERY, PATIENCE = 250, 4  # held-out losses are taken that often, and may fail to improve that many times
RESAMPLED = 65_536  # rows drawn by weight, to train on


class Fitted(Protocol):
    """All models, trained."""

    def features(self, model: int, obs: Obs, action: Action) -> Features: ...

    def describe(self) -> dict[str, float]:
        """What training found out about itself."""
        ...


class Scorer(Protocol):
    name: ClassVar[str]

    @property
    def work(self) -> int:
        """How many units `report` will be told of."""
        ...

    def fit(self, pool: Pool, seed: int, report: Report) -> Fitted: ...


def features_by_models(
    fitted: Fitted, model_of: Int[np.ndarray, "members rows"], obs: Obs, action: Action
) -> Float[np.ndarray, "members features rows"]:
    """Each row's by one model of every member. Models are applied in parallel, since one keeps one core busy."""
    tasks = [
        (member, int(model), np.flatnonzero(models == model))
        for member, models in enumerate(model_of)
        for model in np.unique(models)
    ]

    def apply(task: tuple[int, int, np.ndarray]) -> Features:
        _, model, rows = task
        return fitted.features(model, obs[rows], action[rows])

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = list(threads.map(apply, tasks))
    whole = np.empty((len(model_of), len(found[0]), len(obs)))
    for (member, _, rows), features in zip(tasks, found, strict=True):
        whole[member][:, rows] = features
    return whole


def held_out_features(fitted: Fitted, pool: Pool) -> Float[np.ndarray, "members features rows"]:
    """Of every row of the pool by the models, one of each member, that left it out."""
    model_of = np.stack([pool.plan.model_of(member, slice(None)) for member in range(pool.plan.num_members)])
    return features_by_models(fitted, model_of, pool.obs, pool.action)


def calibrate(fitted: Fitted, pool: Pool) -> list[Coefficients]:
    """A member's coefficients each."""
    return [fit_coefficients(features, pool.num_expert) for features in held_out_features(fitted, pool)]


@dataclass(frozen=True)
class FittedParts:
    """Networks: one feature for each part."""

    names: tuple[str, ...]
    parts: tuple[Trained, ...]

    def features(self, model: int, obs: Obs, action: Action) -> Features:
        return np.stack([logit(part, model, obs, action) for part in self.parts])

    def describe(self) -> dict[str, float]:
        pairs = list(zip(self.names, self.parts, strict=True))
        iterations = {f"{name}_iterations": part.iteration for name, part in pairs}
        return iterations | {f"{name}_held_out_loss": part.loss for name, part in pairs}


def fit_parts(parts: Sequence[tuple[str, Part]], iterations: int, pool: Pool, seed: int, report: Report) -> FittedParts:
    trainer, slots = Trainer(pool, seed, report), make_slots(*training_rows(pool))
    trained = tuple(trainer.train(part, slots, iterations, EVERY, PATIENCE) for _, part in parts)
    return FittedParts(tuple(name for name, _ in parts), trained)


@dataclass(frozen=True)
class WBCUScorer:
    """WBCU's discriminator."""

    name: ClassVar[str] = "wbcu"
    last_bias: ClassVar[bool] = True
    gradient_penalty: float = 1.0
    learning_rate: float = 3e-4
    iterations: int = 3_000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    @property
    def work(self) -> int:
        return self.iterations

    def fit(self, pool: Pool, seed: int, report: Report) -> FittedParts:
        part = Discriminator(self.gradient_penalty, self.learning_rate, self.last_bias, self.batch_size, self.hidden)
        return fit_parts([("discriminator", part)], self.iterations, pool, seed, report)


@dataclass(frozen=True)
class DemoDICEScorer(WBCUScorer):
    """DemoDICE's discriminator. Its critic would need next states, which scoring does not read."""

    name: ClassVar[str] = "demodice"
    last_bias: ClassVar[bool] = False
    gradient_penalty: float = 0.1


@dataclass(frozen=True)
class DWBCScorer:
    """DWBC's discriminator and the policy that it looks at."""

    name: ClassVar[str] = "dwbc"
    learning_rate: float = 1e-4
    iterations: int = 3_000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    @property
    def work(self) -> int:
        return self.iterations

    def fit(self, pool: Pool, seed: int, report: Report) -> FittedParts:
        part = LikelihoodDiscriminator(self.learning_rate, self.batch_size, self.hidden)
        return fit_parts([("discriminator", part)], self.iterations, pool, seed, report)


@dataclass(frozen=True)
class FittedTogether:
    """The features of several, side by side."""

    parts: tuple[Fitted, ...]

    def features(self, model: int, obs: Obs, action: Action) -> Features:
        return np.concatenate([part.features(model, obs, action) for part in self.parts])

    def describe(self) -> dict[str, float]:
        return {key: value for part in self.parts for key, value in part.describe().items()}


@dataclass(frozen=True)
class NeighbourScorer:
    """The baseline that learns nothing: the action against those at the nearest expert states."""

    name: ClassVar[str] = "neighbours"
    neighbours: int = 5

    @property
    def work(self) -> int:
        return 1

    def fit(self, pool: Pool, seed: int, report: Report) -> FittedTogether:
        references = make_references(pool, training_rows(pool)[0], self.neighbours)
        report(1)
        return FittedTogether((StateCloseness(references), ActionCloseness(references)))


@dataclass(frozen=True)
class ContrastScorer:
    """States and actions apart; then again with what the pile has to say.

    States by their distance from the expert's; actions by a network and by those taken nearby. The first round learns
    from the expert's rows alone. The second draws half of its positive rows from the union in proportion to the weights
    of the first, and compares actions with such rows: that is the expert's distribution again, as in weighted cloning,
    but made of many more rows where the pile has them.
    """

    name: ClassVar[str] = "contrast"
    learning_rate: float = 1e-3
    iterations: int = 1_000
    second_iterations: int = 1_000
    patience: int = 2
    neighbours: int = 5
    compared: int = 2_048  # rows drawn by weight that actions are compared with, besides the expert's
    batch_size: int = 256
    hidden: tuple[int, ...] = (64, 64)

    @property
    def work(self) -> int:
        return self.iterations + self.second_iterations

    def fit(self, pool: Pool, seed: int, report: Report) -> FittedTogether:
        trainer, (expert, union, pile) = Trainer(pool, seed, report), training_rows(pool)
        part = ActionDiscriminator(self.learning_rate, batch_size=self.batch_size, hidden=self.hidden)
        trained = trainer.train(part, make_slots(expert, union, pile), self.iterations, EVERY, self.patience)
        references = make_references(pool, expert, self.neighbours)
        near = StateCloseness(references)
        first = FittedTogether((near, ActionCloseness(references), FittedParts(("action",), (trained,))))
        if not self.second_iterations:
            return first
        drawn = resample(first, pool, union, seed)
        positive = [np.concatenate([np.resize(own, len(new)), new]) for own, new in zip(expert, drawn, strict=True)]
        slots = make_slots(positive, union, pile)
        trained = trainer.train(part, slots, self.second_iterations, EVERY, self.patience, since=trained)
        # States keep the expert's as reference: how near the pile's are tells how many of them there are.
        compared = [np.union1d(own, new[: self.compared]) for own, new in zip(expert, drawn, strict=True)]
        references = make_references(pool, compared, self.neighbours)
        return FittedTogether((near, ActionCloseness(references), FittedParts(("action",), (trained,))))


def resample(fitted: Fitted, pool: Pool, union: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """For every model, rows that it may train on, drawn in proportion to the weights that it gives them."""
    rng = np.random.default_rng([seed, 4])
    coefficients = calibrate(fitted, pool)
    drawn = []

    def weigh(model: int) -> Float[np.ndarray, "rows"]:
        features = fitted.features(model, pool.obs[union[model]], pool.action[union[model]])
        return np.exp(coefficients[model // pool.plan.num_folds].log_weight(features))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for rows, weight in zip(union, threads.map(weigh, range(len(union))), strict=True):
            drawn.append(rng.choice(rows, RESAMPLED, p=weight / weight.sum()))
    return drawn


@dataclass(frozen=True)
class FittedTrees:
    models: tuple[HistGradientBoostingClassifier, ...]

    def features(self, model: int, obs: Obs, action: Action) -> Features:
        return np.asarray(self.models[model].decision_function(np.concatenate([obs, action], axis=1)))[None]

    def describe(self) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class TreeScorer:
    """Gradient-boosted trees as the discriminator of (s, a)."""

    name: ClassVar[str] = "trees"
    trees: int = 60

    @property
    def work(self) -> int:
        return 1

    def fit(self, pool: Pool, seed: int, report: Report) -> FittedTrees:
        x = np.concatenate([pool.obs, pool.action], axis=1)
        models = []
        for expert, union, _ in zip(*training_rows(pool), strict=True):
            rows, label = np.concatenate([expert, union]), np.repeat([1, 0], [len(expert), len(union)])
            weight = np.repeat([1 / len(expert), 1 / len(union)], [len(expert), len(union)]) * len(union)
            model = HistGradientBoostingClassifier(max_iter=self.trees, random_state=seed)
            model.set_params(early_stopping=False)
            models.append(model.fit(x[rows], label, sample_weight=weight))
        report(1)
        return FittedTrees(tuple(models))


SCORERS: dict[str, type[Scorer]] = {
    each.name: each
    for each in (
        ContrastScorer,
        WBCUScorer,
        DemoDICEScorer,
        DWBCScorer,
        NeighbourScorer,
        TreeScorer,
    )
}
DEFAULT = ContrastScorer.name


def make_scorer(name: str) -> Scorer:
    if name not in SCORERS:
        raise InputError(f"scorer: {name!r} is unknown; choose one of {', '.join(SCORERS)}")
    return SCORERS[name]()
