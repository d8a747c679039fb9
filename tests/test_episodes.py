"""Some episodes of one dataset, as expert or as bad, by their numbers; and datasets of which nobody knows the good."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import tree
from layouts import episode as make_episode
from layouts import lerobot_v3

import demosift as ds
from demosift.cli.main import main
from demosift.data import digest_source, episodes_where, open_rows, split_episodes
from demosift.data.decisions import read_decisions, read_episodes
from demosift.data.episodes import Episodes
from demosift.data.rows import DatasetRows
from demosift.report.statistics import probability_greater
from demosift.results.scores import read_scores
from demosift.sift.agreement import batch_information, measure_agreement, movement, prediction_error, whitened
from demosift.sift.cuts import find_cuts, rows_left
from demosift.sift.filtering import filter_dataset
from demosift.sift.finish import agree_on_finish, measure_finish
from demosift.sift.scorers import NeighbourScorer
from demosift.sift.scoring import score
from demosift.types import Dataset, InputError, Origin, Transitions

STEPS, GOOD, BAD = 30, 9, 6


def pile(goal: float | None = None, bad: int = BAD) -> Dataset:
    """Point robots that walk to the origin; later episodes walk to another goal, or their actions are noise."""
    rng = np.random.default_rng(0)
    obs, action = [], []
    for episode in range(GOOD + bad):
        state = rng.uniform(-1, 1, 2)
        for _ in range(STEPS):
            wanted = -0.8 * state
            if episode >= GOOD:
                wanted = 0.6 * rng.uniform(-1, 1, 2) if goal is None else 0.8 * (goal - state)
            obs.append(state)
            action.append(np.clip(wanted + 0.02 * rng.normal(size=2), -1, 1))
            state = state + 0.2 * action[-1]
    rows = len(obs)
    states, actions = np.array(obs, np.float32), np.array(action, np.float32)
    timeout = np.arange(1, rows + 1) % STEPS == 0
    origin = Origin((np.arange(rows) >= GOOD * STEPS).astype(np.int8), ("clean", "noisy"))
    zeros = np.zeros(rows, np.float32)
    moved = states + np.float32(0.2) * actions
    return Dataset(Transitions(states, actions, zeros, moved, zeros.astype(bool)), timeout, origin=origin)


PILE = pile()
TARGETS = ("pile.hdf5", "robomimic:demos.hdf5", "lerobot:folder", "npz:episodes")


def put(folder: Path, target: str, data: Dataset = PILE) -> str:
    prefix, _, name = target.rpartition(":")
    source = f"{prefix}:{folder / name}" if prefix else str(folder / name)
    ds.write_dataset(data, source)
    return source


def test_numbers_and_ranges():
    assert Episodes.parse("7-12, 0,3,4,8").stretches == ((0, 0), (3, 4), (7, 12))
    assert str(Episodes.parse("3,1,2,9")) == "1-3,9"
    assert Episodes.parse("0-9").less(Episodes.parse("2-3,9,20")).stretches == ((0, 1), (4, 8))
    assert Episodes.parse("5-6").overlap(Episodes.parse("0,6-8")) == 6
    assert Episodes.parse("5").overlap(Episodes.parse("6")) is None
    chosen = Episodes.parse("2-4").choose("x", np.array([2, 3, 4, 7]))
    assert chosen.tolist() == [True, True, True, False]
    assert Episodes.parse("2").others.choose("x", np.array([2, 3])).tolist() == [False, True]


@pytest.mark.parametrize("text", ["", "a", "1-", "-3", "3-1", "1,,2", "1.5", "²", "9" * 30, "0x1", "nan"])
def test_what_is_no_list_of_episodes(text: str):
    with pytest.raises(InputError, match="episodes: "):
        Episodes.parse(text)


@pytest.mark.parametrize("target", TARGETS)
def test_some_episodes_of_a_file(tmp_path: Path, target: str):
    source = put(tmp_path, target)
    whole = ds.read_dataset(source)
    some, others = (ds.read_dataset(f"{source}::{how}=0,3-5") for how in ("episodes", "without"))
    inside = np.isin(np.arange(len(whole)) // (len(whole) // (GOOD + BAD)), [0, 3, 4, 5])
    for part, own in ((some, inside), (others, ~inside)):
        assert np.array_equal(part.transitions.obs, whole.transitions.obs[own])
        assert np.array_equal(part.transitions.action, whole.transitions.action[own])
    rows = open_rows(f"{source}::episodes=0,3-5")
    assert rows.numbers.tolist() == [0, 3, 4, 5]
    assert np.array_equal(rows.episode_ends, some.episode_ends)
    for size in (7, 1000):
        assert np.array_equal(np.concatenate([obs for obs, _ in rows.blocks(size)]), some.transitions.obs)
    wanted = np.array([40, 3, 3])
    assert np.array_equal(rows.take(wanted)[1], some.transitions.action[wanted])
    assert rows.origin is not None
    assert some.origin is not None
    assert np.array_equal(rows.origin.code, some.origin.code)
    assert digest_source(source) != digest_source(f"{source}::episodes=0")
    for wrong in ("episodes=15", "without=0-14", "episodes=x", "episodes=1::without=2"):
        with pytest.raises(InputError, match="episode"):
            ds.read_dataset(f"{source}::{wrong}")


def test_a_file_numbers_its_episodes_itself(tmp_path: Path):
    """Demonstrations keep their numbers when a filter key leaves some out, and LeRobot's keep theirs."""
    source = put(tmp_path, "robomimic:demos.hdf5")
    import h5py

    with h5py.File(tmp_path / "demos.hdf5", "a") as file:
        file["mask/late"] = np.array([b"demo_4", b"demo_9"])
        file["data/demo_2"].attrs["success"] = 1
        file["data/demo_3"].attrs["success"] = 0
    assert open_rows(f"{source}::filter=late").numbers.tolist() == [4, 9]
    assert open_rows(f"{source}::filter=late::episodes=9").num_rows == STEPS
    assert str(episodes_where(source, "late=1")) == "4,9"
    assert str(episodes_where(source, "success=1")) == "2"
    assert str(episodes_where(source, "success<1")) == "3"
    for wrong in ("success=2", "colour=red", "success"):
        with pytest.raises(InputError):
            episodes_where(source, wrong)


