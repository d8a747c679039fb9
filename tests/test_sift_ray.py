"""Scoring on a cluster: stretches of blocks, read anywhere, give the bytes of one process. A node is killed meanwhile.

Ray runs in a process of its own here: it keeps threads, sockets and warnings to itself.
"""

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import tree
from test_sift_scoring import TINY, join, rows

from demosift.cli.main import main
from demosift.data import open_rows, read_dataset, write_dataset
from demosift.data.rows import Layout
from demosift.progress import Stopwatch
from demosift.sift import engines, scoring, union, weighing
from demosift.sift.engines import files_of, stretches, unseen
from demosift.sift.scorers import ContrastScorer, make_scorer
from demosift.sift.scoring import score
from demosift.types import InputError

SETTINGS: dict[str, Any] = {"members": 2, "folds": 3, "progress": False}
ROWS = 23  # of a block, so that stretches begin and end inside episodes and files


FEW, PILE = rows(0, 60, good=True), join(rows(1, 100, good=True), rows(2, 100, good=False))


def write_sets(folder: Path) -> dict[str, tuple[Any, Any]]:
    """An expert and a pile, in every format and from memory."""
    found: dict[str, tuple[Any, Any]] = {}
    for kind in ("", "robomimic:", "lerobot:", "npz:", "minari:"):
        suffix = ".hdf5" if kind in ("", "robomimic:") else ""
        names = [f"{folder}/{kind[:-1]}-{name}{suffix}" for name in ("expert", "pile")]
        for data, name in zip((FEW, PILE), names, strict=True):
            write_dataset(data, f"{kind}{name}")
        found[kind[:-1] or "native"] = names[0], names[1]
    expert, pile = found["native"]
    found["memory"] = read_dataset(expert), read_dataset(pile)
    found["episodes"] = f"{pile}::episodes=0-1,8", f"{pile}::without=0-1,8,7"
    with h5py.File(pile, "a") as file:
        del file["next_observations"]  # so that the last rows of episodes are dropped, inside of blocks
    return found


class InStretches(engines.Here):
    """What `OnRay` does, in this process: whatever a task is given goes through a pickle."""

    def run(self, work: Any, source: Any, shared: Any = None, own: Any = engines.nothing) -> Iterator[Any]:
        bundle = pickle.dumps(source)
        for start, stop, inside in stretches(source.layout(ROWS), 2 * ROWS):
            mine = pickle.loads(pickle.dumps(own(inside)))
            yield from work(pickle.loads(bundle).blocks(ROWS, start, stop), shared, mine)


def test_stretches_give_the_weights_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "BLOCK", ROWS)
    sets = write_sets(tmp_path)
    numbers = [np.random.default_rng(len(data)).normal(size=(len(data), 2)) for data in (FEW, PILE)]
    for name, pair in [*sets.items(), ("features", sets["memory"])]:
        joiner = scoring.make_joiner(*pair, None, numbers, True, False) if name == "features" else None
        here, there = (
            union.weigh_union(how.open_pair(*pair), how, Stopwatch())
            for how in (
                union.Request(make_scorer("neighbours"), 2, 3, 0, 0.5, "check", False, joiner, engine=engine)
                for engine in (engines.Here(), InStretches())
            )
        )
        for one, other in zip(here.surveys, there.surveys, strict=True):
            assert [each.tobytes() for each in one] == [each.tobytes() for each in other], name
        for each in ("alone", "weight", "spread"):
            assert getattr(here, each).tobytes() == getattr(there, each).tobytes(), (name, each)


def test_stretches_begin_where_reading_can():
    layout = Layout(np.array([10, 20, 25, 35, 45, 50]), np.array([True, False, True, True, False, False]))
    assert list(stretches(layout, 10)) == [(0, 2, slice(0, 20)), (2, 6, slice(20, 50))]
    assert list(stretches(layout, 1000)) == [(0, 6, slice(0, 50))]
    every = Layout.even(50, 20)
    assert list(stretches(every, 1)) == [(0, 1, slice(0, 20)), (1, 2, slice(20, 40)), (2, 3, slice(40, 50))]


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expert, pile = write_sets(tmp_path)["native"]
    fit = union.fit_coefficients

    def meddle(*given: Any) -> Any:
        with h5py.File(pile, "a") as file:
            file["observations"][150, 1] = 0.25  # type: ignore[index]
        return fit(*given)

    monkeypatch.setattr(union, "fit_coefficients", meddle)
    with pytest.raises(InputError, match=r"pile.hdf5: changed while it was scored"):
        score(expert, pile, out=tmp_path / "out", scorer="neighbours", **SETTINGS)
    assert not (tmp_path / "out").exists()


