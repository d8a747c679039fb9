"""Before training: can this supplementary set help, how much, and with which method?

The answer rests on two witnesses. Nearest neighbours (`overlap`) fill in the paper's Table 1, which says how a sample
affects NBCU, given its state and action. The weights say which rows look like the expert's to a discriminator that
never saw them. `advise` is the rule; it refuses to answer where the two contradict each other, or where a difference in
recording misleads both.

    an expert state, the expert's action     helps            (Table 1; Theorem 3: NBCU then beats BC)
    an expert state, another action          harms            (Theorem 2 and its lower bound)
    another state                            in between       (Theorem 4: no harm, and not much help)

Of the methods that clone, sift is advised wherever its weights can be believed (results/README.md, "Does the diagnosis
tell the truth?"). Where the whole pile helps, they are nearly even and it is as good as NBCU; where nearest neighbours
overlook what harms, it is far better. Where nothing in the pile is worth having, it was as good as BC or better.

Two rules go beyond the paper's table, to methods that do not clone the expert's own kind of rows: nearest-neighbour
rewards with IQL where the pile covers the expert's states but holds nothing like it, and SMODICE or TAILO where nobody
knows the expert's actions. They are heuristics, and say so, as long as no grid has measured them.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from demosift.data import RowSource
from demosift.report.numbers import count_of
from demosift.report.statistics import probability_greater
from demosift.sift.artefacts import find_artefacts, separating_columns
from demosift.sift.calibration import effective_sample_size
from demosift.sift.folds import Copies
from demosift.sift.overlap import MOST_EXPERT, MOST_SUPPLEMENTARY, Overlap, Sample, draw_sample, measure_overlap
from demosift.sift.training_sample import draw_rows

FEW_EXPERT = 50  # with fewer expert rows, shares of them mean nothing
NEAR = 0.05  # with a smaller share of the pile on expert states, there is no overlap to speak of
WRONG = 0.15  # tolerated share of other actions on expert states; the expert's own rows would show 0.05
ENOUGH = 0.1  # fewest expert-like rows of the pile that are worth having, over the expert's own rows
LIKE = 0.5  # a pile of the expert's own kind has this share of its rows on expert states weigh as much as the expert's
MISTAKEN = 0.05  # share of the expert's own rows that nearest neighbours take for other actions
HALVED = 0.5  # above `MISTAKEN`, expert-like rows may have at most this part of the pile's share of other actions
FEW_OF_A_KIND = 30  # with fewer rows, their share of other actions is not measured
COVERED = 0.5  # share of expert states with a neighbour in the pile that IQL needs to find a way along them
OFTEN_WRONG = 0.6  # with a larger share of other actions on expert states, there is no way along them to be found
TYPICAL = 0.1  # an expert-like row weighs at least as much as this quantile of the expert's rows
BINS = 10
MOST_JUDGED = 100_000  # rows of each set that the calibration and the ROC curve use

CHANGES = "changes of the state"  # what rows are compared by where the expert's actions are unknown

Rows = Float[np.ndarray, "rows"]


class Evidence(NamedTuple):
    """What the advice rests on."""

    expert_rows: int
    supplementary_rows: int
    near: float  # share of the pile on expert states
    wrong: float  # share of other actions among these rows
    expert_like: float  # share of the pile that weighs as much as the expert's rows do
    kept_wrong: float | None  # share of other actions among expert-like rows; None where these are too few
    useless: bool = False  # whether held-out rows could not be told apart at all
    separated_by: str = ""  # a difference in recording that tells the files apart
    same_rows: bool = False  # whether the pile is made of the expert's own rows
    covered: float = 0.0  # share of expert states that have a neighbour in the pile
    expert_actions: bool = (
        True  # False: rows were compared by how states change, since nobody knows the expert's actions
    )
    like_episodes: int = 0  # episodes of the pile of which most rows are expert-like

    @property
    def gain(self) -> float:
        """Expert-like rows of the pile over the expert's rows."""
        return self.expert_like * self.supplementary_rows / self.expert_rows

    @property
    def contradicted(self) -> bool:
        """Whether the weights would keep many of the other actions that nearest neighbours see on expert states."""
        return self.kept_wrong is not None and self.kept_wrong > MISTAKEN + HALVED * max(self.wrong - MISTAKEN, 0)


