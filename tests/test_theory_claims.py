"""The claims hold; each check can fail, and does when its learner, bound or instance is broken; and what is written."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import tree

from demosift.cli.main import main
from demosift.theory import lab, learners
from demosift.theory.claim import Claim, Finding, generator
from demosift.theory.claims import BY_NAME, CLAIMS, cloning, coverage, nbcu, policy_class, weights
from demosift.theory.discounted import demodice
from demosift.theory.drawing import inline, to_files
from demosift.theory.mdp import conditional
from demosift.theory.page import render_page
from demosift.theory.sampling import Data

SMALL = 0.05
OF_DATA = [claim.name for module in (cloning, nbcu, coverage, weights, policy_class) for claim in module.CLAIMS]


def uniform(data: Data) -> np.ndarray:
    """A learner that has learned nothing."""
    return conditional(np.zeros(data.expert.shape))


def contrary(data: Data) -> np.ndarray:
    """A learner that avoids what it was shown."""
    return conditional((learners.bc(data) == 0.0).astype(float))


def coin_in_every_state(first: np.ndarray, second: np.ndarray, eta: float) -> np.ndarray:
    """The mixture as it is often misread: a choice between two policies at every step, not once per trajectory."""
    return eta * conditional(first) + (1.0 - eta) * conditional(second)


def forgetful(data: Data) -> np.ndarray:
    """NBCU, but on states the expert never showed it repeats the first action."""
    learned = learners.nbcu(data)
    learned[~data.expert.any(-1)] = np.eye(data.expert.shape[-1])[0]
    return learned


def off_by_a_trifle(data: Data) -> np.ndarray:
    """BC, wrong by 1e-9 in one number: with a deterministic expert even that is seen."""
    learned = learners.bc(data)
    learned[0, 0, 0, 0] += 1e-9
    return learned


BROKEN: dict[str, dict[str, dict[str, Any]]] = {
    "binomial-lemma": {"bound": {"bound": lambda n, p: 1.0 / ((n + 2) * p)}},
    "bc-bound": {
        "constant": {"constant": 0.02},
        "learner": {"learner": contrary},
        "uniform learner": {"learner": uniform},
    },
    "bc-rates": {
        "rate in N": {"exact": lambda n, h, s: cloning.hard_gap(n, h, s) * n**0.2},
        "rate in H": {"exact": lambda n, h, s: cloning.hard_gap(n, h, s) / h},
        "rate in S": {"exact": lambda n, h, s: cloning.hard_gap(n, h, s) * s**0.5},
        "learner": {"learner": uniform},
    },
    "mixture-occupancy": {"mixture": {"mixture": coin_in_every_state}},
    "nbcu-bound": {"constant": {"constant": 1e-3}, "learner": {"learner": uniform}},
    "nbcu-plateau": {
        "learner": {"learner": learners.bc},
        "level": {"level": lambda instance, eta: 0.9 * nbcu.plateau(instance, eta)},
    },
    "nbcu-lower-bound": {
        "learner": {"learner": learners.bc},
        "closed form": {"exact": lambda s, a, h, eta, n: h * (1.0 - eta)},
        "bound": {"bound": lambda h, eta: 1.6 * nbcu.half_plateau(h, eta)},
    },
    "nbcu-expert-behaviour": {"learner": {"learner": learners.bc}, "constant": {"constant": 0.02}},
    "nbcu-no-overlap": {
        "common start": {"make": coverage.common_start},
        "learner": {"learner": forgetful},
        "constant": {"constant": 1e-3},
    },
    "sample-kinds": {
        "learner that ignores them": {"learner": learners.bc},
        "too few of them": {"samples": 0},
    },
    "wbcu-unbiased": {
        "no weight": {"weight": lambda expert, union: np.ones_like(union)},
        "c for c/(1-c)": {"weight": lambda expert, union: expert / (expert + union)},
    },
    "demodice-bias": {
        "no regularisation": {"solve": lambda world, expert, union, alpha: demodice(world, expert, union, 0.0)},
        "no flow constraint": {"solve": lambda world, expert, union, alpha: _pooled(expert, union, alpha)},
        "the union": {"solve": lambda world, expert, union, alpha: union},
    },
    "dwbc-bias": {
        "unbiased": {"mass": lambda expert, *_: expert},
        "released code": {"mass": weights.released_dwbc_mass},
    },
    "tabular-wbcu": {
        "nbcu": {"learner": learners.nbcu},
        "a threshold": {"learner": lambda data: learners.wbcu(data, delta=2.0)},
        "a trifle": {"learner": off_by_a_trifle},
    },
    "policy-class": {
        "the least likely": {"choose": lambda counts, policies: np.zeros(len(counts), np.int64)},
        "bound": {"bound": lambda *sizes: 1e-4 * policy_class.class_bound(*sizes)},
    },
}


def _pooled(expert: np.ndarray, union: np.ndarray, alpha: float) -> np.ndarray:
    """The minimiser over all distributions: a geometric mean, which no policy need have."""
    pooled = (expert * union**alpha) ** (1.0 / (1.0 + alpha))
    return pooled / pooled.sum()


def examined(name: str, seed: int, **broken: Any) -> Finding:
    return BY_NAME[name].check(generator(seed, name), SMALL, **broken)


@pytest.mark.parametrize("name", OF_DATA)
def test_the_claim_holds(name: str):
    for seed in (1, 2):
        finding = examined(name, seed)
        assert finding.holds, finding
        assert finding.slack >= 0.0
        assert finding.instances > 0
        assert finding.counterexample is None


@pytest.mark.parametrize(("name", "what"), [(name, what) for name in BROKEN for what in BROKEN[name]])
def test_the_check_notices(name: str, what: str):
    finding = examined(name, 1, **BROKEN[name][what])
    assert not finding.holds
    assert finding.slack < 0.0
    assert finding.counterexample is not None


def test_every_check_is_shown_able_to_fail():
    assert set(BROKEN) == set(OF_DATA)


def test_claims_are_told_apart():
    assert len(BY_NAME) == len(CLAIMS)
    for claim in CLAIMS:
        assert re.fullmatch(r"[a-z0-9-]+", claim.name), "it is a file name and an anchor"
        assert claim.statement.endswith(".")
        assert claim.cites


FEW = ["binomial-lemma", "mixture-occupancy", "dwbc-bias"]


def assert_a_page_of_its_own(folder: Path, num_claims: int) -> None:
    page = (folder / "index.html").read_text()
    assert page.count("<svg") == num_claims
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "pictures on one page must not share identifiers"
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]+"', "", page), "the page needs nothing else"
    assert "<script" not in page


@pytest.mark.long
def test_the_command_writes_the_same_bytes_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """In one process and in two."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, processes in zip(folders, ("1", "2"), strict=True):
        arguments = ["theory", "--out", str(folder), "--scale", "0.02", "--processes", processes, "--claims", *FEW]
        assert main(arguments) == 0
    first, second = map(tree, folders)
    assert sorted(first) == sorted(
        ["index.html", "theory.json", *(f"figures/{name}.{suffix}" for name in FEW for suffix in ("svg", "png"))]
    )
    assert second == first
    assert_a_page_of_its_own(folders[0], len(FEW))
    table = capsys.readouterr().out
    assert all(f"{name}  " in table for name in FEW)
    assert "holds as amended" in table
    assert main(["theory", "--out", str(tmp_path / "seed"), "--scale", "0.02", "--seed", "1", "--claims", FEW[0]]) == 0
    assert tree(tmp_path / "seed")["theory.json"] != first["theory.json"]


