"""Held-out rows: how they are chosen, that training never sees them, and the loss by which policies are judged."""

import dataclasses
import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CHUNK, KINDS, SEED, STEPS, Killed, folder_bytes, kill_at, random_dataset, tiny

from demosift.cli.main import main
from demosift.data import write_dataset
from demosift.learning import fit as train
from demosift.learning import held_out
from demosift.learning.cloning import Cloner
from demosift.learning.held_out import LAST_CHECKS, action_loss, choose, choose_held_out, replace_members, without
from demosift.learning.networks import Categorical, Layer, TanhGaussian
from demosift.learning.program import Program
from demosift.policy import Layer as PolicyLayer
from demosift.policy import Policy
from demosift.results.run import Run, load_run
from demosift.types import Dataset, Demonstrations, InputError, Transitions


def joined(*parts: Dataset) -> Dataset:
    transitions = Transitions(*map(np.concatenate, zip(*(part.transitions for part in parts), strict=True)))
    return Dataset(transitions, np.concatenate([part.timeout for part in parts]))


def demonstrations(kind: str = "continuous", num_rows: int = 120, episode: int = 6) -> Demonstrations:
    """The supplementary set holds the expert's own rows as well."""
    expert = random_dataset(0, num_rows, kind == "discrete", episode)
    return Demonstrations(expert, joined(random_dataset(1, 60, kind == "discrete"), expert))


def fit_held_out(data: Demonstrations | list[Demonstrations], name: str = "bc", **changes: Any) -> Run:
    options = {"seeds": [SEED], "iterations": STEPS, "log_every": CHUNK, "progress": False, "held_out": 0.2, **changes}
    return train.fit(tiny(name), data, **options)


def rows_of(dataset: Dataset) -> set[bytes]:
    pairs = zip(dataset.transitions.obs, dataset.transitions.action, strict=True)
    return {obs.tobytes() + action.tobytes() for obs, action in pairs}


# Which rows


@pytest.mark.parametrize(("share", "expected"), [(0.2, 24), (0.25, 30), (0.3, 36), (0.4, 48), (0.5, 60)])
def test_a_share_of_the_episodes_is_held_out_whole(share: float, expected: int):
    data = demonstrations()
    held = choose_held_out(data, share)[: len(data.expert)]
    assert held.sum() == expected
    of_episode = held.reshape(-1, 6).mean(axis=1)
    assert set(of_episode) == {0.0, 1.0}


@pytest.mark.parametrize("episode", [10, 20_000])
@pytest.mark.parametrize(
    ("share", "folds"), [(0.005, 200), (0.01, 100), (0.05, 20), (0.06, 17), (0.07, 14), (0.1, 10), (0.125, 8)]
)
def test_a_small_share_is_what_was_asked_for(share: float, folds: int, episode: int):
    held = choose_held_out(demonstrations(num_rows=20_000, episode=episode), share)[:20_000]
    assert held.sum() == pytest.approx(20_000 / folds, rel=0.05)
    assert held.mean() == pytest.approx(share, rel=0.1)


def test_stretches_of_a_lone_trajectory_are_held_out_and_its_start_is_kept():
    held = choose_held_out(demonstrations(num_rows=1000, episode=2000), 0.2)[:1000]
    assert held.sum() == 200
    assert np.flatnonzero(np.diff(held.astype(int), prepend=0) > 0).tolist() == [200, 450, 700, 950]


@pytest.mark.parametrize("episode", [6, 1000])
def test_copies_are_left_out_too_and_nothing_else(episode: int):
    data = demonstrations(episode=episode)
    assert data.supplementary is not None
    held = choose_held_out(data, 0.2)
    np.testing.assert_array_equal(held[120:], np.concatenate([np.zeros(60, bool), held[:120]]))
    left = without(data, held)
    assert left.supplementary is not None
    hidden = rows_of(data.expert.take(held[:120]))
    assert not hidden & (rows_of(left.expert) | rows_of(left.supplementary))
    assert hidden | rows_of(left.expert) == rows_of(data.expert)


