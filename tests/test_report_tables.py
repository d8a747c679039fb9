# ruff: noqa: RUF001
"""The paper's tables: ours beside theirs worked out by hand, golden forms, and files that cannot be trusted."""

import dataclasses
import itertools
import json
import math
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from conftest import tree
from test_report import CHROMIUM, browse

from demosift.cli.main import main
from demosift.experiments.presets import row_facts
from demosift.files import Unusable, canonical
from demosift.report import figures, page, paper, paper_forms, statistics
from demosift.report import table as tables
from demosift.report.paper import Entry, Key, Number, Overall, PaperRow, PaperTable, chosen_tables, published
from demosift.results.cell import FORMAT, cell_id, read_cell, seal
from demosift.results.folder import read_folder

# Callers of the report pass in what is known of the methods.
read_tables = partial(paper.read_tables, methods=row_facts())
result_table = partial(tables.result_table, methods=row_facts())
write_report = partial(page.write_report, methods=row_facts())

RANDOM, EXPERT = 0.0, 1000.0  # so that a score is a thousandth of a return
IDS = {"hopper": "Hopper-v5", "ant": "Ant-v5", "walker2d": "Walker2d-v5", "halfcheetah": "HalfCheetah-v5"}
SHA = "0" * 64


def content_of(
    method: str,
    scores: list[float],
    seed: int = 0,
    env: str = "hopper",
    recipe: str = "noisy-expert",
    iterations: int = 4,
    **settings: Any,
) -> dict[str, Any]:
    """A cell's result with an evaluation for each score, of two episodes."""
    config = {
        "method": method,
        "algorithm": "bc" if method == "oracle" else method,
        "settings": {"learning_rate": 3e-4, **settings},
        "environment": env,
        "task": f"{env}/{recipe}",
        "trained_on": "task",
        "normalise": "supplementary",
        "seed": seed,
        "iterations": iterations,
        "evaluation": {"every": iterations // len(scores)},
    }
    every = iterations // len(scores)
    evaluations = [
        {"iteration": every * (i + 1), "returns": [1000 * s - 1, 1000 * s + 1], "lengths": [5, 5]}
        for i, s in enumerate(scores)
    ]
    return {
        "format": FORMAT,
        "id": cell_id(config, SHA),
        "config": config,
        "data": {"sha256": SHA},
        "environment": {"id": IDS[env], "kwargs": {}},
        "reference": {"name": "demosift", "random": RANDOM, "expert": EXPERT},
        "evaluations": evaluations,
        "versions": {"demosift": "0.1.0"},
    }


def write_cells(folder: Path, contents: list[dict[str, Any]], grid: str = "noisy-expert") -> list[Path]:
    """Result files such as `reproduce` writes, and the list of the grid."""
    paths = []
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    for content in contents:
        paths.append(folder / "cells" / f"{content['id']}.json")
        paths[-1].write_text(json.dumps(seal(content)))
    (folder / "grids").mkdir(exist_ok=True)
    ids = [content["id"] for content in contents]
    (folder / "grids" / f"{grid}.json").write_text(json.dumps({"grid": grid, "cells": ids}))
    return paths


# Score of seed 0 in the last two of four evaluations, and how much a further seed adds.
SCORES = {
    ("bc", None): 0.5,
    ("demodice", 0.0): 0.3,
    ("demodice", 1.0): 0.4,
    ("demodice", 10.0): 0.45,
    ("dwbc", None): 0.9,
    ("nbcu", None): 0.16,
    ("wbcu", 0.0): 0.55,
    ("wbcu", 1.0): 0.9,
    ("wbcu", 10.0): 0.8,
    ("oracle", None): 0.97,
}


def whole_grid(
    envs: tuple[str, ...] = ("hopper",), seeds: int = 2, recipe: str = "noisy-expert"
) -> list[dict[str, Any]]:
    contents = []
    for (method, penalty), env, seed in itertools.product(SCORES, envs, range(seeds)):
        settings = {} if penalty is None else {"gradient_penalty": penalty}
        final = SCORES[method, penalty] + 0.02 * seed
        contents.append(content_of(method, [0.0, 0.1, final, final], seed, env, recipe, **settings))
    return contents


def table_of(folder: Path) -> PaperTable:
    (table,) = chosen_tables(read_tables(read_folder(folder)))
    return table


def row_of(table: PaperTable, method: str, gradient_penalty: float | None = None) -> PaperRow:
    row = table.row(method, gradient_penalty)
    assert row is not None
    return row


def overall_of(table: PaperTable, method: str) -> Overall:
    overall = row_of(table, method).overall
    assert overall is not None
    return overall


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_cells(tmp_path, whole_grid())
    return tmp_path


# The paper's numbers


def test_the_papers_tables_agree_with_themselves():
    """The printed averages follow from the printed returns, to the rounding: so nothing was copied wrongly."""
    numbers = published()
    for rows in numbers["tables"].values():
        assert len(rows) == 9
        for row in rows:
            scores = [
                (row["returns"][env][0] - numbers["random"][env]) / (numbers["expert"][env] - numbers["random"][env])
                for env in numbers["environments"]
            ]
            assert 100 * np.mean(scores) == pytest.approx(row["score"], abs=0.6), row
    by_method = {(row["method"], row["gradient_penalty"]): row for row in numbers["tables"]["noisy-expert"]}
    assert by_method["wbcu", 1]["returns"]["halfcheetah"] == [8274, 488]


# Statistics


def test_improvement_interval_against_every_possible_resample():
    x, y = np.array([1.0, 2.0, 4.0]), np.array([0.0, 3.0])
    exact = [
        statistics.probability_greater(np.array(a), np.array(b))
        for a in itertools.product(x, repeat=3)
        for b in itertools.product(y, repeat=2)
    ]
    for confidence in (0.95, 0.5):
        found = statistics.improvement_interval([x], [y], 0, 40_000, confidence)
        expected = np.quantile(np.repeat(exact, 200), [(1 - confidence) / 2, (1 + confidence) / 2])
        assert found == pytest.approx(tuple(expected), abs=0.02)
    assert statistics.improvement_interval([x, x], [y - 9, y + 9]) == (0.5, 0.5)  # strata
    assert statistics.improvement_interval([x], [x[:1]])[0] > 0.4  # ties count half


def test_environments_count_alike_in_the_interval_of_the_mean():
    strata = [np.array([0.0, 1.0]), np.array([10.0] * 50)]
    exact = [(sum(draw) / 2 + 10.0) / 2 for draw in itertools.product(strata[0].tolist(), repeat=2)]
    found = statistics.bootstrap_interval(strata, statistics.mean_of_strata, 0, 20_000, 0.6)
    assert found == pytest.approx(tuple(np.quantile(np.repeat(exact, 100), [0.2, 0.8])))


def test_overall_by_hand(tmp_path: Path):
    contents = [
        content_of("bc", [0, 0, 0.1, 0.3], 0),
        content_of("bc", [0, 0, 0.3, 0.5], 1),
        content_of("bc", [0, 0, 0.5, 0.5], 0, "ant"),
        content_of("bc", [0, 0, 0.5, 0.5], 1, "ant"),
        content_of("nbcu", [0.9, 0, 0.4, 0.4], 0),
        content_of("nbcu", [0.0, 0, 0.1, 0.1], 1),
        content_of("nbcu", [0.0, 0, 0.5, 0.7], 0, "ant"),
        content_of("nbcu", [0.0, 0, 0.5, 0.5], 1, "ant"),
    ]
    write_cells(tmp_path, contents)
    table = table_of(tmp_path)
    row, o = row_of(table, "nbcu"), overall_of(table, "nbcu")
    # Seeds report the mean of their last two: hopper 0.4 and 0.1, ant 0.6 and 0.5; BC 0.2 and 0.4, 0.5 and 0.5.
    assert o.score == pytest.approx((0.25 + 0.55) / 2)
    assert o.iqm == pytest.approx((0.4 + 0.5) / 2)  # of 0.1, 0.4, 0.5, 0.6 the middle half
    assert o.last == pytest.approx((0.25 + 0.6) / 2)
    assert o.best == pytest.approx(((0.9 + 0.1) / 2 + 0.6) / 2)  # the luckiest was the first: never the result
    # hopper: 0.4 beats 0.2 and ties 0.4, 0.1 loses twice: 1.5/4; ant: 0.6 beats both, 0.5 ties both: 3/4.
    assert o.improvement == pytest.approx((1.5 / 4 + 3 / 4) / 2)
    low, high = o.iqm_interval
    assert 0.1 <= low < o.iqm < high <= 0.6
    assert o.interval == pytest.approx(((0.1 + 0.5) / 2, (0.4 + 0.6) / 2))
    # Hopper in the paper: (558 + 20) / 3609; Ant: (3259 + 325.6) / 5554.6. Two of four environments are averaged.
    assert row.paper_overall == pytest.approx((578 / 3609 + 3584.6 / 5554.6) / 2)
    entry = row.entries["hopper"]
    assert entry.returns == pytest.approx((250.0, 150 * math.sqrt(2), 2))
    assert entry.difference == pytest.approx(0.25 - 578 / 3609)
    assert entry.standard_error == pytest.approx(
        math.hypot(0.15 * math.sqrt(2) / math.sqrt(2), 23 / 3609 / math.sqrt(5))
    )
    assert entry.differs is False
    assert math.isnan(overall_of(table, "bc").improvement)  # over itself


def test_a_difference_is_marked_beyond_two_standard_errors():
    def entry(ours: float, std: float) -> Entry:
        return Entry(None, Number(ours, std, 4), None, Number(0.5, 0.0, 5))

    assert paper_forms.marked(entry(0.61, 0.1)) == "+11 ▲"
    assert paper_forms.marked(entry(0.59, 0.1)) == "+9 ≈"
    assert paper_forms.marked(entry(0.39, 0.1)) == "−11 ▼"
    assert paper_forms.marked(entry(0.39, math.nan)) == "−11"  # one seed: nothing to judge by
    assert paper_forms.marked(Entry(None, None, None, None)) == "–"


# The forms


GOLDEN = """\
|  |  | Hopper | Score |
| --- | --- | ---: | ---: |
| **Random** | ours | 0 | 0% |
|  | paper | −20 | 0% |
| **Expert** | ours | 1,000 | 100% |
|  | paper | 3,589 | 100% |
| **BC** | ours | 510 ± 14 | 51% |
|  | paper | 2,468 ± 164 | 69% |
|  | difference | −18 ▼ | −18 ▼ |
"""

GOLDEN_LATEX = r"""WBCU (GP=1) & ours & 910 $\pm$ 14 & 91\% \\
 & paper & 3,217 $\pm$ 203 & 90\% \\
 & difference & +1 $\approx$ & +1 $\approx$ \\
\midrule
WBCU (GP=10) & ours"""


def test_tables_as_they_were_written_down(folder: Path):
    write_report(folder)
    text = (folder / "tables/noisy-expert.md").read_text()
    assert GOLDEN in text
    assert "over 2 seeds of each seed's last 2 evaluations, after 4 iterations" in text
    assert "arXiv 2301.11687" in text
    assert GOLDEN_LATEX in (folder / "tables/noisy-expert.tex").read_text()
    content = json.loads((folder / "tables/noisy-expert.json").read_text())
    titles = [row["title"] for row in content["rows"]]
    assert titles == [
        "BC",
        *(f"DemoDICE (GP={gp})" for gp in (0, 1, 10)),
        "DWBC",
        "NBCU",
        *(f"WBCU (GP={gp})" for gp in (0, 1, 10)),
        "Oracle",
    ]
    oracle = content["rows"][-1]
    assert oracle["paper_score"] is None
    assert oracle["score"] == pytest.approx(0.98)
    assert text.count("| **Oracle** |") == 1


def test_latex_survives_any_name():
    assert paper_forms.escape_latex(r"50%_of\{a}&b") == r"50\%\_of\textbackslash{}\{a\}\&b"


def test_the_average_of_four_environments_is_the_papers_own(tmp_path: Path):
    write_cells(tmp_path, whole_grid(tuple(IDS)))
    assert row_of(table_of(tmp_path), "wbcu", 1.0).paper_overall == 0.64


@pytest.mark.long
def test_a_missing_environment_leaves_no_average(tmp_path: Path):
    contents = whole_grid(("hopper", "ant"))
    write_cells(tmp_path, contents)
    lost = next(c for c in contents if c["config"]["method"] == "dwbc" and c["config"]["environment"] == "ant")
    others = [c for c in contents if c["config"]["method"] == "dwbc" and c["config"]["environment"] == "ant"]
    for content in others:
        (tmp_path / "cells" / f"{content['id']}.json").unlink()
    write_report(tmp_path)
    assert row_of(table_of(tmp_path), "dwbc").overall is None
    assert "grids/noisy-expert.json: 2 of 40 cells are not finished" in (tmp_path / "report.html").read_text()
    line = next(ln for ln in (tmp_path / "tables/noisy-expert.md").read_text().splitlines() if "**DWBC**" in ln)
    assert line == "| **DWBC** | ours | – | 910 ± 14 | – |"
    assert lost["id"] not in read_folder(tmp_path).cells


def test_another_method_joins_the_table(tmp_path: Path):
    contents = whole_grid()
    write_cells(tmp_path, contents)
    before = table_of(tmp_path)
    more = [content_of("wbcu-two-stage", [0, 0, 0.9, 0.9], seed, threshold=0.1) for seed in (0, 1)]
    write_cells(tmp_path, contents + more)
    after = table_of(tmp_path)
    assert [row.key.title for row in after.rows][-2:] == ["Two-stage WBCU", "Oracle"]
    assert [row for row in after.rows if row.key.method != "wbcu-two-stage"] == list(before.rows)  # not a digit moved


def test_cells_that_differ_in_the_ensemble_are_rows_of_their_own(tmp_path: Path):
    contents = [content_of("bc", [0, 0, 0.4, 0.4], seed) for seed in (0, 1)]
    for seed in (0, 1):
        more = content_of("bc", [0, 0, 0.8, 0.8], seed)
        more["config"]["ensemble"] = 5
        contents.append({**more, "id": cell_id(more["config"], SHA)})
    write_cells(tmp_path, contents)
    rows = {row.setting: (row.seeds, row.mean) for row in result_table(tmp_path)}
    assert rows == {"ensemble 1": (2, pytest.approx(0.4)), "ensemble 5": (2, pytest.approx(0.8))}
    assert "repeats" not in write_report(tmp_path).read_text()


# Files


@pytest.mark.long
def test_the_same_files_give_the_same_bytes(tmp_path: Path):
    here = tmp_path / "here"
    write_cells(here, whole_grid(("hopper", "ant")))
    contents = [
        content for content in whole_grid(("hopper",), recipe="full-replay") if content["config"]["method"] != "oracle"
    ]
    write_cells(here, contents, "full-replay")
    assert main(["report", str(here)]) == 0
    first = tree(here)
    assert {
        "report.html",
        "tables/noisy-expert.md",
        "tables/full-replay.tex",
        "figures/summary.svg",
        "figures/summary.png",
        "figures/gradient-penalty-wbcu.svg",
        "figures/gradient-penalty-demodice.png",
        "figures/curves-noisy-expert.svg",
        "figures/curves-noisy-expert-wbcu.png",
        "figures/curves-full-replay-demodice.svg",
    } <= set(first)
    assert main(["report", str(here)]) == 0
    assert tree(here) == first
    shutil.copytree(here, tmp_path / "there", ignore=shutil.ignore_patterns("report.html", "tables", "figures"))
    assert main(["report", str(tmp_path / "there")]) == 0
    assert tree(tmp_path / "there") == first
    text = first["report.html"].decode()
    assert str(tmp_path) not in text
    assert "On noisy-expert: " in text
    assert "On full-replay: " in text
    assert "Oracle is best" not in text


def edited(content: dict[str, Any]) -> str:
    """A digit changed, and nothing else."""
    return json.dumps(seal(content)).replace("499.0", "999.0")


def resealed(content: dict[str, Any], **changes: Any) -> str:
    """An edit by somebody who also renewed the digest."""
    return json.dumps(seal({**content, **changes}))


BREAKS: dict[str, Callable[[dict[str, Any]], str]] = {
    "cut short": lambda content: json.dumps(seal(content))[:-30],
    "empty": lambda content: "",
    "not text": lambda content: "\udcff\udcfe",
    "foreign": lambda content: '{"hello": "world"}',
    "a list": lambda content: "[]",
    "NaN": lambda content: json.dumps(seal(content)).replace("499.0", "NaN"),
    "a digit edited": edited,
    "another config": lambda content: resealed(content, config={**content["config"], "seed": 9}),
    "another id": lambda content: resealed(content, id="f" * 16),
    "no evaluations": lambda content: resealed(content, evaluations=[]),
    "not finished": lambda content: resealed(content, evaluations=content["evaluations"][:-1]),
    "no return": lambda content: resealed(content, evaluations=[{**content["evaluations"][0], "returns": []}]),
    "text as return": lambda content: resealed(
        content, evaluations=[*content["evaluations"][:-1], {**content["evaluations"][-1], "returns": ["1"]}]
    ),
    "no environment": lambda content: resealed(content, environment=None),
    "other reference": lambda content: resealed(content, reference={"random": 0.0, "expert": 2000.0}),
    "half a reference": lambda content: resealed(content, reference={"random": 0.0}),
    "text as reference": lambda content: resealed(content, reference="expert"),
    "deep": lambda content: "[" * 100_000,
}


@pytest.mark.parametrize("how", BREAKS)
def test_damaged_cells_are_named_and_skipped(how: str, tmp_path: Path):
    contents = [content_of("bc", [0, 0, 0.4, 0.4], seed) for seed in (0, 1)]
    victim = content_of("bc", [0, 0, 0.5, 0.5], 2)
    good = write_cells(tmp_path, contents)
    expected = table_of(tmp_path).rows
    *_, path = write_cells(tmp_path, [*contents, victim])
    assert table_of(tmp_path).rows != expected  # whole, it counts
    path.write_bytes(BREAKS[how](victim).encode("utf-8", "surrogateescape"))
    results = read_folder(tmp_path)
    if how == "other reference" and path.name < min(each.name for each in good):
        pytest.skip("the first cell's reference is the one the others are held to")
    assert table_of(tmp_path).rows == expected
    named = [problem for problem in results.problems if problem.startswith(f"cells/{path.name}")]
    assert len(named) == 1
    assert f"cells/{path.name}" in write_report(tmp_path).read_text()


def test_files_that_do_not_belong_are_named(folder: Path):
    stranger = content_of("bc", [0, 0, 0.9, 0.9], 7)
    (folder / "cells" / f"{stranger['id']}.json").write_text(json.dumps(seal(stranger)))
    (folder / "cells" / "notes.txt").write_text("mine")
    (folder / "cells" / "folder").mkdir()
    (folder / "grids" / "broken.json").write_text('{"grid": "broken"}')
    (folder / "failures").mkdir()
    failure = {"config": {"method": "wbcu", "task": "hopper/x", "seed": 3}, "failure": "Traceback\n  there\nOops: bad"}
    (folder / "failures" / "a.json").write_text(json.dumps(failure))
    (folder / "failures" / "b.json").write_text("[]")
    (folder / "coverage").mkdir()
    (folder / "coverage" / "hopper.json").write_text('{"good": [[1]], "noisy": [], "mixing": 1}')
    (folder / "stray.txt").write_text("")
    write_report(folder)
    results = read_folder(folder)
    assert set(results.problems) == {
        "grids/broken.json: not the list of a grid's cells",
        f"cells/{stranger['id']}.json: belongs to no grid in grids/; left out",
        "cells/notes.txt: not JSON, or cut short",
        "cells/folder: is a folder, not a file",
        "failures/a.json: wbcu on hopper/x, seed 3, failed: Oops: bad",
        "failures/b.json: not the record of a failure",
    }
    assert results.unread == ("stray.txt",)
    text = (folder / "report.html").read_text()
    assert "coverage/hopper.json: not the state coverage" in text
    assert "Oops: bad" in text
    assert len(result_table(folder)) == 10


def test_without_a_grids_list_all_cells_count(folder: Path):
    rows = table_of(folder).rows
    shutil.rmtree(folder / "grids")
    assert table_of(folder).rows == rows


def test_grids_of_different_length_are_not_mixed(tmp_path: Path):
    short = [content_of("bc", [0, 0, 0.1, 0.1], seed, iterations=4) for seed in (0, 1)]
    long = [content_of("bc", [0, 0, 0.9, 0.9], seed, iterations=40) for seed in (0, 1)]
    write_cells(tmp_path, short)
    write_cells(tmp_path, long)
    assert overall_of(table_of(tmp_path), "bc").score == pytest.approx(0.9)
    assert sum("belongs to no grid" in problem for problem in read_folder(tmp_path).problems) == 2


def test_a_cell_knows_its_place(folder: Path):
    path = next((folder / "cells").glob("*.json"))
    assert read_cell(path, path.name)["format"] == FORMAT
    moved = path.with_name("0" * 16 + ".json")
    path.rename(moved)
    with pytest.raises(Unusable, match="id does not belong"):
        read_cell(moved, moved.name)
    assert canonical({"b": 1, "a": [1.5]}) == '{"a":[1.5],"b":1}'


# Figures


def test_the_penalty_that_stands_for_a_method(folder: Path):
    rows = figures.chosen(table_of(folder))
    assert [row.key.title for row in rows] == ["BC", "DemoDICE (GP=1)", "DWBC", "NBCU", "WBCU (GP=1)", "Oracle"]


def test_figures_do_not_depend_on_the_users_own_settings(folder: Path, tmp_path: Path):
    tables = [table_of(folder)]
    of_method = dict.fromkeys((row.key.method for row in tables[0].rows), 0)
    figures.summary(tables, of_method, tmp_path / "plain")
    with mpl.rc_context({"axes.facecolor": "red", "lines.linewidth": 9, "axes.grid": True}):
        figures.summary(tables, of_method, tmp_path / "own")
    for suffix in (".svg", ".png"):
        assert (tmp_path / "own").with_suffix(suffix).read_bytes() == (tmp_path / "plain").with_suffix(
            suffix
        ).read_bytes()


def test_keys_are_in_the_papers_order():
    wbcu, oracle = (row_facts()[name] for name in ("wbcu", "oracle"))
    keys = [Key("oracle", about=oracle), Key("other"), Key("bc"), *(Key("wbcu", gp, about=wbcu) for gp in (10.0, 0.0))]
    ordered = sorted(keys, key=paper.place)
    assert [key.title for key in ordered] == ["bc", "WBCU (GP=0)", "WBCU (GP=10)", "other", "Oracle"]
    assert Key("wbcu") == Key("wbcu", about=wbcu)  # a row is known by what it is, not by how it is shown
    assert dataclasses.is_dataclass(PaperTable)


# A real browser


USE_THE_PAGE = """<!doctype html><iframe id="frame" src="here/report.html" style="width:390px;height:800px"></iframe>
<pre id="said">nothing</pre><script>
frame.onload = () => {
  const page = frame.contentDocument, plot = page.querySelector(".plot"), box = plot.getBoundingClientRect();
  const at = (x) => new frame.contentWindow.PointerEvent("pointermove", { clientX: box.left + x * box.width });
  const found = { wide: page.documentElement.scrollWidth, screen: page.documentElement.clientWidth };
  const row = [...page.querySelectorAll("table.paper tbody tr")].find((each) => each.innerText.includes("WBCU (GP=1)"));
  found.row = row.innerText.replace(/\\s+/g, " ");
  found.bar = row.querySelector(".bar em").getBoundingClientRect().width > 0;
  plot.dispatchEvent(at(1));
  found.hover = page.querySelector(".tip").innerText.replace(/\\s+/g, " ");
  const keys = [...page.querySelectorAll("button.key")], key = keys.find((each) => each.innerText.startsWith("DWBC"));
  key.click();
  plot.dispatchEvent(at(1));
  found.without = page.querySelector(".tip").innerText.replace(/\\s+/g, " ");
  said.textContent = JSON.stringify(found);
};
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine, and none can be had by pip")
def test_the_page_of_a_grid_in_a_browser_as_wide_as_a_phone(tmp_path: Path):
    write_cells(tmp_path / "here", whole_grid(("hopper", "ant")))
    write_report(tmp_path / "here")
    (tmp_path / "use.html").write_text(USE_THE_PAGE)
    answer = re.search(r'<pre id="said">(.*?)</pre>', browse(tmp_path / "use.html", tmp_path))
    assert answer
    found = json.loads(answer[1])
    assert found["wide"] == found["screen"]
    assert "paper 3,217 ± 203" in found["row"]
    assert found["bar"]
    assert "DWBC 90.0" in found["hover"].replace("DWBC 91.0", "DWBC 90.0")
    assert "DWBC" not in found["without"]