@pytest.mark.parametrize("target", ["pile.hdf5", "lerobot:folder", "npz:episodes"])
def test_episodes_by_a_column(tmp_path: Path, target: str):
    source = put(tmp_path, target)
    assert str(episodes_where(source, "origin=0")) == f"0-{GOOD - 1}"
    assert str(episodes_where(source, "origin>=1")) == f"{GOOD}-{GOOD + BAD - 1}"
    with pytest.raises(InputError, match=r"colour: no such column.*; there are .*origin"):
        episodes_where(source, "colour=red")


def test_episodes_by_an_info_of_minari(tmp_path: Path):
    source = put(tmp_path, "minari:folder-v0")
    good = episodes_where(source, "origin=0")
    for episodes, code in ((f"episodes={good}", 0), (f"without={good}", 1)):
        origin = open_rows(f"{source}::{episodes}").origin
        assert origin is not None
        assert set(origin.code.tolist()) == {code}
    with pytest.raises(InputError, match=r"no such column.*; there are .*origin"):
        episodes_where(source, "colour=red")


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_episodes_by_an_info_of_minaris_other_storages(tmp_path: Path, data_format: str):
    import gymnasium
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    box = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    data = tmp_path / "folder-v0" / "data"
    data.mkdir(parents=True)
    stored = MinariStorage.new(data, box, box, data_format=data_format)
    stored.update_episodes(
        EpisodeBuffer(
            id=number,
            observations=list(np.zeros((4, 2), np.float32)),
            actions=list(np.zeros((3, 2), np.float32)),
            rewards=[0.0] * 3,
            terminations=[False] * 3,
            truncations=[False, False, True],
            infos={"success": [False, False, False, number != 1]},
        )
        for number in range(3)
    )
    source = f"minari:{tmp_path / 'folder-v0'}"
    assert str(episodes_where(source, "success=1")) == "0,2"
    with pytest.raises(InputError, match="no such column"):
        episodes_where(source, "colour=red")


def test_files_of_several_episodes_have_no_facts(tmp_path: Path):
    """Their numbers would be those of other episodes."""
    source = put(tmp_path, "npz:episodes")
    path = tmp_path / "episodes" / "episode_00003.npz"
    with np.load(path) as file:
        arrays: dict[str, Any] = dict(file)
    arrays["terminals"][5] = True
    np.savez(path, **arrays)
    with pytest.raises(InputError, match="no such column"):
        episodes_where(source, "origin=0")


