"""The names of the environments that come with a program, as Gymnasium knows them after `register`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium


class Entry(NamedTuple):
    """How an environment is made, how many steps an episode may have, and how many an idle phase takes."""

    entry_point: str
    kwargs: Mapping[str, Any]
    max_episode_steps: int
    pause: tuple[int, int]


# Those whose program succeeds in nearly every episode, and does so, too, when it moves in curves: the second operator.
METAWORLD = (
    "bin-picking",
    "button-press-topdown",
    "coffee-button",
    "door-close",
    "door-lock",
    "door-open",
    "drawer-close",
    "drawer-open",
    "faucet-close",
    "faucet-open",
    "hand-insert",
    "handle-pull-side",
    "peg-unplug-side",
    "pick-out-of-hole",
    "pick-place",
    "pick-place-wall",
    "plate-slide-side",
    "push",
    "push-wall",
    "reach",
    "reach-wall",
    "sweep",
    "window-close",
    "window-open",
)
OGBENCH = ("cube-single", "cube-double", "button", "drawer", "window")
BABYAI = {
    "goto": {"level": "GoToLocal"},
    "open": {"level": "OpenDoor", "select_by": "color"},
    "pickup": {"level": "PickupDist"},
}


def _entries() -> dict[str, Entry]:
    room = __name__.rpartition(".")[0]
    metaworld, ogbench, babyai = f"{room}.metaworld:MetaWorld", f"{room}.ogbench:Manipulation", f"{room}.babyai:BabyAI"
    return {
        **{f"metaworld-{task}": Entry(metaworld, {"task": task}, 300, (10, 30)) for task in METAWORLD},
        **{f"ogbench-{task}": Entry(ogbench, {"task": task}, 200, (5, 15)) for task in OGBENCH},
        **{f"babyai-{name}": Entry(babyai, kwargs, 64, (2, 6)) for name, kwargs in BABYAI.items()},
    }


SCRIPTED: Mapping[str, Entry] = _entries()


def register() -> None:
    for name, entry in SCRIPTED.items():
        gymnasium.register(
            name, entry.entry_point, max_episode_steps=entry.max_episode_steps, kwargs=dict(entry.kwargs)
        )
