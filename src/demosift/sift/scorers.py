"""The scorers: ways to measure how much a row looks like the expert's. One is a class and a line in `registry.py`.

A scorer fits all models of a plan to a sample, each model without the rows that it leaves out. Any row then gets one or
more log-ratios from a model, which `calibration` turns into a weight. A scorer sees states and actions only, never
rewards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int, Shaped
from sklearn.ensemble import HistGradientBoostingClassifier

from demosift.registry import SCORERS
from demosift.sift.calibration import fit_coefficients, log_loss
from demosift.sift.discriminators import ActionDiscriminator, Discriminator, LikelihoodDiscriminator, Part
from demosift.sift.neighbours import action_closeness, make_references, state_closeness
from demosift.sift.training import Report, Trained, Trainer, logit, make_slots, training_rows
from demosift.sift.training_sample import TrainingSample
from demosift.simulation.cores import core_threads

Obs = Float[np.ndarray, "rows obs"]
Action = Shaped[np.ndarray, "rows action"]
Features = Float[np.ndarray, "features rows"]

EVERY, PATIENCE = 250, 4  # iterations between held-out losses, and how many of these may fail to improve
RESAMPLED = 65_536  # rows drawn by weight, to train on


class Fitted(NamedTuple):
    """All models, trained: a model's log-ratios of any rows, and what is known about the training."""

    features: Callable[[int, Obs, Action], Features]
    about: Mapping[str, float] = {}


class Scorer(Protocol):
    name: ClassVar[str]

    @property
    def work(self) -> int:
        """How many units of work `report` will count."""
        ...

    def fit(self, sample: TrainingSample, seed: int, report: Report) -> Fitted: ...


def features_by_models(
    fitted: Fitted, model_of: Int[np.ndarray, "members rows"], obs: Obs, action: Action
) -> Float[np.ndarray, "members features rows"]:
    """The features of each row by one model of every member. Models run in parallel, since each keeps one core busy."""
    tasks = [
        (member, int(model), np.flatnonzero(models == model))
        for member, models in enumerate(model_of)
        for model in np.unique(models)
    ]

    def apply(task: tuple[int, int, np.ndarray]) -> Features:
        _, model, rows = task
        return fitted.features(model, obs[rows], action[rows])

    with core_threads() as threads:
        found = list(threads.map(apply, tasks))
    whole = np.empty((len(model_of), len(found[0]), len(obs)))
    for (member, _, rows), features in zip(tasks, found, strict=True):
        whole[member][:, rows] = features
    return whole


def held_out_features(fitted: Fitted, sample: TrainingSample) -> Float[np.ndarray, "members features rows"]:
    """The features of every row of the sample by the models, one of each member, that left it out."""
    return features_by_models(fitted, sample.plan.models_of(slice(None)), sample.obs, sample.action)


def network(name: str, trained: Trained) -> Fitted:
    about = {f"{name}_iterations": trained.iteration, f"{name}_held_out_loss": trained.loss}
    return Fitted(lambda model, obs, action: logit(trained, model, obs, action)[None], about)


def together(*parts: Fitted) -> Fitted:
    """The features of several, side by side."""

    def features(model: int, obs: Obs, action: Action) -> Features:
        return np.concatenate([part.features(model, obs, action) for part in parts])

    return Fitted(features, {key: value for part in parts for key, value in part.about.items()})


def fit_discriminator(part: Part, iterations: int, sample: TrainingSample, seed: int, report: Report) -> Fitted:
    trainer, slots = Trainer(sample, seed, report), make_slots(*training_rows(sample))
    return network("discriminator", trainer.train(part, slots, iterations, EVERY, PATIENCE))


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

    def fit(self, sample: TrainingSample, seed: int, report: Report) -> Fitted:
        part = Discriminator(self.gradient_penalty, self.learning_rate, self.last_bias, self.batch_size, self.hidden)
        return fit_discriminator(part, self.iterations, sample, seed, report)


@dataclass(frozen=True)
class DemoDICEScorer(WBCUScorer):
    """DemoDICE's discriminator. Its critic would need next states, which scoring does not read."""

    name: ClassVar[str] = "demodice"
    last_bias: ClassVar[bool] = False
    gradient_penalty: float = 0.1


@dataclass(frozen=True)
class DWBCScorer:
    """DWBC's discriminator, and the policy whose likelihood it sees."""

    name: ClassVar[str] = "dwbc"
    learning_rate: float = 1e-4
    iterations: int = 3_000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)

    @property
    def work(self) -> int:
        return self.iterations

    def fit(self, sample: TrainingSample, seed: int, report: Report) -> Fitted:
        part = LikelihoodDiscriminator(self.learning_rate, self.batch_size, self.hidden)
        return fit_discriminator(part, self.iterations, sample, seed, report)


