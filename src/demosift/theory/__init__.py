"""The theory lab: the paper's claims as computations that could refute them. NumPy only, exact wherever possible.

`mdp` defines a world, `instances` makes those that the claims are about, `sampling` draws the data of Assumption 1,
`learners` has the exact learners, `claims` the claims, and `lab` runs them and writes what they found.
"""
