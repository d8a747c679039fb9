"""Pages made of hostile names, opened in a real browser: no script of theirs runs, and no request leaves."""

import json
import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from test_report import CHROMIUM, browse, write_report, write_run
from test_report_tables import content_of, write_cells
from test_sift_page import contents, poisoned, write_sift_page

from demosift.report.document import document
from demosift.results.cell import cell_id
from demosift.theory.page import render_page

OLD = Path(__file__).parent / "old" / "0.1.0"
RUN = "new Image().src='leak'"
HOSTILE = [
    f"<script>{RUN}</script>",
    f'"><img src=leak onerror="{RUN}">',
    f"'><svg onload={RUN}></svg>",
    f"</script></title></style></textarea><script>{RUN}</script>",
    f"javascript:{RUN}",
    "<script src=leak></script><link rel=stylesheet href=leak><style>@import 'leak'</style>",
    "<iframe src=leak></iframe><object data=leak></object><embed src=leak><video src=leak></video>",
    f"&lt;script&gt;{RUN}&lt;/script&gt; &#60;script>{RUN}&#60;/script>",
    "\u2028\u2029\u202e\u200f\u2066\x1b[2J\x1b]0;owned\x07\x7f",
]
NAME = " ".join(HOSTILE)
AWAY = "<meta http-equiv=refresh content='0;url=leak'><base href=leak/>"  # the policy allows a page to go elsewhere
ON_DISK = f'"><img src=leak onerror="{RUN}">\x1b[2J\u202e'  # as the name of a folder


class Site(ThreadingHTTPServer):
    """Serves a folder, and remembers what was asked for."""

    def __init__(self, folder: Path) -> None:
        site, self.asked = self, []

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                super().do_GET()

            def log_message(self, format: str, *_: Any) -> None: ...

        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.folder = folder

    def visit(self, pages: dict[str, str]) -> list[str]:
        """Open all of these, and return what the browser asked for besides them."""
        for name, page in pages.items():
            (self.folder / f"{name}.html").write_bytes(page.encode("utf-8", "backslashreplace"))
        frames = "".join(f'<iframe src="{name}.html"></iframe>' for name in pages)
        start = "-".join(["all", *pages])  # a name of its own: a browser may remember another visit's
        (self.folder / f"{start}.html").write_text(f"<!doctype html><title>all</title>{frames}")
        self.asked.clear()
        browse(f"http://127.0.0.1:{self.server_port}/{start}.html", self.folder)
        own = {f"/{name}.html" for name in (start, *pages)}
        assert own <= set(self.asked)
        return sorted(set(self.asked) - own - {"/favicon.ico"})


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "site").mkdir()
    with Site(tmp_path / "site") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def page_of_runs(folder: Path) -> str:
    shutil.copytree(OLD / "runs", folder)
    (folder / "weights.json").write_text(json.dumps(poisoned(json.loads((folder / "weights.json").read_text()), NAME)))
    environment = {"id": NAME + AWAY, "kwargs": {NAME: NAME}}
    settings = ({"ratio": NAME}, {"ratio": NAME + AWAY})
    run = write_run(folder / ON_DISK, NAME + AWAY, seeds=(0, 1), environment=environment, task=NAME, settings=settings)
    metrics = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(metrics.replace('"policy_loss"', json.dumps(NAME)))
    shutil.copytree(OLD / "scores", run / "scores" / "0")
    poison_scores(run / "scores" / "0")
    return write_report(folder).read_text()


def poison_scores(folder: Path) -> None:
    for name, content in zip(("summary.json", "page.json"), contents(folder), strict=True):
        (folder / name).write_text(json.dumps(poisoned(content, NAME + AWAY)))


def page_of_scores(folder: Path) -> str:
    shutil.copytree(OLD / "scores", folder)
    poison_scores(folder)
    return write_sift_page(folder).read_text()


def page_of_a_grid(folder: Path) -> str:
    cells = [content_of(method, [0.1, 0.9]) for method in (NAME, "bc")]
    for cell in cells:
        cell["environment"]["id"] = cell["versions"]["demosift"] = NAME + AWAY
        cell["config"] |= {"environment": NAME, "task": NAME}
        cell["id"] = cell_id(cell["config"], cell["data"]["sha256"])
    write_cells(folder, cells)
    return write_report(folder).read_text()


def page_of_theory(_: Path) -> str:
    words = dict.fromkeys(("name", "title", "cites", "statement", "measure", "amendment"), NAME + AWAY)
    numbers = {"instances": 3, "slack": -0.1, "holds": False, "numbers": {NAME: 1.0}, "counterexample": {NAME: NAME}}
    claims = [{**words, **numbers, "verdict": "refuted"}]
    return render_page({"demosift": NAME, "seed": 0, "scale": 1.0, "refuted": [NAME], "claims": claims}, {})


PAGES = {"runs": page_of_runs, "scores": page_of_scores, "grid": page_of_a_grid, "theory": page_of_theory}
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy".*?>')


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_hostile_names_run_nothing_and_send_nothing(site: Site, tmp_path: Path):
    pages = {name: write(tmp_path / name) for name, write in PAGES.items()}
    for name, page in pages.items():
        assert "onload=" in page, f"the names are not on the page: {name}"
        assert "\u202e" not in page
        assert "\x1b" not in page
        assert all(link.startswith(("#", "./")) for link in re.findall(r'href="(.*?)"', page))
    # Each holds alone: escaping without the policy, and the policy without escaping.
    bare = {f"{name}-bare": POLICY.sub("", page) for name, page in pages.items()}
    assert all(bare[f"{name}-bare"] != page for name, page in pages.items())
    assert site.visit({**pages, **bare, "raw": document("raw", [NAME], "", "0")}) == []


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_the_browser_would_have_shown_it(site: Site):
    assert "/leak" in site.visit({"raw": POLICY.sub("", document("raw", [NAME], "", "0"))})
    assert "/leak" in site.visit({"away": document("away", [AWAY], "", "0")})


@pytest.mark.parametrize("write", PAGES.values(), ids=PAGES)
def test_hostile_names_are_text(write: Any, tmp_path: Path):
    """Without a browser: no element of theirs is in the page."""
    page = write(tmp_path / "folder")
    assert not re.search(r"<(img|iframe|object|embed|video|base|link)\b|<meta http-equiv=refresh|<script src", page)
    assert len(re.findall(r'<script(?! type="application/json")', page)) <= 1
