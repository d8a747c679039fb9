"""What other packages add: methods, scorers, formats, networks, environments, by `register` or by entry points."""

import json
import re
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import random_demonstrations

import demosift as ds
from demosift import REGISTRY, Batch, algorithm, register
from demosift.algorithms import About, facts, make_algorithm
from demosift.cli.main import main
from demosift.learning.cloning import clone, init_cloner
from demosift.learning.fit import fit, weigh
from demosift.registry import NETWORKS, REGISTRIES, SCORERS, Registry
from demosift.types import InputError, Transitions

REPOSITORY = Path(__file__).parent.parent
EXAMPLE = REPOSITORY / "examples" / "demosift-nearby"
REACH = "demosift_nearby.environment:Reach-v0"


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


def test_a_method_without_a_cloner_takes_no_network():
    with pytest.raises(InputError, match="toy: makes its own policy network"):
        fit(toy_of(), random_demonstrations(), network="layer-norm", iterations=2)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (
            type("Bare", (), {"name": "bare", "init": 0, "step": 0, "policy": 0, "weigh": 0}),
            "@demosift.algorithm above",
        ),
        (type("Bare", (), {"name": "bare", "fit": 0, "work": 0}), "nearest to a scorer, and lacks @dataclass above it"),
        (ds.Network("two words", lambda key, sizes: {}, lambda params, x: x), "'two words' is not a name"),
        (ds.Network("layer-norm", lambda key, sizes: {}, lambda params, x: x), "'layer-norm' is demosift's own"),
        (7, "int is no algorithm, scorer, format or network"),
    ],
)
def test_what_cannot_be_registered(thing: Any, message: str):
    known = [dict(registry._known) for registry in REGISTRIES]
    with pytest.raises(InputError, match=re.escape(message)):
        register(thing)
    assert [registry._known for registry in REGISTRIES] == known


@algorithm
class Annotated:
    """From a module that postpones annotations; a % in the help."""

    name: ClassVar[str] = "annotated"
    width: "float" = 1.0
    hidden: "tuple[int, ...]" = (8, 8)


def test_annotations_may_be_postponed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert [len(jax.tree.leaves(Annotated())), Annotated.__dataclass_fields__["hidden"].type] == [1, tuple[int, ...]]  # type: ignore
    monkeypatch.setitem(REGISTRY, "annotated", Annotated)  # type: ignore[arg-type]
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "a % in the help" in capsys.readouterr().out


# Entry points.


def publish(folder: Path, package: str, module: str, points: Mapping[str, str]) -> None:
    """What pip leaves of a package: its module, and the entry points in its metadata."""
    (folder / f"{package}.py").write_text(module)
    about = folder / f"{package}-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text("".join(f"[{group}]\n{line}\n" for group, line in points.items()))


def forget(registry: Registry[Any]) -> None:
    for name in [*registry.__dict__.pop("foreign", {})]:
        registry._known.pop(name, None)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that packages are installed into."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    for registry in REGISTRIES:
        forget(registry)
    yield folder
    for registry in REGISTRIES:
        forget(registry)


