"""An expert whose actions are unknown: what may be trained on it, and that nothing depends on what it did."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import KINDS, fit_tiny, folder_bytes, random_dataset, random_demonstrations, tree

import demosift as ds
from demosift.algorithms import REGISTRY
from demosift.cli.main import main
from demosift.data import load, write_dataset
from demosift.experiments.prepare import Preparation, Prepared
from demosift.experiments.presets import Request, Schedule, grids
from demosift.files import read_toml
from demosift.report.groups import identify
from demosift.results.measured import Member
from demosift.types import Bounds, Dataset, Demonstrations, InputError

TINY = ["--hidden", "8", "8", "--batch-size", "16", "--iterations", "10", "--log-every", "5"]
FIRST = {"smodice": ["--discriminator-iterations", "5"]}  # so that ten iterations come to the policy
DATA = ["--expert", "expert.hdf5", "--supplementary", "pile.hdf5"]
BLIND = [name for name, method in REGISTRY.items() if not method.needs_expert_actions]


def with_actions(dataset: Dataset, action: Any) -> Dataset:
    return dataclasses.replace(dataset, transitions=dataset.transitions._replace(action=np.asarray(action)))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pile, and one expert thrice: as recorded, with other actions far out of bounds, and without any."""
    monkeypatch.chdir(tmp_path)
    expert = random_dataset(0, 30)
    write_dataset(random_dataset(1, 60), "pile.hdf5")
    write_dataset(expert, "expert.hdf5")
    write_dataset(expert, "none.hdf5")
    write_dataset(expert, "other.hdf5")
    with h5py.File("none.hdf5", "r+") as file:
        del file["actions"]
    with h5py.File("other.hdf5", "r+") as file:
        del file["actions"]
        file["actions"] = np.full((30, 7), 1e3)  # another robot's
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BLIND)
def test_a_method_that_needs_no_expert_actions_reads_none(name: str, kind: str):
    """Were one of them read, its NaN would be in the parameters; of discrete actions, the sevens would move them."""
    blank = dataclasses.replace(random_demonstrations(kind), expert_actions=False)
    poison = np.full_like(blank.expert.transitions.action, 7 if kind == "discrete" else np.nan)
    poisoned = dataclasses.replace(blank)
    object.__setattr__(poisoned, "expert", with_actions(blank.expert, poison))
    runs = [fit_tiny(name, kind, data=data) for data in (blank, poisoned)]
    states = [run.state or {} for run in runs]
    assert states[0].keys() == states[1].keys()
    assert all(np.array_equal(states[0][key], states[1][key]) for key in states[0])
    assert runs[0].config["expert_actions"] is False


def test_a_method_that_reads_them_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(REGISTRY["nbcu"], "needs_expert_actions", False)
    with pytest.raises((AssertionError, InputError), match=r"diverged|array_equal"):
        test_a_method_that_needs_no_expert_actions_reads_none("nbcu", "continuous")


@pytest.mark.parametrize("method", ["smodice", "lobsdice"])
def test_ignored_actions_change_no_byte(method: str, place: Path):
    for name in ("expert", "other", "none"):
        data = ["--expert", f"{name}.hdf5", "--supplementary", "pile.hdf5", "--expert-observations"]
        assert main(["train", method, *data, *TINY, *FIRST.get(method, []), "--out", f"runs/{name}"]) == 0
    configs = [json.loads(Path(f"runs/{name}/config.json").read_text()) for name in ("expert", "other", "none")]
    for config in configs:
        assert config["expert_actions"] is False
        assert config["sources"].pop()[1] == "pile.hdf5"
        del config["wall_seconds"]
    assert configs[0] == configs[1] == configs[2]
    assert folder_bytes(Path("runs/expert")) == folder_bytes(Path("runs/other")) == folder_bytes(Path("runs/none"))


def test_a_run_says_that_they_were_unknown(place: Path, capsys: pytest.CaptureFixture[str]):
    train = ["train", "smodice", *DATA, *TINY, *FIRST["smodice"]]
    assert main([*train, "--expert-observations", "--out", "runs/first"]) == 0
    assert read_toml(Path("runs/first/run.toml"))["expert-observations"] is True
    assert main(["train", "--from", "runs/first", "--out", "runs/again"]) == 0
    assert folder_bytes(Path("runs/again")) == folder_bytes(Path("runs/first"))
    assert main([*train, "--out", "runs/known"]) == 0
    known = json.loads(Path("runs/known/config.json").read_text())
    assert "expert_actions" not in known  # configs and ids stay what they were
    assert main([*train, "--out", "runs/first", "--resume"]) == 2
    assert "differs in" in capsys.readouterr().err
    # SMODICE never reads an expert action: known or not, the result is the same.
    assert folder_bytes(Path("runs/known")) == folder_bytes(Path("runs/first"))


def strip(folder: Path, name: str) -> str:
    """A dataset as this format writes it, then without its actions."""
    source = {"hdf5": "bare.hdf5", "npz": "npz:episodes", "robomimic": "robomimic:demos.hdf5"}[name]
    write_dataset(random_dataset(0, 30), source)
    if name == "npz":
        for path in sorted((folder / "episodes").glob("*.npz")):
            with np.load(path) as stored:
                arrays = {key: stored[key] for key in stored.files if key != "actions"}
            np.savez(path, allow_pickle=False, **arrays)
        return "episodes"
    with h5py.File(source.rpartition(":")[2], "r+") as file:
        for group in [file] if name == "hdf5" else list(file["data"].values()):  # type: ignore[union-attr]
            del group["actions"]
    return source.rpartition(":")[2]


