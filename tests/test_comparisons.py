"""The wider field: the grid of successors, its tables worked out by hand, and D4RL's files beside published numbers."""

import importlib.util
import itertools
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from test_report_tables import content_of, write_cells

from demosift.algorithms import WBCU
from demosift.cli.main import main
from demosift.data import read_dataset
from demosift.experiments.cells import Schedule
from demosift.experiments.comparisons import PILES, Pile, comparison, parse_pile
from demosift.experiments.d4rl import file_name, read_d4rl
from demosift.experiments.presets import Request, row_facts
from demosift.files import Unusable
from demosift.report import statistics
from demosift.report.anchors import NINE, anchor_table, anchored_methods, lines_of, published
from demosift.report.comparison import LIMITS, ComparisonRow, comparison_tables
from demosift.report.page import write_report
from demosift.results.cell import cell_id
from demosift.results.folder import read_folder
from demosift.simulation import environments
from demosift.simulation.shipped import shipped_policy
from demosift.tasks.record import record
from demosift.types import InputError

MEASURE = Path(__file__).parent.parent / "results/recipe/measure.py"

# Statistics


def test_a_performance_profile_by_hand() -> None:
    """The share of seeds above a limit, strictly; a stratum of two counts as much as one of four."""
    strata = [np.array([0.2, 0.6]), np.array([0.1, 0.5, 0.5, 0.9])]
    limits = np.array([0.0, 0.2, 0.5, 0.9])
    expected = [1.0, (1 / 2 + 3 / 4) / 2, (1 / 2 + 1 / 4) / 2, 0.0]
    np.testing.assert_allclose(statistics.performance_profile(strata, limits), expected)


def test_the_interval_of_a_profile_against_every_possible_resample() -> None:
    scores, limits = np.array([0.0, 1.0, 5.0]), np.array([0.5, 2.0])
    draws = np.array(list(itertools.product(scores, repeat=3)))
    for confidence in (0.95, 0.6):
        tails = [(1 - confidence) / 2, (1 + confidence) / 2]
        exact = [np.quantile(np.repeat((draws > limit).mean(axis=1), 1000), tails) for limit in limits]
        found = statistics.profile_interval([scores], limits, 1, 50_000, confidence)
        np.testing.assert_allclose(np.transpose(found), exact)


# The grid


def test_every_method_is_run_as_published_and_with_the_robust_cloner() -> None:
    request = Request(("hopper",), (0, 1), 100, Schedule(every=50), penalties=(), replay="somewhere")
    grids, left_out = comparison("successors", request)
    cells = grids["successors"]
    by_row = {(cell.data.task, cell.method): cell for cell in cells}
    noisy = {method for task, method in by_row if task == "hopper/noisy-expert"}
    assert {"bc", "bc+robust", "nbcu", "nbcu+robust", "wbcu+robust", "demodice", "dwbc+robust", "sift"} <= noisy
    assert {"oracle", "oracle+robust"} <= noisy
    assert "sift+robust" not in noisy
    plain, robust = (by_row["hopper/noisy-expert", method] for method in ("wbcu", "wbcu+robust"))
    assert plain.algorithm == WBCU()
    assert (plain.ensemble, robust.ensemble) == (1, by_row["hopper/noisy-expert", "sift"].ensemble)
    cloner = robust.algorithm.cloner
    assert cloner is not None
    assert (robust.algorithm.learning_rate, cloner.decay, cloner.horizon) == (1e-3, 0.1, 100)  # type: ignore[attr-defined]
    assert robust.config()["method"] == "wbcu+robust"
    assert robust.config()["algorithm"] == "wbcu"
    assert {cell.data.seed for cell in cells} == {0, 1}
    # The robust rows of BC and of the oracle differ from each other in the data alone.
    assert by_row["hopper/noisy-expert", "oracle+robust"].data.trained_on == "clean"
    tasks = {cell.data.task for cell in cells}
    assert {"hopper/medium-expert, 5 experts", "hopper/haystack", "hopper/no-expert", "hopper/full-replay"} <= tasks
    assert ("hopper/no-expert", "oracle") not in by_row
    # Whatever is not run is named, with the reason.
    told = "\n".join(left_out)
    assert "sift clones robustly as published" in told
    for pile in ("no-expert", "full-replay"):
        assert f"{pile}: left out, for no row is known to be the expert's: oracle, oracle+robust" in told
    assert "medium-expert:observations: left out, for they need the expert's actions: bc, bc+robust, nbcu" in told
    without = {method for task, method in by_row if task == "hopper/haystack, expert observations"}
    assert {"smodice", "smodice+robust", "lobsdice"} <= without
    assert not by_row["hopper/haystack, expert observations", "smodice"].data.expert_actions


