"""Grids: cells and their ids, programs that are killed and continued, failures that stop no other cell."""

import contextlib
import dataclasses
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import tree
from rich.console import Console

from demosift import cluster
from demosift.algorithms import WBCU, DemoDICE, make_algorithm
from demosift.cli.main import main
from demosift.data import read_dataset, write_dataset
from demosift.experiments import local, prepare, program
from demosift.experiments.cells import Cell, DataKey, Schedule
from demosift.experiments.coverage import coverage, mixing
from demosift.experiments.display import View
from demosift.experiments.local import run_local
from demosift.experiments.plan import identify, pack, plan
from demosift.experiments.prepare import Preparation, Prepared, with_clean_rows
from demosift.experiments.presets import Request, default_schedule, grids, parse_settings
from demosift.experiments.program import Outcome, Planned, chunk_length, make_program, run_program
from demosift.experiments.settling import Settled
from demosift.experiments.store import Store, program_id
from demosift.learning import padding, prepared, pretraining, runner, stages
from demosift.learning.fit import describe_data
from demosift.learning.program import Program
from demosift.learning.runner import finite_members
from demosift.policy import Layer, Policy
from demosift.progress import duration
from demosift.report.groups import num_averaged
from demosift.results.cell import lines_of
from demosift.simulation.environments import reference_returns
from demosift.simulation.shipped import shipped_policy
from demosift.simulation.simulate import Rollouts
from demosift.types import Dataset, Demonstrations, InputError, Origin, Transitions

ITERATIONS, EVERY = 12, 4
SCHEDULE = Schedule(every=EVERY, episodes=2, early_episodes=1)
TINY = {"hidden": (4, 4), "batch_size": 4}
SIZES = {"hopper": (11, 3), "ant": (27, 8)}
TRAINING_ROWS = 30
ROWS = {"sha256": "0" * 64}
REFERENCE = {"name": "demosift", "random": 0.0, "expert": 1000.0}


def random_data(key: DataKey) -> Prepared:
    """Noise in the sizes of an environment: an untrained policy soon falls over, so episodes are short."""
    rng = np.random.default_rng([key.seed, len(key.env)])
    obs_dim, action_dim = SIZES[key.env]

    def dataset(rows: int) -> Dataset:
        obs, next_obs = (rng.normal(size=(rows, obs_dim)).astype(np.float32) for _ in range(2))
        action = rng.uniform(-0.9, 0.9, (rows, action_dim)).astype(np.float32)
        ends = np.arange(1, rows + 1) % 6 == 0
        return Dataset(Transitions(obs, action, np.ones(rows, np.float32), next_obs, ends), np.zeros(rows, bool))

    return Prepared(key, Demonstrations(dataset(18), dataset(TRAINING_ROWS)), {"noise": key.seed}, REFERENCE)


def cell(method: str = "bc", seed: int = 0, env: str = "hopper", **settings: Any) -> Cell:
    algorithm = make_algorithm(method, {**TINY, **settings})
    return Cell(DataKey(env, "noisy-expert", seed), method, algorithm, ITERATIONS, SCHEDULE)


def planned(*cells: Cell) -> list[Planned]:
    return identify(cells, random_data, Store("no-such-folder"))


def quiet_view(total: int) -> View:
    return View(total, 0, Console(file=io.StringIO()))


@pytest.fixture(scope="module")
def pool() -> Iterator[Rollouts]:
    with Rollouts(1) as rollouts:
        yield rollouts


def evaluations(store: Store) -> dict[str, Any]:
    """What every cell in the store measured, without the clock."""
    contents = [json.loads(path.read_text()) for path in sorted((store.path / "cells").glob("*.json"))]
    return {content["id"]: content["evaluations"] for content in contents}


# Cells


def test_a_cell_is_its_config_and_its_data():
    """The ids are written down here: if they change, no finished cell is recognised."""
    rows, ends = ROWS, {"ends_sha256": "0" * 64}
    assert cell("wbcu", 3).id(rows) == "87ee69a34143f71d"  # in the first release
    assert cell("wbcu", 3).id({**rows, **ends}) == "f5e54b25b1295403"
    for other in ({"sha256": "1" + "0" * 63, **ends}, {**rows, "ends_sha256": "1" + "0" * 63}):
        assert cell("wbcu", 3).id(other) != cell("wbcu", 3).id({**rows, **ends})


def test_where_sets_and_episodes_end_is_in_the_id():
    """Both change training: the border says which rows are the expert's, a timeout where an episode begins."""
    data = random_data(DataKey("hopper", "noisy-expert", 0)).demonstrations
    timeout = data.expert.timeout.copy()
    timeout[3] = True
    cut = dataclasses.replace(data, expert=dataclasses.replace(data.expert, timeout=timeout))
    moved = Demonstrations(*split(data, len(data.expert) - 6))
    for other in (cut, moved):
        assert describe_data(other)["sha256"] == describe_data(data)["sha256"]
        assert cell().id(describe_data(other)) != cell().id(describe_data(data))


def split(data: Demonstrations, rows: int) -> tuple[Dataset, Dataset]:
    """The same union with the border after so many rows."""
    assert data.supplementary is not None
    timeout = np.concatenate([data.expert.timeout, data.supplementary.timeout])
    parts = (slice(rows), slice(rows, None))
    first, second = (Dataset(Transitions(*(a[part] for a in data.union)), timeout[part]) for part in parts)
    return first, second


def test_a_cell_that_an_earlier_release_finished_keeps_its_id(tmp_path: Path):
    store = Store(tmp_path)
    (now,) = identify([cell()], random_data, store)
    earlier = {key: value for key, value in now.description.items() if key != "ends_sha256"}
    then = now._replace(id=now.cell.id(earlier), description=earlier)
    assert then.id != now.id
    assert run_local([[then]], store, quiet_view(1), num_workers=1)
    (found,) = identify([cell()], random_data, store)
    assert found.id == then.id
    assert plan([found], store) == []
    assert not store.knows(then.id, {**earlier, "expert": {"rows": 6, "episodes": 1}})


