"""The scores page: the same bytes for the same files, small however many rows, used and attacked in a real browser."""

import html
import json
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import layouts
import numpy as np
import pytest
from test_diagnosis import EPISODE, make_set
from test_report import CHROMIUM, HOSTILE, browse, write_report, write_run

from demosift.cli import main as cli
from demosift.data import open_rows, write_dataset
from demosift.data.decisions import read_episodes
from demosift.data.episodes import Episodes
from demosift.data.rows import DatasetRows
from demosift.experiments.presets import row_facts
from demosift.report import sift_page
from demosift.results.scores import is_score_folder
from demosift.sift.filtering import filter_dataset
from demosift.sift.overlap import MOST_EXPERT, MOST_SUPPLEMENTARY, draw_sample
from demosift.sift.page_content import ALL_EPISODES, CELLS, LEVELS, MIDDLE, as_levels, page_content, signals, strip
from demosift.sift.scored import Scored
from demosift.sift.scoring import score
from demosift.types import Dataset, InputError, Transitions

# Callers of the report pass in what is known of the methods.
render_sift_page = partial(sift_page.render_sift_page, methods=row_facts())
write_sift_page = partial(sift_page.write_sift_page, methods=row_facts())

SEPARATORS = "\u2028\u2029"


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `demosift score` writes, with the scorer that trains nothing."""
    folder = tmp_path_factory.mktemp("scored") / "scores"
    expert, supplementary = make_set(0, 5, source="expert.hdf5"), make_set(1, 14, noisy=0.5, source="pile of it.hdf5")
    score(expert, supplementary, out=folder, scorer="neighbours", members=1, progress=False)
    return folder


def contents(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    summary, page = (json.loads((folder / name).read_text()) for name in ("summary.json", "page.json"))
    return summary, page


def copied(scores: Path, folder: Path) -> Path:
    return Path(shutil.copytree(scores, folder / "scores"))


def text_of(page: str) -> str:
    body = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_score_writes_the_page_and_report_writes_it_again_byte_for_byte(
    scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(scores, tmp_path)
    first = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    assert is_score_folder(folder)
    assert cli.main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert (folder / "report.html").read_bytes() == first
    assert b"http://" not in first  # needs nothing else
    assert b"https://" not in first


def test_page_states_the_verdict_and_the_numbers(scores: Path) -> None:
    summary, page = contents(scores)
    seen = summary["diagnosis"]
    assert seen["advised"] == "sift"
    text = text_of((scores / "report.html").read_text())
    assert text.index("Train sift") < text.index("What the pile is made of")
    assert seen["reason"] in text
    assert f"{seen['samples']['helpful']:.0%} expert state, expert action" in text
    assert "All 14 episodes." in text
    assert "demosift filter 'pile of it.hdf5'" in text
    assert [one["rank"] for one in page["episodes"]["supplementary"]["shown"]] == list(range(1, 15))
    assert page["truth"]["auc"] > 0.95
    assert "a clean row outweighs a noisy one" in text


def test_page_does_without_the_truth_and_with_one_episode(tmp_path: Path) -> None:
    expert, supplementary = make_set(0, 1), make_set(1, 1)
    for dataset in (expert, supplementary):
        object.__setattr__(dataset, "origin", None)
    score(expert, supplementary, out=tmp_path / "scores", scorer="neighbours", members=1, progress=False)
    text = text_of((tmp_path / "scores" / "report.html").read_text())
    assert "All 1 episode." in text
    assert "Truth" not in text
    assert "true origin" not in text


def test_warnings_are_shown(scores: Path) -> None:
    summary, page = contents(scores)
    summary["diagnosis"]["warnings"] = [{"kind": "clock", "column": 1, "separates": True, "text": "a clock & a <b>"}]
    summary["warnings"] = ["few rows"]
    made = render_sift_page(summary, page)
    assert "<li>a clock &amp; a &lt;b&gt;</li><li>few rows</li>" in made
    summary["diagnosis"]["warnings"] = summary["warnings"] = []
    assert "Before you believe it" not in render_sift_page(summary, page)


def test_the_columns_by_which_episodes_are_ranked_are_shown(scores: Path) -> None:
    summary, page = contents(scores)
    assert "Second look" not in render_sift_page(summary, page)
    for one in page["episodes"]["supplementary"]["shown"][1:]:
        one |= {"second_look": 2.5, "finish": 0.63}
    text = text_of(render_sift_page(summary, page))
    assert "Weight Second look Finish Truth" in text
    assert "2.50 63%" in text
    assert "ranked by weight, or by the second look where that is better" in text
    assert "less than 80% of the way come last" in text


def test_the_most_that_a_held_out_auc_can_be_is_said_where_it_is_no_less(scores: Path) -> None:
    summary, page = contents(scores)
    for auc, told in ((0.6, True), (0.99, False)):
        summary["diagnosis"] |= {"held_out": summary["diagnosis"]["held_out"] | {"auc": auc}}
        summary["diagnosis"]["expert_like"]["share"] = 0.5
        assert ("held-out AUC; at most 0.75 here" in text_of(render_sift_page(summary, page))) == told


def test_cannot_tell_is_said(scores: Path) -> None:
    summary, page = contents(scores)
    summary["diagnosis"] |= {"advised": None, "headline": "Cannot tell: there are too few expert rows."}
    text = text_of(render_sift_page(summary, page))
    assert "Cannot tell" in text
    assert "unclear advised" in text or "advised unclear" in text


def test_strips_hold_geometric_means_and_the_threshold_is_the_middle() -> None:
    scale = {"low": -4.0, "middle": -0.3, "high": 0.3}
    levels = [LEVELS.index(c) for c in as_levels(np.array([-9.0, -4.0, -0.31, -0.3, 0.3, 2.0]), scale)]
    assert levels == [0, 0, MIDDLE - 1, MIDDLE, 2 * MIDDLE, 2 * MIDDLE]
    weight = np.full(1000, 10**0.3)
    weight[500:505] = 1e-4
    drawn = strip(weight, scale)
    assert len(drawn) == CELLS
    assert [index for index, letter in enumerate(drawn) if letter != drawn[0]] == [100]
    assert len(strip(weight[:7], scale)) == 7


def test_signals_are_what_moves_and_have_the_names_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demosift.sift.page_content.STATES", 2)
    step, start = np.arange(20) / 20, np.random.default_rng(0).uniform(-1, 1, (6, 2))
    content = {}
    for number in range(6):
        own = layouts.episode(number, 19)
        own["object"] = np.repeat(start[number : number + 1], 20, axis=0)  # stands still, elsewhere in each episode
        own["robot0_eef_pos"] = np.stack([step, step**2, np.full(20, start[number, 0])], axis=1) + 5
        content[number] = own
    source = open_rows(layouts.robomimic_file(tmp_path / "demos.hdf5", content))
    sample = draw_sample(source, 1_000, np.random.default_rng(0))
    names, told = signals(source, np.arange(6), sample)
    assert names[:2] == ["robot0_eef_pos 0", "robot0_eef_pos 1"]
    assert len(told[0]) == len(names)


def many_rows(episodes: int, length: int) -> tuple[Dataset, np.ndarray]:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(episodes * length, 2)).astype(np.float32)
    zero = np.zeros(len(obs), np.float32)
    timeout = np.arange(1, len(obs) + 1) % length == 0
    quality = np.repeat(rng.uniform(-3, 0.3, episodes), length)
    transitions = Transitions(obs, obs.clip(-1, 1), zero, obs, zero > 0)
    return Dataset(transitions, timeout), 10 ** (quality + 0.2 * rng.normal(size=len(obs)))


def test_a_million_rows_make_a_small_page(scores: Path) -> None:
    summary, _ = contents(scores)
    (expert, own), (supplementary, other) = many_rows(4, 500), many_rows(2_500, 400)
    sources, weight = (DatasetRows(expert), DatasetRows(supplementary)), np.concatenate([own, other])
    ends = np.concatenate([expert.episode_ends, len(expert) + supplementary.episode_ends])
    scored = Scored(weight, weight, np.zeros(len(weight), np.int8), len(expert), ends, 4, summary)
    rng = np.random.default_rng(0)
    samples = draw_sample(sources[0], MOST_EXPERT, rng), draw_sample(sources[1], MOST_SUPPLEMENTARY, rng)
    page = page_content(sources, weight, scored.episodes(), samples, 0.5)
    shown = page["episodes"]["supplementary"]["shown"]
    ranks = [one["rank"] for one in shown]
    assert len(shown) == ALL_EPISODES
    assert ranks == sorted(set(ranks))
    assert ranks[:100] == list(range(1, 101))
    assert ranks[-100:] == list(range(2401, 2501))
    made = render_sift_page(summary, json.loads(json.dumps(page)))
    assert len(made.encode()) < 1_000_000
    assert "500 of 2,500 episodes" in made


@pytest.mark.parametrize("name", ["page.json", "summary.json"])
@pytest.mark.parametrize("content", ["", "[]", "{}", '{"diagnosis": 3, "map": 1}', "\x00"])
def test_files_that_score_did_not_write_are_refused(scores: Path, tmp_path: Path, name: str, content: str) -> None:
    folder = copied(scores, tmp_path)
    before = (folder / "report.html").read_bytes()
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=r"page\.json|summary\.json"):
        write_sift_page(folder)
    assert (folder / "report.html").read_bytes() == before


def test_other_folders_are_no_scores(tmp_path: Path) -> None:
    assert not is_score_folder(tmp_path)
    assert not is_score_folder(tmp_path / "absent")


# Untrusted text


def poisoned(value: Any, poison: str, key: str = "") -> Any:
    """The same content with every string and free key replaced, except for the strips, which are checked."""
    if isinstance(value, dict):
        return {name: poisoned(one, poison, name) for name, one in value.items()}
    if isinstance(value, list):
        return [poisoned(one, poison, key) for one in value]
    return poison if isinstance(value, str) and key not in ("strip", "level", "signals") else value


def test_strips_are_letters_and_digits(scores: Path) -> None:
    for place in ("strip", "level"):
        summary, page = contents(scores)
        if place == "strip":
            page["episodes"]["supplementary"]["shown"][0]["strip"] = '0"><b>'
        else:
            page["map"]["level"] = HOSTILE
        with pytest.raises(ValueError, match="strip"):
            render_sift_page(summary, page)


def test_numbers_that_are_text_are_refused(scores: Path) -> None:
    for key in ("episode", "rank", "rows", "kept", "typical"):
        summary, page = contents(scores)
        page["episodes"]["supplementary"]["shown"][3][key] = HOSTILE
        with pytest.raises(ValueError, match=r"invalid literal|could not convert"):
            render_sift_page(summary, page)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_hostile_text_runs_nothing_in_a_browser(scores: Path, tmp_path: Path) -> None:
    folder = copied(scores, tmp_path)
    for name, content in zip(("summary.json", "page.json"), contents(folder), strict=True):
        (folder / name).write_text(json.dumps(poisoned(content, HOSTILE + SEPARATORS)))
    page = write_sift_page(folder)
    # Without the policy that lets only the page's own script run: escaping must hold alone.
    page.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", page.read_text()))
    document = browse(page, tmp_path)
    assert "<title>owned" not in document
    assert "<title>demosift" in document
    assert "<img" not in document
    assert 'id="float"' in document  # the page's own script ran to its end
    raw = page.read_text().replace("&lt;", "<").replace("&gt;", ">").replace("&#x27;", "'").replace("&quot;", '"')
    page.write_text(raw)
    assert "<title>owned" in browse(page, tmp_path)  # so the browser would have shown it


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_hostile_file_is_scored_and_runs_nothing(tmp_path: Path) -> None:
    """The same from the other end: names in the data reach the page as text."""
    hostile = HOSTILE + SEPARATORS
    supplementary = make_set(1, 12, noisy=0.5, source=hostile)
    assert supplementary.origin is not None
    object.__setattr__(supplementary, "origin", supplementary.origin._replace(names=("clean", hostile)))
    folder = tmp_path / "scores"
    score(make_set(0, 5, source=hostile), supplementary, out=folder, scorer="neighbours", members=1, progress=False)
    document = browse(folder / "report.html", tmp_path)
    assert "<title>owned" not in document
    assert "<img" not in document
    assert "document.title" in text_of(document)  # it is there to read


# The page of a run that trained on scores


def sifted(scores: Path, folder: Path, draws: tuple[int, ...] = (0, 1, 10)) -> Path:
    """What `train` writes for sift, with made-up returns."""
    run = write_run(folder / "runs" / "sift", "sift", 0.93, seeds=draws)
    for draw in draws:
        shutil.copytree(scores, run / "scores" / str(draw))
    return folder / "runs"


def test_the_page_of_a_run_shows_what_it_kept(scores: Path, tmp_path: Path) -> None:
    runs = sifted(scores, tmp_path)
    written = write_report(runs)
    first = written.read_text()
    text, headline = text_of(first), contents(scores)[0]["diagnosis"]["headline"]
    assert "What sift kept The first of 3 draws" in text
    assert text.count(headline) == 3
    assert text.count("Best of the pile") == 3
    assert re.findall(r"<summary>sift/scores/(\d+): ", first) == ["1", "10"]
    assert re.findall(r'href="(.*?)"', first) == [f"./sift/scores/{draw}/report.html" for draw in (0, 1, 10)]
    assert (runs / "sift/scores/0/report.html").is_file()
    assert "parquet" not in text  # none of the files is left over as unknown
    assert write_report(runs).read_text() == first
    assert write_report(runs / "sift").read_text().count('href="./scores/') == 3
    shutil.rmtree(runs / "sift/scores")
    assert "What sift kept" not in write_report(runs).read_text()


def test_damaged_scores_of_a_run_are_named(scores: Path, tmp_path: Path) -> None:
    runs = sifted(scores, tmp_path, (0, 1, 2))
    (runs / "sift/scores/0/page.json").write_text("{}")
    (runs / "sift/scores/1/summary.json").write_text("no JSON")
    text = text_of(write_report(runs).read_text())
    left_out, kept = text.index("Left out"), text.index("What sift kept")
    assert "sift/scores/0: summary.json and page.json are not what score writes" in text[left_out:kept]
    assert "sift/scores/1/summary.json" in text[left_out:kept]
    assert str(tmp_path) not in text
    assert text.count("Best of the pile") == 1
    assert "Sift" in text[left_out:kept]  # its results are there all the same


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_hostile_scores_of_a_run_run_nothing(scores: Path, tmp_path: Path) -> None:
    runs = sifted(scores, tmp_path, (0, 1))
    for draw in (0, 1):
        folder = runs / "sift/scores" / str(draw)
        for name, content in zip(("summary.json", "page.json"), contents(folder), strict=True):
            (folder / name).write_text(json.dumps(poisoned(content, HOSTILE + SEPARATORS)))
    page = write_report(runs)
    page.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", page.read_text()))
    document = browse(page, tmp_path)
    assert "What sift kept" in document
    assert "<title>owned" not in document
    assert "<img" not in document
    assert 'id="float"' in document


USE_A_RUNS_PAGE = """<!doctype html><iframe id="frame" src="runs/report.html" style="width:390px;height:900px"></iframe>
<pre id="said">nothing</pre><script>
frame.onload = async () => {
  const view = frame.contentWindow, page = frame.contentDocument, found = {};
  const strip = page.querySelector(".kept .card.bad canvas");
  found.wide = page.documentElement.scrollWidth;
  found.screen = page.documentElement.clientWidth;
  found.worst = [...strip.getContext("2d").getImageData(strip.width / 2, 0, 1, 1).data];
  strip.scrollIntoView();
  const box = strip.getBoundingClientRect();
  strip.dispatchEvent(new view.PointerEvent("pointermove", { clientX: box.left, clientY: box.top + 3 }));
  found.strip = page.getElementById("float").innerText.replace(/\\s+/g, " ").trim();
  said.textContent = JSON.stringify(found);
};
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_the_page_of_a_run_in_a_browser_as_wide_as_a_phone(scores: Path, tmp_path: Path) -> None:
    write_report(sifted(scores, tmp_path))
    (tmp_path / "use.html").write_text(USE_A_RUNS_PAGE)
    answer = re.search(r'<pre id="said">(.*?)</pre>', browse(tmp_path / "use.html", tmp_path))
    assert answer
    found = json.loads(html.unescape(answer[1]))
    assert found["wide"] == found["screen"]
    assert found["worst"][0] > found["worst"][1] + 20  # purple
    assert found["strip"].startswith("step 0 weight")


