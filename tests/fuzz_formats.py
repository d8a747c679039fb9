"""What `fuzz.py` spoils: for each format a small good sample, and what the verbs do with one."""

import contextlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from layouts import episode, lerobot_v2, lerobot_v3, robomimic_file

from demosift.data import (
    digest_source,
    episodes_where,
    name_episodes,
    open_rows,
    read_dataset,
    write_dataset,
)
from demosift.data.decisions import read_episodes
from demosift.data.features import read_features
from demosift.data.formats import format_of
from demosift.data.selection import Selection
from demosift.files import write_json
from demosift.policy import Layer, Policy
from demosift.report.page import render_page
from demosift.report.sac import read_curve
from demosift.report.sift_page import write_sift_page
from demosift.results import cell
from demosift.results.export import export_onnx
from demosift.results.folder import read_folder
from demosift.results.run import Run, load_run
from demosift.results.scores import write_episodes, write_rows, write_summary
from demosift.sift.filtering import filter_dataset
from demosift.simulation import environments
from demosift.types import Bounds, Dataset, Demonstrations, EnvironmentSpec, InputError, Origin, Transitions

OLD = Path(__file__).parent / "old" / "0.1.0"
SECRET = "a-secret-of-another-file"


@dataclass(frozen=True)
class Format:
    name: str  # for people
    make: Callable[[Path], None]  # writes the sample into an empty folder
    read: Callable[[Path, Path], None]  # reads what is in the folder; may write to the second path


def each(*functions: Callable[[], Any]) -> None:
    """Does all of them. A refusal does not keep the others from being done, and is told in the end."""
    refusals = []
    for function in functions:
        try:
            function()
        except InputError as error:
            check_message(str(error))
            refusals.append(error)
    if refusals:
        raise refusals[0]


def tolerate(function: Callable[[], Any]) -> None:
    """What is done with a part of the input: a refusal does not end the case."""
    with contextlib.suppress(InputError):
        each(function)


def turn(folder: Path, choices: Sequence[Any]) -> Any:
    """One of several things to do with a case, which its files decide: to do all of them each time takes too long."""
    return choices[sum(path.lstat().st_size for path in folder.rglob("*")) % len(choices)]


def check_message(message: str) -> None:
    assert "\n" not in message, f"more than one line: {message!r}"
    assert SECRET not in message, f"tells what another file holds: {message!r}"
    message.encode("utf-8", "surrogateescape")


# Data


def dataset(obs_dim: int = 3, action_dim: int = 2, environment: str = "Pendulum-v1", rows: int = 12) -> Dataset:
    """Episodes of four rows."""
    rng = np.random.default_rng(0)
    ends = np.arange(rows) % 4 == 3
    terminal = ends & (np.arange(rows) < 8)
    obs = rng.normal(size=(rows + 1, obs_dim)).astype(np.float32)
    action = rng.uniform(-0.9, 0.9, (rows, action_dim)).astype(np.float32)
    transitions = Transitions(obs[:-1], action, rng.normal(size=rows).astype(np.float32), obs[1:], terminal)
    low, high = (-2.0,) * action_dim, (2.0,) * action_dim
    kwargs = {"g": 9.0} if environment == "Pendulum-v1" else {}
    origin = Origin(np.arange(rows).astype(np.int8) % 2, ("clean", "noisy"))
    about = {"note": "x", "obs_keys": {"a": 1, "b": obs_dim - 1}}
    return Dataset(transitions, ends & ~terminal, EnvironmentSpec(environment, kwargs, low, high), origin, about)


def read_data(place: str, out: Path, *facts: str) -> None:
    """What `train`, `score` and `filter` do with data."""
    for fact in facts:
        tolerate(lambda: episodes_where(place, f"{fact}>=0"))  # noqa: B023 - called at once
    found = read_dataset(place, actions="clip")
    if found.environment is not None:
        tolerate(lambda: environments.stored(found.environment or EnvironmentSpec("")))
    rows = open_rows(place, actions="clip")
    assert sum(len(obs) for obs, _ in rows.blocks(5)) == len(found)
    rows.take(np.array([0, len(found) - 1]))
    digest_source(place)
    selections = [found.timeout | found.transitions.terminal, np.arange(len(found)) % 3 > 0]
    selections[0] = np.repeat(np.arange(found.num_episodes) % 2 == 0, np.diff(found.episode_ends, prepend=0))
    prefix = place.partition(":")[0] + ":" if ":" in place else ""
    suffix = ".hdf5" if Path(place.rpartition(":")[2]).suffix == ".hdf5" else "-v0"
    for number, keep in enumerate(selections):
        if keep.any():
            keep_part = format_of(place).keep
            assert keep_part is not None
            target = f"{prefix}{out / f'kept{number}{suffix}'}"
            keep_part(place.partition("::")[0], target, Selection(keep, found.episode_ends))
    targets = ("{}/again.hdf5", "robomimic:{}/robomimic.hdf5", "lerobot:{}/lerobot", "npz:{}/npz")
    write_dataset(found, turn(out.parent / "case", targets).format(out))


