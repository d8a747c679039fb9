"""Preparations of many datasets at once: each is what it is alone, what one leaves is found, and one may fail alone."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Killed, random_demonstrations, tiny, tree

from demosift import algorithm
from demosift.algorithms import BC, ILID
from demosift.learning import apart, prepared, pretraining, stages
from demosift.learning.apart import Apart
from demosift.learning.losses import discriminator_loss
from demosift.learning.prepared import KNOWN, InMemory, Kept, OnShelf
from demosift.learning.pretraining import Discriminator, OwnRows, Pretraining, Stage, Stopped, lay_out
from demosift.learning.runner import Bar
from demosift.learning.stages import alone, programs, together
from demosift.processes import WorkerError
from demosift.results.checkpoint import CheckpointFolder
from demosift.results.prepared import shelved, write_shelved
from demosift.sift.method import Sift
from demosift.types import Demonstrations, InputError

STAGED = ("ilid", "tailo")
STEPS = 10


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    prepared.KNOWN.clear()
    yield
    prepared.KNOWN.clear()


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many discriminators each program had."""
    counts: list[int] = []
    pretrain = stages.pretrain

    def counting(wanted: Any, *rest: Any) -> Any:
        counts.append(len(wanted))
        return pretrain(wanted, *rest)

    monkeypatch.setattr(stages, "pretrain", counting)
    return counts


def three() -> list[Demonstrations]:
    """Of different lengths."""
    return [random_demonstrations(seed=seed, num_rows=rows) for seed, rows in ((0, 60), (2, 48), (4, 90))]


def prepare(name: str, data: list[Demonstrations], kept: Kept, **rest: Any) -> list[np.ndarray]:
    """As a process of its own does it, which knows nothing yet."""
    KNOWN.clear()
    return prepare_here(name, data, kept, **rest)


def prepare_here(name: str, data: list[Demonstrations], kept: Kept, **rest: Any) -> list[np.ndarray]:
    found = together([tiny(name).prepare_in_stages(each, kept) for each in data], kept, **rest)
    return [weights_of(each) for each in found]


def weights_of(data: Demonstrations) -> np.ndarray:
    assert data.weight is not None
    return np.asarray(data.weight)


def stage(inputs: int, rows: int, seed: int = 0) -> Stage:
    """With everything that could touch a column of padding."""
    rng = np.random.default_rng([seed, inputs])
    how = Discriminator(discriminator_loss, 1e-2, weight_decay=0.1, gradient_penalty=5.0, batch_size=16, hidden=(8, 8))
    expert, other = (rng.normal(size=(count, inputs)).astype(np.float32) for count in (20, rows))
    return Stage(how, expert, other, STEPS, "of a test", "place", seed)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("name", STAGED)
