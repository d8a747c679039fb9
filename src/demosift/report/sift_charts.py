"""The scores page's charts: how weights fall, and whether the discriminator can tell."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np

from demosift.report import numbers
from demosift.report.chart import Axis, Chart, Line, render
from demosift.report.curves import weight_chart
from demosift.report.groups import printable
from demosift.report.page import shares

UNIT = Axis(0.0, 1.0, [(0.0, "0"), (0.25, "0.25"), (0.5, "0.5"), (0.75, "0.75"), (1.0, "1")])


def weight_section(summary: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    truth = content["truth"]
    chart = render(histogram_chart("Share of the rows of each set", content["histogram"], 0))
    said = (
        f"{float(summary['kept']):.0%} of the pile's rows weigh {float(summary['threshold']):g} or more. A row that "
        "weighs 1 is as common in the expert's data as in the union."
    )
    known = ""
    if truth is not None:
        known = (
            f"<h3>By true origin</h3>{shares(truth['histogram'])}"
            f"{render(histogram_chart('Share of the rows of each origin', truth['histogram'], 1))}"
        )
    return f'<section><h2>Weights</h2><p class="said">{said}</p>{chart}{known}</section>'


def histogram_chart(title: str, histogram: Mapping[str, Any], place: int) -> Chart:
    """Heights are square roots: weights crowd at both ends, and what lies between must be seen too."""
    chart = weight_chart("", histogram, place)
    ticks = [(share**0.5, f"{share}%") for share in (0, 1, 5, 20, 50, 100) if share <= chart.y.high]
    return replace(
        chart,
        title=f"{title} by weight, heights as square roots",
        y=Axis(0.0, chart.y.high**0.5, ticks),
        lines=[replace(line, y=np.sqrt(line.y)) for line in chart.lines],
    )


def quality_section(seen: Mapping[str, Any], truth: Mapping[str, Any] | None) -> str:
    held_out = seen["held_out"]
    auc, error, share = (
        float(held_out["auc"]),
        float(held_out["calibration_error"]),
        float(seen["expert_like"]["share"]),
    )
    rocs = [("expert set against pile, held out", "o-expert", held_out["roc"], auc)]
    reliabilities = [("expert set against union, held out", "o-expert", held_out["calibration"])]
    said = (
        f"A held-out expert row outweighs a row of the pile with probability {auc:.2f}. That is the AUC; as "
        f"{share:.0%} of the pile is expert-like, it cannot be much above {1 - share / 2:.2f}. Stated and found "
        f"chances differ by {error:.3f} on average."
    )
    if truth is not None and truth["auc"] is not None:
        good, other = (" or ".join(printable(str(name)) for name in truth[key]) for key in ("good", "other"))
        right = float(truth["auc"])
        rocs.append((f"truth: {good} against {other}", "o-clean", truth["roc"], right))
        reliabilities.append((f"truth: {good}", "o-clean", truth["calibration"]))
        said += f" By the origins in the file, a {good} row outweighs a {other} one with probability {right:.3f}."
    return (
        f'<section><h2>Can the discriminator tell?</h2><p class="said">{escape(said)}</p>'
        f'<div class="pair">{render(roc_chart(rocs))}{render(calibration_chart(reliabilities))}</div></section>'
    )


def roc_chart(curves: Sequence[tuple[str, str, Sequence[Sequence[float]], float]]) -> Chart:
    lines = []
    for index, (name, style, curve, auc) in enumerate(curves):
        points = np.asarray(curve, np.float64).reshape(-1, 2)
        lines.append(
            Line(
                key=f"roc {index}",
                name=name,
                style=f"{style} d0",
                x=points[:, 0],
                y=points[:, 1],
                title=[f"{x:.0%} of the others" for x in points[:, 0].tolist()],
                value=[f"{y:.0%}" for y in points[:, 1].tolist()],
                note=f"AUC {numbers.number(auc, 3)}",
            )
        )
    return Chart("ROC: share of the better rows above a threshold", "share of the others above it", UNIT, UNIT, lines)


def calibration_chart(curves: Sequence[tuple[str, str, Sequence[Mapping[str, float]]]]) -> Chart:
    lines = []
    for index, (name, style, bins) in enumerate(curves):
        values = np.array([[float(one[key]) for key in ("predicted", "found", "rows")] for one in bins]).reshape(-1, 3)
        lines.append(
            Line(
                key=f"calibration {index}",
                name=name,
                style=f"{style} d0",
                x=values[:, 0],
                y=values[:, 1],
                title=[f"stated {x:.2f}" for x in values[:, 0].tolist()],
                value=[f"found {y:.2f}  ({n:,.0f} rows)" for _, y, n in values.tolist()],
            )
        )
    ideal = Line(
        "ideal", "ideal", "c0 d2", np.array([0.0, 1.0]), np.array([0.0, 1.0]), ["", ""], ["", ""], stops=np.array([])
    )
    return Chart(
        "Calibration: found share, by stated chance", "stated chance to be the expert's", UNIT, UNIT, [*lines, ideal]
    )
