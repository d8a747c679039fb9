"""Which task each episode of a LeRobot dataset is of, by its name where the metadata has one.

    meta/tasks.jsonl     version 2: a line for each, {"task_index": 0, "task": "pick up the cube"}
    meta/tasks.parquet   version 3: the column task_index, and the names as the table's index

An episode of which the task changes on the way is of the task of its last frame.
"""

from typing import Any

from demosift.data.formats.lerobot.reading import Info, lerobot_facts, read_info
from demosift.data.parquet import as_indices, column_names, read_table
from demosift.files import parse_json, read_text
from demosift.types import InputError

TASK = "task_index"


def lerobot_tasks(place: str) -> dict[int, str]:
    """The task of every episode, by the episode's number; empty where the dataset names none."""
    info = read_info(place)
    names = _names(info)
    if len(names) < 2:
        return {}
    found = lerobot_facts(place, TASK)
    return {episode: names.get(index, f"task {index}") for episode, index in found.items()}


def _names(info: Info) -> dict[Any, str]:
    meta = info.root / "meta"
    if info.version[0] == 2:
        path = meta / "tasks.jsonl"
        lines = read_text(path, str(path)).split("\n") if path.is_file() else []
        rows = [parse_json(line, f"{path}: line {place + 1}") for place, line in enumerate(lines) if line.strip()]
        if not all(isinstance(row, dict) and type(row.get(TASK)) is int for row in rows):
            raise InputError(f"{path}: not a list of tasks")
        return {row[TASK]: str(row.get("task", f"task {row[TASK]}")) for row in rows}
    path = meta / "tasks.parquet"
    if not path.is_file():
        return {}
    known = column_names(path)
    if TASK not in known:
        raise InputError(f"{path}: {TASK}: the file has no such column")
    # pandas keeps the names in the index, which has a name of its own or none.
    text = next((name for name in ("task", "__index_level_0__") if name in known), None)
    table = read_table(path, [TASK] if text is None else [TASK, text])
    indices = as_indices(path, TASK, table[TASK]).tolist()
    texts = [f"task {index}" for index in indices] if text is None else map(str, table[text].to_pylist())
    return dict(zip(indices, texts, strict=True))
