"""`fit` and its folder: killed at any moment it ends with the same bytes, and bad requests are refused before work."""

import functools
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import (
    CHUNK,
    SEED,
    Killed,
    fit_tiny,
    folder_bytes,
    kill_at,
    random_dataset,
    random_demonstrations,
    tiny,
    tree,
)

from demosift.algorithms import facts
from demosift.learning import fit as train
from demosift.learning import members as programs
from demosift.learning.runner import Callback
from demosift.learning.trackers import Tracker
from demosift.policy import Policy
from demosift.report.table import result_table
from demosift.results.run import Row, Run, RunFolder, load_run, read_run
from demosift.types import Bounds, Demonstrations, EnvironmentSpec, InputError

ITERATIONS = 12 * CHUNK


def fingerprint(policy: Policy) -> list[int]:
    """A number per member that any change of its parameters changes."""
    members = [policy.member(index) for index in range(policy.num_members)]
    layers = [b"".join(array.tobytes() for layer in member.layers for array in layer) for member in members]
    return [int.from_bytes(hashlib.sha256(content).digest()[:4]) for content in layers]


class FakeEvaluator:
    """Its returns depend on the policy and the iteration alone, like a true one's, and come `seconds` later."""

    def __init__(self, every: int, seconds: float = 0.0):
        self.every, self.seconds = every, seconds
        self.submitted: list[int] = []
        self.threads = ThreadPoolExecutor(1)

    def describe(self) -> Row:
        return {"environment": "fake", "every": self.every}

    def submit(self, policy: Policy, iteration: int, environment: EnvironmentSpec | None = None) -> Future[list[Row]]:
        before = fingerprint(policy)
        self.submitted.append(iteration)

        def result() -> list[Row]:
            time.sleep(self.seconds)
            assert fingerprint(policy) == before, "training went on in the policy's memory"
            return [{"iteration": iteration, "member": m, "returns": [r, iteration]} for m, r in enumerate(before)]

        return self.threads.submit(result)


def fit(out: Path | None = None, *, every: int = 3 * CHUNK, seconds: float = 0.0, **changes: Any) -> Run:
    """A run whose checkpoints and evaluations fall on different iterations."""
    options = {"seeds": [SEED], "iterations": ITERATIONS, "checkpoint_every": 2 * CHUNK, **changes}
    return fit_tiny("wbcu", out=out, evaluator=FakeEvaluator(every, seconds), **options)


def reached(folder: Path) -> int:
    """The iteration of the newest checkpoint."""
    found = RunFolder(folder).checkpoints.read()
    return 0 if found is None else found.position


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unbroken run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    fit(folder)
    return folder