def test_success_is_what_lerobot_calls_so(tmp_path: Path):
    source = lerobot_v3(tmp_path / "folder", [{number: make_episode(number, 5) for number in range(3)}])
    table = pq.read_table(source / "data/chunk-000/file-000.parquet")
    table = table.append_column("next.success", pa.array(table["episode_index"].to_numpy() != 1))
    pq.write_table(table, source / "data/chunk-000/file-000.parquet")
    info = json.loads((source / "meta/info.json").read_text())
    info["features"]["next.success"] = {"dtype": "bool", "shape": [1], "names": None}
    (source / "meta/info.json").write_text(json.dumps(info))
    assert str(episodes_where(source, "success=1")) == str(episodes_where(source, "next.success=1")) == "0,2"


def test_split_again():
    first, rest = split_episodes("a.hdf5::filter=x", [1, 2])
    assert (first, rest) == ("a.hdf5::filter=x::episodes=1-2", "a.hdf5::filter=x::without=1-2")
    assert split_episodes(rest, [4]) == ("a.hdf5::filter=x::episodes=4", "a.hdf5::filter=x::without=1-2,4")
    assert split_episodes(first, [2]) == ("a.hdf5::filter=x::episodes=2", "a.hdf5::filter=x::episodes=1")


SETTINGS: dict[str, Any] = {"scorer": NeighbourScorer(), "members": 1, "folds": 3, "progress": False}


def weight_of(scored: ds.Scored, number: int) -> float:
    columns = scored.episodes()
    return float(columns["log_weight"][columns["number"] == number][0])


def test_one_dataset_scored_and_filtered(tmp_path: Path):
    source = put(tmp_path, "lerobot:folder")
    scored = score(f"{source}::episodes=0-2", f"{source}::without=0-2", out=tmp_path / "scores", **SETTINGS)
    good = [weight_of(scored, number) for number in range(3, GOOD)]
    bad = [weight_of(scored, number) for number in range(GOOD, GOOD + BAD)]
    assert min(good) > max(bad)
    kept = filter_dataset(source, tmp_path / "scores", f"lerobot:{tmp_path / 'kept'}", episodes=GOOD)
    assert (kept.kept_episodes, kept.episodes) == (GOOD, GOOD + BAD)
    again = ds.read_dataset(f"lerobot:{tmp_path / 'kept'}")
    assert again.origin is not None
    assert (again.origin.code == 0).all()
    with pytest.raises(InputError, match="give filter the whole dataset"):
        filter_dataset(f"{source}::without=0-2", tmp_path / "scores", f"lerobot:{tmp_path / 'other'}")
    assert "::" not in (tmp_path / "scores" / "report.html").read_text().split("demosift filter ")[1].split("<")[0]


def test_what_a_person_decided_stands(tmp_path: Path):
    """Named expert episodes are kept whole and bad ones dropped, whatever they weigh."""
    source = put(tmp_path, "pile.hdf5")
    named = f"{source}::episodes=0,{GOOD}"  # one of them is not good
    out = tmp_path / "scores"
    score(named, f"{source}::without=0,1,{GOOD}", bad=f"{source}::episodes=1", out=out, **SETTINGS)
    filter_dataset(source, out, tmp_path / "kept.hdf5", threshold=1e-9)
    kept = ds.read_dataset(tmp_path / "kept.hdf5")
    assert len(kept) == (GOOD + BAD - 1) * STEPS
    gone = PILE.transitions.obs[STEPS : 2 * STEPS]
    assert not (kept.transitions.obs[:, None] == gone[None]).all(axis=-1).any()
    filter_dataset(source, out, tmp_path / "few.hdf5", episodes=2)
    few = ds.read_dataset(tmp_path / "few.hdf5")
    expected = np.concatenate([PILE.transitions.obs[:STEPS], PILE.transitions.obs[GOOD * STEPS : (GOOD + 1) * STEPS]])
    assert np.array_equal(few.transitions.obs, expected)