class Advice(NamedTuple):
    method: str | None  # bc, sift, seabo, smodice, tailo (nbcu, wbcu in files of before); None: cannot tell
    headline: str
    reason: str
    heuristic: bool = False  # whether the rule rests on no theorem and no measurement


def by_heuristic(method: str, headline: str, reason: str) -> Advice:
    return Advice(method, headline, f"{reason} {HEURISTIC}", heuristic=True)


HEURISTIC = "This rule is a heuristic: no measurement of ours backs it yet."


def advise(seen: Evidence) -> Advice:
    """The rule, in the order in which it is applied."""
    if seen.expert_rows < FEW_EXPERT:
        reason = (
            f"The expert set has {seen.expert_rows} rows, too few to compare anything with; until there are more, only "
            "BC uses nothing but samples that are known to be good."
        )
        if not seen.expert_actions:
            reason = f"The expert set has {seen.expert_rows} rows, too few to compare anything with."
        return Advice(None, "Cannot tell: there are too few expert rows.", reason)
    if seen.separated_by:
        reason = (
            f"{seen.separated_by[0].upper()}{seen.separated_by[1:].rstrip('?.')}. The weights may then say which file "
            "a row is from, not who acted well: take that out of both files and score again."
        )
        reason += " Until then, BC is safe." if seen.expert_actions else ""
        return Advice(None, "Cannot tell: the two files were recorded differently.", reason)
    if not seen.expert_actions:
        return advise_without_actions(seen)
    on_expert_states = f"{seen.near:.0%} of the pile lies on expert states"
    if seen.useless and (seen.near < NEAR or seen.wrong > WRONG):
        differ = "other states" if seen.near < NEAR else "other actions on expert states"
        reason = (
            f"Nearest neighbours find {differ} in the pile, but the discriminator cannot tell held-out expert rows "
            "from the rest, so its weights leave nothing out. Try another scorer or more expert rows; until then, BC "
            "is safe."
        )
        return Advice(None, "Cannot tell: the discriminator does not see what differs.", reason)
    few = seen.gain < ENOUGH
    if few and seen.covered >= COVERED and WRONG < seen.wrong <= OFTEN_WRONG:
        reason = (
            f"Hardly any row looks like the expert's, so there is nothing to clone, but {seen.covered:.0%} of expert "
            f"states have a neighbour in the pile, which takes the expert's action there {1 - seen.wrong:.0%} of the "
            "time: rewards by the distance to the nearest expert row, and IQL, which joins parts of trajectories, may "
            "find a way along them."
        )
        return by_heuristic("seabo", "Try SEABO: nothing to clone, but the expert's states are covered.", reason)
    if seen.near >= NEAR and seen.wrong <= WRONG and seen.expert_like >= LIKE * seen.near:
        reason = (
            f"{on_expert_states}, with the expert's action on {1 - seen.wrong:.0%} of it; in the paper's table these "
            "are the samples that help."
        )
        if seen.same_rows:
            reason += " They are the expert's own rows again, so there is nothing to gain."
            return Advice("bc", "Train BC: the pile is the expert's own data again.", reason)
        reason += (
            " NBCU clones all of the pile alike. Sift does the same where its weights are alike, and leaves out what "
            "nearest neighbours have not seen."
        )
        return Advice("sift", "Train sift: most of the pile looks like the expert's own data.", reason)
    if few:
        witnessed = f"{on_expert_states}, with another action on {seen.wrong:.0%} of it: samples that harm"
        if seen.near < NEAR:
            witnessed = (
                f"Only {seen.near:.0%} of the pile lies on expert states: samples that neither help nor harm much"
            )
        reason = (
            f"{witnessed}, by the paper's table. {seen.gain * seen.expert_rows:,.0f} rows look like the expert's, "
            f"which has {seen.expert_rows:,} of its own: hardly anything to gain. Sift leaves the rest out, so it was "
            "about as good as BC on such piles; more demonstrations would help, more of this pile would not."
        )
        return Advice("sift", "Train sift, but expect little: the pile adds hardly any rows like the expert's.", reason)
    if seen.contradicted:
        reason = (
            f"{on_expert_states}, with another action on {seen.wrong:.0%} of it, and still on {seen.kept_wrong:.0%} of "
            "the rows that weigh as much as the expert's: the harmful samples of the paper's table would stay in. Try "
            "another scorer; until then, BC is safe."
        )
        return Advice(None, "Cannot tell: weights and nearest neighbours disagree.", reason)
    reason = (
        f"About {seen.expert_like:.0%} of the pile looks like the expert's: in the paper's table such samples help. "
        f"{on_expert_states}, but with another action on {seen.wrong:.0%} of it: such samples harm, and the weights "
        "tell them apart."
    )
    if seen.near < NEAR:
        reason = (
            f"About {seen.expert_like:.0%} of the pile looks like the expert's by its weights, though few of its "
            "states are close to the expert's: weights keep those, and the rest neither helps nor harms much."
        )
    return Advice("sift", "Train sift: part of the pile is as good as the expert's, part is not.", reason)


