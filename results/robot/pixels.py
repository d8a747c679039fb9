"""Which episodes to drop, by pictures: how precise is `demosift score` without the state of the objects?

`MUJOCO_GL=egl python results/robot/pixels.py --piles DIR` reads or makes the mixed piles of curation.py in DIR, plays
their episodes once more (they depend on their seeds alone, and each state is compared with the recorded one), renders
every tenth row (`--every`), embeds the pictures with the default encoder, and ranks the episodes by

    pixels           pictures alone, as with `score --encoder default --without-state`
    proprioception   pictures beside what the robot knows of itself: hand and gripper, or the arm's joints
    state            everything that the environment tells, the objects included

`--expert none` ranks them by agreement instead, as without an expert. Embeddings are kept beside the pile. Writes
pixels.json beside this file and prints a table.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
from curation import kinds_of, open_task, place, precision
from jaxtyping import Float32, UInt8

from demosift.data.rows import DatasetRows
from demosift.files import write_json
from demosift.sift.agreement import measure_agreement
from demosift.sift.scoring import score
from demosift.tasks import operators
from demosift.tasks.recipes import make_task
from demosift.types import Dataset
from demosift.vision.embedding import cache_folder, embedded_rows, interpolate, prepare_features
from demosift.vision.encoder import load_encoder

TASKS = ("metaworld-drawer-open", "metaworld-button-press-topdown", "metaworld-window-open")
CAMERAS = {"metaworld": "corner2", "ogbench": "front_pixels"}
OWN = {"metaworld": 4, "ogbench": 19}  # the first numbers of an observation: the robot itself

Picture = UInt8[np.ndarray, "height width 3"]


def seeds_of(name: str, seed: int, episodes: int) -> dict[bytes, int]:
    """The seed of every episode that was recorded for a pile, by its first observation."""
    found: dict[bytes, int] = {}
    record = operators._record

    def remember(*arguments: Any) -> Any:
        recorded = record(*arguments)
        for episode in (one for of in recorded.values() for one in of):
            assert episode.transitions is not None
            found[episode.transitions.obs[0].tobytes()] = episode.seed
        return recorded

    operators._record = remember
    try:
        make_task(name, seed, episodes=episodes)
    finally:
        operators._record = record
    return found


def pictures(
    data: Dataset, env: Any, seeds: dict[bytes, int], camera: str, how: argparse.Namespace
) -> Iterator[Picture]:
    """What the camera sees in every n-th row of each episode, and in its last."""
    simulator = env.sawyer if hasattr(env, "sawyer") else env.arm
    model, state = (getattr(simulator, name, None) or getattr(simulator, f"_{name}") for name in ("model", "data"))
    # On a processor, soft edges and shadows cost more than all the rest.
    model.vis.quality.offsamples = 0
    renderer = mujoco.Renderer(model, how.size, how.size)
    for effect in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
        renderer.scene.flags[effect] = 0
    obs, action = data.transitions.obs, data.transitions.action
    wanted = set(embedded_rows(data.episode_ends, how.every).tolist())
    for start, end in zip(data.episode_starts, data.episode_ends, strict=True):
        seen, _ = env.reset(seed=seeds[obs[start].tobytes()])
        for row in range(start, end):
            if not np.allclose(seen, obs[row], atol=1e-4):
                raise SystemExit(f"row {row}: played once more, the episode went another way")
            if row in wanted:
                renderer.update_scene(state, camera)
                yield renderer.render()
            seen = env.step(action[row])[0]


def embed(
    name: str, data: Dataset, seeds: dict[bytes, int], how: argparse.Namespace
) -> Float32[np.ndarray, "rows numbers"]:
    package = name.partition("-")[0]
    env = gymnasium.make(name.partition("/")[0]).unwrapped
    encoder = load_encoder("default", cache_folder(), how.size)
    shown = pictures(data, env, seeds, CAMERAS[package], how)
    return interpolate(np.concatenate(list(encoder.embed(shown))), embedded_rows(data.episode_ends, how.every))


def embeddings(name: str, options: argparse.Namespace, sets: dict[str, Dataset]) -> list[np.ndarray]:
    folder = place(name, options.piles, options.seed, options.pile)
    kept = folder.with_name(f"{folder.name}-{options.size}-{options.every}.npz")
    if not kept.exists():
        seeds = seeds_of(name, options.seed, options.pile)
        expert, pile = (embed(name, data, seeds, options) for data in sets.values())
        np.savez(kept, expert=expert, supplementary=pile)
    with np.load(kept) as found:
        return [found[part] for part in sets]


def first_columns(data: Dataset, count: int) -> Dataset:
    """The data with the first numbers of each observation alone."""
    rows = data.transitions
    return dataclasses.replace(
        data, transitions=rows._replace(obs=rows.obs[:, :count], next_obs=rows.next_obs[:, :count])
    )


def rank(pair: list[Dataset], expert: str, seen: list[np.ndarray] | None, state: bool) -> np.ndarray:
    """A number for each episode of the second set, larger for better ones."""
    if expert == "none":
        rows = DatasetRows(pair[1])
        seeing = rows if seen is None else prepare_features(pair[1:], seen[1:], state).join(pair[1], rows)
        return -measure_agreement(seeing).rank.astype(np.float64)
    scored = score(*pair, features=seen, state=state)
    return -scored.episodes()["rank"][scored.num_expert_episodes :].astype(np.float64)


def measure(name: str, options: argparse.Namespace, found: dict[str, Any]) -> Iterator[str]:
    """Whatever of `options.by` is missing in `found`, which is about one pile."""
    missing = [by for by in options.by if by not in found]
    if not missing:
        return
    data = open_task(name, options.piles, options.seed, options.pile)
    assert data.supplementary is not None
    sets = {"expert": data.expert, "supplementary": data.supplementary}
    kinds = kinds_of(data.supplementary)
    for by in missing:
        pair, seen = list(sets.values()), None
        if by != "state":
            seen = embeddings(name, options, sets)
            pair = [first_columns(each, OWN[name.partition("-")[0]]) for each in pair]
        found[by] = precision(rank(pair, options.expert, seen, by != "pixels"), kinds)
        yield f"{name} {by} {found[by]['precision']}"


def table(results: dict[str, Any], columns: list[str]) -> str:
    whole = {name: found for name, found in results.items() if all(by in found for by in columns)}
    rows = [["pile", *columns], ["---"] * (1 + len(columns))]
    rows += [[name, *(f"{found[by]['precision']:.2f}" for by in columns)] for name, found in whole.items()]
    means = [np.mean([found[by]["precision"] for found in whole.values()]) for by in columns]
    rows.append([f"mean of {len(whole)}", *(f"**{mean:.3f}**" for mean in means)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--tasks", nargs="+", default=[f"{name}/mixed" for name in TASKS])
    add("--by", nargs="+", default=["pixels", "proprioception", "state"])
    add("--expert", choices=["five", "none"], default="five")
    add("--piles", type=Path, default=Path("piles"))
    add("--out", type=Path, default=Path(__file__).with_name("pixels.json"))
    add("--seed", type=int, default=0)
    add("--pile", type=int, default=200, help="episodes of a pile")
    add("--size", type=int, default=128, help="of pictures, in pixels")
    add("--every", type=int, default=10, help="of how many rows one is rendered")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.tasks:
        for line in measure(name, options, results.setdefault(name, {}).setdefault(options.expert, {})):
            write_json(options.out, results)
            print(line, flush=True)
    print(table({name: found.get(options.expert, {}) for name, found in results.items()}, options.by))


if __name__ == "__main__":
    main()