def test_parts_of_the_grid_can_be_chosen() -> None:
    base: dict[str, Any] = {"envs": ("hopper", "ant"), "seeds": (3,), "iterations": 100, "schedule": Schedule(every=50)}
    part = Request(**base, methods=("bc", "dwbc+robust"), piles=("haystack:5",), recipes=("paper",), penalties=())
    grids, left_out = comparison("successors", part)
    rows = [(cell.data.env, cell.method, cell.data.experts) for cell in grids["successors"]]
    assert rows == [(env, method, 5) for env in ("hopper", "ant") for method in ("bc", "dwbc+robust")]
    assert left_out == []
    _, without_replay = comparison("successors", Request(**base, methods=("bc",)))
    assert without_replay[0].startswith("full-replay: needs a folder that collect wrote")
    for text in PILES:
        assert parse_pile(text).recipe == text.partition(":")[0]
    assert parse_pile("haystack:observations:3") == Pile("haystack", 3, False)
    for bad in ("mixed", "haystack:", "haystack:0", "haystack:5:5", "nonsense"):
        with pytest.raises(InputError, match="pile"):
            parse_pile(bad)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["successors", "--piles", "nonsense"], "unknown pile 'nonsense'"),
        (["successors", "--piles", "full-replay"], "full-replay needs a replay folder"),
        (["successors", "--methods", "magic+robust"], "unknown method 'magic+robust'"),
        (["successors", "--piles", "no-expert", "--methods", "oracle"], "successors: nothing to run"),
        (["successors", "--data", "x"], "--data: is for d4rl"),
        (["noisy-expert", "--piles", "haystack"], "--piles: is for successors and d4rl"),
        (["d4rl"], "d4rl needs a folder with D4RL's files"),
        (["d4rl", "--data", "nowhere"], "nowhere: no such folder"),
        (["d4rl", "--data", ".", "--envs", "ant"], "d4rl: ant: the files are those of halfcheetah, hopper, walker2d"),
        (["d4rl", "--data", ".", "--piles", "large"], "unknown dataset 'large'"),
        (["d4rl", "--data", ".", "--piles", "medium"], "hopper_medium-v2.hdf5: not in ."),
    ],
)
def test_bad_requests_are_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *arguments, "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("out").exists()


TINY = ["--iterations", "4", "--episodes", "1", "--early-episodes", "1", "--workers", "1", "--ensemble", "1"]
SMALL = ["--set", "hidden=4,4", "batch_size=4"]


