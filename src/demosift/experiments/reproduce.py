"""`demosift reproduce`: a preset's grid, run or continued, and the report made of it."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from demosift.experiments.coverage import write_coverage
from demosift.experiments.display import View, duration
from demosift.experiments.local import run_local
from demosift.experiments.plan import identify, plan
from demosift.experiments.prepare import Preparation
from demosift.experiments.presets import PRESETS, Request, grids
from demosift.experiments.program import CHECKPOINT_SECONDS, Planned
from demosift.experiments.sac_curves import gather_sac_curves
from demosift.experiments.store import Store
from demosift.report.page import write_report
from demosift.types import InputError

Engine = Literal["local", "ray"]


def reproduce(
    preset: str,
    out: str | Path,
    request: Request,
    *,
    engine: Engine = "local",
    address: str | None = None,
    time_limit: float | None = None,
    max_members: int | None = None,
    num_workers: int | None = None,
    add: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    console: Console | None = None,
) -> tuple[dict[str, Any], str]:
    """Run what is left of a preset, then write the report. The same call continues after a kill or a time limit.

    What is asked for becomes the grid that the tables show; with `add`, beside what the grid has already.
    """
    if preset not in PRESETS:
        raise InputError(f"unknown preset {preset!r}: there are {', '.join(PRESETS)}")
    deadline = None if time_limit is None else time.monotonic() + time_limit
    console = console or Console(stderr=True)
    store = Store(out)
    answer: dict[str, Any] = {"out": str(out), "preset": preset}
    lines = []
    wanted = grids(preset, request)
    complete = True
    if wanted:
        earlier = {name: store.read_grid(name) if add else [] for name in wanted}
        store.sweep()
        preparation = Preparation(store.path / "data")
        planned: dict[str, Planned] = {}
        with console.status("") as status:
            tell: Callable[[str], None] = lambda what: status.update(f"making the data of {what}")  # noqa: E731
            for name, cells in wanted.items():
                found = identify(cells, preparation, tell)
                store.write_grid(name, [*earlier[name], *(each.id for each in found)])
                planned |= {each.id: each for each in found}
        programs = plan(list(planned.values()), store, max_members)
        left = sum(map(len, programs))
        began = time.monotonic()
        with View(len(planned), len(planned) - left, console) as view:
            if engine == "ray":
                from demosift.experiments.cluster import run_on_ray

                run = partial(run_on_ray, address=address)
            else:
                run = partial(run_local, num_workers=num_workers)
            complete = run(programs, store, view, deadline=deadline, checkpoint_seconds=checkpoint_seconds)
        failed = {cell_id: reason for cell_id in planned if (reason := read_failure(store, cell_id)) is not None}
        answer |= {"cells": len(planned), "done": view.done, "ran": left, "failed": failed, "complete": complete}
        lines.append(
            f"{view.done} of {len(planned)} cells done"
            + (f", {len(failed)} failed" if failed else "")
            + (f", in {duration(time.monotonic() - began)}" if left else "; nothing was left to do")
        )
        lines += [f"{store.failure_file(cell_id)}: {reason}" for cell_id, reason in failed.items()]
        if not complete:
            lines.append("stopped at the time limit; the same command continues")
    if preset in ("coverage", "all"):
        write_coverage(store.path, request)
    if preset == "sac-curves" or (preset == "all" and request.replay):
        gather_sac_curves(request, store.path)
    if preset in ("coverage", "sac-curves") or answer.get("done"):
        answer["page"] = str(write_report(store.path))
        lines.append(f"Look at {answer['page']}")
    return answer, "\n".join(lines)


def read_failure(store: Store, cell_id: str) -> str | None:
    """The last line of why a cell failed."""
    try:
        content = json.loads(store.failure_file(cell_id).read_text(encoding="utf-8"))
        return str(content["failure"]).strip().splitlines()[-1]
    except (OSError, ValueError, KeyError, IndexError):
        return None