def read_robomimic(folder: Path, out: Path) -> None:
    place = f"{folder}/data.hdf5"
    others = [
        lambda: read_dataset(f"{place}::filter=train", "clip"),
        lambda: episodes_where(place, "num_samples>=0"),
        lambda: episodes_where(place, "train=1"),
        lambda: read_pictures(Path(place)),
    ]
    each(turn(folder, others), lambda: read_data(place, out))


def make_minari_arrow(folder: Path) -> None:
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    write_dataset(dataset(), f"minari:{folder}/made-v0")
    made = MinariStorage.read(folder / "made-v0" / "data")
    (folder / "data-v0").mkdir()
    other = MinariStorage.new(
        folder / "data-v0" / "data", made.observation_space, made.action_space, data_format="arrow"
    )
    other.update_metadata({"dataset_id": "data-v0", "minari_version": "0.5.3"})
    keys = ("observations", "actions", "rewards", "terminations", "truncations")
    stored = made.get_episodes(range(3))
    other.update_episodes([EpisodeBuffer(**{key: content[key] for key in keys}) for content in stored])
    shutil.rmtree(folder / "made-v0")


def make_cameras(folder: Path) -> None:
    import pictures

    pictures.with_videos(folder / "data", pictures.episodes(0, [4]))


def read_pictures(place: Path) -> None:
    from demosift.vision.frames import open_cameras

    for camera in open_cameras(place).values():
        for clip in camera.clips:
            for picture in clip.read(np.arange(min(clip.steps, 100))):
                assert picture.dtype == np.uint8


def make_features(folder: Path) -> None:
    write_dataset(dataset(), folder / "data.hdf5")
    features = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    np.save(folder / "f.npy", features)
    np.savez(folder / "f.npz", features=features, digest=digest_source(folder / "data.hdf5"))
    steps = pa.array(np.arange(12) % 4)
    pq.write_table(pa.table({"features": list(features), "frame_index": steps}), folder / "f.parquet")
    pq.write_table(pa.table({"a": features[:, 0], "b": features[:, 1]}), folder / "columns.parquet")


def read_feature_files(folder: Path, out: Path) -> None:
    rows = open_rows(folder / "data.hdf5")
    names = ("f.npy", "f.npz", "f.parquet", "columns.parquet")
    each(*(lambda name=name: read_features(folder / name, folder / "data.hdf5", rows) for name in names))


def make_decisions(folder: Path) -> None:
    write_dataset(dataset(), folder / "data.hdf5")
    told = {"demosift": "decisions", "dataset": digest_source(folder / "data.hdf5"), "keep": [0], "drop": [2]}
    (folder / "decisions.json").write_text(json.dumps(told))
    (folder / "numbers.txt").write_text("0,1-2")


def read_decisions(folder: Path, out: Path) -> None:
    data = str(folder / "data.hdf5")

    def choose(name: str) -> None:
        chosen = read_episodes(data, str(folder / name), "keep")
        tolerate(lambda: read_dataset(name_episodes(data, chosen), "clip"))
        tolerate(lambda: read_dataset(name_episodes(data, chosen.others), "clip"))

    each(*(lambda name=name: choose(name) for name in ("decisions.json", "numbers.txt")))


def make_encoder(folder: Path) -> None:
    import pictures

    pictures.tiny_encoder(folder / "encoder.onnx")


def read_encoder(folder: Path, out: Path) -> None:
    from demosift.vision.encoder import load_encoder

    encoder = load_encoder(str(folder / "encoder.onnx"), out)
    list(encoder.embed([np.zeros((8, 8, 3), np.uint8)] * 2))


# Policies and runs


