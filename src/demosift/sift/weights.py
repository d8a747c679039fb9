"""Scores as data: the weights that `score` wrote, given to training beside the rows they belong to."""

import os
from dataclasses import replace

import numpy as np

from demosift.data.formats import Source
from demosift.sift.filtering import read_scores
from demosift.types import Demonstrations, InputError


def with_scores(
    data: Demonstrations, expert: Source, supplementary: Source, folder: str | os.PathLike[str]
) -> Demonstrations:
    """The data with their weights. Sources that are not the ones that were scored are refused."""
    if data.supplementary is None:
        raise InputError("scores: are of a union; give the supplementary set too")
    parts = {os.fspath(source): read_scores(source, folder).weight for source in (expert, supplementary)}
    for source, rows in ((expert, len(data.expert)), (supplementary, len(data.supplementary))):
        if len(parts[os.fspath(source)]) != rows:
            raise InputError(f"{os.fspath(source)}: has {rows} rows, {len(parts[os.fspath(source)])} were scored")
    weights = [parts[os.fspath(source)] for source in (expert, supplementary)]
    return replace(data, weight=np.concatenate(weights))