def advise_without_actions(seen: Evidence) -> Advice:
    """An expert whose actions nobody knows: only the pile's actions can be cloned, weighted by where they lead."""
    if seen.useless and not seen.same_rows:
        reason = (
            "The discriminator cannot tell held-out expert rows from the rest by their states and where these lead, so "
            "its weights leave nothing out. Try another scorer or more expert rows."
        )
        return Advice(None, "Cannot tell: the discriminator does not see what differs.", reason)
    if seen.like_episodes:
        reason = (
            f"Nobody knows the expert's actions, so only the pile's can be cloned. Most rows of {seen.like_episodes:,} "
            "of its episodes pass through states as the expert does: TAILO weighs a row by what follows it, and needs "
            "neither the expert's actions nor a value function. SMODICE is the other method to try."
        )
        return by_heuristic(
            "tailo", "Try TAILO: the expert's actions are unknown, its kind of episodes is there.", reason
        )
    reason = (
        "Nobody knows the expert's actions, so only the pile's can be cloned. No episode of the pile is mostly like "
        "the expert's: SMODICE learns a value function, which may join parts of episodes. TAILO is the other method to "
        "try, above all where steps are missing."
    )
    return by_heuristic("smodice", "Try SMODICE: the expert's actions are unknown.", reason)


def diagnose(
    sources: tuple[RowSource, RowSource],
    weight: Rows,
    copies: Copies,
    useless: bool,
    seed: int,
    expert_actions: bool = True,
) -> tuple[dict[str, Any], tuple[Sample, Sample]]:
    """The diagnosis of `summary.json`, and the samples of both sets that it compared, for the page's map.

    `weight` has a row for each of the union's, expert first, from models that left the row out. Rewards and origins are
    not read. `expert_actions` False: what the sources give for actions are changes of the state.
    """
    rng = np.random.default_rng([seed, 5])
    expert, supplementary = (
        draw_sample(each, most, rng) for each, most in zip(sources, (MOST_EXPERT, MOST_SUPPLEMENTARY), strict=True)
    )
    num_expert = sources[0].num_rows
    found = find_artefacts(sources, (expert, supplementary), repeated_rows(copies))
    overlap = measure_overlap(expert, supplementary, separating_columns(found, sources[0].obs_dim))
    limit = np.quantile(weight[:num_expert], TYPICAL)
    like = weight[num_expert:] >= limit * (1 - 1e-9)
    evidence = Evidence(
        expert_rows=num_expert,
        supplementary_rows=sources[1].num_rows,
        near=float(overlap.near.mean()),
        wrong=float(overlap.harmful.sum() / max(overlap.near.sum(), 1)),
        expert_like=min(1.0, float(like.mean()) / (1 - TYPICAL)),
        kept_wrong=wrong_among(like[supplementary.row], overlap),
        useless=useless,
        separated_by=next((finding.text for finding in found if finding.separates), ""),
        same_rows=bool(copies.shared[num_expert:].all()),
        covered=float(overlap.covered.mean()),
        expert_actions=expert_actions,
        like_episodes=expert_like_episodes(like, sources[1].episode_starts),
    )
    advice = advise(evidence)
    starts = np.concatenate([sources[0].episode_starts, num_expert + sources[1].episode_starts])
    summary = {
        "advised": advice.method,
        "headline": advice.headline,
        "reason": advice.reason,
        "heuristic": advice.heuristic,
        "compared": "actions" if expert_actions else CHANGES,
        "warnings": [finding._asdict() for finding in found],
        "expert_like": {
            "share": evidence.expert_like,
            "rows": round(evidence.expert_like * evidence.supplementary_rows),
            "episodes": evidence.like_episodes,
            "weight": float(limit),
        },
        "effective_sample_size": {
            "expert": {"rows": num_expert, "episodes": len(sources[0].episode_starts)},
            "union": {
                "rows": effective_sample_size(weight),
                "episodes": effective_sample_size(np.add.reduceat(weight, starts)),
            },
        },
        "states": {"near": evidence.near, "covered": evidence.covered},
        "actions": {"other": evidence.wrong, "other_among_expert_like": evidence.kept_wrong},
        "samples": {
            "helpful": float(overlap.helpful.mean()),
            "harmful": float(overlap.harmful.mean()),
            "elsewhere": float(1 - overlap.near.mean()),
        },
        "held_out": judge(weight, num_expert, rng),
        "compared_rows": {"expert": len(expert.row), "supplementary": len(supplementary.row)},
    }
    return summary, (expert, supplementary)


