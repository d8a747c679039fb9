"""What a stranger's file may not do: leave its folder, wait, claim what it has not, choose what is run."""

import dataclasses
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz_formats import EPISODES, dataset, make_minari_arrow, make_scores, policy
from layouts import episode, lerobot_v2, lerobot_v3, robomimic_file

from demosift.cli.main import main
from demosift.data import digest_source, open_rows, read_dataset, write_dataset
from demosift.data import first_look as looking
from demosift.data.formats import format_of
from demosift.data.parquet import read_table, write_table
from demosift.data.selection import Selection
from demosift.files import (
    Unusable,
    atomic_write,
    below,
    copy_regular,
    mismatch,
    open_regular,
    parse_json,
    read_json,
    write_json,
)
from demosift.policy import Layer, Policy, read_tensors
from demosift.results.run import load_run
from demosift.results.scores import read_scores
from demosift.sift.filtering import filter_dataset
from demosift.simulation.environments import SHORT_NAMES, stored
from demosift.types import Bounds, EnvironmentSpec, InputError


def zero_policy(spec: EnvironmentSpec) -> Policy:
    """One that fits an environment of three numbers and one action."""
    layers = (Layer(np.zeros((1, 3, 2), np.float32), np.zeros((1, 2), np.float32)),)
    return dataclasses.replace(policy(1), layers=layers, environment=spec)


def refused(call: Callable[[], Any], *parts: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


# Paths


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/../../x", "/etc/passwd", "a//b", ".", "a\0b", "x" * 300, "a/./b"]
)
def test_names_from_files_stay_below_their_folder(tmp_path: Path, name: str) -> None:
    refused(lambda: below(tmp_path, name), str(tmp_path))


def test_no_link_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "inside").symlink_to("/etc")
    refused(lambda: below(tmp_path, "inside/passwd"), "link")
    assert below(tmp_path, "a/b.mp4") == tmp_path / "a" / "b.mp4"


def keep_all(place: Path, target: Path) -> None:
    found = read_dataset(place)
    selection = Selection(np.ones(len(found), bool), found.episode_ends)
    keep = format_of(place).keep
    assert keep is not None
    keep(str(place), str(target), selection)


@pytest.mark.parametrize("make", [lerobot_v2, lambda root, episodes: lerobot_v3(root, [episodes])], ids=["v2", "v3"])
def test_videos_stay_inside_the_output(tmp_path: Path, make: Callable[..., Path]) -> None:
    root = make(tmp_path / "data", EPISODES)
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"]["../../../stolen"] = info["features"].pop("observation.images.top")
    path.write_text(json.dumps(info))
    refused(lambda: keep_all(root, tmp_path / "deep" / "er" / "out"), "")
    assert not list(tmp_path.rglob("*stolen*"))


@pytest.mark.parametrize("place", ["README.md", "videos", "meta/extra.json"])
def test_links_are_not_copied(tmp_path: Path, place: str) -> None:
    root = lerobot_v2(tmp_path / "data", EPISODES)
    secret = tmp_path / "secret"
    secret.write_text("x")
    if (root / place).is_dir():
        (root / place).rename(tmp_path / "moved")
        secret = tmp_path / "moved"
    (root / place).unlink(missing_ok=True)
    (root / place).symlink_to(secret)
    refused(lambda: keep_all(root, tmp_path / "out"), "link")
    assert not (tmp_path / "out").exists()
    refused(lambda: copy_regular(root / place, tmp_path / "copy"), str(root / place))


def test_filter_keys_that_lie_elsewhere(tmp_path: Path) -> None:
    other = tmp_path / "other.hdf5"
    with h5py.File(other, "w") as file:
        file["names"] = np.array(["a secret"], "S")
    path = robomimic_file(tmp_path / "data.hdf5", EPISODES)
    with h5py.File(path, "a") as file:
        file["mask/train2"] = h5py.ExternalLink(str(other), "/names")
    with pytest.raises(InputError) as error:
        read_dataset(f"{path}::filter=train2")
    assert "link" in str(error.value)
    assert "secret" not in str(error.value)
    refused(lambda: keep_all(path, tmp_path / "kept.hdf5"), "link")


# Files


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    os.chdir(here)


