"""`demosift theory`: run the claims and write what they found as JSON, figures and a page.

Each claim draws its random numbers from the seed and its own name, so its finding is the same whichever others run, in
however many processes. Nothing that is written depends on the clock: the same seed gives the same bytes.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from demosift.files import atomic_folder, plain, write_json
from demosift.processes import Workers
from demosift.progress import Progress
from demosift.ranges import PROCESSES, SCALE, SEED, check_once
from demosift.theory.claim import Claim, Finding, Numbers, generator
from demosift.theory.claims import BY_NAME, CLAIMS
from demosift.theory.drawing import inline, to_files
from demosift.theory.page import number, render_page
from demosift.types import InputError

Results = Sequence[tuple[Claim, Finding]]


@dataclass(frozen=True)
class Lab:
    """What to run: every claim unless some are named, with `scale` times the usual number of instances."""

    seed: int = 0
    scale: float = 1.0
    names: tuple[str, ...] = ()
    processes: int = 1

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in BY_NAME]
        if unknown:
            raise InputError(f"theory: no claim is named {unknown[0]!r}; there are {', '.join(BY_NAME)}")
        check_once("theory: claims", self.names)
        SEED.check("theory: seed", self.seed)
        SCALE.check("theory: scale", self.scale)
        PROCESSES.check("theory: processes", self.processes)

    @property
    def claims(self) -> list[Claim]:
        return [claim for claim in CLAIMS if not self.names or claim.name in self.names]


def write_theory(out: str | os.PathLike[str], lab: Lab) -> tuple[dict[str, Any], str]:
    """Run the claims and write `theory.json`, `figures/` and `index.html` to `out`; return the JSON and a table of it.

    A folder that already holds something is refused before anything is computed.
    """
    with atomic_folder(out) as folder:
        results = list(zip(lab.claims, run(lab), strict=True))
        answer = to_json(results, lab)
        write_json(folder / "theory.json", answer)
        pictures = dict(draw(results, folder / "figures"))
        (folder / "index.html").write_text(render_page(answer, pictures), encoding="utf-8")
    return answer, "\n".join([table(answer), f"{Path(out)}: index.html, theory.json, figures/"])


def run(lab: Lab) -> list[Finding]:
    """The findings, in the order of the claims. The claims that take longest start first."""
    found: dict[str, Finding] = {}
    names = [claim.name for claim in lab.claims]
    with Progress(transient=True) as display:
        line = display.line("claims", len(names))
        if lab.processes == 1 or len(names) == 1:
            for name in names:
                found[name] = examine(name, lab.seed, lab.scale)
                line.advance()
        else:
            order = sorted(names, key=lambda name: not BY_NAME[name].slow)
            for name, finding in examine_together(order, lab):
                found[name] = finding
                line.advance()
    return [found[name] for name in names]


def examine_together(names: Sequence[str], lab: Lab) -> Iterator[tuple[str, Finding]]:
    """Every claim's finding as it comes, from processes that take the next claim whenever they are done with one."""
    waiting = list(reversed(names))
    with closing(Workers(min(lab.processes, len(names)), examine_each)) as workers:
        busy = {}
        for worker in workers:
            worker.send((waiting.pop(), lab.seed, lab.scale))
            busy[worker.connection] = worker
        while busy:
            for connection in wait(list(busy)):
                worker = busy[connection]
                yield worker.receive()
                if waiting:
                    worker.send((waiting.pop(), lab.seed, lab.scale))
                else:
                    del busy[connection]


def examine_each(connection: Connection) -> None:
    """What a worker does."""
    while True:
        name, seed, scale = connection.recv()
        connection.send((name, examine(name, seed, scale)))


def examine(name: str, seed: int, scale: float) -> Finding:
    """One claim's finding. Linear algebra runs in one thread, so that sums are added in the same order everywhere."""
    with threadpool_limits(1):
        return BY_NAME[name].check(generator(seed, name), scale)


def to_json(results: Results, lab: Lab) -> dict[str, Any]:
    claims = []
    for claim, finding in results:
        words = {name: getattr(claim, name) for name in ("name", "title", "cites", "statement", "amendment")}
        verdict = ("holds as amended" if claim.amendment else "holds") if finding.holds else "refuted"
        claims.append({**words, "verdict": verdict, **vars(finding)})
    refuted = [claim.name for claim, finding in results if not finding.holds]
    settings = {"demosift": version("demosift"), "seed": lab.seed, "scale": lab.scale}
    return plain({**settings, "refuted": refuted, "claims": claims})


def draw(results: Results, folder: Path) -> Iterator[tuple[str, str]]:
    """Write each picture as SVG and PNG, and yield it as a part of the page."""
    folder.mkdir()
    for claim, finding in results:
        files = to_files(claim, finding.numbers)
        for suffix, content in files.items():
            (folder / f"{claim.name}.{suffix}").write_bytes(content)
        yield claim.name, inline(files["svg"].decode(), claim.name)


def table(answer: Numbers) -> str:
    """For a terminal: claim, instances, smallest slack, verdict; then a counterexample for each refuted claim."""
    rows = [("claim", "instances", "slack", "verdict")]
    for claim in answer["claims"]:
        rows.append((claim["name"], number(claim["instances"]), number(claim["slack"], 3), claim["verdict"]))
    first, second, third = (max(len(row[index]) for row in rows) for index in range(3))
    lines = [f"{a:<{first}}  {b:>{second}}  {c:>{third}}  {d}" for a, b, c, d in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    for claim in answer["claims"]:
        if not claim["holds"]:
            lines.append(f"{claim['name']} is refuted by {json.dumps(claim['counterexample'], sort_keys=True)}")
    return "\n".join(lines)