def test_an_episode_that_lost_its_end_still_ends():
    data = demonstrations(num_rows=100, episode=25)
    left_out = np.zeros(260, bool)
    left_out[[24, 30, 99]] = True  # an end, a row in the middle, the last row
    expert = without(data, left_out).expert
    assert expert.episode_ends.tolist() == [24, 48, 73, 97]


def test_repeated_episodes_are_split_by_their_rows():
    once = random_dataset(0, 60, episode=100)
    held = choose_held_out(Demonstrations(joined(*[once] * 12)), 0.2)
    np.testing.assert_array_equal(held, np.tile(held[:60], 12))
    assert held[:60].sum() == 12


@pytest.mark.parametrize("weighted", [False, True])
def test_training_never_sees_them(weighted: bool, monkeypatch: pytest.MonkeyPatch):
    """What the program is given: rows, weights, and the scale of states, which is that of all rows."""
    given: list[Program] = []

    class Spy(Program):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            given.append(self)

    monkeypatch.setattr(train, "Program", Spy)
    plain = demonstrations()
    assert plain.supplementary is not None
    weight = np.arange(1.0, 301.0)
    data = Demonstrations(plain.expert, plain.supplementary, weight if weighted else None)
    fit_held_out(data, "wbcu-two-stage" if weighted else "nbcu")
    held = choose_held_out(data, 0.2)
    (program,) = given
    normaliser = program.each[0].normaliser
    obs = np.asarray(program.cohort.parts[0].shared.union.obs)
    assert len(obs) == 300 - 48
    np.testing.assert_allclose(obs, normaliser.apply(data.union.obs[~held]), rtol=1e-6)
    np.testing.assert_allclose(normaliser.shift, -plain.supplementary.transitions.obs.mean(axis=0), rtol=1e-4)
    trained_on = program.each[0].data.weight
    np.testing.assert_array_equal([] if trained_on is None else trained_on, weight[~held] if weighted else [])


# The loss


def test_the_squared_error_by_hand():
    """One observation, one action; two networks whose actions are averaged. The last row is padding."""
    kernel = np.array([[[0.3, 0.0]], [[0.7, 0.0]]], np.float32)
    bias = np.array([[-0.1, 5.0], [0.2, -5.0]], np.float32)
    networks = TanhGaussian((Layer(kernel, bias),))  # type: ignore[arg-type]
    obs, action = np.array([1.0, -2.0, 9.0]), np.array([0.5, 0.25, 0.0])
    share = np.array([[0.5, 0.5, 0.0]], np.float32)
    loss = action_loss(networks, obs[None, :, None].astype("f"), action[None, :, None].astype("f"), share, 2)
    taken = (np.tanh(0.3 * obs - 0.1) + np.tanh(0.7 * obs + 0.2)) / 2
    np.testing.assert_allclose(loss, [np.mean((taken - action)[:2] ** 2)], rtol=1e-5)
    broken = TanhGaussian((Layer(kernel, np.array([[-0.1, 5.0], [np.nan, 0.0]], np.float32)),))  # type: ignore[arg-type]
    alone = action_loss(broken, obs[None, :, None].astype("f"), action[None, :, None].astype("f"), share, 2)
    np.testing.assert_allclose(alone, [np.mean((np.tanh(0.3 * obs - 0.1) - action)[:2] ** 2)], rtol=1e-5)


