"""A method from outside the package: a class and a call of `register`, and every verb knows it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import pytest
from conftest import random_demonstrations

from demosift import REGISTRY, Batch, algorithm, register
from demosift.algorithms import About, facts, make_algorithm
from demosift.cli.main import main
from demosift.learning.cloning import clone, init_cloner
from demosift.learning.fit import fit, weigh
from demosift.types import InputError, Transitions


@algorithm
class Minimal:
    """Clones rows by how near their first observation is to one of some centres."""

    name: ClassVar[str] = "minimal"

    learning_rate: float = 1e-3
    width: float = 1.0
    centres: tuple[int, ...] = (1, 2)
    batch_size: int = 8
    hidden: tuple[int, ...] = (8, 8)

    def init(self, batch: Batch, key: Any) -> Any:
        return init_cloner(batch, self.hidden, key)

    def step(self, state: Any, batch: Batch, iteration: Any, key: Any) -> Any:
        policy, loss = clone(state, batch.union, self.weigh(state, batch.union), self.learning_rate)
        return policy, {"policy_loss": loss}

    def policy(self, state: Any) -> Any:
        return state.params

    def weigh(self, state: Any, rows: Transitions) -> Any:
        distance = jnp.abs(rows.obs[:, :1] - jnp.asarray(self.centres)[None])
        return jnp.exp(-jnp.min(distance, axis=-1) / self.width)


@algorithm
class Toy(Minimal):
    """A toy that says what it is called."""

    name: ClassVar[str] = "toy"
    about: ClassVar[About] = About("Toy Method", "clones what is near")


@pytest.fixture
def registered() -> Iterator[None]:
    register(Toy)
    register(Minimal)
    yield
    del REGISTRY["toy"], REGISTRY["minimal"]


def toy_of(**settings: Any) -> Any:
    return Toy(**settings)


def test_what_a_minimal_method_need_not_say():
    minimal: Any = Minimal()
    assert minimal.about == About("minimal")
    assert (minimal.needs_supplementary, minimal.takes_weights) == (True, False)
    assert [(work.rows, work.flops) for work in minimal.work()] == [(8, 3 * 8 * 2 * 8 * 8)]


@pytest.mark.usefixtures("registered")
def test_the_facts_are_in_the_order_of_the_registry():
    assert [*facts()][-2:] == ["toy", "minimal"]
    assert facts()["toy"].name == "Toy Method"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("foreign")
    for name, seed in (("expert", "0"), ("supplementary", "1")):
        record = ["record", "random", "--env", "hopper", "--episodes", "2", "--seed", seed]
        assert main([*record, "--out", str(folder / f"{name}.hdf5")]) == 0
    return ["--expert", str(folder / "expert.hdf5"), "--supplementary", str(folder / "supplementary.hdf5")]


@pytest.mark.usefixtures("registered")
def test_train_and_report(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Its fields are flags: two widths are two members, and two centres are one value."""
    short = ["--iterations", "8", "--log-every", "4", "--evaluate-every", "4", "--episodes", "1"]
    settings = ["--width", "0.5", "2", "--centres", "3", "4"]
    capsys.readouterr()
    assert main(["train", "toy", *files, *short, *settings, "--out", str(tmp_path / "run"), "--json"]) == 0
    members = json.loads(capsys.readouterr().out)["members"]
    assert [(member["width"], member["centres"]) for member in members] == [(0.5, [3, 4]), (2.0, [3, 4])]
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "Toy Method" in page
    assert "clones what is near" in page

    del REGISTRY["toy"]  # nobody knows it any more: it goes by its own name
    try:
        assert main(["report", str(tmp_path)]) == 0
    finally:
        register(Toy)
    page = (tmp_path / "report.html").read_text()
    assert "Toy Method" not in page
    assert "<span>toy</span>" in page


@pytest.mark.usefixtures("registered")
def test_reproduce(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    grid = ["reproduce", "noisy-expert", "--envs", "hopper", "--seeds", "1", "--methods", "toy", "minimal"]
    small = ["--iterations", "8", "--episodes", "1", "--early-episodes", "1", "--pool", "10", "--workers", "1"]
    assert main([*grid, *small, "--set", "toy.centres=5", "--out", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["cells"], answer["done"], answer["failed"]) == (2, 2, {})
    table = json.loads((tmp_path / "tables" / "noisy-expert.json").read_text())
    assert [row["title"] for row in table["rows"]] == ["minimal", "Toy Method"]
    assert "Toy Method" in (tmp_path / "report.html").read_text()


@pytest.mark.usefixtures("registered")
def test_bench(capsys: pytest.CaptureFixture[str]):
    short = ["--members", "1", "--seconds", "0.01"]
    assert main(["bench", "--algorithms", "toy", *short, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["training"]
    assert (row["algorithm"], row["members"]) == ("toy", 1)
    assert row["member_iterations_per_second"] > 0


def test_a_method_that_nobody_registered_trains_and_is_refused_by_name():
    run = fit(toy_of(), random_demonstrations(), iterations=2, progress=False)
    assert run.config["algorithm"] == "toy"
    with pytest.raises(InputError, match="unknown algorithm 'toy'; choose one of bc, nbcu"):
        weigh(run, random_demonstrations())
    with pytest.raises(InputError, match="unknown algorithm 'toy'"):
        make_algorithm("toy")
    with pytest.raises(InputError, match="bc has no setting 'width'; it has"):
        make_algorithm("bc", {"width": 1.0})


def test_two_methods_of_one_family_are_two_programs():
    assert jax.tree.structure(Toy()) != jax.tree.structure(Minimal())
