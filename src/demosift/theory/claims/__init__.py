"""The paper's claims, each with its check and its picture, in the paper's order."""

from demosift.theory.claim import Claim
from demosift.theory.claims import (
    bias,
    cloning,
    coverage,
    linear_wbcu,
    lower_bound,
    mixture,
    policy_class,
    positive,
    samples,
    weighted,
)

CLAIMS: tuple[Claim, ...] = (
    *cloning.CLAIMS,
    *mixture.CLAIMS,
    *lower_bound.CLAIMS,
    *coverage.CLAIMS,
    *samples.CLAIMS,
    *bias.CLAIMS,
    *weighted.CLAIMS,
    *linear_wbcu.CLAIMS,
    *positive.CLAIMS,
    *policy_class.CLAIMS,
)
BY_NAME = {claim.name: claim for claim in CLAIMS}