def policy(members: int = 2, width: int = 2, **changes: Any) -> Policy:
    rng = np.random.default_rng(1)
    layers = [(rng.normal(size=(members, a, b)), rng.normal(size=(members, b))) for a, b in ((3, 4), (4, width))]
    layers = tuple(Layer(kernel.astype(np.float32), bias.astype(np.float32)) for kernel, bias in layers)
    about: dict[str, Any] = {
        "kind": "tanh-gaussian",
        "mean_limit": 5.0,
        "environment": EnvironmentSpec("Pendulum-v1", {}, (-2.0,), (2.0,)),
        "metadata": {"algorithm": "bc"},
        "log_std_range": (-5.0, 2.0),
    }
    ones = np.ones((members, 3), np.float32)
    return Policy(layers=layers, shift=ones, scale=ones, **(about | changes))


def make_policies(folder: Path) -> None:
    from demosift.learning.bodies import LAYER_NORM

    policy().save(folder / "gaussian.safetensors")
    unbound: dict[str, Any] = {"environment": None, "log_std_range": None}
    policy(kind="categorical", width=3, **unbound).save(folder / "categorical.safetensors")
    policy(4, ensemble=2, stated_bounds=Bounds((-3.0,), (3.0,)), **unbound).save(folder / "ensemble.safetensors")
    params = LAYER_NORM.init(_key(), (3, 4, 2))
    params = _stacked(params)
    ones = np.ones((1, 3), np.float32)
    Policy("tanh-gaussian", params, ones, ones, 5.0, network=LAYER_NORM).save(folder / "normed.safetensors")


def _key() -> Any:
    import jax

    return jax.random.key(0)


def _stacked(params: Any) -> Any:
    return {name: _stacked(part) if isinstance(part, dict) else np.asarray(part)[None] for name, part in params.items()}


def read_policies(folder: Path, out: Path) -> None:
    def use(path: Path) -> None:
        loaded = Policy.load(path)
        obs = np.zeros(loaded.obs_dim)
        assert np.isfinite(loaded.act(obs)).all()
        tolerate(lambda: loaded.act(obs, deterministic=False, rng=np.random.default_rng(0)))
        loaded.save(out / path.name)
        if loaded.environment is not None:
            environments.stored(loaded.environment)

    names = ("gaussian", "categorical", "ensemble", "normed")
    each(*(lambda name=name: use(folder / f"{name}.safetensors") for name in names))


def read_exported(folder: Path, out: Path) -> None:
    read_policies(folder, out)
    export_onnx(Policy.load(folder / "gaussian.safetensors"), out / "policy.onnx")


def make_run(folder: Path) -> None:
    config = {
        "algorithm": "bc",
        "members": [{"algorithm": "bc", "seed": seed, "learning_rate": 1e-3, "loss": "likelihood"} for seed in (0, 1)],
        "iterations": 20,
        "environment": {"id": "Pendulum-v1", "kwargs": {}, "action_low": [-2.0], "action_high": [2.0]},
        "task": None,
        "data": [{"sha256": "0", "expert": "a.hdf5"}],
        "sources": [["a.hdf5", "b.hdf5"]],
        "precision": "float32",
        "normalise": "supplementary",
        "versions": {"demosift": "0.1.0"},
        "failures": {},
    }
    metrics = [
        {"iteration": i, "member": m, **row}
        for i in (10, 20)
        for row in ({"policy_loss": 0.5}, {"returns": [1.0, 2.0], "score": 0.5})
        for m in (0, 1)
    ]
    Run(config, policy(), metrics, {"step": np.arange(3)}).save(folder / "run")
    histogram = {"name": "clean", "counts": [1, 2], "rows": 4, "zero": 1, "weight_share": 0.5}
    write_json(
        folder / "weights.json", {"wbcu": {"origins": [histogram], "edges": [0.0, 1.0, 2.0], "separation": None}}
    )
    scores = folder / "run" / "scores" / "0"
    scores.mkdir(parents=True)
    write_scores(scores, {role: {"digest": "0", "path": role, "rows": 12} for role in ("expert", "supplementary")})


def read_runs(folder: Path, out: Path) -> None:
    each(lambda: load_run(folder / "run"), lambda: render_page(read_folder(folder), {}))


@cache
def training() -> tuple[Any, dict[str, Any]]:
    import demosift as ds

    settings = {"seeds": 2, "iterations": 20, "log_every": 10, "checkpoint_every": 10, "progress": False}
    data = Demonstrations(dataset(rows=48))
    return ds.BC(hidden=(4,)), {"data": data, **settings, "held_out": 0.5, "patience": 5}