def test_bad_episodes_lower_the_weight_of_their_like():
    """With an expert that was chosen carelessly, knowing what is bad tells more; and no row gains by it."""
    bad, others = split_episodes(pile(goal=0.8, bad=12), range(GOOD, GOOD + 4))
    expert, rest = split_episodes(others, [0, 1, 2, GOOD, GOOD + 1, GOOD + 2])
    assert isinstance(rest, Dataset)
    without, with_bad = (score(expert, rest, bad=given, **SETTINGS) for given in (None, bad))
    assert (with_bad.weight <= without.weight + 1e-12).all()
    assert np.array_equal(with_bad.expert, without.expert)
    assert rest.origin is not None
    noisy = rest.origin.code == 1
    shares = [own.supplementary[noisy].sum() / own.supplementary.sum() for own in (without, with_bad)]
    assert shares[1] < 0.7 * shares[0]
    assert with_bad.summary["bad"]["episodes"] == 4
    assert with_bad.summary["bad"]["auc"] > 0.6


def test_nobody_named_an_expert(tmp_path: Path):
    source = put(tmp_path, "pile.hdf5")
    scored = score(None, source, out=tmp_path / "scores", **SETTINGS)
    columns = scored.episodes()
    bad = columns["number"] >= GOOD
    assert sorted(columns["number"].tolist()) == list(range(GOOD + BAD))
    assert probability_greater(columns["agreement"][~bad], columns["agreement"][bad]) == 1
    assert (columns["agreement_rank"][bad] > GOOD).all()
    assert scored.num_expert_episodes == 5
    shown = scored.page["episodes"]["supplementary"]["shown"]
    scores = read_scores(source, tmp_path / "scores")
    assert [one["episode"] for one in shown] == scores.numbers[scores.order].tolist(), "all, as filter takes them"
    assert [one["rank"] for one in shown] == list(range(1, GOOD + BAD + 1))
    worst = [one["episode"] for one in shown[:-11:-1]]
    assert f"worst episodes: {', '.join(map(str, worst))} (" in str(scored)
    page = (tmp_path / "scores/report.html").read_text()
    assert "this is agreement, not quality" in page
    assert "The expert's own" not in page
    for heading in ("Agreement", "Predictable", "Information", "Idle", "Rough"):
        assert f'<button type="button">{heading}</button>' in page
    assert (columns["number"][:5] < GOOD).all()
    assert scored.summary["expert_by"] == "agreement"
    assert "agreement, not quality" in scored.summary["warnings"][0]
    assert "agreement, not quality" in (tmp_path / "scores" / "report.html").read_text()
    # In memory, the same numbers.
    again = score(None, ds.read_dataset(source), **SETTINGS)
    assert np.array_equal(again.weight, scored.weight)
    assert again.episodes()["number"].tolist() == scored.episodes()["number"].tolist()
    kept = filter_dataset(source, tmp_path / "scores", tmp_path / "kept.hdf5", episodes=GOOD)
    assert kept.kept_episodes == GOOD
    with pytest.raises(InputError, match="at least 5"):
        score(None, f"{source}::episodes=0-3", **SETTINGS)


def test_mutual_information_of_gaussians():
    """-log(1 - rho^2) / 2 nats."""
    rng = np.random.default_rng(0)
    for rho in (0.0, 0.6, 0.9):
        a = rng.normal(size=(1_000, 1))
        b = rho * a + np.sqrt(1 - rho**2) * rng.normal(size=a.shape)
        assert batch_information(a, b).mean() == pytest.approx(-0.5 * np.log(1 - rho**2), abs=0.06)
    assert batch_information(a[:3], b[:3]).tolist() == [0, 0, 0]


def test_whitening_leaves_out_what_does_not_move():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(500, 3)) * [1, 100, 0] + [0, 5, 7]
    found = whitened(np.concatenate([values, values[:, :1]], axis=1), 16)
    np.testing.assert_allclose(np.cov(found.T, bias=True), np.eye(2), atol=1e-6)
    assert whitened(np.ones((5, 2)), 16).shape == (5, 1)


def test_an_action_is_predicted_by_other_episodes_only():
    episode = np.repeat([0, 1, 2], 20)
    state = np.tile(np.linspace(0, 1, 20), 3)[:, None]
    action = np.where(episode == 2, 1.0, 0.0)[:, None]
    error = prediction_error(state, action, episode)
    assert error[episode == 2].min() == 1.0
    assert 0 < error[episode == 0].mean() < 0.7


