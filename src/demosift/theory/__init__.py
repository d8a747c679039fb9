"""The theory lab: the paper's claims as computations that could refute them. NumPy only, exact where that is possible.

`mdp` is the world, `instances` the worlds that claims are about, `sampling` the data of Assumption 1, `learners` the
exact learners, `claims` the claims, and `lab` runs them and writes what they found.
"""
