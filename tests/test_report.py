"""The report: statistics worked out by hand, the same page for the same files, and files that cannot be trusted."""

import html.parser
import io
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import trim_mean
from sklearn.metrics import roc_auc_score

from demosift.experiments.presets import row_facts
from demosift.report import groups, numbers, page, statistics
from demosift.report import table as tables
from demosift.report.chart import nice_ticks
from demosift.report.groups import num_averaged
from demosift.report.table import headline, json_table, markdown_table, rich_tables
from demosift.report.weights import weight_histogram
from demosift.results.folder import read_results
from demosift.results.weights import write_weights
from demosift.types import InputError

# Callers of the report pass in what is known of the methods.
group = partial(groups.group, methods=row_facts())
result_table = partial(tables.result_table, methods=row_facts())
write_report = partial(page.write_report, methods=row_facts())

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FINAL = {"bc": 0.21, "nbcu": 0.08, "wbcu-two-stage": 0.70}
HOSTILE = (
    """</script></title><script>document.title="owned"</script><img src=x onerror='document.title="owned"'>"&\u202e"""
)


def write_run(
    folder: Path,
    algorithm: str,
    final: float = 0.5,
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    evaluations: int = 10,
    scored: bool = True,
    settings: tuple[dict[str, Any], ...] = ({},),
    spread: float = 0.03,
    **config: Any,
) -> Path:
    """A run folder such as `fit` writes, with made-up numbers that rise to about `final`."""
    generator = np.random.default_rng(7)
    every = 2500
    members = [
        {
            "algorithm": algorithm,
            "learning_rate": 3e-4,
            "batch_size": 256,
            "hidden": [256, 256],
            **setting,
            "seed": seed,
        }
        for setting in settings
        for seed in seeds
    ]
    content = {
        "algorithm": algorithm,
        "members": members,
        "data": [{"sha256": "0" * 64, "expert": {"rows": 1000, "episodes": 1}}],
        "normalise": "supplementary",
        "iterations": evaluations * every,
        "log_every": 500,
        "environment": {"id": "HalfCheetah-v5", "kwargs": {}},
        "versions": {"demosift": "0.1.0"},
        **config,
    }
    offset = spread * generator.standard_normal(len(members))
    lines = []
    for step in range(1, evaluations * every // 500 + 1):
        iteration = 500 * step
        for member in range(len(members)):
            row: dict[str, Any] = {
                "iteration": iteration,
                "member": member,
                "policy_loss": 5 * math.exp(-step / 9) - final,
            }
            if algorithm.startswith("wbcu"):
                learning = iteration <= evaluations * every * 0.4
                accuracy = 0.99 - 0.45 * math.exp(-step / 4) + 0.004 * generator.standard_normal()
                row |= {"discriminator_accuracy": accuracy if learning else None, "weight_mean": 1 + 0.02 * member}
                row |= {"effective_share": 0.3 + 0.6 * math.exp(-step / 6)}
            lines.append(row)
        if iteration % every == 0:
            for member in range(len(members)):
                rise = 1 - math.exp(-3.5 * iteration / (evaluations * every))
                score = final * rise + offset[member] + 0.02 * generator.standard_normal()
                returns = -280 + 12400 * score + 90 * generator.standard_normal(10)
                row = {
                    "iteration": iteration,
                    "member": member,
                    "returns": returns.round(3).tolist(),
                    "lengths": [1000] * 10,
                }
                lines.append({**row, "score": (returns.mean() + 280) / 12400 if scored else None})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "policy.safetensors").write_bytes(b"not read")
    return folder