class TaskPart(NamedTuple):
    """One task's share of a dataset, for `join_diagnoses`."""

    name: str
    diagnosis: Mapping[str, Any]
    expert_rows: int
    supplementary_rows: int
    useless: bool


def join_diagnoses(
    parts: Sequence[TaskPart], weight: Rows, num_expert: int, starts: Int[np.ndarray, "episodes"], seed: int
) -> dict[str, Any]:
    """The diagnosis of several tasks: means over their rows, and the advice that follows from these.

    Rows of one task are never compared with those of another. `weight` and `starts` are those of the whole union.
    """
    own = np.array([part.supplementary_rows for part in parts], np.float64)
    expert = np.array([part.expert_rows for part in parts], np.float64)

    def mean(over: np.ndarray, *path: str) -> float:
        values = [functools.reduce(lambda found, key: found[key], path, part.diagnosis) for part in parts]
        known = [(value, rows) for value, rows in zip(values, over, strict=True) if value is not None]
        return float(sum(value * rows for value, rows in known) / max(sum(rows for _, rows in known), 1e-9))

    near = own * [part.diagnosis["states"]["near"] for part in parts]
    like = own * [part.diagnosis["expert_like"]["share"] for part in parts]
    kept = [part.diagnosis["actions"]["other_among_expert_like"] for part in parts]
    warnings = [
        {**warning, "text": f"{part.name}: {warning['text']}"}
        for part in parts
        for warning in part.diagnosis["warnings"]
    ]
    apart = [any(warning["separates"] for warning in part.diagnosis["warnings"]) for part in parts]
    most = own[apart].sum() > own.sum() / 2  # what separates the files in a few tasks alone is a warning
    evidence = Evidence(
        expert_rows=int(expert.sum()),
        supplementary_rows=int(own.sum()),
        near=float(near.sum() / own.sum()),
        wrong=mean(near, "actions", "other"),
        expert_like=float(like.sum() / own.sum()),
        kept_wrong=None if all(one is None for one in kept) else mean(like, "actions", "other_among_expert_like"),
        useless=all(part.useless for part in parts),
        separated_by=next((one["text"] for one in warnings if one["separates"]), "") if most else "",
        covered=mean(expert, "states", "covered"),
        expert_actions=parts[0].diagnosis["compared"] != CHANGES,
        like_episodes=sum(part.diagnosis["expert_like"]["episodes"] for part in parts),
    )
    advice, base = advise(evidence), parts[0].diagnosis
    counts = {key: sum(part.diagnosis["expert_like"][key] for part in parts) for key in ("rows", "episodes")}
    effective = {
        "rows": effective_sample_size(weight),
        "episodes": effective_sample_size(np.add.reduceat(weight, starts)),
    }
    episodes = sum(part.diagnosis["effective_sample_size"]["expert"]["episodes"] for part in parts)
    return {
        "advised": advice.method,
        "headline": advice.headline,
        "reason": advice.reason,
        "heuristic": advice.heuristic,
        "compared": base["compared"],
        "warnings": warnings,
        "expert_like": {"share": evidence.expert_like, **counts, "weight": mean(expert, "expert_like", "weight")},
        "effective_sample_size": {"expert": {"rows": evidence.expert_rows, "episodes": episodes}, "union": effective},
        "states": {"near": evidence.near, "covered": mean(expert, "states", "covered")},
        "actions": {"other": evidence.wrong, "other_among_expert_like": evidence.kept_wrong},
        "samples": {key: mean(own, "samples", key) for key in ("helpful", "harmful", "elsewhere")},
        "held_out": judge(weight, num_expert, np.random.default_rng([seed, 5])),
        "compared_rows": {
            key: sum(part.diagnosis["compared_rows"][key] for part in parts) for key in ("expert", "supplementary")
        },
    }


