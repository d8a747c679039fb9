"""Film strips on the page of scores: which episodes, at which steps, of which size, and in a real browser."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from pictures import episodes, with_videos
from PIL import Image
from test_report import CHROMIUM, browse

from demosift.cli.main import main
from demosift.report.sift_episodes import highlighted
from demosift.sift.films import PICTURES, WIDTH, make_films
from demosift.sift.scoring import score

LENGTHS = [24, 24, 24, 24, 24, 24, 16, 32, 24, 24, 24, 24, 24, 24]


LOOK = """<!doctype html><iframe id="frame" src="report.html" style="width:1000px;height:800px"></iframe>
<pre id="said">nothing</pre><script>
frame.onload = () => {
  said.textContent = JSON.stringify([...frame.contentDocument.querySelectorAll("img.film")].map((film) => [
    film.complete, film.naturalWidth, film.getBoundingClientRect().width,
    film.parentElement.querySelector("canvas").getBoundingClientRect().width]));
};
</script>"""


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A dataset whose camera shows where the blob is, scored by its states alone."""
    folder = tmp_path_factory.mktemp("filmed")
    data = with_videos(folder / "data", episodes(0, LENGTHS))
    sets = f"{data}::episodes=0-2", f"{data}::without=0-2"
    score(*sets, out=folder / "scores", scorer="neighbours", members=1, task_column="none", progress=False)
    return data, folder / "scores"


def strip_of(text: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("L"), np.float64)


def test_strips_show_the_episodes_from_start_to_end(scored: tuple[Path, Path]):
    _, folder = scored
    page = json.loads((folder / "page.json").read_text())
    films, chosen = page["films"], highlighted(page)
    assert films["cameras"] == ["top"]
    named = {int(one["episode"]) for kind in ("good", "bad", "unsure") for one in chosen[kind]}
    assert set(films["supplementary"]) == {str(number) for number in named}
    assert len(films["expert"]) == 3
    content = episodes(0, LENGTHS)
    for number in (min(named), max(named)):
        found = strip_of(films["supplementary"][str(number)][0])
        assert found.shape == (WIDTH, WIDTH * PICTURES)
        steps = ((np.arange(PICTURES) + 0.5) * (LENGTHS[number] - 1) / PICTURES).astype(int)  # the last has no row
        for place, step in enumerate(steps):
            tile = found[:, place * WIDTH : (place + 1) * WIDTH]
            row, column = np.unravel_index(tile.argmax(), tile.shape)
            expected = content[number]["place"][step]
            assert np.hypot(column / WIDTH - expected[0], row / WIDTH - expected[1]) < 0.08
    html = (folder / "report.html").read_text()
    assert html.count('<img class="film"') == sum(map(len, chosen.values()))
    assert "img-src data:" in html
    assert len(html) < 2_000_000


def test_the_page_is_the_same_again_and_hostile_pictures_are_refused(
    scored: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
):
    _, folder = scored
    first = (folder / "report.html").read_bytes()
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_bytes() == first
    known = (folder / "page.json").read_text()
    page = json.loads(known)
    number = next(iter(page["films"]["supplementary"]))
    page["films"]["supplementary"][number] = ['" onerror="alert(1)']
    try:
        (folder / "page.json").write_text(json.dumps(page))
        assert main(["report", str(folder)]) == 2
        assert "are not what score writes" in capsys.readouterr().err
        assert (folder / "report.html").read_bytes() == first
    finally:
        (folder / "page.json").write_text(known)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_shows_them(scored: tuple[Path, Path], tmp_path: Path):
    """Every picture is decoded, under the page's own policy, and as wide as the weights below it."""
    (tmp_path / "report.html").write_bytes((scored[1] / "report.html").read_bytes())
    (tmp_path / "use.html").write_text(LOOK)
    said = browse(tmp_path / "use.html", tmp_path).partition('<pre id="said">')[2].partition("</pre>")[0]
    found = json.loads(said)
    assert len(found) >= 11
    for complete, width, shown, weights in found:
        assert complete
        assert width == WIDTH * PICTURES
        assert shown == pytest.approx(weights, abs=1)


def test_without_cameras_or_with_broken_videos(scored: tuple[Path, Path], tmp_path: Path):
    """A video that cannot be read costs the strips, not the scores of states, and is said."""
    data = with_videos(tmp_path / "data", episodes(0, LENGTHS[:8]), version=2)
    for video in sorted(data.rglob("*.mp4"))[3:]:
        video.write_bytes(b"no video")
    sets = f"{data}::episodes=0-2", f"{data}::without=0-2"
    found = score(*sets, scorer="neighbours", members=1, task_column="none", progress=False)
    assert "films" not in found.page
    assert any("no film strips" in text and ".mp4" in text for text in found.summary["warnings"])
    page = json.loads((scored[1] / "page.json").read_text())
    assert make_films(page, "pile.hdf5", "pile.hdf5") == (None, None)