def test_idle_steps_are_found():
    state = np.concatenate([np.zeros(20), np.linspace(0, 1, 40), np.ones(10)])
    obs = np.tile(state, 3)[:, None].astype(np.float32)
    zeros = np.zeros(len(obs), np.float32)
    timeout = np.arange(1, len(obs) + 1) % len(state) == 0
    data = Dataset(Transitions(obs, obs, zeros, obs, zeros.astype(bool)), timeout)
    idle, *_ = movement(DatasetRows(data))
    still = np.tile((np.arange(len(state)) < 18) | (np.arange(len(state)) > 62), 3)
    assert idle[still].all()
    moving = np.tile((np.arange(len(state)) > 22) & (np.arange(len(state)) < 58), 3)
    assert not idle[moving].any()


def starting(settle: int, wait: int, speed: float = 0.0) -> Dataset:
    """Episodes in which something settles for a while and nobody acts, and then the robot moves about."""
    rng = np.random.default_rng(0)
    obs, action = [], []
    for _ in range(4):
        moved = np.cumsum(rng.uniform(-1, 1, 60))
        robot = np.concatenate([speed * np.arange(wait), speed * wait + moved])
        thing = np.concatenate([np.linspace(3, 0, settle), np.zeros(wait + 60 - settle)])
        obs.append(np.stack([robot, robot / 2, thing], axis=1))
        action.append(np.concatenate([np.full(wait, 0.1), rng.choice([-1, 1], 60) * rng.uniform(0.5, 1, 60)])[:, None])
    states, actions = np.concatenate(obs).astype(np.float32), np.concatenate(action).astype(np.float32)
    zeros = np.zeros(len(states), np.float32)
    timeout = np.arange(1, len(states) + 1) % (wait + 60) == 0
    return Dataset(Transitions(states, actions, zeros, states, zeros.astype(bool)), timeout)


def test_a_start_is_idle_until_the_action_changes():
    """Though something settles at first; but not where the robot moves on by the same action, or for a moment."""

    def starts(data: Dataset) -> list[tuple[int, int]]:
        cuts = find_cuts(DatasetRows(data), np.ones(len(data)), 0.5)
        return [(cut.start, cut.stop) for cut in cuts if cut.why == "idle start"]

    assert starts(starting(settle=8, wait=30)) == [(0, 28)] * 4
    assert starts(starting(settle=0, wait=30, speed=0.5)) == []
    assert starts(starting(settle=0, wait=3)) == []


def test_agreement_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch):
    whole = movement(DatasetRows(PILE))
    rows = DatasetRows(PILE)
    blocks = rows.blocks
    monkeypatch.setattr(rows, "blocks", lambda: blocks(7))
    for a, b in zip(whole, movement(rows), strict=True):
        assert np.array_equal(a, b)


def decide(path: Path, digest: str, **changes: Any) -> Path:
    path.write_text(json.dumps({"demosift": "decisions", "dataset": digest, "keep": [0, 2], "drop": [9]} | changes))
    return path


def test_lists_and_decisions(tmp_path: Path):
    source = put(tmp_path, "pile.hdf5")
    digest = digest_source(source)
    (tmp_path / "list.txt").write_text("3\n5-6, 8\n")
    assert str(read_episodes(source, str(tmp_path / "list.txt"), "keep")) == "3,5-6,8"
    path = decide(tmp_path / "d.json", digest)
    assert str(read_episodes(source, str(path), "keep")) == "0,2"
    assert str(read_episodes(source, str(path), "drop")) == "9"
    decide(tmp_path / "only.json", digest, drop=[])
    for text, message in ((tmp_path / "only.json", "decides to drop no episode"), ("no.txt", "no file of that name")):
        with pytest.raises(InputError, match=message):
            read_episodes(source, str(text), "drop")
    wrong = [
        ({"keep": "all"}, "keep: not a list"),
        ({"keep": [-1]}, "keep: not a list"),
        ({"keep": [True]}, "keep: not a list"),
        ({"drop": [0]}, "both kept and dropped"),
        ({"keep": [], "drop": []}, "decides about no episode"),
        ({"dataset": "0" * 64}, "other data"),
        ({"demosift": "x"}, "not a file of decisions"),
    ]
    for changes, message in wrong:
        with pytest.raises(InputError, match=message):
            read_decisions(source, decide(tmp_path / "e.json", digest, **changes))


