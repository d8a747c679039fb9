"""The weight of every row: trained models and coefficients, applied block by block, here or on a cluster."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt64

from demosift.data import RowSource
from demosift.data.folds import hash_rows
from demosift.data.normaliser import Normaliser
from demosift.data.rows import Rows
from demosift.report.statistics import sample_std
from demosift.sift.calibration import Coefficients
from demosift.sift.engines import Engine
from demosift.sift.folds import Plan
from demosift.sift.scorers import Fitted, features_by_models
from demosift.sift.training import Report
from demosift.types import InputError

Weights = Float[np.ndarray, "rows"]


class Weigher(NamedTuple):
    """All that turns a row into its weight."""

    fitted: Fitted
    coefficients: list[Coefficients]
    normaliser: Normaliser


class OwnRows(NamedTuple):
    """What is known of some rows of a source: which models left them out, and their hashes."""

    source: str
    plan: Plan
    hashes: UInt64[np.ndarray, "rows"]


def weigh_rows(
    weigher: Weigher,
    plan: Plan,
    hashes: UInt64[np.ndarray, "rows"],
    sources: Sequence[RowSource],
    engine: Engine,
    report: Report,
) -> tuple[Weights, Weights]:
    """Every row's weight, the median over members, and their standard deviation, NaN where there is one member."""
    weight, spread = (np.empty(len(plan.fold)) for _ in range(2))
    first = 0
    for source in sources:

        def own(rows: slice, source: RowSource = source, first: int = first) -> OwnRows:
            rows = slice(first + rows.start, first + rows.stop)
            return OwnRows(source.source, plan.take(rows), hashes[rows])

        position = first
        for found in engine.run(weigh_blocks, source, weigher, own):
            block = slice(position, position + len(found[0]))
            weight[block], spread[block] = found
            position = block.stop
            report(len(found[0]))
        first += source.num_rows
    return weight, spread


def weigh_blocks(blocks: Iterator[Rows], weigher: Weigher, own: OwnRows) -> Iterator[tuple[Weights, Weights]]:
    position = 0
    for obs, action in blocks:
        block = slice(position, position + len(obs))
        if not np.array_equal(hash_rows(obs, action), own.hashes[block]):
            raise InputError(f"{own.source}: changed while it was scored, or differs from node to node; score it again")
        by_member = weigh_block(weigher, own.plan, block, weigher.normaliser.apply(obs), action)
        yield np.exp(np.median(by_member, axis=0)), sample_std(np.exp(by_member), axis=0)
        position = block.stop


def weigh_block(
    weigher: Weigher, plan: Plan, block: slice, obs: np.ndarray, action: np.ndarray
) -> Float[np.ndarray, "members rows"]:
    """Log-weights of consecutive rows, each by the member's model that left it out."""
    features = features_by_models(weigher.fitted, plan.models_of(block), obs, action)
    return np.stack([own.log_weight(each) for own, each in zip(weigher.coefficients, features, strict=True)])