def test_the_cross_entropy_by_hand():
    """Two networks with constant logits: probabilities are averaged, not logits."""
    bias = np.log(np.array([[0.5, 0.5], [0.9, 0.1]], np.float32))
    networks = Categorical((Layer(np.zeros((2, 1, 2), np.float32), bias),))  # type: ignore[arg-type]
    action = np.array([[[1, 0], [0, 1]]], np.float32)
    loss = action_loss(networks, np.ones((1, 2, 1), np.float32), action, np.full((1, 2), 0.5, np.float32), 2)
    np.testing.assert_allclose(loss, [-(np.log(0.7) + np.log(0.3)) / 2], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ensemble", [1, 2])
def test_what_is_logged_is_the_loss_of_the_policy_that_acts(kind: str, ensemble: int):
    """Two seeds, with data of different lengths."""
    data = [demonstrations(kind), demonstrations(kind, num_rows=144)]
    run = fit_held_out(data, seeds=[SEED, SEED + 1], ensemble=ensemble)
    logged = [row["held_out_loss"] for row in run.metrics if row["iteration"] == STEPS]
    for member, source in enumerate(data):
        rows = source.expert.take(choose_held_out(source, 0.2)[: len(source.expert)]).transitions
        proposed = run.policy.member(member).proposals(rows.obs[None])[0]
        if kind == "discrete":
            proposed = np.exp(proposed) if ensemble == 1 else proposed
            chosen = (proposed / proposed.sum(axis=-1, keepdims=True)).mean(axis=0)
            expected = -np.log((chosen * rows.action).sum(axis=-1)).mean()
        else:
            expected = np.mean((proposed.mean(axis=0) - rows.action) ** 2)
        np.testing.assert_allclose(logged[member], expected, rtol=1e-5)


def test_many_rows_are_measured_in_part(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(held_out, "MOST_ROWS", 10)
    data = demonstrations()
    run = fit_held_out(data)
    rows = data.expert.take(choose_held_out(data, 0.2)[:120]).transitions
    index = np.linspace(0, 23, 10).round().astype(int)
    taken = run.policy.act_members(rows.obs[None, index])[0]
    np.testing.assert_allclose(run.metrics[-1]["held_out_loss"], np.mean((taken - rows.action[index]) ** 2), rtol=1e-5)


# Early stopping and choosing


def error_of(run: Run, member: int, data: Demonstrations) -> float:
    rows = data.expert.take(choose_held_out(data, 0.2)[: len(data.expert)]).transitions
    return float(np.mean((run.policy.member(member).act_members(rows.obs[None])[0] - rows.action) ** 2))


def losses(run: Run, member: int) -> list[float]:
    return [row["held_out_loss"] for row in run.metrics if row["member"] == member]


RATES = [tiny("bc", learning_rate=rate) for rate in (0.0, 0.03, 0.3)]
STOPPING: dict[str, Any] = {"iterations": 200, "log_every": CHUNK, "checkpoint_every": CHUNK, "progress": False}


def fit_stopping(data: Demonstrations, out: Path | None = None, **changes: Any) -> Run:
    options = {**STOPPING, "patience": 3, **changes}
    return train.fit(RATES, data, seeds=[SEED], held_out=0.2, out=out, **options)


def test_training_stops_and_the_best_policy_of_each_member_is_kept():
    data = demonstrations()
    run = fit_stopping(data)
    assert run.config["iterations"] < 200
    assert run.metrics[-1]["iteration"] == run.config["iterations"]
    curves = np.array([losses(run, member) for member in range(3)])
    last_improved = max(int(np.argmin(curve)) for curve in curves)
    assert curves.shape[1] == last_improved + 1 + 3
    np.testing.assert_allclose([error_of(run, member, data) for member in range(3)], curves.min(axis=1), rtol=1e-5)
    assert run.policy.metadata["iterations"] == str(run.config["iterations"])
    assert run.config["chosen"]["member"] == np.argmin(curves.min(axis=1))


def test_without_patience_the_last_policy_is_kept():
    data = demonstrations()
    run = fit_stopping(data, patience=None, iterations=30)
    assert run.config["iterations"] == 30
    np.testing.assert_allclose(
        [error_of(run, i, data) for i in range(3)], [losses(run, i)[-1] for i in range(3)], rtol=1e-5
    )
    means = [np.mean(losses(run, member)[-5:]) for member in range(3)]
    assert run.config["chosen"] == {"member": np.argmin(means), "held_out_loss": pytest.approx(min(means))}


def test_stopping_survives_a_kill_and_an_ended_run_has_ended(tmp_path: Path):
    data = demonstrations()
    whole = fit_stopping(data, tmp_path / "whole")
    with pytest.raises(Killed):
        fit_stopping(data, tmp_path / "killed", callbacks=kill_at(whole.config["iterations"] - 2 * CHUNK))
    fit_stopping(data, tmp_path / "killed", resume=True)
    assert folder_bytes(tmp_path / "killed") == folder_bytes(tmp_path / "whole")
    again = fit_stopping(data, tmp_path / "whole", resume=True)
    assert again.config["iterations"] == whole.config["iterations"]
    assert folder_bytes(tmp_path / "killed") == folder_bytes(tmp_path / "whole")


class Unmeasured:
    """An evaluator that only remembers what it was given."""

    def __init__(self, every: int) -> None:
        self.every, self.seen = every, []

    def describe(self) -> dict[str, Any]:
        return {"every": self.every}

    def submit(self, policy: Policy, iteration: int, environment: Any = None) -> Any:
        self.seen.append((iteration, policy))
        answer: Future[list[dict[str, Any]]] = Future()
        answer.set_result([{"iteration": iteration, "returns": [0.0]} for _ in range(policy.num_members)])
        return answer


def test_a_run_ends_with_an_evaluation_of_what_it_keeps():
    evaluator = Unmeasured(every=8 * CHUNK)
    run = fit_stopping(demonstrations(), evaluator=evaluator)
    iteration, policy = evaluator.seen[-1]
    assert iteration == run.config["iterations"]
    assert 0 < iteration < 200
    assert iteration % (8 * CHUNK) == 0
    np.testing.assert_array_equal(policy.layers[0].kernel, run.policy.layers[0].kernel)


def test_a_setting_is_chosen_over_its_seeds():
    """The second setting is best over both seeds, though a member of the first has the least loss of all."""
    rows = [
        {"iteration": iteration, "member": member, "held_out_loss": loss + offset}
        for iteration, offset in ((5, 100.0), *((10 + 5 * i, (-1.0) ** i) for i in range(LAST_CHECKS - 1)), (90, 0.0))
        for member, loss in enumerate([1.0, 9.0, 3.0, 2.0, 8.0, 8.0])
    ]
    assert choose(rows[6:], {}, 2, stopping=False) == {"member": 3, "held_out_loss": 2.0}
    assert choose(rows[6:], {0}, 2, stopping=False)["member"] == 2  # as the policy numbers them
    assert choose(rows, {}, 2, stopping=True) == {"member": 3, "held_out_loss": 1.0}
    assert choose([{**row, "held_out_loss": None} for row in rows], {0}, 2, stopping=False)["held_out_loss"] is None


def test_networks_that_left_an_ensemble_stay_away():
    def policy(value: float, ensemble: int) -> Policy:
        networks = value + np.arange(2 * ensemble, dtype=np.float32)
        zeros = np.zeros((2 * ensemble, 1), np.float32)
        kernel = np.stack([networks, networks], axis=1)[:, None]
        return Policy("tanh-gaussian", (PolicyLayer(kernel, kernel[:, 0]),), zeros, zeros, ensemble=ensemble)

    mixed = replace_members(policy(0, 3), policy(10, 2), np.array([False, True]))
    assert mixed.ensemble == 2
    assert mixed.layers[0].kernel[:, 0, 0].tolist() == [0, 1, 12, 13]


# Runs


def test_a_run_that_was_killed_and_resumed_has_the_same_bytes(tmp_path: Path):
    data = demonstrations()
    fit_held_out(data, checkpoint_every=CHUNK, out=tmp_path / "whole")
    with pytest.raises(Killed):
        fit_held_out(data, checkpoint_every=CHUNK, out=tmp_path / "killed", callbacks=kill_at(STEPS))
    fit_held_out(data, checkpoint_every=CHUNK, out=tmp_path / "killed", resume=True)
    assert folder_bytes(tmp_path / "killed") == folder_bytes(tmp_path / "whole")
    with pytest.raises(InputError, match="differs in held out"):
        fit_held_out(data, checkpoint_every=CHUNK, out=tmp_path / "killed", resume=True, held_out=0.3)


def test_nothing_changes_without_it():
    run = fit_held_out(demonstrations(), held_out=None)
    assert "held_out" not in run.config
    assert not any("held_out_loss" in row for row in run.metrics)


@pytest.mark.parametrize(
    ("share", "data", "message"),
    [
        (0.0, demonstrations(), "held_out: 0.0 is not a number above 0, at most 0.5"),
        (0.6, demonstrations(), "held_out: 0.6 is not"),
        (float("nan"), demonstrations(), "held_out: nan is not"),
        (0.1, demonstrations(), "held_out leaves out 12 rows of the expert, and 20 are needed"),
        (0.5, Demonstrations(random_dataset(0, 6), random_dataset(1, 60)), "leaves out 3 rows"),
    ],
)
def test_refusals(share: float, data: Demonstrations, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        fit_held_out(data, held_out=share, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"), [({"held_out": None}, "patience: needs held_out"), ({"patience": 0}, "patience: 0 is not")]
)
def test_patience_needs_something_to_wait_for(changes: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        fit_held_out(demonstrations(), **{"patience": 2, **changes})


def test_members_differ_in_their_decay():
    """One program of three members gives what three programs give; without a decay nothing decays."""
    data = demonstrations()
    options: dict[str, Any] = {"seeds": [SEED], "iterations": STEPS, "log_every": CHUNK, "progress": False}
    settings = [dataclasses.replace(tiny("bc"), cloner=Cloner(decay=decay)) for decay in (0.0, 1.0, 30.0)]  # type: ignore
    together = train.fit(settings, data, **options)
    assert [member.get("decay", 0.0) for member in together.members] == [0.0, 1.0, 30.0]
    for member in (0, 2):
        alone = train.fit(settings[member], data, **options)
        own = together.policy.member(member)
        np.testing.assert_allclose(own.layers[0].kernel, alone.policy.layers[0].kernel, rtol=1e-5, atol=1e-7)
    kernels = together.policy.layers[0].kernel
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-4
    assert train.weigh(together, data).shape == (3, 300)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_dataset(random_dataset(0, 120), tmp_path / "expert.hdf5")
    command = ["train", "bc", "--expert", str(tmp_path / "expert.hdf5"), "--iterations", "10", "--hidden", "8", "8"]
    command += ["--batch-size", "16", "--log-every", "5", "--decay", "0", "0.3"]
    out = ["--out", str(tmp_path / "run")]
    assert main([*command, *out, "--held-out", "0.2"]) == 0
    chosen = load_run(tmp_path / "run").config["chosen"]["member"]
    assert f"least held-out loss: member {chosen} (use it with --member {chosen})" in capsys.readouterr().out
    assert main([*command, "--out", str(tmp_path / "other"), "--held-out", "0.2", "--patience", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["member"] in (0, 1)
    assert main([*command, *out, "--patience", "2"]) == 2
    assert capsys.readouterr().err.startswith("demosift: patience: needs held_out")


def test_a_supplementary_set_of_held_out_rows_alone_is_refused():
    expert = random_dataset(0, 120)
    hidden = expert.take(choose_held_out(Demonstrations(expert), 0.2))
    with pytest.raises(InputError, match="nothing but copies of the rows that are held out"):
        fit_held_out(Demonstrations(expert, hidden), "nbcu")
