"""The Ray engine on a cluster of several nodes, all on this machine: one of them is killed in the middle.

Ray runs in a process of its own here: it keeps threads, sockets and warnings to itself.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import tree
from test_experiments import cell, evaluations, planned, quiet_view

from demosift.experiments.cells import Cell
from demosift.experiments.cluster import run_on_ray, task_needs
from demosift.experiments.local import run_local
from demosift.experiments.plan import plan
from demosift.experiments.program import Planned
from demosift.experiments.store import Store

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'demosift[ray]'")

NODES = [
    ([{"CPU": 8.0}, {"CPU": 4.0}], (1, 0.0)),
    ([{"CPU": 16.0, "GPU": 1.0}], (16, 1.0)),
    ([{"CPU": 8.0}, {"CPU": 16.0, "GPU": 1.0}], (16, 1.0)),  # a head without a GPU lends its cores to nobody
    ([{"CPU": 64.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 1.0}], (8, 1.0)),
    ([{"CPU": 2.0, "GPU": 4.0}], (1, 1.0)),
    ([{"CPU": 4.0, "GPU": 0.5}], (4, 0.5)),
]


@pytest.mark.parametrize(("nodes", "needs"), NODES)
def test_some_node_has_what_a_task_needs(nodes: list[dict[str, float]], needs: tuple[int, float]):
    assert task_needs(nodes) == needs


ITERATIONS, EVERY = 800, 20  # so many evaluations that there is time to kill in the middle


def grid() -> list[list[Planned]]:
    """Two programs; and a member that diverges, which no retry helps. A third has discriminators to train first."""
    cells = [cell("bc", seed) for seed in (0, 1)] + [cell("bc", 2, learning_rate=1e38)]
    cells += [cell("nbcu", seed) for seed in (0, 1)]
    longer: list[Cell] = [
        dataclasses.replace(each, iterations=ITERATIONS, schedule=dataclasses.replace(each.schedule, every=EVERY))
        for each in cells
    ]
    identified = planned(*longer)
    few: dict[str, Any] = {"first_iterations": 3, "discriminator_iterations": 3, "discriminator_batch_size": 4}
    return [identified[:3], identified[3:], planned(cell("tailo", 0, **few), cell("tailo", 1, **few))]


def drive(out: str) -> None:
    """In a process of its own: run the grid on three nodes and kill one that is at work."""
    import threading
    import time

    from ray.cluster_utils import Cluster

    store = Store(out)
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    workers = [nodes.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=nodes.address, log_to_driver=False)
    killed: list[int] = []

    def kill() -> None:
        """One of two nodes that both have a program under way."""
        while not killed:
            if len({path.parent for path in store.path.glob("unfinished/*/checkpoint/*.safetensors")}) == 2:
                nodes.remove_node(workers[0], allow_graceful=False)
                killed.append(len(list(store.path.glob("cells/*.json"))))
            time.sleep(0.02)

    threading.Thread(target=kill, daemon=True).start()
    view = quiet_view(7)
    complete = run_on_ray(grid(), store, view, checkpoint_seconds=0.0)
    said = view.console.file.getvalue()  # type: ignore[attr-defined]
    answer = {"complete": complete, "done": view.done, "failed": view.failed, "said": said, "killed": killed}
    (store.path / "answer.json").write_text(json.dumps(answer))
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.long
def test_a_killed_node_leaves_the_table_unchanged(tmp_path: Path):
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": "/tmp",  # a socket's path must be short
        "PYTHONWARNINGS": "ignore",
    }
    code = f"import test_experiments_ray as t; t.drive({str(there.path)!r})"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    answer = json.loads((there.path / "answer.json").read_text())
    assert (answer["complete"], answer["done"], answer["failed"]) == (True, 6, 1)
    assert answer["killed"] == [0]  # in the middle: no cell was finished
    again = re.search(r"its node died; continuing from iteration (\d+)", answer["said"])
    assert again
    assert int(again[1]) > 0

    programs = grid()
    assert run_local(programs, here, quiet_view(7), num_workers=1)
    assert evaluations(there) == evaluations(here)
    assert len(evaluations(here)) == 6
    failures = [json.loads(path.read_text()) for path in (there.path / "failures").iterdir()]
    assert [failure["config"]["seed"] for failure in failures] == [2]
    assert [len(each) for each in plan([each for one in programs for each in one], there)] == [1]  # tried again
    assert [path.name for path in (there.path / "unfinished").iterdir()] == ["prepared"]
    kept = [tree(store.prepared("tailo").folder) for store in (here, there)]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 2