class TestKilled:
    def test_at_every_touch_of_the_disk(self, tmp_path: Path):
        """Stopped before each flush in turn, which is between any two writes, then resumed."""
        short: dict[str, Any] = {"iterations": 6 * CHUNK}
        fit(tmp_path / "whole", **short)
        fsync, ends = os.fsync, []
        for kill in range(10_000):
            calls = 0

            def stop(handle: int, kill: int = kill) -> None:
                nonlocal calls
                calls += 1
                if calls > kill:
                    raise Killed
                fsync(handle)

            folder = tmp_path / str(kill)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "fsync", stop)
                try:
                    fit(folder, **short)
                except Killed:
                    ends.append(reached(folder))
                else:
                    break
            fit(folder, resume=True, **short)
            assert folder_bytes(folder) == folder_bytes(tmp_path / "whole"), f"killed at flush {kill}"
        assert set(ends) == {0, 2 * CHUNK, 4 * CHUNK, 6 * CHUNK}

    @pytest.mark.long
    def test_with_signal_nine(self, tmp_path: Path):
        """A separate process, killed some time after each new checkpoint until it gets through."""
        fit(tmp_path / "whole", **LONG)
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_train; test_train.child()"
        cut, moment, at = RunFolder(tmp_path / "cut"), random.Random(0), []
        for _ in range(3):
            process = subprocess.Popen([sys.executable, "-c", code, str(cut.path)], stderr=subprocess.PIPE)
            newest = cut.checkpoints.states()[-1:]
            while process.poll() is None and cut.checkpoints.states()[-1:] == newest:
                time.sleep(0.005)
            time.sleep(moment.uniform(0.0, 0.1))
            process.send_signal(signal.SIGKILL)
            _, errors = process.communicate()
            assert process.returncode == -signal.SIGKILL, errors.decode()
            at.append(reached(cut.path))
        assert 0 < at[0] < at[1] < at[2] < LONG["iterations"]
        fit(cut.path, resume=True, **LONG)
        assert folder_bytes(cut.path) == folder_bytes(tmp_path / "whole")

    def test_in_the_middle_of_a_line(self, whole: Path, tmp_path: Path):
        with pytest.raises(Killed):
            fit(tmp_path / "cut", callbacks=kill_at(9 * CHUNK))
        with (tmp_path / "cut/metrics.jsonl").open("a") as file:
            file.write('{"iteration": 50, "mem')
        fit(tmp_path / "cut", resume=True)
        assert folder_bytes(tmp_path / "cut") == folder_bytes(whole)

    @pytest.mark.parametrize("damaged", [1, 2])
    @pytest.mark.parametrize("how", ["bit flip", "cut short"])
    def test_with_a_damaged_checkpoint(self, whole: Path, tmp_path: Path, trained: list[int], damaged: int, how: str):
        """The one before it is used, or the beginning; the result is the same."""
        folder = RunFolder(tmp_path / "cut")
        with pytest.raises(Killed):
            fit(folder.path, callbacks=kill_at(9 * CHUNK))
        newest_first = folder.checkpoints.states()[::-1]
        assert [int(path.stem) for path in newest_first] == [8 * CHUNK, 6 * CHUNK]
        for path in newest_first[:damaged]:
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content if how == "bit flip" else content[:-1])
        trained.clear()
        fit(folder.path, resume=True)
        assert trained[0] == (6 * CHUNK if damaged == 1 else 0)
        assert folder_bytes(folder.path) == folder_bytes(whole)

    @pytest.mark.parametrize("how", ["missing", "repeated", "reordered", "changed", "foreign"])
    def test_with_damaged_metrics(self, whole: Path, tmp_path: Path, how: str):
        """They are written anew, from what the checkpoint holds."""
        with pytest.raises(Killed):
            fit(tmp_path / "cut", callbacks=kill_at(9 * CHUNK))
        path = tmp_path / "cut/metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        damaged = {
            "repeated": [*lines[:4], *lines],
            "reordered": lines[::-1],
            "changed": [lines[0].replace("0.", "1.", 1), *lines[1:]],
            "foreign": ["[" * 5000, *lines],
        }
        path.unlink()
        if how in damaged:
            path.write_text("".join(damaged[how]))
        fit(tmp_path / "cut", resume=True)
        assert folder_bytes(tmp_path / "cut") == folder_bytes(whole)

    def test_a_wrong_checkpoint_would_show(self, whole: Path, tmp_path: Path):
        """The comparison of bytes can fail: one parameter off by one bit, in a checkpoint that is whole."""
        folder = RunFolder(tmp_path / "cut")
        with pytest.raises(Killed):
            fit(folder.path, callbacks=kill_at(9 * CHUNK))
        iteration, arrays, _ = folder.checkpoints.read() or (0, {}, {})
        kernel = arrays[".policy.params.layers[0].kernel"]
        kernel.view(np.int32)[0, 0, 0] ^= 1
        folder.checkpoints.write(iteration, arrays)
        fit(folder.path, resume=True)
        assert folder_bytes(folder.path) != folder_bytes(whole)

    def test_a_checkpoint_under_the_name_of_another_iteration_is_passed_over(
        self, whole: Path, tmp_path: Path, trained: list[int]
    ):
        folder = RunFolder(tmp_path / "cut")
        with pytest.raises(Killed):
            fit(folder.path, callbacks=kill_at(9 * CHUNK))
        newest = folder.checkpoints.states()[-1]
        newest.rename(newest.with_name(f"{11 * CHUNK:010d}.safetensors"))
        trained.clear()
        fit(folder.path, resume=True)
        assert trained[0] == 6 * CHUNK
        assert folder_bytes(folder.path) == folder_bytes(whole)