def write_demo(folder: Path) -> Path:
    """What `demosift demo` writes."""
    for algorithm, final in FINAL.items():
        write_run(folder / algorithm, algorithm, final)
    generator = np.random.default_rng(3)
    names = ("expert", "clean", "noisy")
    code = np.repeat([0, 1, 2], [1000, 20_000, 80_000])
    weight = 10 ** (
        np.array([0.6, 0.3, -1.9])[code] + np.array([0.3, 0.5, 0.6])[code] * generator.standard_normal(len(code))
    )
    write_weights(folder, {"wbcu-two-stage": weight_histogram(weight, code, names)})
    return folder


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_demo(tmp_path_factory.mktemp("demo"))
    write_report(folder)
    return folder


# Statistics


def test_interquartile_mean_by_hand() -> None:
    assert statistics.interquartile_mean([np.array([9.0, 1, 2]), np.array([3.0, 100])]) == pytest.approx(14 / 3)
    assert statistics.interquartile_mean([np.array([1.0, 2, 3])]) == pytest.approx(2)  # a quarter of three is nothing
    scores = np.random.default_rng(0).random((4, 9))
    expected = [trim_mean(row, 0.25) for row in scores]  # rliable's definition
    np.testing.assert_allclose(statistics.interquartile_mean([scores]), expected)


def test_spread_by_hand() -> None:
    assert statistics.sample_std(np.array([1.0, 2, 3, 4])) == pytest.approx(math.sqrt(5 / 3))
    assert math.isnan(statistics.sample_std(np.array([1.0])))
    low, high = statistics.student_interval(np.array([[1.0], [2], [3]]))
    assert (low[0], high[0]) == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)), abs=1e-5)
    assert np.isnan(statistics.student_interval(np.array([[1.0]]))[0]).all()


def test_bootstrap_against_every_possible_resample() -> None:
    scores = np.array([0.0, 1, 5])
    means = [np.mean(draw) for draw in product(scores, repeat=3)]
    for confidence in (0.95, 0.6):
        found = statistics.bootstrap_interval([scores], statistics.mean_of_strata, 1, 50_000, confidence)
        exact = np.quantile(np.repeat(means, 1000), [(1 - confidence) / 2, (1 + confidence) / 2])
        assert found == pytest.approx(tuple(exact))
    assert found == pytest.approx((2 / 3, 10 / 3))  # by hand: the sixth and the 22nd of the 27 resamples


def test_bootstrap_never_mixes_strata() -> None:
    strata = [np.array([0.0, 0, 0]), np.array([9.0, 9])]
    assert statistics.bootstrap_interval(strata, statistics.mean_of_strata) == (4.5, 4.5)


def test_bootstrap_follows_its_seed() -> None:
    scores = [np.random.default_rng(5).random(6)]
    first, again, other = (statistics.bootstrap_interval(scores, statistics.mean_of_strata, s) for s in (0, 0, 1))
    assert first == again != other


def test_difference_interval_covers_the_difference() -> None:
    x, y = np.array([5.0, 6, 7]), np.array([1.0, 2, 3])
    low, high = statistics.difference_interval([x], [y])
    assert 2 <= low < 4 < high <= 6
    same = statistics.difference_interval([x], [x])
    assert same[0] < 0 < same[1]
    strata = [np.full(50, 1.0), np.full(2, 5.0)]  # they count alike, however many seeds they have
    assert statistics.difference_interval(strata, [np.zeros(50), np.zeros(2)]) == (3.0, 3.0)


def test_probability_of_improvement_by_hand() -> None:
    x, y = np.array([1.0, 2, 3]), np.array([2.0, 0])
    # Of six pairs 1>0, 2>0, 3>2, 3>0 win and 2=2 ties.
    assert statistics.probability_greater(x, y) == pytest.approx(4.5 / 6)
    assert statistics.probability_greater(y, x) == pytest.approx(1.5 / 6)
    assert statistics.probability_of_improvement([x, y], [y, x]) == pytest.approx(0.5)


# The table


def test_reported_number_is_the_mean_of_the_last_evaluations() -> None:
    assert [num_averaged(n) for n in (1, 2, 3, 10, 19, 20, 100)] == [1, 1, 1, 5, 9, 10, 10]
    assert num_averaged(100, last=3) == 3