@pytest.mark.long
def test_the_command_runs_every_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["theory", "--out", str(tmp_path / "all"), "--scale", "0.01", "--processes", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == json.loads((tmp_path / "all" / "theory.json").read_text())
    assert [claim["name"] for claim in answer["claims"]] == list(BY_NAME)
    assert answer["refuted"] == []
    assert len(list((tmp_path / "all" / "figures").iterdir())) == 2 * len(CLAIMS)
    assert_a_page_of_its_own(tmp_path / "all", len(CLAIMS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--claims", "no-such-claim"], "no claim is named 'no-such-claim'; there are binomial-lemma, "),
        (["--scale", "0"], "scale: '0' is not a number above 0, at most 1,000"),
        (["--scale", "nan"], "scale: 'nan' is not a number"),
        (["--seed", "-1"], "seed: '-1' is not a whole number"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["theory", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["theory", "--out", str(tmp_path), "--claims", FEW[0]]) == 2
    assert "not empty" in capsys.readouterr().err
    assert tree(tmp_path) == {"notes.txt": b"mine"}


@pytest.fixture
def with_claim(monkeypatch: pytest.MonkeyPatch) -> Callable[[Claim], None]:
    """Makes a claim the only one there is."""

    def put(claim: Claim) -> None:
        monkeypatch.setattr(lab, "CLAIMS", (claim,))
        monkeypatch.setattr(lab, "BY_NAME", {claim.name: claim})

    return put


def test_a_refuted_claim_is_shown_with_its_counterexample(
    with_claim: Callable[[Claim], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    claim = BY_NAME["binomial-lemma"]
    with_claim(dataclasses.replace(claim, check=lambda rng, scale: claim.check(rng, scale, lambda n, p: 0.5 / (n * p))))
    assert main(["theory", "--out", str(tmp_path / "out"), "--scale", "0.02"]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"binomial-lemma +[\d,]+ +-0.\d+ +refuted", shown)
    assert 'binomial-lemma is refuted by {"N": ' in shown
    answer = json.loads((tmp_path / "out" / "theory.json").read_text())
    assert answer["refuted"] == ["binomial-lemma"]
    assert answer["claims"][0]["counterexample"]["N"] > 0
    page = (tmp_path / "out" / "index.html").read_text()
    assert "0 of 1 claims hold" in page
    assert "Counterexample" in page


def test_a_check_that_breaks_down_leaves_nothing(with_claim: Callable[[Claim], None], tmp_path: Path):
    def collapse(rng: np.random.Generator, scale: float) -> Finding:
        raise FloatingPointError("no")

    with_claim(dataclasses.replace(BY_NAME["binomial-lemma"], check=collapse))
    with pytest.raises(FloatingPointError):
        lab.write_theory(tmp_path / "out", lab.Lab())
    assert list(tmp_path.iterdir()) == []


def test_strings_are_escaped_and_numbers_are_plain():
    hostile = "<script>alert(1)</script>"
    claim = dataclasses.replace(
        BY_NAME["binomial-lemma"], **dict.fromkeys(("name", "title", "cites", "statement", "amendment"), hostile)
    )
    finding = Finding(
        False, 1, float("nan"), hostile, {hostile: np.float64(1.5), "none": np.inf}, {hostile: np.bool_(True)}
    )
    answer = lab.to_json([(claim, finding)], lab.Lab())
    json.dumps(answer, allow_nan=False)
    assert answer["claims"][0]["slack"] is None
    assert answer["claims"][0]["numbers"] == {hostile: 1.5, "none": None}
    assert "<script" not in render_page(answer, {})


def test_pictures_take_the_pages_colours():
    claim = BY_NAME["binomial-lemma"]
    svg = inline(to_files(claim, examined(claim.name, 0).numbers)["svg"].decode(), claim.name)
    assert svg.startswith("<svg")
    assert "currentColor" in svg
    for absent in ("<metadata>", "#1c1e21", "#ffffff"):
        assert absent not in svg