LONG: dict[str, Any] = {"iterations": 80 * CHUNK, "every": 4 * CHUNK}


def child() -> None:
    """What the killed process runs: slow evaluations, so that it can be caught at work."""
    fit(Path(sys.argv[1]), resume=True, seconds=0.05, **LONG)


class TestEvaluation:
    def test_rows_come_once_and_in_order(self, whole: Path):
        rows = RunFolder(whole).read_metrics()
        logged = [row["iteration"] for row in rows if "returns" not in row]
        evaluated = [row["iteration"] for row in rows if "returns" in row]
        assert logged == list(range(CHUNK, ITERATIONS + 1, CHUNK))
        assert evaluated == list(range(3 * CHUNK, ITERATIONS + 1, 3 * CHUNK))
        # A result is waited for while the next chunk trains, and stands before that chunk's own row.
        order = [row["iteration"] for row in rows]
        assert order == sorted(order)

    def test_the_end_is_evaluated_too(self):
        run = fit(every=5 * CHUNK)
        assert [row["iteration"] for row in run.evaluations] == [5 * CHUNK, 10 * CHUNK, 12 * CHUNK]

    def test_the_end_is_evaluated_after_a_resume(self, tmp_path: Path):
        fit(tmp_path / "run", every=5 * CHUNK)
        before = folder_bytes(tmp_path / "run")
        fit(tmp_path / "run", every=5 * CHUNK, resume=True)
        assert folder_bytes(tmp_path / "run") == before

    def test_trackers_see_every_row(self):
        seen = []

        class Listener(Tracker):
            def log(self, rows: list[Row]) -> None:
                seen.extend(rows)

        assert seen == fit(callbacks=[Listener()]).metrics[: len(seen)]
        assert len(seen) == 12 + 4


class TestLonger:
    def test_a_longer_run_continues_a_shorter_one(self, whole: Path, tmp_path: Path, trained: list[int]):
        """Even where the shorter one ended with an evaluation that the longer one does not have."""
        fit(tmp_path / "run", iterations=4 * CHUNK)
        trained.clear()
        fit(tmp_path / "run", resume=True)
        assert trained[0] == 4 * CHUNK
        assert folder_bytes(tmp_path / "run") == folder_bytes(whole)

    def test_a_saved_run_can_be_continued(self, whole: Path, tmp_path: Path):
        fit(iterations=4 * CHUNK).save(tmp_path / "run")
        fit(tmp_path / "run", resume=True)
        assert folder_bytes(tmp_path / "run") == folder_bytes(whole)

    def test_a_finished_run_stays_as_it_is(self, whole: Path, tmp_path: Path, trained: list[int]):
        shutil.copytree(whole, tmp_path / "run")
        run = fit(tmp_path / "run", resume=True)
        assert not trained
        assert folder_bytes(tmp_path / "run") == folder_bytes(whole)
        assert len(run.metrics) == 12 + 4

    def test_a_shorter_run_is_refused(self, whole: Path, tmp_path: Path):
        shutil.copytree(whole, tmp_path / "run")
        with pytest.raises(InputError, match="60"):
            fit(tmp_path / "run", iterations=4 * CHUNK, resume=True)
        assert tree(tmp_path / "run") == tree(whole)


def with_bounds(data: Demonstrations, *limits: float) -> Demonstrations:
    """The same rows, but the -1 and +1 of the expert's and of the supplementary set's actions stand for these."""
    size = data.expert.action_dim
    expert, supplementary = (
        replace(part, stated_bounds=Bounds((-limit,) * size, (limit,) * size))
        for part, limit in zip((data.expert, data.supplementary), limits, strict=True)
        if part is not None
    )
    return Demonstrations(expert, supplementary)