def test_table_by_hand(tmp_path: Path) -> None:
    write_run(tmp_path / "bc", "bc", seeds=(0, 1))
    config = json.loads((tmp_path / "bc/config.json").read_text()) | {"iterations": 4}
    scores = {0: [0.9, 0.1, 0.2, 0.4], 1: [0.0, 0.1, 0.4, 0.8]}
    rows = [
        {"iteration": i + 1, "member": m, "returns": [1000 * s, 1000 * s + 2], "lengths": [1, 1], "score": s}
        for m, of_member in scores.items()
        for i, s in enumerate(of_member)
    ]
    (tmp_path / "bc/config.json").write_text(json.dumps(config))
    (tmp_path / "bc/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (row,) = result_table(tmp_path)
    assert (row.seeds, row.evaluations, row.averaged, row.episodes, row.iterations) == (2, 4, 2, 8, 4)
    assert (row.mean, row.std) == pytest.approx((0.45, math.sqrt(2) * 0.15))  # seeds 0.3 and 0.6
    assert row.iqm == pytest.approx(0.45)
    assert (row.iqm_low, row.iqm_high) == pytest.approx((0.3, 0.6))
    assert row.return_mean == pytest.approx(451)
    assert (row.last, row.best) == pytest.approx((0.6, 0.85))  # the best of seed 0 was its first: never the result


def test_table_forms(demo: Path) -> None:
    rows = result_table(demo)
    assert [row.method for row in rows] == ["BC", "NBCU", "Two-stage WBCU"]
    assert rows[2].mean > rows[0].mean > rows[1].mean
    parsed = json.loads(json.dumps(json_table(rows), allow_nan=False))
    assert parsed[0]["seeds"] == 5
    assert parsed[0]["mean"] == rows[0].mean
    assert "| BC | 5 | " in markdown_table(rows)
    console = Console(file=io.StringIO(), width=80)
    for table in rich_tables(rows):
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    assert numbers.with_spread(rows[2].mean, rows[2].std, "score") in text


def test_names_are_text_in_terminal_and_markdown(tmp_path: Path) -> None:
    write_run(tmp_path / "x", "[red]a|b\x1b[2J", seeds=(0,))
    rows = result_table(tmp_path)
    console = Console(file=io.StringIO(), width=200)
    console.print(*rich_tables(rows))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert r"[red]a|b\x1b[2J" in text
    assert "\x1b" not in text
    assert r"\[red\]a\|b" in markdown_table(rows)
    assert json_table(rows)[0]["std"] is None


def test_settings_of_one_method_are_told_apart(tmp_path: Path) -> None:
    penalties = tuple({"gradient_penalty": value} for value in (10.0, 0.0, 1.0))
    write_run(tmp_path / "wbcu", "wbcu", settings=penalties, seeds=(0, 1))
    write_run(tmp_path / "bc", "bc", seeds=(0, 1))
    assert [(row.method, row.setting, row.seeds) for row in result_table(tmp_path)] == [
        ("BC", "", 2),
        ("WBCU", "gradient penalty 0", 2),
        ("WBCU", "gradient penalty 1", 2),
        ("WBCU", "gradient penalty 10", 2),
    ]


def test_another_precision_is_another_setting(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "bc", seeds=(0, 1))
    write_run(tmp_path / "b", "bc", seeds=(0, 1), precision="bfloat16")
    settings = {row.setting: row.seeds for row in result_table(tmp_path)}
    assert settings == {"precision float32": 2, "precision bfloat16": 2}


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ({"ensemble": 5}, ("ensemble 1", "ensemble 5")),
        ({"held_out": 0.2}, ("held out 0.2", "held out none")),
        ({"held_out": 0.2, "patience": 3}, ("held out 0.2, patience 3", "held out none, patience never")),
    ],
)
@pytest.mark.parametrize("task", [None, "t"])
def test_what_a_run_was_asked_for_is_a_setting(
    flag: dict[str, Any], said: tuple[str, str], task: str | None, tmp_path: Path
) -> None:
    write_run(tmp_path / "a", "bc", seeds=(0, 1), task=task)
    write_run(tmp_path / "b", "bc", seeds=(0, 1), task=task, **flag)
    panels, repeats = group(read_results(tmp_path).every_run)
    assert [(series.setting, len(series.members)) for series in panels[0].series] == [(said[0], 2), (said[1], 2)]
    assert repeats == []