@pytest.mark.filterwarnings("default")
def test_a_package_that_does_not_work_harms_only_who_names_it(
    site: Path, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    publish(site, "broken", "import torch_of_another_world", {"demosift.algorithms": "bad = broken:Bad"})
    publish(site, "odd", "class A:\n    name = 'other'", {"demosift.algorithms": "odd = odd:A"})
    capsys.readouterr()
    short = ["--iterations", "2", "--hidden", "8", "8", "--batch-size", "16", "--evaluate-every", "0"]
    assert main(["train", "bc", *files[:2], *short, "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().err == ""
    assert "broken" not in sys.modules

    assert main(["train", "bad", *files, "--out", str(tmp_path / "bad")]) == 2
    said = capsys.readouterr().err
    assert said == (
        "demosift: the package broken 1.2: its algorithm 'bad' cannot be loaded: "
        "ModuleNotFoundError: No module named 'torch_of_another_world'\n"
    )
    assert not (tmp_path / "bad").exists()

    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert "warning: the package broken 1.2" in said
    assert "warning: the package odd 1.2: its algorithm 'odd' lacks init, step, policy" in said


def test_names_are_checked(site: Path):
    network = "import demosift as ds\nN = ds.Network('waves', print, print)"
    publish(site, "waves", network, {"demosift.networks": "wave = waves:N"})
    publish(site, "first", network, {"demosift.networks": "waves = first:N"})
    publish(site, "second", network, {"demosift.networks": "waves = second:N"})
    publish(site, "taken", network, {"demosift.networks": "layer-norm = taken:N"})
    with pytest.warns(UserWarning, match="'waves' is of first 1.2, which is used, and of second 1.2"):
        assert [*NETWORKS] == ["layer-norm", "wave", "waves"]
    assert NETWORKS["waves"].apply is print
    assert NETWORKS["layer-norm"].apply is not print
    with pytest.raises(InputError, match="its network 'wave' calls itself 'waves'"):
        NETWORKS["wave"]
    with pytest.raises(KeyError):
        NETWORKS["none"]


def test_help_looks_for_no_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def look(**_: Any) -> Any:
        raise AssertionError

    for registry in REGISTRIES:
        forget(registry)
    monkeypatch.setattr("demosift.registry.entry_points", look)
    for arguments in (["--help"], ["evaluate", "--help"]):
        with pytest.raises(SystemExit):
            main(arguments)
    with pytest.raises(AssertionError):
        bool("nearby" in REGISTRY)
    assert "wbcu" in REGISTRY


# The example package, installed.


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("hatchling")
    target = tmp_path_factory.mktemp("target")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(target), str(EXAMPLE)], check=True)
    sys.path.insert(0, str(target))
    for registry in REGISTRIES:
        forget(registry)
    yield target
    sys.path.remove(str(target))
    for registry in REGISTRIES:
        forget(registry)


@pytest.fixture(scope="module")
def tables(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Its environment, recorded in its format."""
    folder = tmp_path_factory.mktemp("tables")
    for name, seed in (("expert", "0"), ("pile", "1")):
        record = ["record", "random", "--env", REACH, "--episodes", "8", "--seed", seed]
        assert main([*record, "--out", f"csv:{folder / name}.csv"]) == 0
    return ["--expert", str(folder / "expert.csv"), "--supplementary", f"csv:{folder / 'pile.csv'}"]


SHORT = ["--iterations", "4", "--hidden", "8", "8", "--batch-size", "16", "--env", REACH, "--episodes", "1"]


def test_its_scorer_and_its_format(tables: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    capsys.readouterr()
    out = str(tmp_path / "scores")
    assert main(["score", *tables, "--scorer", "distance", "--members", "1", "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scorer"] == {"name": "distance", "action_scale": 1.0}
    assert main(["filter", tables[3], "--scores", out, "--episodes", "3", "--out", str(tmp_path / "kept.csv")]) == 0
    assert ds.read_dataset(tmp_path / "kept.csv").num_episodes == 3
    (tmp_path / "bad.csv").write_text("obs_0,action_0\n1,2\n")
    with pytest.raises(InputError, match="needs the columns obs_0, action_0, reward, terminal and timeout"):
        ds.read_dataset(tmp_path / "bad.csv")
    with pytest.raises(InputError, match=r"unknown format; name .*csv:PLACE"):
        ds.write_dataset(ds.read_dataset(tables[1]), tmp_path / "x.txt")


def test_its_method_its_network_and_its_environment(
    tables: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The processes that simulate find the network too."""
    out = str(tmp_path / "run")
    settings = ["--width", "0.5", "2", "--network", "convolution", "--ensemble", "2"]
    capsys.readouterr()
    assert main(["train", "nearby", *tables, *SHORT, *settings, "--out", out, "--json"]) == 0
    members = json.loads(capsys.readouterr().out)["members"]
    assert [(member["width"], member["network"]) for member in members] == [(0.5, "convolution"), (2.0, "convolution")]
    assert main(["evaluate", out, "--episodes", "1", "--json"]) == 2
    assert "imports a module; say so yourself" in capsys.readouterr().err
    assert main(["evaluate", out, "--env", REACH, "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_members"] == 2
    assert main(["export", out, "--out", str(tmp_path / "policy.onnx")]) == 2
    assert capsys.readouterr().err.endswith("only perceptrons are written as ONNX; this one is convolution\n")
    assert not (tmp_path / "policy.onnx").exists()


def test_without_the_package_its_run_cannot_act(tables: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = fit(ds.BC(hidden=(8, 8), batch_size=16), ds.load(tables[1], tables[3]), network="convolution", iterations=2)
    run.save(tmp_path / "run")
    monkeypatch.setattr(NETWORKS, "foreign", {})
    monkeypatch.delitem(NETWORKS, "convolution")
    with pytest.raises(InputError, match=r"policy.safetensors: network 'convolution' is not registered here"):
        ds.load_policy(tmp_path / "run")


@pytest.mark.long
def test_its_names_are_in_the_other_verbs(
    installed: Path, tables: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    sift = ["train", "sift", *tables, *SHORT, "--scorer", "distance", "--ensemble", "1"]
    assert main([*sift, "--out", str(tmp_path / "sift")]) == 0
    grid = ["reproduce", "noisy-expert", "--envs", "hopper", "--seeds", "1", "--methods", "nearby"]
    small = ["--iterations", "8", "--episodes", "1", "--early-episodes", "1", "--pool", "10", "--workers", "1"]
    assert main([*grid, *small, "--set", "network=layer-norm", "--out", str(tmp_path / "grid")]) == 0
    assert "Nearby" in (tmp_path / "grid" / "report.html").read_text()
    assert main(["report", str(tmp_path)]) == 0
    assert main(["bench", "--algorithms", "nearby", "--members", "1", "--seconds", "0.01"]) == 0
    assert "nearby" in capsys.readouterr().out
    assert "distance" in SCORERS
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(installed)!r}); "
               "from demosift.cli.main import main; main(['train', '--help'])"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Clone the rows whose states are near the expert's" in done.stdout


# What the documentation shows.


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / page).read_text(), re.DOTALL)


def run_block(block: str) -> dict[str, Any]:
    module = types.ModuleType("block")
    exec(re.sub(r"iterations=[\d_]+", "iterations=20", block), module.__dict__)
    return module.__dict__


@pytest.fixture
def documented(files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, source in (("expert", files[1]), ("pile", files[3])):
        (tmp_path / f"{name}.hdf5").write_bytes(Path(source).read_bytes())
    monkeypatch.chdir(tmp_path)
    yield
    NETWORKS._known.pop("waves", None)


def test_the_tutorial_shows_the_example():
    method, *_ = blocks("tutorials/add-a-method.md")
    assert method == (EXAMPLE / "src" / "demosift_nearby" / "method.py").read_text()
    assert len(method.splitlines()) < 60


@pytest.mark.usefixtures("documented")
def test_the_page_on_extending_runs():
    form, network, callback = map(run_block, blocks("extending.md"))
    assert form["FORMAT"].reads("csv:x.csv")
    assert network["policy"].network.name == "waves"
    assert network["policy"].act(np.zeros((2, 11))).shape == (2, 3)
    stop = callback["StopWhenFlat"](patience=2)
    data, options = random_demonstrations(), {"iterations": 50, "log_every": 1, "progress": False}
    falling = fit(ds.BC(learning_rate=0.0, batch_size=16, hidden=(8, 8)), data, callbacks=[stop], **options)
    assert 3 <= falling.config["iterations"] < 50
    assert stop.waited == 2
