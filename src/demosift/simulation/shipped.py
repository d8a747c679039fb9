"""The policies that come with the package: SAC's expert and a medium checkpoint for each short name."""

from functools import cache
from importlib import resources
from typing import Literal

from demosift.policy import Policy
from demosift.simulation.environments import SHORT_NAMES
from demosift.types import InputError

Level = Literal["expert", "medium"]
SHIPPED: tuple[Level, ...] = ("expert", "medium")


@cache
def shipped_policy(env: str, level: Level | str) -> Policy:
    """The expert or medium policy of an environment, by its short name."""
    if env not in SHORT_NAMES:
        raise InputError(f"no {level} policy is shipped for {env!r}, only for {', '.join(SHORT_NAMES)}")
    resource = resources.files("demosift.simulation").joinpath("policies", f"{env}-{level}.safetensors")
    with resources.as_file(resource) as path:
        if not path.is_file():
            raise InputError(f"the {level} policy of {env} is missing from this installation ({path})")
        return Policy.load(path)