def test_given_weights_are_another_setting_whatever_the_task_is_called(tmp_path: Path) -> None:
    """Each draw has weights of its own, so seeds with different ones still belong together."""
    for name, sha, more in (
        ("a", "0", {}),
        ("b", "1", {}),
        ("c", "0", {"weight_sha256": "2"}),
        ("d", "1", {"weight_sha256": "3"}),
        ("e", "0", {"bad": {"sha256": "4"}}),
    ):
        write_run(tmp_path / name, "wbcu-two-stage", seeds=(int(sha),), data=[{"sha256": sha, **more}], task="t")
    assert {row.setting: row.seeds for row in result_table(tmp_path)} == {
        "given nothing": 2,
        "given weights": 2,
        "given bad data": 1,
    }


def test_seeds_of_separate_runs_belong_together_and_count_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "bc", seeds=(0, 1))
    write_run(tmp_path / "b", "bc", seeds=(1, 2))
    panels, repeats = group(read_results(tmp_path).every_run)
    assert [len(series.members) for series in panels[0].series] == [3]
    assert repeats == ["b: seed 1 repeats a (same method, setting and data); left out"]
    assert repeats[0] in write_report(tmp_path).read_text()


def test_other_data_is_another_setting_unless_a_task_names_it(tmp_path: Path) -> None:
    for name, sha, task in (("a", "0", None), ("b", "1", None), ("c", "0", "t"), ("d", "1", "t")):
        write_run(tmp_path / name, "bc", seeds=(0,), data=[{"sha256": sha}], task=task)
    rows = result_table(tmp_path)
    assert [(row.environment, row.seeds) for row in rows] == [
        ("HalfCheetah-v5", 1),
        ("HalfCheetah-v5", 1),
        ("t · HalfCheetah-v5", 2),
    ]
    assert rows[0].setting.startswith("data ")


# The headline


def words(folder: Path) -> tuple[str, str]:
    return headline(group(read_results(folder).every_run)[0])


def test_headline_names_the_best_and_by_how_much(demo: Path) -> None:
    rows = {row.method: row for row in result_table(demo)}
    sentence, sureness = words(demo)
    best, second = (f"{100 * rows[name].mean:.0f}%" for name in ("Two-stage WBCU", "BC"))
    assert sentence == f"Two-stage WBCU is best: {best} of the expert's score, against {second} for BC, the next best."
    assert "probability 1.00" in sureness
    assert f"{100 * (rows['Two-stage WBCU'].mean - rows['BC'].mean):.1f} points" in sureness


def test_headline_does_not_claim_what_the_seeds_do_not_show(tmp_path: Path) -> None:
    write_run(tmp_path / "bc", "bc", 0.50, spread=0.2)
    write_run(tmp_path / "nbcu", "nbcu", 0.51, spread=0.2)
    assert words(tmp_path)[0].startswith("No clear winner")
    (tmp_path / "one").mkdir()
    write_run(tmp_path / "one/bc", "bc", 0.2, seeds=(0,))
    write_run(tmp_path / "one/nbcu", "nbcu", 0.9, seeds=(0,))
    sentence, sureness = words(tmp_path / "one")
    assert sentence.startswith("NBCU leads")
    assert "not yet a result" in sureness