@pytest.mark.parametrize(
    "change",
    [
        {"data": DataKey("hopper", "noisy-expert", 1)},
        {"data": DataKey("ant", "noisy-expert", 0)},
        {"data": DataKey("hopper", "full-replay", 0)},
        {"data": DataKey("hopper", "noisy-expert", 0, "clean")},
        {"method": "oracle"},
        {"algorithm": WBCU(gradient_penalty=2.0)},
        {"algorithm": WBCU(hidden=(8, 8))},
        {"algorithm": DemoDICE()},
        {"iterations": 24},
        {"schedule": dataclasses.replace(SCHEDULE, every=2)},
        {"schedule": dataclasses.replace(SCHEDULE, episodes=3)},
        {"schedule": dataclasses.replace(SCHEDULE, seed=1)},
        {"normalise": "union"},
        {"precision": "bfloat16"},
    ],
)
def test_everything_that_decides_a_result_is_in_the_id(change: dict[str, Any]):
    base = Cell(DataKey("hopper", "noisy-expert", 0), "wbcu", make_algorithm("wbcu"), ITERATIONS, SCHEDULE)
    assert dataclasses.replace(base).id(ROWS) == base.id(ROWS)
    assert dataclasses.replace(base, **change).id(ROWS) != base.id(ROWS)


def test_the_id_follows_every_bit_of_the_data():
    (one,) = planned(cell())
    obs = one.data.demonstrations.expert.transitions.obs
    obs[0, 0] = np.nextafter(obs[0, 0], np.float32(9))
    changed = Prepared(one.data.key, one.data.demonstrations, {}, {})
    assert one.cell.id(changed.description) != one.id


def test_reported_evaluations_have_more_episodes():
    paper = Schedule()
    counts = [paper.episodes_at(i, 1_000_000) for i in range(10_000, 1_000_001, 10_000)]
    assert counts == [2] * 90 + [10] * 10
    for number in (1, 3, 7, 19, 20, 100):  # those that the report averages, whatever their number
        schedule = Schedule(every=1)
        assert sum(schedule.episodes_at(i, number) == 10 for i in range(1, number + 1)) == num_averaged(number)
    with pytest.raises(InputError, match="multiple of evaluate-every"):
        paper.check(15_000)


# Presets


def test_the_presets_are_the_papers_tables():
    request = Request(replay="somewhere")
    noisy, full = (grids(name, request)[name] for name in ("noisy-expert", "full-replay"))
    assert (len(noisy), len(full)) == (200, 180)
    rows = {(c.method, getattr(c.algorithm, "gradient_penalty", None)) for c in noisy}
    assert rows == {
        ("bc", None),
        ("dwbc", None),
        ("nbcu", None),
        ("oracle", None),
        *((method, penalty) for method in ("demodice", "wbcu") for penalty in (0.0, 1.0, 10.0)),
    }
    assert {c.data.trained_on for c in noisy if c.method == "oracle"} == {"clean"}
    assert {c.iterations for c in noisy} == {1_000_000}
    both = grids("all", request)
    assert list(both) == ["noisy-expert", "full-replay"]
    penalties = grids("gradient-penalty", request)["gradient-penalty"]
    assert set(penalties) <= {*noisy, *full}  # the same cells, so a finished one is not run again
    assert len(penalties) == 2 * 6 * 4 * 5
    assert grids("coverage", request) == {}