def make_checkpoint(folder: Path) -> None:
    from demosift.learning.fit import fit

    algorithm, settings = training()
    fit(algorithm, out=folder / "run", **settings)


def read_checkpoint(folder: Path, out: Path) -> None:
    from demosift.learning.fit import fit

    algorithm, settings = training()
    fit(algorithm, out=folder / "run", resume=True, **settings)


def make_request(folder: Path) -> None:
    make_run(folder)
    content = '# flags\nalgorithm = "bc"\nexpert = "../a.hdf5"\nsupplementary = "../b.hdf5"\nseeds = 2\nseed = 0\n'
    content += 'iterations = 20\nactions = "check"\nlearning-rate = [0.001]\nhidden = [8, 8]\nbatch-size = 8\n'
    (folder / "run" / "run.toml").write_text(content)


def read_request(folder: Path, out: Path) -> None:
    from demosift.cli.main import parse

    options = parse(["train", "--from", str(folder / "run"), "--out", str(out / "again")])
    assert options.algorithm


def make_collected(folder: Path) -> None:
    spec = environments.resolve("hopper")
    data = dataset(11, 3, spec.id)
    rng = np.random.default_rng(1)
    layers = [(rng.normal(size=(1, a, b)), rng.normal(size=(1, b))) for a, b in ((11, 4), (4, 6))]
    layers = tuple(Layer(kernel.astype(np.float32), bias.astype(np.float32)) for kernel, bias in layers)
    ones = np.ones((1, 11), np.float32)
    Policy("tanh-gaussian", layers, ones, ones, None, spec).save(folder / "expert.safetensors")
    write_dataset(data, folder / "replay.hdf5")
    write_json(folder / "config.json", {"expert": {"setting": 0, "seed": 1}, "seeds": [0, 1], "steps": 12})
    rows = [{"step": step, "setting": 0, "seed": seed, "return_mean": 1.5} for step in (0, 10) for seed in (0, 1)]
    (folder / "curve.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copytree(OLD / "collecting" / "checkpoint", folder / "checkpoint")


def read_collected(folder: Path, out: Path) -> None:
    from demosift.experiments.prepare import collected
    from demosift.sac.checkpoint import ReplayCheckpoints
    from demosift.tasks.recipes import Sources

    def resume() -> None:
        with ReplayCheckpoints(folder / "checkpoint") as checkpoints:
            checkpoints.read()
            for rounds in checkpoints.evaluated_rounds():
                checkpoints.read_policies(rounds)
            list(checkpoints.rows(slice(0, 1)))

    each(
        lambda: Sources("hopper", 1, folder, recorded=dataset()).replay,
        lambda: collected(folder),
        lambda: read_curve(folder / "curve.jsonl"),
        resume,
    )


# Grids and scores


def make_cells(folder: Path) -> None:
    for seed in (0, 1):
        config = {
            "method": "bc",
            "task": "hopper/noisy-expert",
            "seed": seed,
            "iterations": 20,
            "settings": {"learning_rate": 1e-3},
        }
        data = {"sha256": "0"}
        content = {
            "id": cell.cell_id(config, cell.data_digest(data)),
            "config": config,
            "data": data,
            "environment": {"id": "Hopper-v5", "kwargs": {}},
            "evaluations": [{"iteration": i, "returns": [1.0, 2.0], "metrics": {"policy_loss": 0.5}} for i in (10, 20)],
            "reference": {"random": 0.0, "expert": 10.0},
            "versions": {"demosift": "0.1.0"},
        }
        cell.write_cell(folder / "cells" / f"{content['id']}.json", content)
    ids = [path.stem for path in (folder / "cells").iterdir()]
    cell.write_grid(folder / "grids" / "noisy-expert.json", ids)
    cell.write_failure(
        folder / "failures" / "0.json",
        {"config": {"method": "bc", "task": "x", "seed": 1}, "failure": "Traceback\nValueError: x"},
    )
    points = [[0.0, 1.0], [2.0, 3.0]]
    cell.write_coverage(folder / "coverage" / "hopper.json", {"good": points, "noisy": points, "mixing": 0.5})


def read_cells(folder: Path, out: Path) -> None:
    path = folder / cell.COVERAGE / "hopper.json"
    each(lambda: render_page(read_folder(folder), {}), lambda: cell.read_coverage(path, str(path), ("hopper",)))


def write_scores(scores: Path, sources: dict[str, Any]) -> None:
    ends = np.array([4, 8, 12, 16, 20, 24])
    write_rows(scores, np.linspace(0, 2, 24), np.zeros(24), np.zeros(24, np.int8), ends, 3)
    columns = {"source": np.repeat(["expert", "supplementary"], 3), "episode": np.tile(np.arange(3), 2)}
    columns |= {"log_weight": np.linspace(-1, 1, 6), "rank": np.tile(np.arange(3), 2)}
    write_episodes(scores, columns | {"number": np.arange(6), "finish": np.full(6, 0.5)})
    summary, page = (json.loads((OLD / "scores" / name).read_text()) for name in ("summary.json", "page.json"))
    write_summary(scores, {**summary, **sources, "threshold": 0.5}, page)


def make_scores(folder: Path) -> None:
    for name in ("expert.hdf5", "pile.hdf5", "whole.hdf5"):
        write_dataset(dataset(), folder / name)
    for name in ("expert", "whole"):
        with h5py.File(folder / f"{name}.hdf5", "a") as file:
            file.attrs["other"] = name
    (folder / "scores").mkdir()
    files = (("expert", "expert.hdf5"), ("supplementary", "pile.hdf5"))
    sources = {
        role: {"path": name, "rows": 12, "episodes": 3, "digest": digest_source(folder / name)} for role, name in files
    }
    sources["dataset"] = {"digest": digest_source(folder / "whole.hdf5"), "path": "whole.hdf5"}
    sources["bad"] = {"in_dataset": True, "lengths": [2], "numbers": [9], "rows": 2}
    write_scores(folder / "scores", sources)


def read_score_folder(folder: Path, out: Path) -> None:
    rules: list[dict[str, Any]] = [{"episodes": 2}, {"top": 0.5}, {}, {"frames": True}, {"weights": True}]
    rule = turn(folder, rules)
    target = out / ("weights" if "weights" in rule else "kept.hdf5")
    each(
        lambda: write_sift_page(folder / "scores", {}),
        lambda: filter_dataset(folder / "pile.hdf5", folder / "scores", target, **rule),
        lambda: read_whole_scores(folder),
    )


def read_whole_scores(folder: Path) -> None:
    from demosift.results.scores import read_scores

    assert len(read_scores(folder / "whole.hdf5", folder / "scores").weight) > 0


def _sample(target: str) -> Callable[[Path], None]:
    return lambda folder: write_dataset(dataset(), target.format(folder))


def _reader(source: str, *facts: str) -> Callable[[Path, Path], None]:
    return lambda folder, out: read_data(source.format(folder), out, *facts)


EPISODES = {number: episode(number, 4) for number in range(3)}
TWO = {number: EPISODES[number] for number in range(2)}

FORMATS: dict[str, Format] = {
    "hdf5": Format("HDF5 (D4RL)", _sample("{}/data.hdf5"), _reader("{}/data.hdf5", "rewards")),
    "robomimic": Format("robomimic", lambda folder: robomimic_file(folder / "data.hdf5", TWO) and None, read_robomimic),
    "npz": Format("`.npz`", _sample("npz:{}/data"), _reader("{}/data")),
    "lerobot-v2": Format(
        "LeRobot 2", lambda folder: lerobot_v2(folder / "data", TWO) and None, _reader("{}/data", "timestamp")
    ),
    "lerobot-v3": Format(
        "LeRobot 3", lambda folder: lerobot_v3(folder / "data", [EPISODES]) and None, _reader("{}/data", "timestamp")
    ),
    "minari": Format("Minari (HDF5)", _sample("minari:{}/data-v0"), _reader("{}/data-v0")),
    "minari-arrow": Format("Minari (Arrow)", make_minari_arrow, _reader("{}/data-v0")),
    "policy": Format("policy", make_policies, read_exported),
    "run": Format("run folder", make_run, read_runs),
    "cells": Format("cells of a grid", make_cells, read_cells),
    "scores": Format("scores", make_scores, read_score_folder),
    "checkpoint": Format("checkpoint of a run (`--resume`)", make_checkpoint, read_checkpoint),
    "collected": Format("folder of `collect`, with its checkpoint", make_collected, read_collected),
    "request": Format("`run.toml` (`--from`)", make_request, read_request),
    "decisions": Format("decisions, lists of episodes", make_decisions, read_decisions),
    "features": Format("features (`--features`)", make_features, read_feature_files),
    "videos": Format("videos of LeRobot", make_cameras, lambda folder, out: read_pictures(folder / "data")),
    "encoder": Format("ONNX encoder", make_encoder, read_encoder),
}