def test_headline_averages_environments_and_knows_returns(tmp_path: Path) -> None:
    for env, shift in (("A-v0", 0.0), ("B-v0", 0.2)):
        for name, final in (("bc", 0.2), ("nbcu", 0.6)):
            write_run(tmp_path / env / name, name, final + shift, environment={"id": env})
    assert re.match(r"NBCU is best: \d+% of the expert's score averaged over 2 environments", words(tmp_path)[0])
    write_run(tmp_path / "returns/bc", "bc", scored=False)
    assert words(tmp_path / "returns")[0].startswith("BC reaches a return of ")
    assert "Return over training" in write_report(tmp_path / "returns").read_text()


def test_environments_count_alike_in_the_headline_however_many_seeds_they_have(tmp_path: Path) -> None:
    """NBCU has the better mean over environments, BC the better one over seeds."""
    seeds = {"A-v0": tuple(range(10)), "B-v0": (0, 1)}
    for name, finals in (("bc", (0.8, 0.1)), ("nbcu", (0.7, 0.5))):
        for (env, own), final in zip(seeds.items(), finals, strict=True):
            write_run(tmp_path / env / name, name, final, own, spread=0, environment={"id": env})
    rows = {(row.method, row.environment): row.mean for row in result_table(tmp_path)}
    means = {name: (rows[name, "A-v0"] + rows[name, "B-v0"]) / 2 for name in ("BC", "NBCU")}
    sentence, sureness = words(tmp_path)
    assert sentence.startswith(f"NBCU is best: {100 * means['NBCU']:.0f}% of the expert's score averaged over 2 env")
    assert f"against {100 * means['BC']:.0f}% for BC" in sentence
    gap = 100 * (means["NBCU"] - means["BC"])
    assert f"The difference is {gap:.1f} points" in sureness
    low, high = map(float, re.findall(r"interval (\S+) to ([\d.]+);", sureness)[0])
    assert low < gap < high


# Weights


def test_weight_histogram_by_hand() -> None:
    weight = np.array([100.0, 10, 1, 1, 0, 0.01])
    code = np.array([0, 1, 1, 2, 2, 2])
    histogram = weight_histogram(weight, code, ("expert", "clean", "noisy", "absent"), bins=4)
    assert histogram["edges"] == pytest.approx([-2, -1, 0, 1, 2])
    expert, clean, noisy = histogram["origins"]
    assert (expert["counts"], clean["counts"], noisy["counts"]) == ([0, 0, 0, 1], [0, 0, 1, 1], [1, 0, 1, 0])
    assert (noisy["rows"], noisy["zero"]) == (3, 1)
    assert clean["weight_share"] == pytest.approx(11 / 112.01)
    # Of six pairs of clean and noisy five win, and 1 against 1 ties.
    assert histogram["separation"] == {"better": "clean", "worse": "noisy", "auc": pytest.approx(5.5 / 6)}


def test_separation_is_the_area_under_the_roc_curve() -> None:
    generator = np.random.default_rng(0)
    code = generator.integers(1, 3, 400)
    weight = np.round(generator.lognormal(size=400) * (3 - code), 1)
    found = weight_histogram(weight, code, ("expert", "clean", "noisy"))["separation"]["auc"]
    assert found == pytest.approx(roc_auc_score(code == 1, weight))


@pytest.mark.parametrize("weight", [[1.0, 1.0], [0.0, 0.0], [-1.0, 2.0], [1e-300, 1e300]])
def test_odd_weights_make_a_page(tmp_path: Path, weight: list[float]) -> None:
    write_run(tmp_path / "bc", "bc", seeds=(0,))
    write_weights(tmp_path, {"bc": weight_histogram(np.array(weight), np.array([0, 1]), ("clean", "noisy"))})
    assert read_results(tmp_path).weights
    assert "nan" not in write_report(tmp_path).read_text().split("</style>")[1].split("<script>")[0].lower()


def test_weights_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="weight 1 is not finite"):
        weight_histogram(np.array([1.0, np.nan]), np.array([0, 0]), ("clean",))
    with pytest.raises(ValueError, match="one number each"):
        weight_histogram(np.array([1.0]), np.array([0, 0]), ("clean",))