@pytest.mark.parametrize("name", ["hdf5", "npz", "robomimic"])
def test_files_without_actions(name: str, place: Path):
    source = strip(place, name)
    data = ds.load(source, "pile.hdf5", expert_observations=True)
    assert not data.expert_actions
    original = random_dataset(0, 30)
    for array, wanted in zip(data.expert.transitions, original.transitions, strict=True):
        if wanted is not original.transitions.action:
            np.testing.assert_array_equal(array, wanted)
    assert not data.expert.transitions.action.any()
    np.testing.assert_array_equal(data.expert.episode_ends, original.episode_ends)
    # Anywhere else the file is refused in one line that names it and says what would help.
    for refused in (
        lambda: load(source, "pile.hdf5"),
        lambda: load("expert.hdf5", source),
        lambda: ds.score(source, "pile.hdf5"),
    ):
        with pytest.raises(InputError, match="actions: the file has no such key") as error:
            refused()
        assert Path(source).stem in str(error.value)


def test_states_alone_are_enough(place: Path):
    """Observations and nothing else: each is followed by the next, and the last of an episode by none."""
    Path("states").mkdir()
    states = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.savez("states/0.npz", observations=states)
    expert = ds.load("states", "pile.hdf5", expert_observations=True).expert.transitions
    np.testing.assert_array_equal(expert.obs, states[:-1])
    np.testing.assert_array_equal(expert.next_obs, states[1:])


def test_actions_are_what_the_pile_says(place: Path):
    """Bounds, environment and discreteness; an expert in memory whose actions are of another kind fits too."""
    low, high = (-2.0, -2.0), (2.0, 2.0)
    spec = ds.EnvironmentSpec("Hopper-v5", action_low=low, action_high=high)
    pile = dataclasses.replace(random_dataset(1, 60), environment=spec)
    named = dataclasses.replace(random_dataset(0, 30), environment=ds.EnvironmentSpec("Hopper-v5", num_actions=4))
    data = Demonstrations(named, pile, expert_actions=False)
    assert data.expert.bounds == Bounds(low, high)
    assert data.environment == dataclasses.replace(spec, kwargs={})
    data = ds.load(random_dataset(0, 30, discrete=True), pile, expert_observations=True)
    assert data.expert.transitions.action.dtype == np.float32
    assert data.expert.action_dim == 2
    data = ds.load(random_dataset(0, 30), random_dataset(1, 60, discrete=True), expert_observations=True)
    assert data.expert.discrete
    assert not data.expert.transitions.action.any()
    known = random_dataset(0, 30)
    less = known.transitions._replace(obs=known.transitions.obs[:, :2], next_obs=known.transitions.next_obs[:, :2])
    few = dataclasses.replace(known, transitions=less)
    with pytest.raises(InputError, match="observations: columns: 3, but 2"):
        ds.load(few, pile, expert_observations=True)


def test_refusals(place: Path, capsys: pytest.CaptureFixture[str]):
    before = tree(place)
    for arguments, message in {
        ("train", "bc", *DATA): f"bc needs the expert's actions; {', '.join(BLIND)} do not",
        ("train", *DATA): "sift needs the expert's actions; ",
        ("train", "dwbc", "--task", "hopper/noisy-expert"): "dwbc needs the expert's actions; ",
        ("train", "smodice", *DATA, "--held-out", "0.5"): "held_out: judges policies by the expert's actions",
        ("train", "smodice", "--expert", "none.hdf5"): "needs a supplementary set",
        ("reproduce", "noisy-expert", "--methods", "smodice", "nbcu"): "nbcu needs the expert's actions; ",
        ("reproduce", "noisy-expert"): "bc needs the expert's actions; ",
    }.items():
        assert main([*arguments, "--expert-observations", "--out", "refused"]) == 2
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1
    assert tree(place) == before
    data = dataclasses.replace(random_demonstrations(), expert_actions=False)
    with pytest.raises(InputError, match="wbcu needs the expert's actions; "):
        fit_tiny("wbcu", data=data)
    with pytest.raises(InputError, match="known in some of the datasets"):
        fit_tiny("smodice", data=[data, random_demonstrations()], seeds=2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs a supplementary set"):
        Demonstrations(data.expert, expert_actions=False)


def test_a_grid_of_unknown_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Told in a cell's config, and so in its id; series with and without are not seeds of one row."""
    schedule = Schedule(every=10)
    cells = {}
    for known in (True, False):
        request = Request(("hopper",), (0,), 20, schedule, methods=("smodice",), expert_actions=known)
        (cells[known],) = grids("noisy-expert", request)["noisy-expert"]
    told = cells[False].config()
    assert told.pop("expert_actions") is False
    assert told.pop("task") == "hopper/noisy-expert, expert observations"
    assert told == {key: value for key, value in cells[True].config().items() if key != "task"}
    once = np.zeros(1)
    member = Member({"algorithm": "smodice", "seed": 0}, once, once, None, once, {})
    assert identify(cells[True].config(), member) != identify(cells[False].config(), member)

    drawn = random_demonstrations()
    for part in (drawn.expert, drawn.supplementary):
        assert part is not None
        object.__setattr__(part, "attributes", {"drawn": {}})
    monkeypatch.setattr("demosift.experiments.prepare.draw_task", lambda *_: drawn)
    monkeypatch.setattr(Preparation, "sources", lambda *_: None)
    monkeypatch.setattr(Preparation, "keep", lambda *_: None)
    made: list[Prepared] = [Preparation(tmp_path)(cells[known].data) for known in (True, False)]
    assert [each.demonstrations.expert_actions for each in made] == [True, False]
    assert [each.recipe.get("expert_actions") for each in made] == [None, False]
    assert made[0].sha256 != made[1].sha256