IRREGULAR = {
    "pipe": make_pipe,
    "socket": make_socket,
    "folder": Path.mkdir,
    "device": lambda p: p.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", IRREGULAR)
def test_only_regular_files_are_read_and_replaced(tmp_path: Path, kind: str) -> None:
    def place(name: str) -> Path:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        IRREGULAR[kind](tmp_path / name)
        return tmp_path / name

    def write(path: Path) -> None:
        with atomic_write(path) as temporary:
            temporary.touch()

    lerobot = lerobot_v2(tmp_path / "lerobot", EPISODES)
    (lerobot / "data/chunk-000/episode_000000.parquet").unlink()
    write_dataset(dataset(), f"minari:{tmp_path / 'minari-v0'}")
    (tmp_path / "minari-v0/data/main_data.hdf5").unlink()
    readers: dict[str, Callable[[Path], Any]] = {
        "a.hdf5": read_dataset,
        "b.hdf5": digest_source,
        "npz/a.npz": lambda path: read_dataset(f"npz:{path.parent}"),
        "sidecar/demosift.json": lambda path: read_dataset(f"npz:{path.parent}"),
        "lerobot/data/chunk-000/episode_000000.parquet": lambda path: read_dataset(lerobot),
        "minari-v0/data/main_data.hdf5": lambda path: read_dataset(tmp_path / "minari-v0"),
        "a.safetensors": Policy.load,
        "run/config.json": lambda path: load_run(path.parent),
        "a.json": read_json,
        "b.json": open_regular,
        "out.onnx": write,
    }
    for name, read in readers.items():
        path = place(name)
        refused(lambda read=read, path=path: read(path))
        assert path.exists()


def test_a_stream_is_not_replaced(tmp_path: Path) -> None:
    """/dev/stdout is a link, and leads to a regular file where the output is one."""
    (tmp_path / "stdout").symlink_to(f"/proc/self/fd/{os.open(__file__, os.O_RDONLY)}")
    with pytest.raises(InputError, match="is a stream"), atomic_write(tmp_path / "stdout"):
        pass
    assert (tmp_path / "stdout").is_symlink()


def test_holes_are_not_read(tmp_path: Path) -> None:
    for name in ("a.hdf5", "b.hdf5"):
        write_dataset(dataset(), tmp_path / name)
    os.truncate(tmp_path / "a.hdf5", 1 << 40)
    refused(lambda: digest_source(tmp_path / "a.hdf5"), "a.hdf5: claims 1,099,511,627,776 bytes")
    before = digest_source(tmp_path / "b.hdf5")
    os.truncate(tmp_path / "b.hdf5", 1 << 21)  # so few cost nothing
    assert digest_source(tmp_path / "b.hdf5") != before


# JSON


NOT_JSON = ["NaN", "Infinity", "[1e999]", "9" * 5000, '"\\ud800"', '{"\\udc00": 1}', b"\xff", '{"a":1,"a":2}']
NOT_JSON += ["[" * 2000, "[" * 2000 + "]" * 2000, "[" * 100 + "]" * 100, "{", "", "'x'", "[1,]", 3, None]


@pytest.mark.parametrize("text", NOT_JSON)
def test_what_is_not_json(text: Any) -> None:
    refused(lambda: parse_json(text, "here"), "here: not JSON")


def test_json_of_any_name_can_be_read_again(tmp_path: Path) -> None:
    """A file's name need not be UTF-8, and comes into summaries."""
    write_json(tmp_path / "a.json", {"path": os.fsdecode(b"pile-\xff.hdf5"), "smile": "\U0001f600"})
    assert read_json(tmp_path / "a.json") == {"path": "pile-\\udcff.hdf5", "smile": "\U0001f600"}


def test_a_schema_says_where() -> None:
    schema = {"a": int, "b?": [str], "c": (None, {str: {"d": float}})}
    assert mismatch({"a": 1, "c": None}, schema) is None
    assert mismatch({"a": 1, "b": ["x"], "c": {"x": {"d": 1.0}}}, schema) is None
    assert mismatch([], schema) == ""
    assert mismatch({"a": True}, schema) == "a"
    assert mismatch({"a": 1, "b": ["x", 2]}, schema) == "b.1"
    assert mismatch({"a": 1, "c": {"x?": {}}}, schema) == "c.x?.d"


# Environments


@pytest.mark.parametrize(
    ("id", "kwargs"),
    [
        ("os:Hopper-v5", {}),
        ("Nowhere-v0", {}),
        ("Hopper-v5", {"xml_file": "/etc/passwd"}),
        ("Hopper-v5", {"render_mode": "human"}),
        ("Hopper-v5", {"max_episode_steps": 10**12}),
        ("Hopper-v5", {"max_episode_steps": True}),
        ("Hopper-v5", {"frame_skip": 10**9}),
        ("Hopper-v5", {"healthy_reward": float("nan")}),
        ("Hopper-v5", {"reset_noise_scale": "1"}),
        ("Hopper-v5", {"default_camera_config": {}}),
        ("Hopper-v5", {"disable_env_checker": True}),
    ],
)
def test_files_choose_only_harmless_environments(id: str, kwargs: dict[str, Any]) -> None:
    refused(lambda: stored(EnvironmentSpec(id, kwargs)))


def test_files_may_choose_what_changes_numbers_only() -> None:
    for spec in SHORT_NAMES.values():
        assert stored(spec) == spec
    more = {"healthy_z_range": [0.5, 2.0], "ctrl_cost_weight": 0.1, "max_episode_steps": 200, "frame_skip": 2}
    assert stored(EnvironmentSpec("Hopper-v5", more)).kwargs == more


ENDLESS = (-1, 0, "null", 0.5)  # Gymnasium takes some of them for no limit


def test_users_choose_any_argument(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a file must not say, the user may: by `--env-arg`, with or without `--env`."""
    endless, place = {"max_episode_steps": 10**9}, tmp_path / "a.safetensors"
    zero_policy(EnvironmentSpec("Pendulum-v1", endless, (-2.0,), (2.0,))).save(place)
    command = ["evaluate", str(place), "--episodes", "1"]
    assert main(command) == 2
    assert "'max_episode_steps=1000000000'; say so yourself" in capsys.readouterr().err
    for flags in (["--env-arg", "max_episode_steps=3"], ["--env", "Pendulum-v1", "--env-arg", "max_episode_steps=3"]):
        assert main([*command, "--json", *flags, "g=9.5"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["lengths"] == [[3]]
        assert told["environment"]["kwargs"] == {"max_episode_steps": 3, "g": 9.5}
    for text in ("g", "=1", "a b=1", "g=1 g=2", "g=x", "no_such=1", *(f"max_episode_steps={n}" for n in ENDLESS)):
        assert main([*command, "--env", "Pendulum-v1", "--env-arg", *text.split()]) == 2
        assert capsys.readouterr().err.count("\n") == 1, text


def test_an_environment_that_fails_is_no_defect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An argument that a file may choose can still be one that the environment cannot work with."""
    spec = EnvironmentSpec("Pendulum-v1", {"max_episode_steps": 3}, (-2.0,), (2.0,))
    zero_policy(spec).save(tmp_path / "a.safetensors")
    assert main(["evaluate", str(tmp_path / "a.safetensors"), "--env-arg", 'g="x"']) == 2
    assert "environment 'Pendulum-v1' failed: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('env = "antigravity:Hopper-v5"', "imports a module; say so yourself"),
        ('env = "Hopper-v5"\nenv-arg = ["xml_file=/etc/passwd"]', "is made with \"xml_file='/etc/passwd'\"; say so"),
        ('env-arg = ["xml_file=/etc/passwd"]', "is made with \"xml_file='/etc/passwd'\"; say so"),
    ],
)
def test_configuration_files_choose_only_harmless_environments(
    tmp_path: Path, lines: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(dataset(), tmp_path / "a.hdf5")
    (tmp_path / "run.toml").write_text(f'algorithm = "bc"\nexpert = "a.hdf5"\n{lines}\n')
    assert main(["train", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert "antigravity" not in sys.modules
    assert not (tmp_path / "out").exists()


# Sizes and numbers


@pytest.mark.parametrize(
    ("low", "high"), [(-np.inf, np.inf), (-1e308, 1e308), (1.0, -1.0), ("x", "y"), ([], []), (None, 1.0)]
)
def test_bounds_that_are_none(low: Any, high: Any) -> None:
    with pytest.raises(ValueError, match="action_low"):
        Bounds.parse(low, high)


def test_equal_bounds_hold_only_for_actions_that_never_move(tmp_path: Path) -> None:
    write_dataset(dataset(), tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file.attrs["action_low"] = file.attrs["action_high"] = [0.5, 0.5]
    for read in (read_dataset, lambda path: list(open_rows(path).blocks())):
        refused(lambda read=read: read(tmp_path / "a.hdf5"), "is outside [0.5, 0.5]")


@pytest.mark.parametrize("shape", [(10**9, 3), (10**7, 1)])
def test_rows_that_were_never_written(tmp_path: Path, shape: tuple[int, ...]) -> None:
    write_dataset(dataset(), tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["observations"]
        file.create_dataset("observations", shape, "f4", chunks=(1, shape[1]))
    refused(lambda: read_dataset(tmp_path / "a.hdf5"), "claims")


def test_a_file_that_the_library_does_not_come_back_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(dataset(), tmp_path / "a.hdf5")
    endless = "def look(name):\n    while True: pass\n\ndef unused(name):"
    monkeypatch.setattr(looking, "_LOOK", looking._LOOK.replace("def look(name):", endless, 1))
    monkeypatch.setattr(looking, "_looker", looking._Looker())
    monkeypatch.setattr(looking, "SECONDS", 0)
    refused(lambda: read_dataset(tmp_path / "a.hdf5"), "damaged HDF5 file")
    monkeypatch.undo()
    looking._look.cache_clear()
    assert len(read_dataset(tmp_path / "a.hdf5")) == 12


@pytest.mark.parametrize("value", [np.nan, 7.0])
def test_flags_are_flags(tmp_path: Path, value: float) -> None:
    path = robomimic_file(tmp_path / "data.hdf5", EPISODES)
    with h5py.File(path, "a") as file:
        del file["data/demo_0/dones"]
        file["data/demo_0/dones"] = np.full(4, value)
    refused(lambda: read_dataset(path), "dones")


# Policies and scores


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"a": 1}},
        {"metadata": []},
        {"environment": {"id": "Pendulum-v1", "kwargs": {}, "action_low": [-1.0] * 2, "action_high": [1.0] * 2}},
        {"environment": {"id": "Pendulum-v1", "kwargs": {}, "num_actions": 3}},
        {"environment": {"id": 3, "kwargs": {}}},
        {"mean_limit": -1.0},
        {"mean_limit": "x"},
        {"ensemble": 0},
        {"log_std_range": [1]},
        {"kind": ["tanh-gaussian"]},
    ],
)
def test_policies_that_lie(tmp_path: Path, change: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    policy().save(tmp_path / "a.safetensors")
    header, tensors = read_tensors(tmp_path / "a.safetensors")
    config = {**json.loads(header["demosift"]), **change}
    save_file(tensors, tmp_path / "b.safetensors", metadata={"demosift": json.dumps(config)})
    refused(lambda: Policy.load(tmp_path / "b.safetensors"), "not a demosift policy")


@pytest.mark.parametrize(("gone", "new"), [("layers/1/bias", None), ("layers/1/kernel", None), (None, "../x")])
def test_policies_with_half_a_layer_or_more(tmp_path: Path, gone: str | None, new: str | None) -> None:
    """A categorical policy that loses half of its last layer would otherwise act by the one before."""
    from safetensors.numpy import save_file

    path = tmp_path / "a.safetensors"
    policy(kind="categorical", width=3, environment=None, log_std_range=None).save(path)
    header, tensors = read_tensors(path)
    tensors = {name: tensor for name, tensor in tensors.items() if name != gone}
    save_file(tensors | ({new: np.zeros(1, np.float32)} if new else {}), path, metadata=header)
    refused(lambda: Policy.load(path), "not a demosift policy", (gone or new or ""))


def test_a_policy_without_members(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no members"):
        policy(members=0)


@pytest.mark.parametrize(("column", "values"), [("episode", [0, 0, 1]), ("log_weight", [0.0, np.nan, 1.0])])
def test_scores_that_repeat_an_episode_or_are_not_numbers(tmp_path: Path, column: str, values: list[float]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    make_scores(tmp_path)
    path = tmp_path / "scores" / "episodes.parquet"
    table = pq.read_table(path)
    assert len(read_scores(tmp_path / "pile.hdf5", tmp_path / "scores").weight) == 12
    pq.write_table(table.set_column(table.column_names.index(column), column, pa.array(values * 2)), path)
    refused(lambda: filter_dataset(tmp_path / "pile.hdf5", tmp_path / "scores", tmp_path / "out.hdf5", episodes=1))
    assert not (tmp_path / "out.hdf5").exists()


def test_minari_takes_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_dataset(dataset(), "minari:./made-v0")
    assert len(read_dataset("minari:./made-v0")) == 12


def test_unusable_is_an_input_error() -> None:
    assert issubclass(Unusable, InputError)


# Links


def folder_of(kind: str, folder: Path) -> tuple[Path, Path]:
    """A dataset of one kind, and one of its files."""
    if kind == "lerobot":
        return lerobot_v2(folder, {0: episode(0, 4)}), folder / "data" / "chunk-000" / "episode_000000.parquet"
    place = folder / "data" / "main_data.hdf5" if kind == "minari" else folder / "episode_00000.npz"
    write_dataset(dataset(), f"{kind}:{folder}")
    return folder, place


@pytest.mark.parametrize("kind", ["lerobot", "minari", "npz"])
def test_links_do_not_lead_out_of_a_dataset(tmp_path: Path, kind: str) -> None:
    folder, file = folder_of(kind, tmp_path / "cache" / "snapshots" / "abc-v0")
    (tmp_path / "own").symlink_to(folder)
    whole = read_dataset(tmp_path / "own")  # a link that the user names
    store = tmp_path / "cache" / "blobs"
    store.mkdir()
    for home, good in ((store, True), (folder, True), (tmp_path, False)):
        moved = home / f"moved{file.suffix}x"
        file.rename(moved)
        file.symlink_to(os.path.relpath(moved, file.parent))
        if good:
            assert len(read_dataset(folder)) == len(whole)
        else:
            refused(lambda: read_dataset(folder), "link to another place")
            refused(lambda: digest_source(folder), "link to another place")
        file.unlink()
        moved.rename(file)
    if kind != "npz":
        (folder / "data").rename(tmp_path / "elsewhere")
        (folder / "data").symlink_to(tmp_path / "elsewhere")
        refused(lambda: read_dataset(folder), "link to another place")


def test_a_store_that_is_a_link_itself(tmp_path: Path) -> None:
    folder, file = folder_of("npz", tmp_path / "cache" / "snapshots" / "abc")
    (tmp_path / "cache" / "blobs").symlink_to(tmp_path)
    file.rename(tmp_path / "moved.npz")
    file.symlink_to("../../blobs/moved.npz")
    refused(lambda: read_dataset(folder), "link to another place")


def test_few_bytes_that_stand_for_many_rows(tmp_path: Path) -> None:
    """A text that is stored once and comes a million times; names need not be UTF-8."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet"))
    write_table(pa.table({"a": pa.array(["x" * 5000] * 100), "b": np.arange(100)}), path)
    assert len(read_table(path)) == 100
    one = pa.array(["x" * 5000]).dictionary_encode()
    many = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1 << 17, np.int32)), one.dictionary)
    with path.open("wb") as file:
        pq.write_table(pa.table({"a": many}), file, store_schema=False)
    assert path.stat().st_size < 1 << 16
    refused(lambda: read_table(path, ["a"]), "claims")


def test_an_episode_without_rows_is_not_passed_over(tmp_path: Path) -> None:
    """Minari would read the others, under other numbers."""
    make_minari_arrow(tmp_path)
    for path in (tmp_path / "data-v0" / "data" / "1").iterdir():
        path.unlink()
    refused(lambda: read_dataset(tmp_path / "data-v0"), "data/1: holds no rows")


def test_a_file_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if not Path("/proc/self/mem").exists():
        pytest.skip("needs a file that cannot be read")
    assert main(["train", "bc", "--expert", "/proc/self/mem", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("demosift: /proc/self/mem: ")
    assert said.count("\n") == 1
