"""Comma-separated text: a line per step, with columns obs_0 ..., action_0 ..., reward, terminal and timeout."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import demosift as ds
from demosift.data.actions import stored_actions
from demosift.data.format import Part
from demosift.data.recording import Recording
from demosift.files import atomic_write


def locate(place: str) -> Path:
    return Path(place.removeprefix("csv:"))


def reads(place: str) -> bool:
    return locate(place).suffix == ".csv"


def parts(place: str) -> Sequence[Part]:
    return [lambda: record(locate(place))]


def record(path: Path) -> Recording:
    """The arrays as they are stored. demosift checks them, finds the episodes and scales the actions."""
    try:
        with path.open(encoding="utf-8") as file:
            names = file.readline().strip().split(",")
            table = np.loadtxt(file, np.float32, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise ds.InputError(f"{path}: cannot read: {' '.join(str(error).split())}") from error
    kinds = np.array([name.rpartition("_")[0] or name for name in names])
    if table.shape[1] != len(names) or not {"obs", "action", "reward", "terminal", "timeout"} <= set(kinds):
        raise ds.InputError(f"{path}: needs the columns obs_0, action_0, reward, terminal and timeout")
    reward, terminal, timeout = (table[:, kinds == name][:, 0] for name in ("reward", "terminal", "timeout"))
    return Recording(
        str(path), table[:, kinds == "obs"], table[:, kinds == "action"], terminal, rewards=reward, timeouts=timeout
    )


def write(dataset: ds.Dataset, target: str) -> None:
    if dataset.discrete:
        raise ds.InputError(f"{target}: csv files hold continuous actions")
    rows, action = dataset.transitions, stored_actions(dataset)
    names = [f"obs_{i}" for i in range(dataset.obs_dim)] + [f"action_{i}" for i in range(dataset.action_dim)]
    flags = [rows.reward[:, None], rows.terminal[:, None], dataset.timeout[:, None]]
    table = np.concatenate([rows.obs, action, *flags], axis=1)
    header = ",".join([*names, "reward", "terminal", "timeout"])
    with atomic_write(locate(target)) as temporary:
        np.savetxt(temporary, table, fmt="%.9g", delimiter=",", header=header, comments="")


FORMAT = ds.Format("csv", reads, parts, write, suffixes=(".csv",))