def idle_pile() -> tuple[Dataset, np.ndarray]:
    """Episodes that stand still at first and at last, with a sensor's noise; which rows these are."""
    rng = np.random.default_rng(0)
    obs, still = [], []
    for _ in range(6):
        before, moving, after = rng.integers(15, 25), rng.integers(60, 80), rng.integers(5, 15)
        path = np.concatenate([np.zeros(before), np.linspace(0, 1, moving), np.ones(after)])
        obs.append(np.stack([path, np.sin(3 * path)], axis=1) + 1e-4 * rng.normal(size=(len(path), 2)))
        still.append(np.repeat([True, False, True], [before, moving, after]))
    states = np.concatenate(obs).astype(np.float32)
    zeros, timeout = np.zeros(len(states), np.float32), np.zeros(len(states), bool)
    timeout[np.cumsum([len(one) for one in obs]) - 1] = True
    return Dataset(Transitions(states, states, zeros, states, timeout & False), timeout), np.concatenate(still)


def test_idle_starts_and_ends_are_cut():
    data, still = idle_pile()
    cuts = find_cuts(DatasetRows(data), np.ones(len(data)), 0.5)
    assert {cut.why for cut in cuts} == {"idle start", "idle end"}
    left = rows_left(cuts, data.episode_ends)
    assert (~left[still]).mean() > 0.7  # a few before and after each movement stay
    assert (~left[~still]).mean() < 0.02


def test_stretches_that_weigh_little_are_cut_and_single_rows_are_not():
    weight = np.ones(STEPS * 15)
    weight[3 * STEPS : 4 * STEPS] = 1e-3  # an episode
    weight[::17] = 1e-3
    cuts = [cut for cut in find_cuts(DatasetRows(PILE), weight, 0.5) if cut.why == "low weight"]
    assert {cut.episode for cut in cuts} == {3}
    left = rows_left(find_cuts(DatasetRows(PILE), weight, 0.5), PILE.episode_ends).reshape(-1, STEPS)
    assert not left[3].any()
    assert left[:3, :15].all()
    none = rows_left(find_cuts(DatasetRows(PILE), np.zeros(len(weight)), 0.5), PILE.episode_ends)
    assert not none.any()


