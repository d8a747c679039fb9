"""The curves of the agents that made the experts, gathered from the folders that `demosift collect` wrote."""

import shutil
from pathlib import Path

from demosift.experiments.presets import Request
from demosift.files import atomic_write
from demosift.types import InputError

FOLDER = "sac-curves"


def gather_sac_curves(request: Request, out: Path) -> None:
    """Copy each environment's `curve.jsonl` to `sac-curves/ENV.jsonl`; the report draws them."""
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
        with atomic_write(out / FOLDER / f"{env}.jsonl") as temporary:
            shutil.copyfile(found, temporary)