def test_a_small_grid_runs_and_is_not_run_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On double-pendulum, whose episodes are short as long as nobody has learned anything."""
    piles = ["--piles", "missing-steps", "medium-expert:2"]
    piles += ["medium-expert:observations"]
    command = ["reproduce", "successors", "--envs", "double-pendulum", "--seeds", "1", "--methods", "bc", "smodice"]
    command += [*piles, *TINY, *SMALL, "--pool", "10", "--out", str(tmp_path), "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["cells"], first["done"], first["failed"]) == (10, 10, {})
    assert first["left_out"] == [
        "medium-expert:observations: left out, for they need the expert's actions: bc, bc+robust"
    ]
    page = (tmp_path / "report.html").read_bytes()
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["ran"] == 0
    assert (tmp_path / "report.html").read_bytes() == page
    tables = json.loads((tmp_path / "tables" / "successors.json").read_text())["tables"]
    piles = ["medium-expert, 2 experts", "medium-expert, expert observations", "missing-steps"]
    assert [table["pile"] for table in tables] == [None, *piles]
    assert tables[0]["tasks"] == 2  # those that every method was run on
    assert [row["method"] for row in tables[0]["rows"]] == ["bc", "bc+robust", "smodice", "smodice+robust"]
    kept = {path.name for path in (tmp_path / "data").iterdir()}
    assert {f"double-pendulum-missing-steps-10{end}.hdf5" for end in ("", "-medium")} <= kept
    assert (tmp_path / "figures" / "profile.svg").is_file()


# Its tables

SCORES = {  # by method and task: a score for each of two seeds
    ("bc", "hopper/haystack"): (0.2, 0.4),
    ("bc", "ant/haystack"): (0.0, 0.2),
    ("bc", "hopper/no-expert, 5 experts"): (0.5, 0.7),
    ("bc+robust", "hopper/haystack"): (0.3, 0.5),
    ("bc+robust", "ant/haystack"): (0.1, 0.1),
    ("bc+robust", "hopper/no-expert, 5 experts"): (0.9, 1.1),
    ("oracle", "hopper/haystack"): (1.0, 1.0),
    ("oracle", "ant/haystack"): (0.8, 1.0),
    ("nbcu", "hopper/haystack, expert observations"): (0.3, 0.3),
}


def write_grid(folder: Path, scores: dict[tuple[str, str], tuple[float, ...]], grid: str = "successors") -> Path:
    contents = []
    for (method, task), values in scores.items():
        for seed, score in enumerate(values):
            env, _, recipe = task.partition("/")
            content = content_of(method, [0.0, 0.1, score, score], seed, env, recipe)
            content["config"]["algorithm"] = "bc" if method == "oracle" else method.removesuffix("+robust")
            contents.append({**content, "id": cell_id(content["config"], content["data"]["sha256"])})
    write_cells(folder, contents, grid)
    return folder


def test_the_tables_of_successors_by_hand(tmp_path: Path) -> None:
    folder = write_grid(tmp_path, SCORES)
    piles = comparison_tables(read_folder(folder), row_facts())
    assert [table.name for table in piles] == ["haystack", "haystack, expert observations", "no-expert, 5 experts"]
    # NBCU was not run where BC was: no task has every contender, so there is no table over all of them.
    haystack = piles[0]
    assert [row.title for row in haystack.rows] == ["BC", "BC, robust cloner", "Oracle"]
    plain, robust, oracle = haystack.rows
    assert plain.entries["hopper"].mean == pytest.approx(0.3)
    assert plain.entries["hopper"].std == pytest.approx(0.2 / np.sqrt(2))
    assert plain.overall is not None
    assert robust.overall is not None
    assert oracle.overall is not None
    assert (plain.overall.score, robust.overall.score) == pytest.approx((0.2, 0.25))
    assert plain.overall.iqm == pytest.approx((0.2 + 0.2) / 2)  # the middle half of 0, 0.2, 0.2, 0.4
    # Hopper: 0.3 beats one of 0.2 and 0.4, 0.5 both. Ant: 0.1 beats one of 0 and 0.2, twice.
    assert robust.over_published == pytest.approx((0.75 + 0.5) / 2)
    assert robust.overall.improvement == robust.over_published  # over BC, which is the same row
    assert np.isnan(plain.over_published)
    assert oracle.overall.improvement == 1
    assert plain.profile is not None
    assert plain.profile.share[LIMITS.searchsorted(0.1)] == pytest.approx((1 + 0.5) / 2)
    assert piles[1].rows[0].overall is not None
    assert piles[1].base == "NBCU"


def test_the_first_table_is_over_all_tasks_that_every_contender_was_run_on(tmp_path: Path) -> None:
    shared = {key: value for key, value in SCORES.items() if key[0] != "nbcu"}
    folder = write_grid(tmp_path, shared)
    every = comparison_tables(read_folder(folder), row_facts())[0]
    assert (every.name, every.num_tasks) == ("", 3)
    assert every.columns == ("haystack", "no-expert, 5 experts")
    plain, robust, oracle = every.rows
    assert plain.overall is not None
    assert plain.overall.score == pytest.approx((0.3 + 0.1 + 0.6) / 3)
    assert plain.entries["haystack"].mean == pytest.approx(0.2)  # seed by seed: 0.1 and 0.3
    assert plain.entries["haystack"].std == pytest.approx(0.2 / np.sqrt(2))
    assert robust.over_published == pytest.approx((0.75 + 0.5 + 1) / 3)
    assert oracle.overall is None  # it is no contender, and was not run everywhere
    assert "no-expert, 5 experts" not in oracle.entries
    write_report(folder, row_facts())
    text = (folder / "tables" / "successors.md").read_text()
    assert "| **BC, robust cloner** | 25.0 ± 7.1 | 100.0 ± 14.1 |" in text
    assert text.count("## ") == 3
    assert r"\label{tab:successors-0}" in (folder / "tables" / "successors.tex").read_text()
    written = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    write_report(folder, row_facts())
    assert {path: path.read_bytes() for path in written} == written
    assert not (folder / "tables" / "noisy-expert.md").exists()


def write_seeds(folder: Path, scores: dict[str, dict[int, float]]) -> ComparisonRow:
    """The row of BC over two piles of hopper and ant, from scores by task and seed."""
    contents = []
    for task, of_seeds in scores.items():
        env, _, recipe = task.partition("/")
        contents += [content_of("bc", [0.0, 0.1, score, score], seed, env, recipe) for seed, score in of_seeds.items()]
    write_cells(folder, contents, "successors")
    (row,) = comparison_tables(read_folder(folder), row_facts())[0].rows
    return row


def test_environments_are_averaged_seed_by_seed(tmp_path: Path) -> None:
    """Cells come in the order of their ids, which says nothing of their seeds."""
    own = {"hopper/haystack": {0: 0.1, 1: 0.2, 2: 0.3}, "hopper/no-expert": {0: 0.5}}
    row = write_seeds(tmp_path, {**own, "ant/haystack": {1: 0.8, 2: 0.7, 0: 0.9}})
    assert row.entries["haystack"] == pytest.approx((0.5, 0.0, 3))


def test_environments_with_other_seeds_count_alike(tmp_path: Path) -> None:
    own = {"hopper/haystack": {0: 0.2, 1: 0.4}, "hopper/no-expert": {0: 0.5}}
    std = np.sqrt(0.02 + 0.08) / 2  # of the mean of two scores, whose variances are 0.02 and 0.08
    row = write_seeds(tmp_path / "same number", {**own, "ant/haystack": {1: 0.6, 2: 1.0}})
    assert row.entries["haystack"] == pytest.approx(((0.3 + 0.8) / 2, std, 2))
    row = write_seeds(tmp_path / "more", {**own, "ant/haystack": {0: 0.6, 1: 1.0, 2: 0.5, 3: 0.7}})
    assert row.entries["haystack"].mean == pytest.approx((0.3 + 0.7) / 2)
    assert row.entries["haystack"].seeds == 2


# The script of the recipe


@pytest.mark.skipif(not MEASURE.is_file(), reason="a source archive comes without the results")
def test_the_scores_of_the_recipe_are_those_of_the_report(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("measure", MEASURE)
    assert spec is not None
    assert spec.loader is not None
    measure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(measure)
    scores = [0.9, 0.1, 0.2, 0.4, 0.6]  # of five the last two count
    contents = [content_of("bc", scores, seed, env, iterations=5) for seed in (0, 1) for env in ("hopper", "ant")]
    *_, last = write_cells(tmp_path, contents)
    of_seeds = {0: 0.5, 1: 0.5}
    means = {"mean": 0.5, "ant": 0.5, "hopper": 0.5}
    assert measure.scores(tmp_path) == {"bc": {**means, "seeds": {"ant": of_seeds, "hopper": of_seeds}}}
    last.write_text(last.read_text().replace("599.0", "999.0"))
    with pytest.raises(Unusable, match="does not match its digest"):
        measure.scores(tmp_path)


# D4RL


def test_anchors_are_what_two_papers_agree_on_or_one_reports() -> None:
    rows = published()["numbers"]
    keys = [(row["dataset"], row["method"], row["paper"]) for row in rows]
    assert len(set(keys)) == len(keys)
    assert {row["paper"] for row in rows} == set(published()["papers"])
    of_two: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        of_two.setdefault((row["dataset"], row["method"]), []).append(row["score"])
    agreed = [scores for scores in of_two.values() if len(scores) == 2]
    assert len(agreed) == 5
    assert all(abs(first - second) <= 2 for first, second in agreed)
    demodice = sum(row["score"] for row in rows if row["method"] == "demodice")
    (total,) = (row["low"] for row in published()["totals"] if row["method"] == "demodice")
    assert demodice == pytest.approx(total, abs=0.1)  # the paper's own sum
    assert anchored_methods() == ("nbcu", "demodice", "dwbc", "smodice", "lobsdice", "otr", "seabo")


@pytest.fixture(scope="module")
def d4rl_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hopper as D4RL has it: arrays and what else its files hold, no attribute that says what they are."""
    folder = tmp_path_factory.mktemp("d4rl")
    medium, expert = (
        record(shipped_policy("hopper", level), episodes, environments.resolve("hopper"), num_workers=1)
        for level, episodes in (("medium", 3), ("expert", 1))
    )
    for dataset, parts in (("medium", [medium]), ("medium-expert", [medium, expert])):
        with h5py.File(folder / file_name("hopper", dataset), "w") as file:
            names = ("observations", "actions", "rewards", "next_observations", "terminals")
            for index, name in enumerate(names):
                file[name] = np.concatenate([part.transitions[index] for part in parts])
            file["timeouts"] = np.concatenate([part.timeout for part in parts])
            rows = sum(map(len, parts))
            file["infos/action_log_probs"] = np.zeros(rows, np.float32)
            file["infos/qpos"] = np.zeros((rows, 6))
            file["metadata/algorithm"] = np.bytes_("SAC")
    return folder