class TestRefusals:
    CONTINUOUS, DISCRETE = random_demonstrations(), random_demonstrations("discrete")
    TO_TWO, TO_FIVE = with_bounds(CONTINUOUS, 2, 2), with_bounds(CONTINUOUS, 5, 5)

    @pytest.mark.parametrize(
        ("message", "change"),
        [
            ("needs at least one algorithm", {"algorithm": []}),
            ("needs at least one algorithm, one dataset", {"data": []}),
            ("one dataset and one seed", {"seeds": []}),
            ("seeds: 0 is not a whole number from 1 to 1,000", {"seeds": 0}),
            ("iterations: 0 is not a whole number from 1", {"iterations": 0}),
            ("log_every: 0 is not a whole number from 1", {"log_every": 0}),
            ("2 datasets for 3 seeds; give one for all", {"data": [CONTINUOUS, CONTINUOUS], "seeds": 3}),
            (r"the seeds repeat \(\[4, 4\]\)", {"seeds": [4, 4]}),
            ("must be of one class and share sizes", {"algorithm": [tiny("bc"), tiny("nbcu")]}),
            ("must be of one class and share sizes", {"algorithm": [tiny("bc"), tiny("bc", hidden=(4,))]}),
            (r"checkpoint_every \(7\) must be a positive multiple of log_every \(5\)", {"checkpoint_every": 7}),
            (r"evaluate_every \(8\) must be a positive multiple of log_every", {"evaluator": FakeEvaluator(8)}),
            ("differ in observation or action size", {"data": [CONTINUOUS, DISCRETE], "seeds": 2}),
            (
                "wbcu: needs a supplementary dataset beside memory; bc does not",
                {"data": Demonstrations(CONTINUOUS.expert)},
            ),
            (r"checkpoint_every \(0\) must be a positive multiple", {"checkpoint_every": 0}),
            (r"evaluate_every \(0\) must be a positive multiple", {"evaluator": FakeEvaluator(0)}),
            ("memory: actions", {"data": Demonstrations(CONTINUOUS.expert, DISCRETE.expert)}),
            ("memory: actions: bounds differ from those of memory", {"data": with_bounds(CONTINUOUS, 2, 5)}),
            ("fit: memory: actions: bounds differ", {"data": [TO_TWO, TO_FIVE], "seeds": 2}),
            ("fit: memory: actions: bounds differ", {"data": [CONTINUOUS, TO_FIVE], "seeds": 2}),
        ],
    )
    def test_a_bad_request_is_refused_and_nothing_written(self, tmp_path: Path, message: str, change: dict[str, Any]):
        request: dict[str, Any] = {"algorithm": tiny("wbcu"), "data": self.CONTINUOUS, **change}
        options = {"iterations": 30, "log_every": CHUNK, "checkpoint_every": 10, **request}
        with pytest.raises(InputError, match=message):
            train.fit(**options, out=tmp_path / "run", progress=False)
        assert tree(tmp_path) == {}
        assert not (tmp_path / "run").exists()

    def test_repeated_seeds_with_data_of_their_own_are_welcome(self):
        sources = [self.CONTINUOUS, random_demonstrations(seed=10)]
        train.check_request([tiny("wbcu")], sources, [4, 4], 10, 5, 10, None)

    def test_unknown_bounds_are_those_of_actions_as_they_are(self):
        sources = [self.CONTINUOUS, with_bounds(self.CONTINUOUS, 1, 1)]
        train.check_request([tiny("wbcu")], sources, [4, 5], 10, 5, 10, None)

    def test_other_data_is_another_run(self, whole: Path):
        before = tree(whole)
        expert = random_dataset(0, 30)
        expert.transitions.reward[0] += 1
        other = Demonstrations(expert, random_demonstrations().supplementary)
        with pytest.raises(InputError, match=r"holds another run .differs in data"):
            fit(whole, data=other, resume=True)
        with pytest.raises(InputError, match=r"holds another run .differs in members"):
            fit(whole, seeds=[SEED + 1], resume=True)
        with pytest.raises(InputError, match="holds this run already"):
            fit(whole)
        assert tree(whole) == before

    def test_a_checkpoint_of_other_shapes_is_refused(self):
        state = {"kernel": jax.numpy.zeros((2, 3))}
        filled = programs.fill(state, {"['kernel']": np.ones((2, 3), np.float32)})
        assert filled["kernel"].sum() == 6
        for arrays in ({"['kernel']": np.ones((3, 2), np.float32)}, {}):
            with pytest.raises(InputError, match=r"the checkpoint does not fit this run: \['kernel'\]"):
                programs.fill(state, arrays)

    def test_a_full_disk_ends_the_run_and_spares_the_checkpoint(
        self, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        rename, full = os.replace, OSError(28, "No space left on device")

        def until_full(source: Any, target: Any) -> None:
            if f"{6 * CHUNK:010d}" in str(target):
                raise full
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", until_full)
            with pytest.raises(InputError, match=r"0000000030.safetensors: cannot write: No space left on device"):
                fit(tmp_path / "run")
        assert reached(tmp_path / "run") == 4 * CHUNK
        fit(tmp_path / "run", resume=True)
        assert folder_bytes(tmp_path / "run") == folder_bytes(whole)


class TestDiverging:
    SETTINGS = (tiny("bc"), tiny("bc", learning_rate=1e38))

    def test_a_member_that_diverges_fails_alone(self, tmp_path: Path):
        """It is left out of the policy and of the report, and the others do not notice."""
        options: dict[str, Any] = {"iterations": 4 * CHUNK, "log_every": CHUNK, "progress": False, "seeds": [SEED]}
        data, often = random_demonstrations(), {"checkpoint_every": CHUNK, "out": tmp_path / "run"}
        evaluator = FakeEvaluator(2 * CHUNK)
        with pytest.warns(UserWarning, match="bc, member 1: diverged: by iteration 10 "):
            run = train.fit(self.SETTINGS, data, evaluator=evaluator, **options, **often)
        assert list(run.config["failures"]) == ["1"]
        alone = train.fit(self.SETTINGS[0], data, **options).policy
        assert run.policy.num_members == 1
        for ours, theirs in zip(run.policy.layers, alone.layers, strict=True):
            np.testing.assert_allclose(ours.kernel, theirs.kernel, rtol=1e-5, atol=1e-6)
        assert {row["member"] for row in run.evaluations} == {0}
        again = load_run(tmp_path / "run")
        assert train.weigh(again, data).shape == (1, 90)
        assert len(read_run(tmp_path / "run", "run").members) == 1
        options |= {"iterations": 6 * CHUNK, "evaluator": FakeEvaluator(2 * CHUNK)}
        with pytest.warns(UserWarning, match="member 1: diverged: by iteration 10 "):
            resumed = train.fit(self.SETTINGS, data, resume=True, **options, **often)
        assert [row["iteration"] for row in resumed.evaluations] == [10, 20, 30]

    def test_huge_parameters_are_no_policy(self):
        """After one step they are finite, and what the network makes of them is not."""
        with pytest.raises(InputError, match="bc: every member diverged"):
            train.fit(tiny("bc", learning_rate=1e20), random_demonstrations(), iterations=1, progress=False)

    @pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("batch_size", -3), ("learning_rate", np.nan)])
    def test_what_cannot_be_trained_is_refused(self, tmp_path: Path, name: str, value: Any):
        with pytest.raises(InputError, match=f"bc: {name}: .* is not a"):
            train.fit(tiny("bc", **{name: value}), random_demonstrations(), progress=False, out=tmp_path / "run")
        assert list(tmp_path.iterdir()) == []

    def test_a_run_of_which_nothing_is_left_is_refused(self, tmp_path: Path):
        with pytest.raises(InputError, match="bc: every member diverged; diverged: at the end"):
            train.fit(self.SETTINGS[1], random_demonstrations(), iterations=CHUNK, progress=False, out=tmp_path / "run")
        assert not (tmp_path / "run" / "policy.safetensors").exists()