# The page


class Page(html.parser.HTMLParser):
    """Checks that elements nest, and keeps what could run or load something."""

    VOID = ("meta", "path", "rect", "br", "img", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_same_files_same_bytes(demo: Path, tmp_path: Path) -> None:
    first = (demo / "report.html").read_bytes()
    assert write_report(demo).read_bytes() == first  # its own page in the folder changes nothing
    elsewhere = tmp_path / "another place"
    shutil.copytree(demo, elsewhere)
    assert write_report(elsewhere).read_bytes() == first
    assert str(tmp_path).encode() not in first


def test_page_is_whole_and_loads_nothing(demo: Path) -> None:
    text = (demo / "report.html").read_text()
    page = Page(text)
    names = [tag for tag, _ in page.tags]
    assert not {"link", "img", "iframe", "object", "embed", "form", "base"} & set(names)
    assert not [attributes for _, attributes in page.tags if {"src", "href", "action"} & set(attributes)]
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(|fetch\(|XMLHttpRequest", text)
    assert text.count("<script>") == 1
    assert "Two-stage WBCU is best" in text
    assert all(f">{name}" in text for name in ("BC", "NBCU", "Discriminator accuracy", "clean", "noisy"))
    assert "last 5 of 10 evaluations (50 episodes a seed)" in text


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    write_run(tmp_path / "a", HOSTILE, environment={"id": HOSTILE, "kwargs": {HOSTILE: HOSTILE}}, task=HOSTILE)
    metrics = (tmp_path / "a/metrics.jsonl").read_text().replace('"policy_loss"', json.dumps(HOSTILE))
    (tmp_path / "a/metrics.jsonl").write_text(metrics)
    (tmp_path / "<img src=x onerror=alert(1)>").write_text("")
    histogram = weight_histogram(np.array([1.0, 2]), np.array([0, 1]), (HOSTILE, "b"), better=HOSTILE, worse="b")
    write_weights(tmp_path, {HOSTILE: histogram})
    text = write_report(tmp_path).read_text()
    page = Page(text)
    assert "img" not in [tag for tag, _ in page.tags]
    assert [attributes.get("type") for tag, attributes in page.tags if tag == "script"].count(None) == 1
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "\u202e" not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)


def test_half_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "bc", seeds=(0,), note="\ud800", task="\ud800")
    assert "half a character" in write_report(tmp_path).read_text()


# Files that cannot be used


BREAKS: dict[str, Callable[[list[str], dict[str, Any]], str]] = {
    "cut short": lambda lines, row: "\n".join(lines)[:-20],
    "not text": lambda lines, row: "\udcff\udcfe",
    "NaN": lambda lines, row: "\n".join([*lines[:-1], json.dumps({**row, "score": math.nan})]),
    "foreign": lambda lines, row: '{"hello": "world"}',
    "empty": lambda lines, row: "",
    "one evaluation missing": lambda lines, row: "\n".join(lines[:-1]),
    "twice": lambda lines, row: "\n".join([*lines, lines[-1]]),
    "null return": lambda lines, row: "\n".join([*lines[:-1], json.dumps({**row, "returns": [1.0, None]})]),
    "no return": lambda lines, row: "\n".join([*lines[:-1], json.dumps({**row, "returns": []})]),
    "huge return": lambda lines, row: "\n".join([*lines[:-1], json.dumps({**row, "returns": [10**400]})]),
    "text as score": lambda lines, row: "\n".join([*lines[:-1], json.dumps({**row, "score": "1"})]),
    "unknown member": lambda lines, row: "\n".join([*lines[:-1], json.dumps({**row, "member": 99})]),
    "score now and then": lambda lines, row: "\n".join([*lines[:-1], json.dumps({**row, "score": None})]),
    "deep": lambda lines, row: "[" * 100_000,
}


def break_file(path: Path, how: str) -> None:
    lines = path.read_text().splitlines()
    path.write_bytes(BREAKS[how](lines, json.loads(lines[-1])).encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("how", BREAKS)
def test_damaged_metrics_are_named_and_skipped(tmp_path: Path, how: str) -> None:
    write_run(tmp_path / "bc", "bc")
    expected = json_table(result_table(tmp_path))
    break_file(write_run(tmp_path / "damaged", "nbcu") / "metrics.jsonl", how)
    results = read_results(tmp_path)
    assert json_table(result_table(tmp_path)) == expected
    assert len(results.problems) == 1
    assert results.problems[0].startswith("damaged/metrics.jsonl")
    assert "damaged/metrics.jsonl" in write_report(tmp_path).read_text()


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"algorithm": "bc"', '{"algorithm": "bc", "members": [{}], "iterations": 5}', "\x00"]
)
def test_damaged_configs_are_named_and_skipped(tmp_path: Path, content: str) -> None:
    write_run(tmp_path / "bc", "bc")
    (write_run(tmp_path / "damaged", "nbcu") / "config.json").write_text(content)
    assert [row.method for row in result_table(tmp_path)] == ["BC"]
    assert "damaged/config.json: not " in write_report(tmp_path).read_text()


def test_missing_unfinished_and_foreign_files_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "bc", "bc")
    (write_run(tmp_path / "half", "bc") / "metrics.jsonl").unlink()
    write_run(tmp_path / "unfinished", "wbcu", iterations=50_000)
    (tmp_path / "weights.json").write_text('{"wbcu": {"edges": [0, 1], "origins": [{"name": "a", "counts": [5]}]}}')
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "bc" / "checkpoint").mkdir()
    (tmp_path / "bc" / "checkpoint" / "0000025000.safetensors").write_bytes(b"")
    results = read_results(tmp_path)
    assert results.problems == (
        "weights.json: not histograms of weights",
        "half/metrics.jsonl: missing",
        "unfinished/metrics.jsonl: the run is not finished (25,000 of 50,000 iterations)",
    )
    assert results.unread == ("notes.txt",)
    text = write_report(tmp_path).read_text()
    assert all(name in text for name in ("half/metrics.jsonl", "unfinished/metrics.jsonl", "notes.txt"))