def test_a_dataset_alone_is_the_same_among_others(
    name: str, backend: str, trained: list[int], monkeypatch: pytest.MonkeyPatch
):
    """In a program each, or all in one."""
    separate = [weights_of(tiny(name).prepare(data, None)) for data in three()]
    assert trained == [1] * 6
    trained.clear()
    prepared.KNOWN.clear()
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    for found, expected in zip(prepare(name, three(), InMemory()), separate, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert trained == [3, 3]
    assert not np.allclose(separate[0][:30], separate[2][:30], rtol=1e-3) or name == "tailo"


def test_the_draws_are_those_of_a_dataset_alone():
    """To the bit, and never a row of another: parts of different lengths stand one after another."""
    every = [stage(3, rows, seed) for seed, rows in enumerate((40, 7, 300))]
    rows, sides = lay_out(every)
    key = jax.random.key(5)
    for i, each in enumerate(every):
        own = OwnRows(rows, jax.tree.map(lambda leaf, i=i: leaf[i], sides))
        by_itself, its_sides = lay_out([each])
        single = OwnRows(by_itself, jax.tree.map(lambda leaf: leaf[0], its_sides))
        among, without = (data.batch(data.draw(key, 500)) for data in (own, single))
        for here, there in zip(among, without, strict=True):
            np.testing.assert_array_equal(here, there)
        assert {*map(tuple, np.asarray(among.other).tolist())} <= {*map(tuple, each.other.tolist())}
        first, count, index = (int(own.sides.other.first), len(each.other), np.asarray(own.draw(key, 5_000).other))
        assert (index.min(), index.max()) == (first, first + count - 1)


def test_the_draw_is_that_of_earlier_releases():
    data = OwnRows(*(jax.tree.map(lambda leaf: leaf[0], part) for part in lay_out([stage(3, 40)])))
    expert, other, amount = jax.random.split(jax.random.key(1), 3)
    drawn = data.draw(jax.random.key(1), 50)
    np.testing.assert_array_equal(drawn.expert, jax.random.randint(expert, (50,), 0, 20))
    np.testing.assert_array_equal(drawn.other - 20, jax.random.randint(other, (50,), 0, 40))
    np.testing.assert_array_equal(drawn.amount, jax.random.uniform(amount, (50, 1)))


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_padding_changes_nothing_and_stays_zero(backend: str, monkeypatch: pytest.MonkeyPatch):
    every = [stage(3, 40), stage(5, 60, 1), stage(3, 50, 2)]
    separate = [pretraining.pretrain([each])[0] for each in every]
    assert [len(places) for places in programs(dict(enumerate(every)))] == [2, 1]
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    trainee = Pretraining(every)
    start = jax.tree.map(jnp.copy, trainee.cohort.state)
    trainee.advance(0, STEPS)
    for found, expected in zip(trainee.networks(), separate, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)
    padded = [leaf for leaf in jax.tree.leaves(trainee.cohort.state) if leaf.ndim == 3 and leaf.shape[1] == 5]
    assert len(padded) == 3  # the first layer's weights, and both moments of their gradient
    for leaf in padded:
        assert not np.asarray(leaf)[[0, 2], 3:].any()
        assert np.asarray(leaf)[1, 3:].any()
    moved = jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), start.params, trainee.cohort.state.params))
    assert any(moved)
    assert len(programs(dict(enumerate(every)))) == (2 if backend == "cpu" else 1)


def test_only_what_is_trained_alike_trains_together():
    first = stage(3, 40)
    others = [first._replace(iterations=5), first._replace(how=dataclasses.replace(first.how, learning_rate=0.1))]
    assert programs(dict(enumerate([first, *others, stage(3, 7)]))) == [[0, 3], [1], [2]]


def test_rows_that_several_have_are_on_the_device_once():
    first, second = stage(3, 40), stage(3, 50, 1)
    assert len(lay_out([first, second])[0].x) == 20 + 40 + 20 + 50
    rows, sides = lay_out([first, second._replace(expert=first.expert), first])
    assert len(rows.x) == 20 + 40 + 50
    assert sides.expert.first.tolist() == [0, 0, 0]
    assert sides.other.first.tolist() == [20, 60, 20]


def test_one_that_fails_lets_the_others_end(tmp_path: Path, trained: list[int], monkeypatch: pytest.MonkeyPatch):
    shelf, data, pretrain = OnShelf(tmp_path), three(), stages.pretrain

    def breaking(wanted: list[Stage], *rest: Any) -> Any:
        networks = pretrain(wanted, *rest)
        broken = [each.place == "first" and len(each.other) == 48 for each in wanted]
        spoil = [jnp.nan if each else 0.0 for each in broken]
        return [jax.tree.map(lambda leaf, by=by: leaf + by, own) for own, by in zip(networks, spoil, strict=True)]

    with monkeypatch.context() as patch:
        patch.setattr(stages, "pretrain", breaking)
        with pytest.raises(InputError, match="first discriminator: diverged"):
            prepare("tailo", data, shelf)
    assert trained == [3, 2]  # the second stage goes on without it
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    prepare("tailo", data, shelf)
    assert trained == [3, 2, 1, 1]
    assert not shelf.workshop.exists()


