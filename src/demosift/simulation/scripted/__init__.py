"""Environments of other packages that come with a program which solves them: Meta-World, OGBench and BabyAI.

`catalogue` names them, `environment` is what they have in common, and each package has a module, which is imported when
one of its environments is made. `operators` has the people who use the program: an expert, and some who do worse.
"""
