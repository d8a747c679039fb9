"""`demosift theory`: runs the claims and writes what they found: JSON, figures, and a page.

Each claim draws its random numbers from the seed and its own name, so its finding is the same whichever others run, in
however many processes. There is no clock in anything that is written: the same seed gives the same bytes.
"""

import json
import math
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from threadpoolctl import threadpool_limits

from demosift.files import atomic_folder, write_json
from demosift.theory import drawing
from demosift.theory.claim import Claim, Finding, generator
from demosift.theory.claims import BY_NAME, CLAIMS
from demosift.theory.page import Result, render_page
from demosift.types import InputError


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
        if self.seed < 0:
            raise InputError(f"theory: the seed {self.seed} is negative")
        if not 0.0 < self.scale < math.inf:
            raise InputError(f"theory: the scale {self.scale} is not a positive number")

    @property
    def claims(self) -> list[Claim]:
        return [claim for claim in CLAIMS if not self.names or claim.name in self.names]


def write_theory(out: str | os.PathLike[str], lab: Lab) -> tuple[dict[str, Any], str]:
    """Run the claims and write `theory.json`, `figures/` and `index.html` to `out`; the JSON, and a table of it.

    A folder that already holds something is refused before anything is computed.
    """
    with atomic_folder(out) as folder:
        results = [Result(claim, finding) for claim, finding in zip(lab.claims, run(lab), strict=True)]
        answer = to_json(results, lab)
        write_json(folder / "theory.json", answer)
        pictures = dict(draw(results, folder / "figures"))
        page = render_page(results, pictures, answer)
        (folder / "index.html").write_text(page, encoding="utf-8")
    return answer, "\n".join([table(results), f"{Path(out)}: index.html, theory.json, figures/"])


def run(lab: Lab) -> list[Finding]:
    """The findings, in the order of the claims. Those that take longest are begun first."""
    found: dict[str, Finding] = {}
    names = [claim.name for claim in lab.claims]
    with progress_bar(len(names)) as advance:
        if lab.processes == 1 or len(names) == 1:
            for name in names:
                found[name] = examine(name, lab.seed, lab.scale)
                advance(name)
        else:
            # Spawned, not forked: the caller may run threads, as JAX does.
            spawn = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(min(lab.processes, len(names)), mp_context=spawn) as pool:
                order = sorted(names, key=lambda name: not BY_NAME[name].slow)
                pending = {pool.submit(examine, name, lab.seed, lab.scale): name for name in order}
                try:
                    for future in as_completed(pending):
                        found[pending[future]] = future.result()
                        advance(pending[future])
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
    return [found[name] for name in names]


def examine(name: str, seed: int, scale: float) -> Finding:
    """One claim's finding. One thread of linear algebra: sums are added in the same order everywhere."""
    with threadpool_limits(1):
        return BY_NAME[name].check(generator(seed, name), scale)


@contextmanager
def progress_bar(total: int) -> Iterator[Any]:
    """Yields a function to call with the name of each claim that is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        task = progress.add_task("claims", total=total)
        yield lambda name: progress.update(task, advance=1, description=name)


def to_json(results: Sequence[Result], lab: Lab) -> dict[str, Any]:
    claims = [
        {
            "name": claim.name,
            "title": claim.title,
            "cites": claim.cites,
            "statement": claim.statement,
            "amendment": claim.amendment,
            "verdict": result.verdict,
            "holds": bool(finding.holds),
            "instances": finding.instances,
            "slack": finding.slack,
            "measure": finding.measure,
            "numbers": finding.numbers,
            "counterexample": finding.counterexample,
        }
        for result in results
        for claim, finding in [(result.claim, result.finding)]
    ]
    refuted = [result.claim.name for result in results if not result.finding.holds]
    settings = {"demosift": version("demosift"), "seed": lab.seed, "scale": lab.scale}
    return plain({**settings, "refuted": refuted, "claims": claims})


def plain(value: Any) -> Any:
    """As JSON has it: NumPy's numbers as Python's, and null for what is not a number."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def draw(results: Iterable[Result], folder: Path) -> Iterator[tuple[str, str]]:
    """Write each picture as SVG and PNG, and yield it as a part of the page."""
    folder.mkdir()
    for result in results:
        claim = result.claim
        if claim.draw is None:
            continue
        with drawing.style(claim.name):
            figure = claim.draw(result.finding)
        files = drawing.to_files(figure, claim.name)
        for suffix, content in files.items():
            (folder / f"{claim.name}.{suffix}").write_bytes(content)
        yield claim.name, drawing.inline(files["svg"].decode(), claim.name)


def table(results: Sequence[Result]) -> str:
    """For a terminal: claim, instances, smallest slack, verdict; then what refutes the refuted."""
    rows = [("claim", "instances", "slack", "verdict")]
    rows += [(r.claim.name, f"{r.finding.instances:,}", f"{r.finding.slack:.3g}", r.verdict) for r in results]
    first, second, third = (max(len(row[index]) for row in rows) for index in range(3))
    lines = [f"{a:<{first}}  {b:>{second}}  {c:>{third}}  {d}" for a, b, c, d in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    for result in results:
        if not result.finding.holds:
            example = json.dumps(plain(result.finding.counterexample), sort_keys=True)
            lines.append(f"{result.claim.name} is refuted by {example}")
    return "\n".join(lines)