def in_words(summary: dict[str, Any]) -> list[str]:
    """A few lines for a terminal."""
    like, effective, states = (summary[key] for key in ("expert_like", "effective_sample_size", "states"))
    samples, held_out, bad = summary["samples"], summary["held_out"], summary.get("bad")
    what = "the expert's action" if summary["compared"] == "actions" else "the expert's change of state"
    return [
        f"advice: {summary['headline']}",
        f"  {summary['reason']}",
        f"expert-like: {like['share']:.1%} of the pile, {like['rows']:,} rows, mostly so in {like['episodes']:,} "
        f"episodes; weighted, the union is worth {effective['union']['rows']:,.0f} rows",
        f"samples: {samples['helpful']:.0%} on expert states with {what} (help), {samples['harmful']:.0%} "
        f"with another (harm), {samples['elsewhere']:.0%} on other states; {states['covered']:.0%} of expert states "
        "have a neighbour in the pile",
        f"discriminator: held-out AUC against the pile {held_out['auc']:.3f} (about {1 - like['share'] / 2:.2f} is the "
        f"most with that many expert-like rows), calibration error {held_out['calibration_error']:.3f}",
        *([] if bad is None else [f"bad: {bad['text']}"]),
        *(f"warning: {warning['text']}" for warning in summary["warnings"]),
    ]


def judge_bad(bad: Mapping[str, Any]) -> dict[str, Any]:
    """What data that are known to be bad have told, in numbers and in words."""
    told = {name: bad[name] for name in ("episodes", "rows", "auc", "like_bad")}
    text = (
        f"{bad['rows']:,} rows of {count_of(bad['episodes'], 'episode')} are known to be bad; held out, they are told "
        f"from the pile's with an AUC of {bad['auc']:.2f}. {bad['like_bad']:.0%} of the pile's rows look like them and "
        "lose weight."
    )
    return {**told, "text": text}


def without_expert(diagnosis: Mapping[str, Any]) -> dict[str, Any]:
    """The diagnosis where episodes that agree stand in for an expert: it holds if these are good, and nobody knows."""
    reason = (
        "The episodes that agree most with the others stand in for an expert. Look at them, and at the worst, before "
        f"you believe it. If they are good, the advice is: {diagnosis['headline']} {diagnosis['reason']}"
    )
    return {**diagnosis, "headline": "Nobody named an expert: this is agreement, not quality.", "reason": reason}