def test_a_run_without_evaluations_has_no_score(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "bc", "bc", seeds=(0,))
    lines = [line for line in (folder / "metrics.jsonl").read_text().splitlines() if "returns" not in line]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    assert result_table(tmp_path) == []
    assert "bc: no evaluations, so no score" in write_report(tmp_path).read_text()


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run here"):
        write_report(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        result_table(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []
    write_run(tmp_path / "bc", "bc")
    break_file(tmp_path / "bc/metrics.jsonl", "foreign")
    assert "No result could be read" in write_report(tmp_path).read_text()


def test_the_folder_may_be_a_run_itself(tmp_path: Path) -> None:
    write_run(tmp_path, "bc")
    assert "this folder" in write_report(tmp_path).read_text()


# Small things


def test_numbers_for_readers() -> None:
    assert [numbers.number(v, 1) for v in (-1234.56, -0.04, math.nan)] == [
        "\N{MINUS SIGN}1,234.6",
        "0.0",
        "\N{EN DASH}",
    ]
    assert numbers.with_spread(4512.3, 8.26, "return") == "4,512 ± 8"
    assert numbers.with_spread(9.5, 0.4, "return") == "9.50 ± 0.40"
    assert [numbers.compact(v) for v in (500, 2_500, 25_000, 1_000_000)] == ["500", "2.5k", "25k", "1M"]
    assert [numbers.power_of_ten(v) for v in (-5, -2, 0, 0.5, 3, 7)] == ["10⁻⁵", "0.01", "1", "3.2", "1,000", "10⁷"]
    assert nice_ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert [label for _, label in numbers.ticks(nice_ticks(-7, 104))] == ["0", "50", "100"]


def test_the_page_loads_neither_jax_nor_gymnasium_nor_matplotlib() -> None:
    """It is made from files; `test_layers` checks every module, this one what the page loads."""
    heavy = "{'jax', 'gymnasium', 'matplotlib'}"
    code = f"import sys, demosift.report, demosift.report.sift_page; sys.exit(str({heavy} & set(sys.modules) or ''))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.stderr.strip() == ""


# A real browser


def browse(page: Path | str, folder: Path) -> str:
    """The document of a file or an address after its scripts have run."""
    address = page if isinstance(page, str) else page.as_uri()
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --allow-file-access-from-files --virtual-time-budget=4000"
    command = [str(CHROMIUM), *flags.split(), f"--user-data-dir={folder / 'profile'}", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


USE_THE_PAGE = """<!doctype html><iframe id="frame" src="demo/report.html" style="width:390px;height:800px"></iframe>
<pre id="said">nothing</pre><script>
frame.onload = () => {
  const page = frame.contentDocument, plot = page.querySelector(".plot"), box = plot.getBoundingClientRect();
  const at = (x) => new frame.contentWindow.PointerEvent("pointermove", { clientX: box.left + x * box.width });
  const tip = () => page.querySelector(".tip").innerText.replace(/\\s+/g, " ");
  const found = { wide: page.documentElement.scrollWidth, screen: page.documentElement.clientWidth };
  plot.dispatchEvent(at(1));
  found.hover = tip();
  const key = page.querySelector("button.key");
  key.click();
  found.pressed = key.getAttribute("aria-pressed");
  found.drawn = getComputedStyle(page.querySelector("svg g[data-key]")).display;
  plot.dispatchEvent(at(1));
  found.without = tip();
  const chart = page.querySelector(".chart");
  for (const _ of [1, 2]) chart.dispatchEvent(new frame.contentWindow.KeyboardEvent("keydown", { key: "ArrowLeft" }));
  found.left = tip();
  key.click();
  plot.dispatchEvent(at(0));
  found.first = tip();
  said.textContent = JSON.stringify(found);
};
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_hover_and_toggle_in_a_browser_as_wide_as_a_phone(demo: Path, tmp_path: Path) -> None:
    shutil.copytree(demo, tmp_path / "demo")
    (tmp_path / "use.html").write_text(USE_THE_PAGE)
    answer = re.search(r'<pre id="said">(.*?)</pre>', browse(tmp_path / "use.html", tmp_path))
    assert answer
    found = json.loads(answer[1])
    final = {row.method: numbers.measured(row.last, "score") for row in result_table(demo)}
    assert found["wide"] == found["screen"]  # nothing sticks out of a phone's screen
    assert found["hover"].startswith(f"iteration 25,000 BC {final['BC']}")
    assert f"Two-stage WBCU {final['Two-stage WBCU']}" in found["hover"]
    assert (found["pressed"], found["drawn"]) == ("false", "none")
    assert "BC 1" not in found["without"].replace("NBCU", "")
    assert found["left"].startswith("iteration 20,000 NBCU")
    assert found["first"].startswith("iteration 2,500 BC")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_hostile_names_run_nothing_in_a_browser(tmp_path: Path) -> None:
    write_run(tmp_path / "a", HOSTILE, seeds=(0, 1), environment={"id": HOSTILE, "kwargs": {}}, task=HOSTILE)
    page = write_report(tmp_path)
    # Without the policy that lets only the page's own script run: escaping must hold alone.
    page.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", page.read_text()))
    document = browse(page, tmp_path)
    assert "<title>owned" not in document
    assert "<title>demosift" in document
    assert "<img" not in document
    page.write_text(f"<title>demosift</title>{HOSTILE}")
    assert "<title>owned" in browse(page, tmp_path)  # so the browser would have shown it