def test_seeds_of_one_task_that_were_trained_in_two_runs_are_one_group(tmp_path: Path):
    for seed in (0, 1):
        options: dict[str, Any] = {"evaluator": FakeEvaluator(CHUNK), "task": "hopper/noisy-expert", "seeds": [seed]}
        fit_tiny(
            "bc", out=tmp_path / str(seed), data=random_demonstrations(seed=10 * seed), iterations=CHUNK, **options
        )
    assert [row.seeds for row in result_table(tmp_path, facts())] == [2]


def test_a_callback_hears_everything_in_order_and_may_stop():
    heard: list[tuple[str, int]] = []

    class Listener(Callback):
        def on_log(self, position: int, metrics: Any) -> bool:
            heard.append(("log", position))
            return position == 6 * CHUNK

        def on_evaluation(self, position: int, rows: list[Row]) -> None:
            heard.append(("evaluation", position))

    run = fit(callbacks=[Listener()])
    assert heard == sorted(heard, key=lambda pair: (pair[1], pair[0] == "evaluation"))
    assert ("evaluation", 6 * CHUNK) in heard
    # A chunk that was under way when the listener spoke is finished.
    assert run.metrics[-1]["iteration"] == run.config["iterations"]
    assert run.config["iterations"] in (6 * CHUNK, 7 * CHUNK)


