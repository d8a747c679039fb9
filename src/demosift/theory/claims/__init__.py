"""The paper's claims, each with its check and its picture, in the paper's order."""

from demosift.theory.claims import (
    cloning,
    coverage,
    landscape,
    nbcu,
    policy_class,
    positive,
    separation,
    weights,
    worked_example,
)

MODULES = (cloning, nbcu, coverage, weights, landscape, separation, worked_example, positive, policy_class)
CLAIMS = tuple(claim for module in MODULES for claim in module.CLAIMS)
BY_NAME = {claim.name: claim for claim in CLAIMS}