# A real browser

USE_THE_PAGE = """<!doctype html><iframe id="frame" src="scores/report.html" style="width:390px;height:900px"></iframe>
<pre id="said">nothing</pre><script>
frame.onload = async () => {
  const view = frame.contentWindow, page = frame.contentDocument, found = {};
  const failed = [];
  view.addEventListener("error", (event) => failed.push(event.message));
  const settle = () => new Promise((done) => setTimeout(done, 50));
  const point = (target, x, y) => {
    const box = target.getBoundingClientRect();
    const at = { clientX: box.left + x * box.width, clientY: box.top + y * box.height };
    target.dispatchEvent(new view.PointerEvent("pointermove", at));
    const tip = page.getElementById("float");
    return tip.hidden ? "" : tip.innerText.replace(/\\s+/g, " ").trim();
  };
  found.wide = page.documentElement.scrollWidth;
  found.screen = page.documentElement.clientWidth;
  const best = page.querySelector(".card.good canvas"), worst = page.querySelector(".card.bad canvas");
  best.scrollIntoView();
  await settle();
  found.strip = point(best, 0.0, 0.5);
  found.last = point(best, 0.999, 0.5);
  const shade = (canvas) => [...canvas.getContext("2d").getImageData(canvas.width / 2, 0, 1, 1).data];
  found.best = shade(best);
  found.worst = shade(worst);
  const listed = () => [...page.querySelectorAll(".ranking tbody tr")];
  const order = () => listed().filter((row) => !row.hidden).map((row) => row.dataset.rank);
  found.ranked = order();
  page.querySelector('th[data-sort="kept"]').click();
  found.sorted = listed().map((row) => Number(row.dataset.kept));
  const find = page.getElementById("find");
  const search = (text) => { find.value = text; find.dispatchEvent(new view.Event("input")); return order().length; };
  found.noisy = search("NOISY");
  found.counted = page.getElementById("counted").textContent;
  found.seven = search("7");
  found.nothing = search("no such");
  found.all = search("");
  const map = page.getElementById("map");
  map.scrollIntoView();
  await settle();
  const pixels = () => map.getContext("2d").getImageData(0, 0, map.width, map.height).data;
  const drawn = () => pixels().reduce((sum, value) => sum + value, 0);
  found.drawn = drawn();
  const data = JSON.parse(page.getElementById("sift").textContent).map;
  const box = map.getBoundingClientRect();
  const last = data.x.length - 1;
  const [x, y] = [14 + data.x[last] / 1000 * (box.width - 28), 14 + (1 - data.y[last] / 1000) * (box.height - 28)];
  found.state = point(map, x / box.width, y / box.height);
  const pile = page.querySelector('[data-layer="1"]');
  pile.click();
  found.pressed = pile.getAttribute("aria-pressed");
  found.expert = point(map, x / box.width, y / box.height);
  map.dispatchEvent(new view.PointerEvent("pointerleave"));
  found.without = drawn();
  const plot = page.querySelector(".chart .plot"), edge = plot.getBoundingClientRect();
  plot.dispatchEvent(new view.PointerEvent("pointermove", { clientX: edge.left + edge.width }));
  found.histogram = page.querySelector(".chart .tip").innerText.replace(/\\s+/g, " ");
  found.failed = failed;
  said.textContent = JSON.stringify(found);
};
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_the_page_in_a_browser_as_wide_as_a_phone(scores: Path, tmp_path: Path) -> None:
    copied(scores, tmp_path)
    (tmp_path / "use.html").write_text(USE_THE_PAGE)
    answer = re.search(r'<pre id="said">(.*?)</pre>', browse(tmp_path / "use.html", tmp_path))
    assert answer
    found = json.loads(html.unescape(answer[1]))
    assert found["wide"] == found["screen"]  # nothing sticks out of a phone's screen
    assert found["failed"] == []
    assert found["strip"].startswith("step 0 weight")
    assert found["last"].startswith(f"step {EPISODE - 1} weight")
    assert found["best"][1] > found["best"][0] + 20  # green, and drawn at all
    assert found["worst"][0] > found["worst"][1] + 20  # purple
    assert found["ranked"] == [str(rank) for rank in range(1, 15)]
    assert found["sorted"] == sorted(found["sorted"])
    assert found["noisy"] == 7
    assert found["counted"] == "7 of 14"
    assert (found["seven"], found["nothing"], found["all"]) == (1, 0, 14)
    assert re.match(r"pile, episode \d+, step \d+ weight", found["state"])
    assert found["pressed"] == "false"
    assert "pile" not in found["expert"]
    assert 0 < found["without"] < found["drawn"]
    assert "supplementary" in found["histogram"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_dark_screens_get_dark_colours(scores: Path, tmp_path: Path) -> None:
    """Canvases take their colours from the style sheet, so that is where light and dark screens differ."""
    copied(scores, tmp_path)
    pictures = []
    for number, scheme in enumerate((1, 1, 0)):  # light, light, dark
        picture = tmp_path / f"{number}.png"
        flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
        command = [str(CHROMIUM), *flags.split(), f"--blink-settings=preferredColorScheme={scheme}"]
        command += [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}", "--window-size=800,900"]
        page = (tmp_path / "scores" / "report.html").as_uri()
        subprocess.run([*command, page], capture_output=True, timeout=120, check=True)
        pictures.append(picture.read_bytes())
    assert pictures[0] == pictures[1]
    assert pictures[0] != pictures[2]


TRIAGE = """<!doctype html><iframe id="frame" src="scores/report.html" style="width:900px;height:900px"></iframe>
<pre id="said">nothing</pre><script>
frame.onload = async () => {
  const view = frame.contentWindow, page = frame.contentDocument, found = {};
  let blob;
  view.URL.createObjectURL = (given) => { blob = given; return "#"; };
  const press = (key) => page.dispatchEvent(new view.KeyboardEvent("keydown", { key, bubbles: true }));
  press("k");  // nothing is chosen yet
  press("ArrowDown");
  for (const key of ["k", "k", "k", "D", "d", "d", "k", "d", "k", "d"]) press(key);
  press("ArrowUp"); press("u"); press("d");
  found.decided = page.getElementById("decided").textContent;
  found.caption = page.querySelector("#signals figcaption").textContent;
  const pen = page.querySelector("#signals canvas").getContext("2d");
  found.drawn = [...pen.getImageData(0, 0, 300, 200).data].some(Boolean);
  found.order = [...page.querySelectorAll(".ranking tbody tr")].map((row) => Number(row.dataset.episode));
  const mark = (row) => view.getComputedStyle(row.cells[0], "::before").content;
  found.marks = [...page.querySelectorAll(".ranking tbody tr")].map(mark);
  page.getElementById("download").click();
  found.file = await blob.text();
  said.textContent = JSON.stringify(found);
};
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_ten_episodes_are_triaged_by_keyboard_and_the_decisions_filter(tmp_path: Path) -> None:
    expert, pile = make_set(0, 5, source="expert"), make_set(1, 14, noisy=0.5, source="pile")
    for name, data in (("expert", expert), ("pile", pile)):
        write_dataset(data, tmp_path / f"{name}.hdf5")
    source = tmp_path / "pile.hdf5"
    score(tmp_path / "expert.hdf5", source, out=tmp_path / "scores", scorer="neighbours", members=1, progress=False)
    (tmp_path / "triage.html").write_text(TRIAGE)
    answer = re.search(r'<pre id="said">(.*?)</pre>', browse(tmp_path / "triage.html", tmp_path))
    assert answer
    found = json.loads(html.unescape(answer[1]))
    assert found["decided"] == "5 kept, 5 dropped"
    assert found["drawn"]
    assert re.match(r"Episode \d+: state 0", found["caption"])
    assert [mark.strip('"') for mark in found["marks"][:6]] == [*"✓✓✓✕✕✕"], (
        "also on the best, which have a mark of theirs"
    )
    kept, dropped = ([found["order"][place] for place in places] for places in ((0, 1, 2, 6, 8), (3, 4, 5, 7, 9)))
    decisions = tmp_path / "decisions.json"
    decisions.write_text(found["file"])
    assert json.loads(found["file"])["keep"] == sorted(kept)
    done = filter_dataset(source, tmp_path / "scores", tmp_path / "kept.hdf5", episodes=1, decisions=decisions)
    assert done.kept_episodes == 5
    assert str(read_episodes(source, str(decisions), "drop")) == str(Episodes.of(sorted(dropped)))


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_decisions_have_the_episodes_that_were_named_before(tmp_path: Path) -> None:
    source = tmp_path / "pile.hdf5"
    write_dataset(make_set(1, 18, noisy=0.5, source="pile"), source)
    expert, rest = f"{source}::episodes=0-2", f"{source}::without=0-2,17"
    settings: dict[str, Any] = {"scorer": "neighbours", "members": 1, "progress": False}
    score(expert, rest, bad=f"{source}::episodes=17", out=tmp_path / "scores", **settings)
    (tmp_path / "triage.html").write_text(TRIAGE)
    answer = re.search(r'<pre id="said">(.*?)</pre>', browse(tmp_path / "triage.html", tmp_path))
    assert answer
    found = json.loads(html.unescape(answer[1]))
    assert found["decided"] == "5 kept, 5 dropped, besides 3 expert and 1 bad episodes that were named before"
    (tmp_path / "decisions.json").write_text(found["file"])
    kept, dropped = (read_episodes(source, str(tmp_path / "decisions.json"), choice) for choice in ("keep", "drop"))
    assert Episodes.parse("0-2").less(kept).first is None
    assert Episodes.parse("17").less(dropped).first is None
    filter_dataset(source, tmp_path / "scores", tmp_path / "kept.hdf5", decisions=tmp_path / "decisions.json")