def test_a_short_run_logs_at_its_end():
    run = fit_tiny("bc", iterations=3, log_every=500)
    assert [row["iteration"] for row in run.metrics] == [3]
    assert run.config["log_every"] == 3


def test_data_is_recognised_by_its_content():
    first = train.describe_data(random_demonstrations())
    assert first == train.describe_data(random_demonstrations())
    assert first["expert"] == {"rows": 30, "episodes": 5}
    changed = replace(random_demonstrations(), expert=random_dataset(3, 30))
    assert train.describe_data(changed)["sha256"] != first["sha256"]


def test_precision_is_stated_and_kept(tmp_path: Path):
    often: dict[str, Any] = {"log_every": 5, "checkpoint_every": 5, "progress": False}
    fit = functools.partial(train.fit, tiny("bc"), random_demonstrations(), out=tmp_path / "run", **often)
    assert fit(iterations=5, precision="bfloat16").config["precision"] == "bfloat16"
    with pytest.raises(InputError, match=r"holds another run .differs in precision"):
        fit(iterations=10, resume=True)
    assert fit(iterations=10, precision="bfloat16", resume=True).metrics[-1]["iteration"] == 10
    with pytest.raises(InputError, match="precision must be float32 or bfloat16, not 'bf16'"):
        fit(iterations=10, precision="bf16")  # type: ignore[arg-type]
    with jax.default_matmul_precision("bfloat16"), pytest.raises(InputError, match="set to multiply in bfloat16"):
        fit(iterations=10)


def test_the_normaliser_follows_its_member():
    """Each draw of the data has statistics of its own, and every setting repeats them in the order of the seeds."""
    sources = [random_demonstrations(), random_demonstrations(seed=10)]
    settings = [tiny("bc"), tiny("bc", learning_rate=1e-2)]
    policy = train.fit(settings, sources, seeds=2, iterations=1, normalise="union", progress=False).policy
    expected = [-source.union.obs.mean(axis=0) for source in sources] * 2
    np.testing.assert_allclose(policy.shift, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["smodice", "wbcu-two-stage"])
def test_too_few_iterations_for_a_policy_are_refused(name: str):
    data, first = random_demonstrations(), tiny(name).policy_from
    assert first > 0
    with pytest.raises(InputError, match=f"{first} iterations train no policy: its discriminator has the first"):
        train.fit(tiny(name), data, iterations=first, progress=False)
    fit = functools.partial(train.fit, tiny(name), progress=False)
    before, after = (fit(data, iterations=first + more).policy.layers[0].kernel for more in (1, 2))
    assert np.any(before != after)
    if name == "wbcu-two-stage":  # weights that come with the data need no discriminator
        assert data.supplementary is not None
        weight = np.ones(len(data.expert) + len(data.supplementary))
        assert fit(replace(data, weight=weight), iterations=1).config["iterations"] == 1
