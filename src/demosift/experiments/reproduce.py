"""`demosift reproduce`: run or continue a preset's grid, then write the report."""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from demosift.cluster import Engine, connected
from demosift.experiments.cells import Cell
from demosift.experiments.cluster import run_on_ray
from demosift.experiments.comparisons import comparison
from demosift.experiments.coverage import measure_coverage
from demosift.experiments.display import View
from demosift.experiments.local import run_local
from demosift.experiments.plan import identify, plan
from demosift.experiments.prepare import Preparation
from demosift.experiments.presets import COMPARISONS, Request, grids, row_facts
from demosift.experiments.program import CHECKPOINT_SECONDS, Planned
from demosift.experiments.store import Store
from demosift.files import atomic_write, own_folder
from demosift.progress import duration
from demosift.report.page import write_report
from demosift.results.cell import SAC_CURVES
from demosift.types import InputError


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

    The cells asked for become the grid that the tables show; with `add` they join those it has already.
    """
    wanted, left_out = comparison(preset, request) if preset in COMPARISONS else (grids(preset, request), [])
    deadline = None if time_limit is None else time.monotonic() + time_limit
    console = console or Console(stderr=True)
    store = Store(out)
    answer: dict[str, Any] = {"out": str(out), "preset": preset}
    lines = [f"not run: {line}" for line in left_out]
    if left_out:
        answer["left_out"] = left_out
    with own_folder(store.path):
        store.check_free()
        if wanted:
            with connected(address) if engine == "ray" else nullcontext():
                planned = prepare(wanted, store, add, console)
                programs = plan(list(planned.values()), store, max_members)
                left = sum(map(len, programs))
                began = time.monotonic()
                with View(len(planned), len(planned) - left, console) as view:
                    run = run_on_ray if engine == "ray" else partial(run_local, num_workers=num_workers)
                    complete = run(programs, store, view, deadline=deadline, checkpoint_seconds=checkpoint_seconds)
            failed = {cell_id: reason for cell_id in planned if (reason := store.failure_reason(cell_id)) is not None}
            if complete and not failed:
                store.forget_prepared()
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
            measure_coverage(store.path, request)
        if preset == "sac-curves" or (preset == "all" and request.replay):
            gather_sac_curves(request, store.path)
        if preset in ("coverage", "sac-curves") or answer.get("done"):
            answer["page"] = str(write_report(store.path, row_facts()))
            lines.append(f"Look at {answer['page']}")
    return answer, "\n".join(lines)


def prepare(wanted: Mapping[str, Sequence[Cell]], store: Store, add: bool, console: Console) -> dict[str, Planned]:
    """The cells by their ids, with their data. Where one of them is refused, nothing is left behind."""
    earlier = {name: store.read_grid(name) if add else [] for name in wanted}
    store.sweep()
    preparation = Preparation(store.path / "data")
    found: dict[str, list[Planned]] = {}
    try:
        with console.status("") as status:
            for name, cells in wanted.items():
                found[name] = identify(
                    cells, preparation, store, lambda what: status.update(f"making the data of {what}")
                )
    except InputError:
        preparation.discard()
        raise
    for name, planned in found.items():
        store.write_grid(name, [*earlier[name], *(each.id for each in planned)])
    return {each.id: each for planned in found.values() for each in planned}


def gather_sac_curves(request: Request, out: Path) -> None:
    """Copy each environment's `curve.jsonl`, written by `collect`, to `sac-curves/ENV.jsonl`; the report draws them."""
    command = f"demosift collect {' '.join(request.envs)} --seeds 4 --out DIR"
    if request.replay is None:
        raise InputError(f"sac-curves needs a folder that collect wrote (--replay DIR); make one with: {command}")
    folder = Path(request.replay)
    for env in request.envs:
        candidates = [folder / env / "curve.jsonl", folder / f"{env}.jsonl"]
        if len(request.envs) == 1:
            candidates.append(folder / "curve.jsonl")
        found = next((path for path in candidates if path.is_file()), None)
        if found is None:
            raise InputError(f"{candidates[0]}: no such curve; make it with: {command}")
        with atomic_write(out / SAC_CURVES / f"{env}.jsonl") as temporary:
            shutil.copyfile(found, temporary)