@dataclass(frozen=True)
class NeighbourScorer:
    """The baseline that learns nothing: it compares an action with those taken in the nearest expert states."""

    name: ClassVar[str] = "neighbours"
    neighbours: int = 5

    @property
    def work(self) -> int:
        return 1

    def fit(self, sample: TrainingSample, seed: int, report: Report) -> Fitted:
        references = make_references(sample, training_rows(sample)[0], self.neighbours)
        report(1)
        return together(*(Fitted(partial(near, references)) for near in (state_closeness, action_closeness)))


@dataclass(frozen=True)
class ContrastScorer:
    """Judges states and actions apart, in two rounds.

    States are judged by their distance from the expert's, actions by a network and by comparison with those taken
    nearby. The first round learns from the expert's rows alone. The second draws half of its positive rows from the
    union in proportion to the weights of the first, and compares actions with such rows. That is the expert's
    distribution again, as in weighted cloning, but made of many more rows where the supplementary set has them. The
    round that tells held-out expert rows better is kept: the second learns nothing where the first knew too little.
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

    def fit(self, sample: TrainingSample, seed: int, report: Report) -> Fitted:
        trainer, (expert, union, supplementary) = Trainer(sample, seed, report), training_rows(sample)
        part = ActionDiscriminator(self.learning_rate, batch_size=self.batch_size, hidden=self.hidden)
        trained = trainer.train(part, make_slots(expert, union, supplementary), self.iterations, EVERY, self.patience)
        references = make_references(sample, expert, self.neighbours)
        near = Fitted(partial(state_closeness, references))
        first = together(near, Fitted(partial(action_closeness, references)), network("action", trained))
        if not self.second_iterations:
            return first
        drawn = resample(first, sample, union, seed)
        positive = [np.concatenate([np.resize(own, len(new)), new]) for own, new in zip(expert, drawn, strict=True)]
        slots = make_slots(positive, union, supplementary)
        trained = trainer.train(part, slots, self.second_iterations, EVERY, self.patience, since=trained)
        # States are still compared with the expert's alone: with more, nearness would only tell what is common.
        compared = [np.union1d(own, new[: self.compared]) for own, new in zip(expert, drawn, strict=True)]
        references = make_references(sample, compared, self.neighbours)
        second = together(near, Fitted(partial(action_closeness, references)), network("action", trained))
        return min(second, first, key=lambda fitted: held_out_loss(fitted, sample))


def held_out_loss(fitted: Fitted, sample: TrainingSample) -> float:
    """The loss of the members' weights, each row's by models that left it out."""
    losses = []
    for features in held_out_features(fitted, sample):
        own = fit_coefficients(features, sample.num_expert)
        losses.append(log_loss(own.log_weight(features), sample.num_expert))
    return float(np.mean(losses))


def resample(fitted: Fitted, sample: TrainingSample, union: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """For every model, rows that it may train on, drawn in proportion to the weights that it gives them."""
    rng = np.random.default_rng([seed, 4])
    coefficients = [fit_coefficients(own, sample.num_expert) for own in held_out_features(fitted, sample)]

    def weigh(model: int) -> Float[np.ndarray, "rows"]:
        features = fitted.features(model, sample.obs[union[model]], sample.action[union[model]])
        return np.exp(coefficients[model // sample.plan.num_folds].log_weight(features))

    with core_threads() as threads:
        weights = threads.map(weigh, range(len(union)))
        return [rng.choice(rows, RESAMPLED, p=w / w.sum()) for rows, w in zip(union, weights, strict=True)]


@dataclass(frozen=True)
class TreeScorer:
    """Gradient-boosted trees as the discriminator of (s, a)."""

    name: ClassVar[str] = "trees"
    trees: int = 60

    @property
    def work(self) -> int:
        return 1

    def fit(self, sample: TrainingSample, seed: int, report: Report) -> Fitted:
        x = np.concatenate([sample.obs, sample.action], axis=1)
        models = []
        for expert, union, _ in zip(*training_rows(sample), strict=True):
            rows, label = np.concatenate([expert, union]), np.repeat([1, 0], [len(expert), len(union)])
            weight = np.repeat([1 / len(expert), 1 / len(union)], [len(expert), len(union)]) * len(union)
            model = HistGradientBoostingClassifier(max_iter=self.trees, random_state=seed)
            model.set_params(early_stopping=False)
            models.append(model.fit(x[rows], label, sample_weight=weight))
        report(1)

        def features(model: int, obs: Obs, action: Action) -> Features:
            return np.asarray(models[model].decision_function(np.concatenate([obs, action], axis=1)))[None]

        return Fitted(features)


DEFAULT = ContrastScorer.name


def make_scorer(name: str) -> Scorer:
    return SCORERS.find(name)()
