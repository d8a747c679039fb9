"""How the disagreement of sift's five networks grows away from the data: `python results/recipe/disagreement.py`.

It trains sift on walker2d/noisy-expert for a few minutes and writes disagreement.png beside this file. Left: states of
episodes that no training saw, by who played them, and the expert's with Gaussian noise, in standard deviations of each
column (quartiles; whiskers from 5% to 95%). Right: along an episode of the medium policy, in which it falls if it can.
"""

import argparse
from pathlib import Path

import numpy as np

from demosift.files import atomic_write
from demosift.learning.fit import fit
from demosift.policy import Policy, RandomPolicy
from demosift.report.drawing import PALETTE, figure
from demosift.sift.method import Sift
from demosift.simulation.environments import resolve
from demosift.simulation.shipped import shipped_policy
from demosift.tasks.recipes import make_task
from demosift.tasks.record import record
from demosift.types import Dataset

ENV, SEED, EPISODES = "walker2d", 10, 5
UNSEEN = 1_000  # a seed of episodes that no task draws from
NOISE = (0.1, 0.2, 0.5, 1.0, 2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=10_000)
    options = parser.parse_args()
    policy = fit(Sift(), make_task(f"{ENV}/noisy-expert", SEED), iterations=options.iterations).policy
    spec = resolve(ENV)
    actors = {"expert": shipped_policy(ENV, "expert"), "medium": shipped_policy(ENV, "medium")}
    played = {name: record(actor, EPISODES, spec, seed=UNSEEN) for name, actor in actors.items()}
    played["random"] = record(RandomPolicy(spec), 50 * EPISODES, spec, seed=UNSEEN)  # these fall soon
    draw(policy, played, Path(__file__).with_suffix(".png"))


def disagreement(policy: Policy, obs: np.ndarray) -> np.ndarray:
    return policy.disagreement(obs[None].astype(np.float32))[0]


def draw(policy: Policy, played: dict[str, Dataset], path: Path) -> None:
    expert = played["expert"].transitions.obs
    noise = np.random.default_rng(0).normal(size=expert.shape) * expert.std(axis=0)
    groups = {name: disagreement(policy, data.transitions.obs) for name, data in played.items()}
    groups |= {f"+ {size:g}": disagreement(policy, expert + size * noise) for size in NOISE}
    medium = played["medium"]
    ends = [int(end) for end in medium.episode_ends if medium.transitions.terminal[end - 1]]
    with figure(9.0, 3.2) as drawn:
        left, right = drawn.subplots(1, 2, width_ratios=[3, 2])
        colours = [PALETTE[3], PALETTE[6], PALETTE[4], *[PALETTE[0]] * len(NOISE)]
        boxes = left.boxplot(list(groups.values()), whis=(5, 95), showfliers=False, patch_artist=True, widths=0.6)
        for line in boxes["medians"]:
            line.set(color="black", linewidth=1.2)
        for box, colour in zip(boxes["boxes"], colours, strict=True):
            box.set(facecolor=colour, alpha=0.6, linewidth=0.8)
        left.set_xticks(range(1, len(groups) + 1), list(groups))
        left.set(
            yscale="log", ylabel="disagreement", xlabel="states of held-out episodes; the expert's with added noise"
        )
        start = int(medium.episode_starts[np.searchsorted(medium.episode_ends, ends[0])]) if ends else 0
        end = ends[0] if ends else int(medium.episode_ends[0])
        fall = " that falls" if ends else ""
        along = disagreement(policy, medium.transitions.obs[start:end])
        right.plot(along, color=PALETTE[6], linewidth=0.8)
        right.axhline(np.quantile(groups["expert"], 0.95), color=PALETTE[3], linestyle=":", label="95% of the expert's")
        right.set(yscale="log", xlabel=f"step of a medium episode{fall}")
        right.legend(frameon=False, loc="lower right")
        with atomic_write(path) as temporary:
            drawn.savefig(temporary, dpi=110, format="png")
    for name, values in groups.items():
        print(f"{name}: median {np.median(values):.3f}, 95% {np.quantile(values, 0.95):.3f}")


if __name__ == "__main__":
    main()