def repeated_rows(copies: Copies) -> list[float]:
    """Each set's share of rows that equal an earlier one; the pile's copies of expert rows do not count."""
    earlier = copies.first != np.arange(len(copies.first))
    expert, supplementary = earlier[: copies.num_expert], (earlier & ~copies.shared)[copies.num_expert :]
    return [float(expert.mean()), float(supplementary.mean())]


def wrong_among(like: Bool[np.ndarray, "supplementary"], overlap: Overlap) -> float | None:
    """The share of other actions among expert-like rows on expert states; None where these are too few."""
    near = like & overlap.near
    return float((like & overlap.harmful).sum() / near.sum()) if near.sum() >= FEW_OF_A_KIND else None


def expert_like_episodes(like: Bool[np.ndarray, "rows"], starts: Int[np.ndarray, "episodes"]) -> int:
    """How many episodes have a majority of rows that weigh as much as the expert's."""
    share = np.add.reduceat(like.astype(np.float64), starts) / np.diff(starts, append=len(like))
    return int((share > 0.5).sum())


def judge(weight: Rows, num_expert: int, rng: np.random.Generator) -> dict[str, Any]:
    """The ROC curve of held-out expert rows against the pile's, and the calibration of c = w/(1+w).

    If rows were drawn from the expert set and the union equally often, c is the probability that a row came from the
    expert set.
    """
    sets = weight[:num_expert], weight[num_expert:]
    parts = [part[draw_rows(len(part), MOST_JUDGED, rng)] for part in sets]
    value, expert = np.concatenate(parts), np.arange(len(parts[0]) + len(parts[1])) < len(parts[0])
    shares = num_expert / len(weight), 1 - num_expert / len(weight)  # of the union, which holds the expert's rows too
    union = np.concatenate([np.full(len(part), share / len(part)) for part, share in zip(parts, shares, strict=True)])
    probability = value / (1 + value)
    share = np.where(expert, 1 / expert.sum(), 0.0)
    total = share + union
    bins = calibration_bins(probability, share, total)
    error = sum(one["mass"] * abs(one["predicted"] - one["found"]) for one in bins)
    return {
        "auc": probability_greater(value[expert], value[~expert]),
        "calibration_error": float(error),
        "calibration": bins,
        "roc": roc_curve(value[expert], value[~expert]),
    }


def calibration_bins(predicted: Rows, positive: Rows, total: Rows) -> list[dict[str, float]]:
    """Bins with about equally many rows; equal predictions stay together."""
    edges = np.unique(np.quantile(predicted, np.linspace(0, 1, BINS + 1)))
    place = np.clip(np.searchsorted(edges, predicted, side="right") - 1, 0, max(len(edges) - 2, 0))
    bins = []
    for index in np.unique(place):
        own = place == index
        mass = total[own].sum()
        bins.append(
            {
                "predicted": float((predicted[own] * total[own]).sum() / mass),
                "found": float(positive[own].sum() / mass),
                "mass": float(mass / total.sum()),
                "rows": int(own.sum()),
            }
        )
    return bins


def roc_curve(better: Rows, worse: Rows, points: int = 90) -> list[list[float]]:
    """False and true positive rates, thinned to what a chart shows."""
    limits = np.unique(np.quantile(np.concatenate([better, worse]), np.linspace(0, 1, 4 * points)))[::-1]
    better, worse = np.sort(better), np.sort(worse)
    true, false = (1 - np.searchsorted(part, limits, side="left") / len(part) for part in (better, worse))
    curve = np.concatenate([[[0.0, 0.0]], np.stack([false, true], axis=1), [[1.0, 1.0]]])
    length = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(curve, axis=0)).sum(axis=1))])
    keep = np.unique(np.searchsorted(length, np.linspace(0, length[-1], points)).clip(0, len(curve) - 1))
    return np.round(curve[keep], 5).tolist()