def test_a_grid_finds_what_its_process_has_prepared(tmp_path: Path, trained: list[int]):
    first = prepare("tailo", three(), InMemory())
    assert trained == [3, 3]
    second = prepare_here("tailo", three(), OnShelf(tmp_path))
    assert trained == [3, 3]
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("at", [3, 8])
def test_killed_and_continued(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In the first stage or the second: from the last checkpoint, to the same bytes."""
    monkeypatch.setattr(pretraining, "CHUNK", 1)
    monkeypatch.setattr(pretraining, "CHECKPOINT_SECONDS", -1.0)
    expected = prepare("tailo", three(), OnShelf(tmp_path / "whole"))
    advance, on_log, seen, logged = Pretraining.advance, Bar.on_log, [], []

    def spy(self: Pretraining, position: int, steps: int) -> Any:
        seen.append(position)
        return advance(self, position, steps)

    def killing(self: Bar, position: int, metrics: Any) -> None:
        logged.append(position)
        if len(logged) == at:
            raise Killed
        on_log(self, position, metrics)

    monkeypatch.setattr(Pretraining, "advance", spy)
    with monkeypatch.context() as patch:
        patch.setattr(Bar, "on_log", killing)
        with pytest.raises(Killed):
            prepare("tailo", three(), OnShelf(tmp_path / "cut"))
    seen.clear()
    others = three()[:2]  # checkpoints are of three: these two are not among them
    prepare("tailo", others, OnShelf(tmp_path / "others"))
    assert seen[0] == 0
    seen.clear()
    found = prepare("tailo", three(), OnShelf(tmp_path / "cut"))
    assert seen[0] > 0
    for here, there in zip(found, expected, strict=True):
        np.testing.assert_array_equal(here, there)
    assert tree(tmp_path / "cut") == tree(tmp_path / "whole")


def test_checkpoints_are_of_these_datasets_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of as many others, they would fit and be wrong."""
    monkeypatch.setattr(pretraining, "CHUNK", 1)
    shelf, data = OnShelf(tmp_path), three()
    with pytest.raises(Stopped):
        prepare("tailo", data[:2], shelf, stopped=lambda: True)
    (left,) = shelf.workshop.iterdir()
    assert CheckpointFolder(left).states()
    positions: list[int] = []
    monkeypatch.setattr(Pretraining, "restore", lambda self, found: positions.append(found.position))
    prepare("tailo", data[1:], shelf)
    assert positions == []


def test_stopped_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pretraining, "CHUNK", 1)
    expected = prepare("ilid", three(), OnShelf(tmp_path / "whole"))
    shelf, found, pieces = OnShelf(tmp_path / "pieces"), [], 0
    while not found:
        pieces += 1
        with contextlib.suppress(Stopped):
            found = prepare("ilid", three(), shelf, stopped=lambda: True)
    assert pieces > 4  # an iteration at a time
    for here, there in zip(found, expected, strict=True):
        np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("name", STAGED)
def test_what_is_on_the_shelf_is_found(name: str, tmp_path: Path, trained: list[int]):
    shelf, data = OnShelf(tmp_path), three()
    first = prepare(name, data[:2], shelf)
    assert trained == [2, 2]
    content = tree(tmp_path)
    assert len(content) == 2
    prepared.KNOWN.clear()
    again = prepare(name, data, shelf)
    assert trained == [2, 2, 1, 1]  # the third alone
    for here, there in zip(again, first, strict=False):
        np.testing.assert_array_equal(here, there)
    assert not prepared.KNOWN  # memory is for what has no folder


def test_a_file_that_is_damaged_or_another_is_made_again(tmp_path: Path, trained: list[int]):
    shelf, data = OnShelf(tmp_path), three()[0]
    (first,), name = prepare("tailo", [data], shelf), next(tmp_path.iterdir()).name
    content = (tmp_path / name).read_bytes()
    key, rows = ("tailo", "other"), {"log_ratio": 60}
    assert shelf.read(key, rows) is None
    write_shelved(tmp_path, key, {"log_ratio": np.zeros(60)})
    assert shelf.read(key, rows) is not None
    assert shelf.read(key, {"log_ratio": 59}) is None
    other = shelved(tmp_path, key).read_bytes()
    for put in (content[:-3], content[:-1] + bytes([content[-1] ^ 1]), other, b""):
        (tmp_path / name).write_bytes(put)
        trained.clear()
        np.testing.assert_array_equal(prepare("tailo", [data], shelf)[0], first)
        assert trained == [1, 1]
        assert (tmp_path / name).read_bytes() == content