def test_the_expert_is_the_best_trajectory_of_the_file(d4rl_files: Path) -> None:
    data, told = read_d4rl(d4rl_files, "hopper", "d4rl-medium-expert", 1)
    whole = read_dataset(d4rl_files / "hopper_medium_expert-v2.hdf5")
    assert data.supplementary is not None
    assert len(data.supplementary) == len(whole)  # the file as it is, the expert's trajectory among it
    assert data.expert.num_episodes == 1
    assert data.expert.returns()[0] == whole.returns().max() > 3000
    assert told["drawn"] == {"expert": [3]}
    assert read_d4rl(d4rl_files, "hopper", "d4rl-medium-expert", 3)[0].expert.num_episodes == 3
    with pytest.raises(InputError, match="has 4 episodes, but 5 are to be the expert's"):
        read_d4rl(d4rl_files, "hopper", "d4rl-medium-expert", 5)


def test_files_of_d4rl_run_and_the_published_numbers_stand_below(
    d4rl_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "d4rl", "--data", str(d4rl_files), "--envs", "hopper", "--methods", "nbcu", "--seeds", "1"]
    assert main([*command, *TINY, *SMALL, "--out", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["left_out"] == [f"hopper_medium_replay-v2.hdf5: not in {d4rl_files}"]
    assert (answer["cells"], answer["done"]) == (2, 2)
    table = anchor_table(read_folder(tmp_path), row_facts())
    assert table is not None
    assert table.datasets == ("hopper/medium", "hopper/medium-expert")
    (cell, *_) = (json.loads(path.read_text()) for path in (tmp_path / "cells").iterdir())
    known = environments.reference_returns()["d4rl"]["hopper"]
    assert cell["reference"] == {"name": "D4RL", "random": known["random"]["mean"], "expert": known["expert"]["mean"]}
    ours = next(
        each for name, each in table.rows[0].ours.items() if cell["config"]["task"].endswith(f"d4rl-{name[7:]}")
    )
    # Of four evaluations the last two count; the constants are D4RL's, not those of the shipped expert.
    returns = [np.mean(row["returns"]) for row in cell["evaluations"][-2:]]
    scores = [environments.normalised_score("hopper", each, reference="d4rl") for each in returns]
    assert len(cell["evaluations"]) == 4
    assert ours.mean == pytest.approx(100 * np.mean(scores))  # type: ignore[arg-type]
    lines = lines_of(table)
    assert lines[1] == ("", "quoted", ["52.9", "52.5", "–"])  # noqa: RUF001
    text = (tmp_path / "tables" / "d4rl.md").read_text()
    assert "|  | quoted | 52.9 | 52.5 |" in text
    assert "Gymnasium's v5 environments; the papers used v2" in text


def test_the_sum_needs_all_nine_datasets(tmp_path: Path) -> None:
    scores = {("demodice", name.replace("/", "/d4rl-")): (0.5, 0.7) for name in NINE}
    table = anchor_table(read_folder(write_grid(tmp_path / "nine", scores, "d4rl")), row_facts())
    assert table is not None
    assert table.datasets == NINE
    ours, seabo = lines_of(table)
    assert (ours[2][-1], seabo[2][-1]) == ("540.0", "585.3")
    assert ours[2][0] == "60.0 ± 14.1"
    assert seabo[2][:3] == ["42.5", "55.1", "73.4"]
    fewer = dict(list(scores.items())[1:])
    table = anchor_table(read_folder(write_grid(tmp_path / "eight", fewer, "d4rl")), row_facts())
    assert table is not None
    assert lines_of(table)[0][2][-1] == "–"  # noqa: RUF001