def test_decisions_filter(tmp_path: Path):
    source, out = put(tmp_path, "lerobot:folder"), tmp_path / "scores"
    score(f"{source}::episodes=0-2", f"{source}::without=0-2", out=out, **SETTINGS)
    path = decide(tmp_path / "d.json", digest_source(source), keep=[GOOD], drop=[0, 4])
    filter_dataset(source, out, f"lerobot:{tmp_path / 'kept'}", episodes=GOOD, decisions=path)
    kept = ds.read_dataset(f"lerobot:{tmp_path / 'kept'}")
    numbers = [*range(1, 4), *range(5, GOOD + 1)]
    assert np.array_equal(kept.transitions.obs, PILE.transitions.obs.reshape(-1, STEPS, 2)[numbers].reshape(-1, 2))
    wrong = decide(tmp_path / "e.json", digest_source(source), keep=[99])
    with pytest.raises(InputError, match="episode 99 does not exist"):
        filter_dataset(source, out, f"lerobot:{tmp_path / 'other'}", decisions=wrong)
    done = filter_dataset(source, out, tmp_path / "w", episodes=GOOD, decisions=path, weights=True)
    table = pq.read_table(Path(done.out) / "sample_weights.parquet")
    assert table.column_names == ["index", "weight"]
    assert table["index"].to_pylist() == list(range(len(PILE)))
    command = (Path(done.out) / "delete_episodes.txt").read_text()
    dropped = [0, 4, *range(GOOD + 1, GOOD + BAD)]
    operation = f'--operation.type delete_episodes --operation.episode_indices "{dropped}"'
    root = tmp_path / "folder"
    places = f"--repo_id local/folder --root {root} --new_repo_id local/folder_kept --new_root {root}_kept"
    assert command == f"lerobot-edit-dataset {places} {operation}\n"
    for cut in json.loads((Path(done.out) / "cuts.json").read_text())["cuts"]:
        assert 0 <= cut["start"] < cut["stop"] <= STEPS
    frames = filter_dataset(source, out, f"lerobot:{tmp_path / 'cut'}", frames=True)
    assert frames.kept_rows < GOOD * STEPS
    with pytest.raises(InputError, match="only one of"):
        filter_dataset(source, out, f"lerobot:{tmp_path / 'x'}", frames=True, top=0.5)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = put(tmp_path, "pile.hdf5")
    ask = ["--scorer", "neighbours", "--members", "1", "--out", str(tmp_path / "scores")]
    before = tree(tmp_path)
    for flags, message in (
        ([], "give one of --expert, --expert-episodes"),
        (["--expert-episodes", "0", "--expert", "none"], "give one of"),
        (["--expert-episodes", "0-2", "--bad-episodes", "2,4"], "episode 2 is named both"),
        (["--expert-episodes", "40"], "episode 40 does not exist"),
        (["--expert-where", "colour=red"], "colour: no such column"),
        (["--expert", "none", "--supplementary", source], "give a dataset, or --supplementary"),
        (["--expert", "none", "--bad", source, "--bad-episodes", "3"], "--bad or --bad-episodes"),
    ):
        assert main(["score", source, *flags, *ask]) == 2
        assert message in capsys.readouterr().err
        assert tree(tmp_path) == before
    flags = ["--expert-episodes", "0-1", "--bad-episodes", f"{GOOD}-{GOOD + 1}"]
    assert main(["score", source, *flags, *ask, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["dataset"]["path"] == source
    assert answer["bad"]["numbers"] == [GOOD, GOOD + 1]
    assert answer["expert"]["episodes"] == 2


def walks(lengths: list[int], seed: int) -> Dataset:
    """Straight walks from 0 to 1, each as far as its share of 40 steps."""
    rng = np.random.default_rng(seed)
    states = [np.linspace(0, length / 40, length)[:, None] + 0.01 * rng.normal(size=(length, 1)) for length in lengths]
    obs = np.concatenate(states).astype(np.float32)
    timeout = np.zeros(len(obs), bool)
    timeout[np.cumsum(lengths) - 1] = True
    zeros = np.zeros(len(obs), np.float32)
    return Dataset(Transitions(obs, np.full_like(obs, 0.5), zeros, obs, timeout & False), timeout)


def test_episodes_that_stop_early_rank_lower(tmp_path: Path):
    expert, rest = walks([40] * 4, 0), walks([40, 20, 40, 10, 40], 1)
    sources = DatasetRows(expert), DatasetRows(rest)
    found = measure_finish(sources, 0)
    assert found is not None
    assert found.told > 0.9
    np.testing.assert_allclose(found.share[4:], [1, 0.5, 1, 0.25, 1], atol=0.1)
    for name, data in (("expert", expert), ("rest", rest)):
        ds.write_dataset(data, tmp_path / f"{name}.hdf5")
    files = [tmp_path / "expert.hdf5", tmp_path / "rest.hdf5"]
    scored = score(*files, out=tmp_path / "scores", **SETTINGS)
    rank = scored.episodes()["rank"][4:]
    assert rank[[1, 3]].tolist() == [4, 5]
    assert scored.summary["finish"]["early"] == 2
    kept = filter_dataset(files[1], tmp_path / "scores", tmp_path / "kept.hdf5", episodes=3)
    assert kept.kept_rows == 120


def test_without_an_expert_episodes_agree_on_where_they_end():
    lengths = [40] * 12
    lengths[3], lengths[7] = 20, 10
    rows = DatasetRows(walks(lengths, 1))
    found = agree_on_finish(rows, 0)
    assert found is not None
    np.testing.assert_allclose(found.share, np.array(lengths) / 40, atol=0.1)
    agreement = measure_agreement(rows)
    assert set(np.argsort(agreement.combined)[:2]) == {3, 7}
    assert "finish" in agreement.columns


def test_where_states_do_not_tell_nothing_is_said():
    turning = walks([40] * 4, 0)
    obs = np.sin(40 * turning.transitions.obs)
    again = Dataset(turning.transitions._replace(obs=obs), turning.timeout)
    assert measure_finish((DatasetRows(again), DatasetRows(again)), 0) is None
    assert measure_finish((DatasetRows(walks([40, 40], 0)), DatasetRows(turning)), 0) is None
    assert agree_on_finish(DatasetRows(again), 0) is None