def test_presets_can_be_changed():
    settings = parse_settings(["hidden=8,8", "batch_size=16", "wbcu.threshold=0.5", "wbcu.ratio=exact"])
    request = Request(
        ("ant",), (7,), 100, default_schedule(100, None, 3, 1), ("wbcu", "dwbc"), penalties=(2.0,), settings=settings
    )
    wbcu, dwbc = grids("noisy-expert", request)["noisy-expert"]
    assert wbcu.algorithm == WBCU(2.0, threshold=0.5, ratio="exact", hidden=(8, 8), batch_size=16)
    assert dwbc.algorithm.hidden == (8, 8)
    assert (wbcu.schedule.every, wbcu.schedule.episodes, wbcu.data.seed) == (25, 3, 7)
    assert default_schedule(1_000_000, None, 10, 2) == Schedule()
    assert default_schedule(30, None, 1, 1).every == 6  # divides


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "unknown preset 'nonsense'"),
        (["full-replay"], "needs a replay folder"),
        (["all"], "needs a replay folder"),
        (["sac-curves"], "needs a folder that collect wrote"),
        (["noisy-expert", "--envs", "cartpole"], "unknown environment 'cartpole'"),
        (["noisy-expert", "--methods", "magic"], "unknown method 'magic'"),
        (["full-replay", "--replay", "x", "--methods", "oracle"], "has no oracle"),
        (["noisy-expert", "--iterations", "10", "--evaluate-every", "3"], "multiple of evaluate-every"),
        (["noisy-expert", "--set", "nonsense=1"], "--set nonsense=1"),
        (["noisy-expert", "--set", "hidden=a"], "not a value for hidden"),
        (["noisy-expert", "--set", "learning_rate=nan"], "not a value for learning_rate"),
        (["noisy-expert", "--set", "wbcu.ratio=other"], "not a value for ratio"),
        (["noisy-expert", "--set", "magic.hidden=1"], "unknown algorithm 'magic'"),
    ],
)
def test_bad_requests_are_one_line(arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["reproduce", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


# Data


def test_the_oracle_is_bc_on_what_is_truly_clean():
    prepared = random_data(DataKey("hopper", "noisy-expert", 0))
    pile = prepared.demonstrations.supplementary
    assert pile is not None
    names = ("expert", "clean", "noisy", "medium", "random", "replay")
    code = np.where(np.arange(TRAINING_ROWS) < 12, 2, 1).astype(np.int8)
    clean = with_clean_rows(prepared.demonstrations.expert, dataclasses.replace(pile, origin=Origin(code, names)))
    assert len(clean) == 18 + 18
    np.testing.assert_array_equal(clean.transitions.obs[18:], pile.transitions.obs[12:])
    assert clean.num_episodes == 6
    with pytest.raises(InputError, match="no oracle"):
        with_clean_rows(prepared.demonstrations.expert, pile)


def test_recordings_are_kept_for_another_machine(recordings: Path, monkeypatch: pytest.MonkeyPatch):
    key = DataKey("hopper", "noisy-expert", 4, pool=10)
    first = Preparation(recordings)(key)
    monkeypatch.setattr("demosift.tasks.recipes.rollout", None)  # nothing is recorded again
    again = Preparation(recordings)(key)
    assert again.sha256 == first.sha256
    oracle = Preparation(recordings)(dataclasses.replace(key, trained_on="clean"))
    assert oracle.description["expert"] == {"rows": 11_000, "episodes": 11}
    assert oracle.recipe["drawn"] == first.recipe["drawn"]
    for part in (0, 1):  # every method sees states through the same normaliser
        np.testing.assert_array_equal(oracle.normaliser("supplementary")[part], first.normaliser("supplementary")[part])


def test_a_replays_scores_are_measured_by_its_own_expert(recordings: Path, tmp_path: Path):
    known = reference_returns()["demosift"]["hopper"]
    noisy = Preparation(recordings)(DataKey("hopper", "noisy-expert", 4, pool=10))
    assert noisy.reference == {"name": "demosift", **{who: known[who]["mean"] for who in ("random", "expert")}}

    medium = shipped_policy("hopper", "medium")
    medium.save(tmp_path / "expert.safetensors")
    write_dataset(noisy.demonstrations.expert, tmp_path / "replay.hdf5")
    key = DataKey("hopper", "full-replay", 0, pool=2, replay=str(tmp_path))
    replay = Preparation(tmp_path / "data")(key)
    (recorded,) = (tmp_path / "data").iterdir()
    assert recorded.name.startswith("hopper-full-replay-2-")
    returns = read_dataset(recorded).returns()
    assert len(returns) == 2
    assert replay.reference["expert"] == pytest.approx(returns.mean(), abs=1e-4)
    assert replay.reference["random"] == known["random"]["mean"]

    shipped_policy("hopper", "expert").save(tmp_path / "expert.safetensors")  # another agent's replay in this place
    other = Preparation(tmp_path / "data")(key)
    assert other.reference["expert"] > 2 * replay.reference["expert"]
    plain = recorded.rename(tmp_path / "data" / "hopper-full-replay-2.hdf5")  # a grid of before has no other name
    assert plain in Preparation(tmp_path / "data").kept(key).values()


# Plans


def test_cells_that_share_shapes_train_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cells = planned(
        cell("bc"),
        cell("wbcu", 0, gradient_penalty=0.0),
        cell("wbcu", 1, gradient_penalty=10.0),
        cell("wbcu", 0, hidden=(8, 8)),
        dataclasses.replace(cell("bc"), method="oracle", data=DataKey("hopper", "noisy-expert", 0, "clean")),
        cell("wbcu", 0, "ant"),
    )
    store = Store(tmp_path)

    def sizes(**options: Any) -> list[list[tuple[str, str]]]:
        return [[(p.cell.method, p.cell.data.env) for p in one] for one in plan(cells, store, **options)]

    assert sizes() == [
        [("bc", "hopper"), ("oracle", "hopper")],
        [("wbcu", "hopper")] * 2,
        [("wbcu", "hopper")],
        [("wbcu", "ant")],
    ]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert sizes()[1] == [("wbcu", "hopper")] * 2 + [("wbcu", "ant")]
    assert sizes(max_members=2)[1:3] == [[("wbcu", "hopper")] * 2, [("wbcu", "ant")]]
    recipes = ("noisy-expert", "no-expert", "full-replay")
    tasks = planned(*(dataclasses.replace(cell("nbcu"), data=DataKey("hopper", recipe, 0)) for recipe in recipes))
    assert [len(one) for one in plan(tasks, store)] == [3]
    own = tasks[0].data.demonstrations
    longer = Demonstrations(own.expert, own.expert.take(np.tile(np.arange(len(own.expert)), 40)))
    tasks[0] = tasks[0]._replace(data=dataclasses.replace(tasks[0].data, demonstrations=longer))
    assert [len(one) for one in plan(tasks, store)] == [3]  # small enough to be padded
    monkeypatch.setattr("demosift.experiments.plan.SMALL_ROWS", len(own.union.obs))
    assert [len(one) for one in plan(tasks, store)] == [1, 2]
    assert [len(part) for part in pack(planned(*(cell("bc", seed) for seed in range(5))), 2)] == [2, 2, 1]


def test_each_precision_has_its_own_program(tmp_path: Path):
    cells = [dataclasses.replace(cell(), precision=precision) for precision in ("float32", "bfloat16")]
    programs = plan(planned(*cells), Store(tmp_path))
    assert [[each.cell.precision for each in together] for together in programs] == [["float32"], ["bfloat16"]]
    losses = [np.asarray(make_program(together).advance(0, EVERY)["policy_loss"]) for together in programs]
    assert losses[0] != losses[1]
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.05)


def test_finished_cells_are_skipped_and_damaged_ones_made_again(tmp_path: Path):
    store = Store(tmp_path)
    cells = planned(cell(), cell(seed=1))
    assert run_local([cells], store, quiet_view(2), num_workers=1)
    assert plan(cells, store) == []
    path = store.cell_file(cells[1].id)
    path.write_text(path.read_text().replace('"seed":1', '"seed":2'))
    assert [[each.id for each in one] for one in plan(cells, store)] == [[cells[1].id]]
    path.write_text(path.read_text()[:100])
    assert len(plan(cells, store)) == 1


def test_a_program_that_ended_while_it_wrote_its_cells(tmp_path: Path):
    """It goes on whole, as a program of one cell would not be the same; and is swept if only that was left to do."""
    store = Store(tmp_path)
    cells = planned(cell(), cell(seed=1))
    assert run_local([cells], store, quiet_view(2), num_workers=1)
    under_way = store.program([each.id for each in cells])
    under_way.write(4, {}, {"members": [], "wall_seconds": 0.0})
    assert plan(cells, store) == []
    store.cell_file(cells[1].id).unlink()
    store.sweep()
    assert [[each.id for each in one] for one in plan(cells, store)] == [[each.id for each in cells]]
    assert [[each.id for each in one] for one in plan(cells[1:], store)] == [[cells[1].id]]
    under_way.discard()
    assert run_local(plan(cells, store), store, quiet_view(2), num_workers=1)
    under_way.write(4, {}, {"members": [], "wall_seconds": 0.0})
    store.sweep()
    assert not under_way.path.exists()


# Programs


def run(cells: list[Planned], store: Store, pool: Rollouts, stop_at: int | None = None) -> tuple[Outcome, list[int]]:
    """Run a program, stopped at an iteration if one is given; its outcome and the iterations that it reported."""
    heard: list[int] = []
    under_way = store.program([each.id for each in cells])

    def stopped() -> bool:
        return stop_at is not None and heard[-1] >= stop_at

    return run_program(cells, under_way, pool, heard.append, stopped), heard


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(program.CHUNK, "cpu", 2)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("stop_at", [2, 4, 10])
def test_stopped_and_continued_is_the_same_bit_for_bit(stop_at: int, tmp_path: Path, pool: Rollouts):
    """Stopped between evaluations, at one, and while the last ones are pending."""
    cells = planned(*(cell("wbcu", seed, gradient_penalty=gp) for gp in (0.0, 1.0) for seed in (0, 1)))
    whole, _ = run(cells, Store(tmp_path / "whole"), pool)
    store = Store(tmp_path / "pieces")
    first, heard = run(cells, store, pool, stop_at)
    assert (first.finished, first.iteration, heard[-1]) == (False, stop_at, stop_at)
    second, heard = run(cells, store, pool)
    assert heard[0] == stop_at + 2  # it did not start from zero
    assert second.finished
    assert [each.evaluations for each in second.members] == [each.evaluations for each in whole.members]
    assert [row["iteration"] for row in whole.members[0].evaluations] == [4, 8, 12]
    assert [len(row["returns"]) for row in whole.members[0].evaluations] == [1, 1, 2]
    returns = [[row["returns"] for row in each.evaluations] for each in whole.members]
    assert returns[0] != returns[1]  # seeds differ
    assert returns[0] != returns[2]  # and so do settings
    assert store.unfinished() == [[each.id for each in cells]]


@pytest.mark.usefixtures("short_chunks")
def test_checkpoints_are_written_while_training_goes_on(tmp_path: Path, pool: Rollouts):
    cells = planned(cell("wbcu"))
    under_way = Store(tmp_path).program([cells[0].id])
    outcome = run_program(cells, under_way, pool, checkpoint_seconds=0.0)
    found = under_way.read()
    assert found is not None
    iteration, _, progress = found
    due = [row for row in outcome.members[0].evaluations if row["iteration"] <= iteration]
    assert progress["members"][0]["evaluations"] == due  # all that belong to it, though some had been pending
    newest = sorted((under_way.path / "checkpoint").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    earlier = under_way.read()
    assert earlier is None or earlier[0] < iteration


def test_an_unfinished_program_is_continued_as_it_was(tmp_path: Path, pool: Rollouts):
    """More seeds are asked for later: the unfinished program keeps its members, the new cells get their own."""
    store = Store(tmp_path)
    first = planned(cell("bc", 0), cell("bc", 1))
    under_way = store.program([each.id for each in first])
    under_way.write(4, {}, {"members": [], "wall_seconds": 0.0})
    cells = planned(*(cell("bc", seed) for seed in range(4)))
    assert [[each.cell.seed for each in one] for one in plan(cells, store)] == [[0, 1], [2, 3]]
    (under_way.path / "program.json").write_text("{}")
    assert [[each.cell.seed for each in one] for one in plan(cells, store)] == [[0, 1, 2, 3]]
    with pytest.raises(InputError, match="does not fit"):
        run(first, store, pool)


def test_a_deadline_stops_before_the_next_program(tmp_path: Path):
    store = Store(tmp_path)
    cells = planned(cell())
    assert not run_local([cells], store, quiet_view(1), deadline=time.monotonic() - 1)
    assert evaluations(store) == {}


@pytest.mark.usefixtures("interruptible")
def test_interrupted_programs_are_waited_for_however_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The command line repeats Ctrl-C every two seconds; a program may need longer to write its checkpoint."""
    started, order = threading.Event(), []
    plan = planned(cell())

    def slow(planned: Any, checkpoints: Any, rollouts: Any, advanced: Any, stopped: Any, *_: Any) -> Outcome:
        started.set()
        while not stopped():
            time.sleep(0.01)
        time.sleep(0.6)
        order.append("checkpoint written")
        return Outcome(False, 0, [program.Measured()], 0.0)

    def interrupt() -> None:
        started.wait()
        for _ in range(2):
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(local, "run_program", slow)
    monkeypatch.setattr(local, "Rollouts", lambda workers: contextlib.nullcontext())
    monkeypatch.setattr(local.Pool, "close", lambda pool: order.append("simulators closed"))
    insisting = threading.Thread(target=interrupt)
    insisting.start()
    with pytest.raises(KeyboardInterrupt):
        run_local([plan], Store(tmp_path), quiet_view(1))
    insisting.join()
    assert order == ["checkpoint written", "simulators closed"]


def test_chunks_divide_the_time_between_evaluations():
    assert chunk_length(10_000) == 100
    assert chunk_length(750) == 75
    assert chunk_length(7) == 7
    assert chunk_length(10_007) == 100  # a prime: the last chunk is shorter


@pytest.mark.long
def test_two_programs_at_once_are_the_same_two_programs(tmp_path: Path):
    programs = [planned(cell("bc", 0), cell("bc", 1)), planned(cell("nbcu", 0), cell("nbcu", 1))]
    stores = Store(tmp_path / "turns"), Store(tmp_path / "at once")
    for store, concurrent in zip(stores, (1, 2), strict=True):
        assert run_local(programs, store, quiet_view(4), num_workers=1, concurrent=concurrent)
    assert evaluations(stores[0]) == evaluations(stores[1])
    assert len(evaluations(stores[0])) == 4


def test_a_grid_needs_no_more_than_it_uses():
    """A machine that only trains may lack what other verbs need."""
    code = "import sys; sys.modules |= dict.fromkeys(('pyarrow', 'minari', 'ray', 'sklearn', 'onnx')); "
    code += "import demosift.experiments.reproduce, demosift.experiments.cluster"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


# What methods prepare before their training

STAGES: dict[str, Any] = {"first_iterations": 3, "discriminator_iterations": 3, "discriminator_batch_size": 4}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many discriminators each of their programs had."""
    counts: list[int] = []
    pretrain = stages.pretrain

    def counting(wanted: Any, *rest: Any) -> Any:
        counts.append(len(wanted))
        return pretrain(wanted, *rest)

    monkeypatch.setattr(stages, "pretrain", counting)
    monkeypatch.setattr(prepared, "KNOWN", {})
    return counts


def kept_by(store: Store) -> list[Path]:
    return sorted((store.path / "unfinished" / "prepared").glob("*/*.safetensors"))


@pytest.mark.usefixtures("short_chunks")
def test_a_killed_grid_finds_what_was_prepared(tmp_path: Path, trained: list[int], monkeypatch: pytest.MonkeyPatch):
    """So do other programs on the same data; a process that was killed remembers nothing."""
    store = Store(tmp_path)
    cells = planned(*(cell("tailo", seed, **STAGES) for seed in (0, 1)))
    other = planned(*(cell("tailo", seed, **STAGES, average=0.5) for seed in (0, 1, 2)))

    class Killed(BaseException):
        pass

    def killing(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Program, "advance", killing)
        with pytest.raises(Killed):
            run_local([cells], store, quiet_view(2), num_workers=1)
    assert trained == [2, 2]  # two stages, each with both datasets
    found = kept_by(store)
    assert [path.parent.name for path in found] == ["tailo"] * 2
    content = [path.read_bytes() for path in found]
    assert run_local([cells], store, quiet_view(2), num_workers=1)
    assert trained == [2, 2]
    assert run_local([other], store, quiet_view(3), num_workers=1)
    assert trained == [2, 2, 1, 1]  # the third seed's
    assert [path.read_bytes() for path in found] == content
    whole = Store(tmp_path / "whole")
    assert run_local([cells, other], whole, quiet_view(5), num_workers=1)
    assert {id_: evaluations(store)[id_] for id_ in evaluations(whole)} == evaluations(whole)


def test_two_programs_at_once_do_not_prepare_the_same_twice(tmp_path: Path, trained: list[int]):
    rows = [planned(*(cell("tailo", seed, **STAGES, average=rate) for seed in (0, 1))) for rate in (0.0, 0.5)]
    assert run_local(rows, Store(tmp_path), quiet_view(4), num_workers=1, concurrent=2)
    assert trained == [2, 2]


def test_a_deadline_while_discriminators_train(tmp_path: Path, pool: Rollouts, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pretraining, "CHUNK", 1)
    store = Store(tmp_path)
    cells = planned(*(cell("tailo", seed, **STAGES) for seed in (0, 1)))
    under_way, kept = store.program([each.id for each in cells]), store.prepared("tailo")
    advance, positions = pretraining.Pretraining.advance, []

    def spy(self: Any, position: int, steps: int) -> Any:
        positions.append(position)
        return advance(self, position, steps)

    monkeypatch.setattr(pretraining.Pretraining, "advance", spy)
    outcome = run_program(cells, under_way, pool, stopped=lambda: True, kept=kept)
    assert (outcome.finished, outcome.iteration, positions) == (False, 0, [0])
    assert run_program(cells, under_way, pool, kept=kept).finished
    assert positions == [0, 1, 2, 0, 1, 2]  # none of them twice
    assert not kept.workshop.exists()


def test_seeds_of_one_file_are_prepared_once(trained: list[int]):
    """They share it on the device as well. The same rows with the expert's actions unknown are other data."""
    first, second = planned(*(cell("tailo", seed, **STAGES) for seed in (0, 1)))
    again = second._replace(data=dataclasses.replace(second.data, demonstrations=first.data.demonstrations))
    program = make_program([first, again])
    assert trained == [1, 1]
    assert program.each[0].data is program.each[1].data
    assert program.cohort.parts[0].own is None
    key = dataclasses.replace(again.cell.data, expert_actions=False)
    expert = first.data.demonstrations.expert
    still = expert.transitions._replace(action=np.zeros_like(expert.transitions.action))
    known = dataclasses.replace(first.data.demonstrations, expert=dataclasses.replace(expert, transitions=still))
    parts = [
        dataclasses.replace(first.data, demonstrations=each)
        for each in (known, dataclasses.replace(known, expert_actions=False))
    ]
    blind = again._replace(cell=dataclasses.replace(again.cell, data=key), data=parts[1])
    members = make_program([first._replace(data=parts[0]), blind]).each
    assert [each.data.expert_actions for each in members] == [True, False]


def test_what_was_prepared_goes_when_nothing_needs_it(tmp_path: Path):
    store = Store(tmp_path)
    store.prepared("tailo").write(("tailo",), {"log_ratio": np.zeros(3)})
    under_way = store.program(["a"])
    under_way.write(4, {}, {"members": [], "wall_seconds": 0.0})
    store.sweep()
    store.forget_prepared()
    assert len(kept_by(store)) == 1  # another grid was begun here
    assert store.unfinished() == [["a"]]
    under_way.discard()
    store.forget_prepared()
    assert not list((tmp_path / "unfinished").iterdir())


def test_the_command_keeps_what_failed_cells_need(recordings: Path, tmp_path: Path):
    out = with_recordings(tmp_path / "out", recordings)
    few = [*arguments(out, "--seeds", "1", "--iterations", "4", "--evaluate-every", "4"), "--methods", "tailo"]
    small = ["hidden=4,4", "batch_size=8", *(f"tailo.{name}={value}" for name, value in STAGES.items())]
    assert main([*few, "--set", *small, "learning_rate=1e38"]) == 1
    assert len(kept_by(Store(out))) == 1
    assert main([*few, "--set", *small]) == 0
    assert kept_by(Store(out)) == []
    assert not list((out / "unfinished").iterdir())


# Failures


def test_a_member_that_diverges_fails_alone(tmp_path: Path):
    store = Store(tmp_path)
    cells = planned(cell("bc", 0), cell("bc", 1, learning_rate=1e38), cell("bc", 2))
    view = quiet_view(3)
    assert run_local([cells], store, view, num_workers=1)
    assert (view.done, view.failed) == (2, 1)
    assert set(evaluations(store)) == {cells[0].id, cells[2].id}
    failure = json.loads(store.failure_file(cells[1].id).read_text())
    assert "diverged: by iteration 4" in failure["failure"]
    alone = Store(tmp_path / "alone")
    assert run_local([[cells[0], cells[2]]], alone, quiet_view(2), num_workers=1)
    assert evaluations(alone) == evaluations(store)  # nobody else noticed
    assert [[each.id for each in one] for one in plan(cells, store)] == [[cells[1].id]]  # it is tried again


@pytest.mark.usefixtures("short_chunks")
def test_a_program_that_fails_is_cut_until_the_culprit_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = Store(tmp_path)
    cells = planned(*(cell("bc", seed) for seed in range(4)))
    culprit, starts = cells[2].id, []
    evaluate, advance = runner.Run.evaluate, Program.advance

    def failing(each: runner.Run, iteration: int) -> Any:
        if iteration == 8 and 2 in [member.seed for member in each.trainee.each]:  # type: ignore[attr-defined]
            raise ArithmeticError("the joints came apart")
        return evaluate(each, iteration)

    def watched(each: Program, position: int, steps: int) -> Any:
        starts.append((len(each), position))
        return advance(each, position, steps)

    monkeypatch.setattr(runner.Run, "evaluate", failing)
    monkeypatch.setattr(Program, "advance", watched)
    view = quiet_view(4)
    assert run_local([cells], store, view, num_workers=1, checkpoint_seconds=0.0)
    assert (view.done, view.failed) == (3, 1)
    failure = json.loads(store.failure_file(culprit).read_text())["failure"]
    assert "Traceback" in failure
    assert "ArithmeticError: the joints came apart" in failure
    firsts = [next(at for members, at in starts if members == size) for size in (2, 1)]
    assert all(first > 0 for first in firsts)  # the halves continued from the checkpoint
    monkeypatch.undo()
    whole = Store(tmp_path / "whole")
    assert run_local([cells], whole, quiet_view(4), num_workers=1)
    expected = evaluations(whole)
    del expected[culprit]
    found = evaluations(store)
    for cell_id, rows in expected.items():  # members of other programs: equal up to what a compiler may round
        assert [row["lengths"] for row in found[cell_id]] == [row["lengths"] for row in rows]
    assert run_local(plan(cells, store), store, quiet_view(4), num_workers=1)
    assert not list((store.path / "failures").iterdir())
    assert not list((store.path / "unfinished").iterdir())


def test_finite_members():
    kernel = np.zeros((3, 2, 2), np.float32)
    kernel[1, 0, 0] = np.inf
    zeros = np.zeros((3, 2), np.float32)
    policy = Policy("tanh-gaussian", (Layer(kernel, zeros),), zeros, zeros)
    assert finite_members(policy).tolist() == [True, False, True]


# Padding


PADDED = [
    ("bc", {}),
    ("wbcu", {"gradient_penalty": 10.0}),
    pytest.param("ilid", {"discriminator_iterations": 5}, marks=pytest.mark.long),
    pytest.param("dwbc", {"discriminator_every": 2}, marks=pytest.mark.long),
    pytest.param("demodice", {}, marks=pytest.mark.long),
    pytest.param("smodice", {"discriminator_iterations": 2}, marks=pytest.mark.long),
    pytest.param("lobsdice", {}, marks=pytest.mark.long),
]


def two_environments(method: str, settings: dict[str, Any]) -> list[Planned]:
    return planned(*(cell(method, seed, env, **settings) for env in ("hopper", "ant") for seed in (0, 1)))


@pytest.mark.parametrize(("method", "settings"), PADDED)
def test_a_padded_member_learns_what_it_learns_alone(method: str, settings: dict[str, Any]):
    cells = two_environments(method, settings)
    together, alone = make_program(cells), [make_program(cells[:2]), make_program(cells[2:])]
    for each in (together, *alone):
        each.advance(0, ITERATIONS)
    for (_, padded), each in zip(together.policies(), alone, strict=True):
        ((_, own),) = each.policies()
        for ours, theirs in zip(padded.layers, own.layers, strict=True):
            np.testing.assert_allclose(ours.kernel, theirs.kernel, atol=1e-5)
            np.testing.assert_allclose(ours.bias, theirs.bias, atol=1e-5)
    assert [group.members for group in together.policies()] == [[0, 1], [2, 3]]


def test_padding_is_wiped_and_must_be():
    cells = two_environments("wbcu", {"gradient_penalty": 10.0})
    kept, wiped = make_program(cells), make_program(cells)
    masks = jax.tree.map(lambda *parts: np.concatenate(parts), *(part.algorithm.masks for part in kept.cohort.parts))
    for place, part in enumerate(kept.cohort.parts):
        everything = [None if mask is None else np.ones_like(mask) for mask in part.algorithm.masks]
        kept.cohort.parts[place] = part._replace(algorithm=padding.Padded(part.algorithm.algorithm, everything))
    inside = []
    for each in (kept, wiped):
        each.advance(0, ITERATIONS)
        leaves = zip(jax.tree.leaves(each.cohort.state), masks, strict=True)
        inside.append(max(np.abs(np.where(mask, 0.0, leaf)).max() for leaf, mask in leaves if mask is not None))
    assert inside[1] == 0.0
    assert inside[0] > 0.0


def test_axes_are_known_by_what_they_follow():
    kinds = padding.axis_kinds(WBCU(hidden=(4, 5)))
    assert {kind for leaf in kinds for kind in leaf} == {(0, 0), (1, 0), (0, 2), (1, 1)}
    own, common = padding.Sizes(2, 1), padding.Sizes(3, 2)
    assert padding.places((1, 1), own, common).tolist() == [0, 1, 3]
    assert padding.places((0, 2), own, common).tolist() == [0, 2]
    assert padding.places((2, 0), own, common).tolist() == [0, 1, 3, 4]
    assert padding.places((2, 1), own, common).tolist() == [0, 1, 3, 4, 6]
    with pytest.raises(InputError, match="cannot share a program"):
        padding.kind_of(3 * padding.PROBE.obs)


# The view and the files


def test_the_view_counts(tmp_path: Path):
    cells = planned(cell(), cell(seed=1))
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with View(3, 1, console) as view:
        view.queue(cells)
        advanced = view.start(0, cells)
        advanced(4)
        advanced(8)
        assert "1 of 3 cells done, 2 running, 0 failed, about" in view.summary()
        view.display._bars.refresh()
        view.end(0, Settled(finished=1, failed=1))
        assert view.summary().startswith("2 of 3 cells done, 0 running, 1 failed")
    assert "8/12" in console.file.getvalue()  # type: ignore[attr-defined]
    assert [duration(seconds) for seconds in (5, 65, 3700)] == ["5 s", "1 min 05 s", "1 h 01 min"]


def test_a_result_says_how_it_was_made(tmp_path: Path):
    store = Store(tmp_path)
    (one,) = planned(cell("wbcu"))
    assert run_local([[one]], store, quiet_view(1), num_workers=1)
    text = store.cell_file(one.id).read_text()
    content = json.loads(text)
    assert lines_of(content) == text
    assert content["config"]["settings"]["gradient_penalty"] == 1.0
    assert content["recipe"] == {"noise": 0}
    assert content["data"]["sha256"] == one.data.sha256
    assert {"versions", "commit", "hardware", "device", "wall_seconds", "reference", "trained_together"} <= set(content)
    assert set(content["evaluations"][0]) == {"iteration", "returns", "lengths", "metrics"}
    assert program_id(["a", "b"]) != program_id(["b", "a"])


# Coverage


def test_mixing_by_hand():
    x = np.array([[0.0], [1.0], [2.0], [3.0]])
    assert mixing(x, x + 100) == 0.0
    # Alternating neighbours are all of the other kind: 1, over what chance gives of eight with four each, 4/7.
    assert mixing(np.array([[0.0], [10], [20], [30]]), np.array([[0.1], [10.1], [20.1], [30.1]])) == pytest.approx(
        7 / 4
    )
    both = np.random.default_rng(0).normal(size=(2, 400, 2))
    assert mixing(*both) == pytest.approx(1.0, abs=0.12)


def test_coverage_keeps_good_and_noisy_apart(recordings: Path):
    task = Preparation(recordings)(DataKey("hopper", "noisy-expert", 0, pool=10)).demonstrations
    found = coverage(task, samples=40)
    assert np.shape(found["good"]) == np.shape(found["noisy"]) == (40, 2)
    assert found == coverage(task, samples=40)
    assert found != coverage(task, samples=40, seed=1)
    assert task.supplementary is not None
    shifted = np.where(task.supplementary.origin.code[:, None] == 2, 50.0, 0.0).astype(np.float32)  # type: ignore
    moved = task.supplementary.transitions._replace(obs=task.supplementary.transitions.obs + shifted)
    apart = dataclasses.replace(task, supplementary=dataclasses.replace(task.supplementary, transitions=moved))
    assert coverage(apart, samples=40)["mixing"] == 0.0


# The command


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The expert's trajectories, recorded once."""
    folder = tmp_path_factory.mktemp("recordings")
    Preparation(folder)(DataKey("hopper", "noisy-expert", 0, pool=10))
    return folder


def arguments(out: Path, *more: str) -> list[str]:
    small = ["--set", "hidden=4,4", "batch_size=8", "--pool", "10", "--workers", "1"]
    schedule = ["--iterations", "600", "--episodes", "1", "--early-episodes", "1", "--methods", "bc", "wbcu"]
    return [
        "reproduce",
        "noisy-expert",
        "--envs",
        "hopper",
        "--seeds",
        "2",
        *schedule,
        *small,
        "--out",
        str(out),
        *more,
    ]


def with_recordings(out: Path, recordings: Path) -> Path:
    (out / "data").mkdir(parents=True)
    for path in recordings.iterdir():
        os.link(path, out / "data" / path.name)
    return out


def test_when_cells_fail_the_command_says_how_many(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = with_recordings(tmp_path / "out", recordings)
    more = ["--iterations", "4", "--evaluate-every", "4", "--methods", "bc"]
    assert main([*arguments(out), *more, "--set", "hidden=4,4", "batch_size=8", "learning_rate=1e38"]) == 1
    said = capsys.readouterr()
    assert "0 of 2 cells done, 2 failed" in said.out
    assert said.err.splitlines()[-1] == "demosift: 2 of 2 cells failed"


@pytest.mark.parametrize(
    "more",
    [
        ["--engine", "ray", "--address", "127.0.0.1:1"],
        ["--engine", "ray", "--address", "ray://127.0.0.1:1"],
        ["--set", "batch_size=0"],
    ],
)
def test_a_refused_grid_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]):
    assert main([*arguments(tmp_path / "out"), *more]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_an_address_where_something_else_listens_is_refused(says: bytes, monkeypatch: pytest.MonkeyPatch):
    """Silent, or not a cluster."""
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer, contextlib.suppress(ConnectionError):
                peer.sendall(says)
                while peer.recv(100):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(InputError, match="no Ray cluster there"):
            cluster.check_answers(f"127.0.0.1:{server.getsockname()[1]}")


def test_a_grid_whose_data_is_refused_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise InputError("no such data")

    monkeypatch.setattr(prepare, "draw_task", refuse)
    assert main(arguments(tmp_path / "out")) == 2
    assert "no such data" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_killed_continued_and_run_again_with_nothing_left(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole, broken = (with_recordings(tmp_path / name, recordings) for name in ("whole", "broken"))
    assert main([*arguments(whole), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["cells"], answer["done"], answer["complete"], answer["failed"]) == (8, 8, True, {})

    command = [sys.executable, "-m", "demosift.cli.main", *arguments(broken, "--checkpoint-seconds", "0")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(broken.glob("unfinished/*/checkpoint/*.safetensors")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(list((broken / "cells").glob("*.json"))) < 8
    assert main(arguments(broken)) == 0
    assert evaluations(Store(broken)) == evaluations(Store(whole))
    for name in ("tables/noisy-expert.md", "tables/noisy-expert.tex", "figures/summary.svg", "report.html"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name
    assert not list(broken.glob("unfinished/*"))

    before = tree(whole)
    capsys.readouterr()
    assert main(arguments(whole)) == 0
    assert "nothing was left to do" in capsys.readouterr().out
    assert tree(whole) == before
    for name in ("report.html", "tables/noisy-expert.json", "figures/summary.png"):
        (whole / name).unlink()
    assert main(["report", str(whole)]) == 0
    assert tree(whole) == before


def test_a_method_is_added_to_the_tables(recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = with_recordings(tmp_path / "out", recordings)
    few = [word for word in arguments(out, "--seeds", "1") if word not in ("bc", "wbcu")]
    at = few.index("--methods") + 1

    def rows(*more: str) -> set[str]:
        assert main([*few[:at], *more, *few[at:]]) == 0
        return {row["method"] for row in json.loads((out / "tables" / "noisy-expert.json").read_text())["rows"]}

    assert rows("bc") == {"bc"}
    assert rows("nbcu", "--iterations", "40", "--add") == {"bc", "nbcu"}
    said = (out / "tables" / "noisy-expert.md").read_text()
    assert "after 600 iterations in float32 (NBCU: 40 iterations in float32)" in said
    assert rows("nbcu", "--iterations", "40", "--precision", "bfloat16") == {"nbcu"}
    assert "after 40 iterations in bfloat16. " in (out / "tables" / "noisy-expert.md").read_text()
    (out / "grids" / "noisy-expert.json").write_text("{")
    assert main([*few[:at], "bc", *few[at:], "--add"]) == 2
    assert "grids/noisy-expert.json" in capsys.readouterr().err


def test_a_time_limit_leaves_work_for_the_next_call(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = with_recordings(tmp_path / "out", recordings)
    assert main([*arguments(out, "--time-limit", "0"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["complete"], answer["done"], answer["ran"]) == (False, 0, 8)


def test_coverage_and_sac_curves_by_the_command(recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = with_recordings(tmp_path / "out", recordings)
    assert main(["reproduce", "coverage", "--envs", "hopper", "--pool", "10", "--out", str(out)]) == 0
    collected = tmp_path / "collected"
    collected.mkdir()
    line = {"step": 1, "seed": 0, "return_mean": 5.0}
    (collected / "curve.jsonl").write_text(json.dumps(line) + "\n")
    assert main(["reproduce", "sac-curves", "--envs", "hopper", "--replay", str(collected), "--out", str(out)]) == 0
    for name in ("figures/coverage.svg", "figures/coverage.png", "sac-curves/sac-curves.svg", "report.html"):
        assert (out / name).is_file(), name
    assert main(["reproduce", "sac-curves", "--envs", "ant", "--replay", str(collected / "x"), "--out", str(out)]) == 2
    assert "no such curve" in capsys.readouterr().err


def test_the_verb_explains_itself(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "--help"])
    assert stop.value.code == 0
    assert "usage: demosift reproduce" in capsys.readouterr().out