def test_a_node_that_sees_other_files_is_named(tmp_path: Path):
    path = tmp_path / "pile.hdf5"
    write_dataset(FEW, path)
    files = files_of(open_rows(f"{path}::episodes=0-1"))
    assert files == ((str(path), path.stat().st_size),)
    assert unseen(files, "n1 (10.0.0.1)") is None
    with path.open("ab") as file:
        file.write(b"more")
    assert (unseen(files, "n2 (10.0.0.2)") or "").startswith(f"{path}: on node n2 (10.0.0.2) this file has ")
    path.unlink()
    assert (unseen(files, "n3 (10.0.0.3)") or "").startswith(f"{path}: node n3 (10.0.0.3) cannot see this file")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "ray", "--address", "127.0.0.1:1"], "no Ray cluster there"),
        (["--address", "auto"], "needs --engine ray"),
        (["--engine", "ray"], "pip install 'demosift[ray]'"),
    ],
)
def test_refusals(
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    if "--address" not in options:
        monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    expert, pile = write_sets(tmp_path)["native"]
    given = ["--expert", expert, "--supplementary", pile, "--out", str(tmp_path / "out")]
    assert main(["score", *given, *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="unknown engine"):
        score(expert, pile, engine="spark")  # type: ignore[arg-type]


TRACE = "DEMOSIFT_TEST_TRACE"
SCORED = {
    "native": "neighbours",
    "lerobot": "neighbours",
    "memory": ContrastScorer(iterations=250, second_iterations=0, **TINY),
}


def slowly(blocks: Iterator[Any], weigher: weighing.Weigher, own: weighing.OwnRows) -> Iterator[Any]:
    """`weigh_blocks`, which leaves a trace on disk of every start, and leaves time to kill its node."""
    import ray

    with open(os.environ[TRACE], "a") as file:
        file.write(f"{ray.get_runtime_context().get_node_id()} {own.hashes[0]}\n")
    time.sleep(0.5)
    yield from weighing.weigh_blocks(blocks, weigher, own)


@contextmanager
def cluster() -> Iterator[tuple[Any, list[Any]]]:
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    workers = [nodes.add_node(num_cpus=1) for _ in range(3)]
    ray.init(address=nodes.address, log_to_driver=False)
    try:
        yield nodes, workers
    finally:
        ray.shutdown()
        nodes.shutdown()


def drive(place: str) -> None:
    """In a process of its own: score on three nodes, kill one of them meanwhile, and score other data on the rest."""
    import threading

    folder, trace = Path(place), Path(os.environ[TRACE])
    sets = write_sets(folder)
    engines.BLOCK, engines.STRETCH = ROWS, 1
    for name, scorer in SCORED.items():
        score(*sets[name], out=folder / "here" / name, scorer=scorer, **SETTINGS)
    with cluster() as (nodes, workers):
        killed: list[int] = []

        def kill() -> None:
            """The node that began a stretch a moment ago, when a few are done: it has half a second of work left."""
            while not killed:
                seen = trace.read_text().splitlines() if trace.exists() else []
                if len(seen) >= 4:
                    last = seen[-1].split()[0]
                    nodes.remove_node(next(node for node in workers if node.node_id == last), allow_graceful=False)
                    killed.append(len(seen))
                time.sleep(0.01)

        threading.Thread(target=kill, daemon=True).start()
        usual, used = weighing.weigh_blocks, {}
        for name, scorer in SCORED.items():
            weighing.weigh_blocks = usual if killed else slowly
            scored = score(*sets[name], out=folder / "there" / name, scorer=scorer, engine="ray", **SETTINGS)
            used[name] = dict(scored.workers)
    answer = {"killed": killed, "workers": used["native"]}
    (folder / "answer.json").write_text(json.dumps(answer))


@pytest.mark.long
def test_a_killed_node_changes_no_byte(tmp_path: Path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'demosift[ray]'")
    trace = tmp_path / "trace.txt"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": "/tmp",  # a socket's path must be short
        "RAY_worker_niceness": "0",  # or a busy machine leaves them no time
        "PYTHONWARNINGS": "ignore",
        TRACE: str(trace),
    }
    code = f"import test_sift_ray as t; t.drive({str(tmp_path)!r})"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=1100, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    answer = json.loads((tmp_path / "answer.json").read_text())
    started = [line.split()[1] for line in trace.read_text().splitlines()]
    assert len(set(started)) < len(started), "no stretch was lost and read again"
    assert answer["killed"][0] < len(set(started)), "in the middle"
    assert answer["workers"]["tasks"] >= 2 * len(set(started))  # to survey and to weigh
    assert 0 < answer["workers"]["peak_bytes"] < 3e9
    for path in sorted((tmp_path / "here").iterdir()):
        assert tree(path) == tree(tmp_path / "there" / path.name), path.name