@algorithm
class OneAtATime(BC):
    """Of another package, which knows nothing of stages."""

    name: ClassVar[str] = "one-at-a-time"
    seen: ClassVar[list[int]] = []

    def prepare(self, data: Demonstrations, folder: Path | None) -> Demonstrations:
        self.seen.append(len(data.supplementary or ()))
        return dataclasses.replace(data, weight=np.ones(len(data.expert) + len(data.supplementary or ())))


def test_a_method_without_stages_is_prepared_one_at_a_time(trained: list[int]):
    method: Any = OneAtATime()
    plain: Any = BC()
    data = three()
    found = together([method.prepare_in_stages(each, InMemory()) for each in data], InMemory())
    assert OneAtATime.seen == [60, 48, 90]
    assert [len(weights_of(each)) for each in found] == [90, 78, 120]
    assert alone(plain.prepare_in_stages(data[0], InMemory()), InMemory()) is data[0]
    assert trained == []


def test_errors_are_the_methods_own():
    bare = Demonstrations(three()[0].expert)
    with pytest.raises(InputError, match="needs a supplementary dataset"):
        together([ILID().prepare_in_stages(bare, InMemory())], InMemory())


# Calls that are made apart


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "available_cores", lambda: 4)


def process_of(number: int) -> dict[str, np.ndarray]:
    """Where this is called, and on which platform. Some calls fail."""
    if number == 1:
        raise InputError("the second cannot be")
    if number == 2:
        raise ZeroDivisionError("nor the third")
    return {"process": np.array([os.getpid()]), "cpu": np.array([jax.default_backend() == "cpu"])}


def calling(number: int, kept: list[int]) -> stages.Stages[int]:
    found = yield Apart(process_of, (number,))
    kept.append(number)
    assert found["cpu"].all()
    return int(found["process"][0])


@pytest.mark.usefixtures("four_cores")
def test_calls_are_shared_out_among_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    found = together([calling(number, []) for number in (0, 3, 4, 5)], InMemory())
    assert os.getpid() not in found
    assert len(set(found)) == 2
    assert together([calling(0, [])], InMemory()) == [os.getpid()]  # one alone is not worth a process
    with monkeypatch.context() as patch:
        patch.setattr(apart, "available_cores", lambda: 2)
        assert set(together([calling(number, []) for number in (0, 3)], InMemory())) == {os.getpid()}


@pytest.mark.parametrize(("fails", "said"), [(1, "the second cannot be"), (2, "ZeroDivisionError: nor the third")])
@pytest.mark.usefixtures("four_cores")
def test_a_call_that_fails_lets_the_others_end(fails: int, said: str):
    kept: list[int] = []
    with pytest.raises((InputError, WorkerError), match=said):
        together([calling(number, kept) for number in (0, fails, 3, 4)], InMemory())
    assert sorted(kept) == [0, 3, 4]


@pytest.mark.parametrize("cores", [2, 4])
def test_calls_are_not_begun_once_stopped(cores: int, monkeypatch: pytest.MonkeyPatch):
    """What has come is kept."""
    monkeypatch.setattr(apart, "available_cores", lambda: cores)
    kept: list[int] = []
    with pytest.raises(Stopped):
        together([calling(number, kept) for number in (0, 3, 4, 5)], InMemory(), stopped=lambda: len(kept) > 0)
    assert 1 <= len(kept) <= 2


@pytest.mark.parametrize("scorer", ["neighbours", pytest.param("contrast", marks=pytest.mark.long)])
def test_scores_from_a_process_are_the_same_bytes(scorer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    method, data = Sift(scorer=scorer), three()[:2]
    here = [weights_of(method.prepare(each, None)) for each in data]
    prepared.KNOWN.clear()
    monkeypatch.setattr(apart, "available_cores", lambda: 4)
    shelf = OnShelf(tmp_path)
    for _ in range(2):  # made, then found
        found = together([method.prepare_in_stages(each, shelf) for each in data], shelf)
        for expected, each in zip(here, found, strict=True):
            assert expected.dtype == weights_of(each).dtype
            np.testing.assert_array_equal(weights_of(each), expected)
        monkeypatch.setattr(stages, "answers", lambda calls, stopped: pytest.fail("made again") if calls else [])
    assert len(tree(tmp_path)) == 2
