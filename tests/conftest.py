"""What tests share: how JAX is set up, tiny random data, tiny algorithms.

Networks are (8, 8), batches 16 rows, and datasets of a kind have the same sizes, so that tests share compiled programs:
compiling is what costs time here.
"""

import functools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quick import compiling

# Compiled programs are kept in the virtual environment for subprocesses, the other worker and the next run.
IN_VENV, CACHE = sys.prefix != sys.base_prefix, Path(sys.prefix) / "cache"
os.environ |= compiling(CACHE if IN_VENV else None)

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from beartype import BeartypeConf, FrozenDict, beartype  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

# (B, 1) against (B,) is the classic bug of this loss.
jax.config.update("jax_numpy_rank_promotion", "raise")

# Hyper-parameters are floats to the user and arrays inside a program, where members differ in them.
checked = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({float: float | int | jax.Array})))
# Shapes are checked while tests run, in the modules that do maths. The hook must come before their first import.
MATHS = [f"learning.{name}" for name in ("kernels", "networks", "losses", "learner", "cloning", "critic")]
MATHS += [f"learning.{name}" for name in ("discriminator", "pretraining", "neighbours", "transport")]
install_import_hook([f"demosift.{name}" for name in (*MATHS, "algorithms")], "conftest.checked")

from demosift.algorithms import REGISTRY, Algorithm  # noqa: E402
from demosift.learning import fit as train  # noqa: E402
from demosift.learning.cloning import Cloner  # noqa: E402
from demosift.learning.cohort import Cohort  # noqa: E402
from demosift.learning.compiled import keep_programs  # noqa: E402
from demosift.learning.runner import Callback  # noqa: E402
from demosift.results.run import Row, Run  # noqa: E402
from demosift.types import Dataset, Demonstrations, Transitions  # noqa: E402

if IN_VENV:
    keep_programs()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

OBS_DIM, ACTION_DIM = 3, 2
SEED = 2  # every batch of its ten steps has a terminal: `random_dataset` says why it must
CHUNK, STEPS = 5, 10  # ten steps, as two calls of the same program
KINDS = ("continuous", "discrete")
MOST_MAPPINGS = 20_000  # of the 65,530 that are allowed
# Sift trains on scores, so it has tests of its own (test_recipe.py).
COMBINATIONS = [(name, kind) for name in REGISTRY if name != "sift" for kind in KINDS]

# What makes something happen within ten steps: DWBC's discriminator steps twice, two stages take a chunk each.
FALLING = {"cloner": Cloner(rate_schedule="cosine", horizon=STEPS)}  # what `fit` makes of the methods' own
WITHIN_TEN_STEPS: dict[str, Row] = {
    **dict.fromkeys(("iql", "seabo", "otr"), FALLING),
    "dwbc": {"discriminator_every": 4},
    "smodice": {"discriminator_iterations": CHUNK},
    "wbcu-two-stage": {"discriminator_iterations": CHUNK},
    "ilid": {"discriminator_iterations": CHUNK},
    "tailo": {"discriminator_iterations": CHUNK, "first_iterations": CHUNK, "discriminator_batch_size": 16},
}


def tiny(name: str, **changes: Any) -> Algorithm:
    return REGISTRY[name](**{"batch_size": 16, "hidden": (8, 8), **WITHIN_TEN_STEPS.get(name, {}), **changes})


def random_dataset(seed: int, num_rows: int, discrete: bool = False, episode: int = 6) -> Dataset:
    """Random transitions in episodes of a few rows, all but the last of which end in a terminal state.

    Terminals must be frequent: in a batch without one DemoDICE's loss does not change with a constant added to nu, so
    the gradient of biases that only add one is rounding alone, of which Adam's first step makes a full one.
    """
    rng = np.random.default_rng(seed)
    action = rng.uniform(-0.9, 0.9, (num_rows, ACTION_DIM)).astype(np.float32)
    if discrete:
        action = np.eye(ACTION_DIM, dtype=np.int8)[rng.integers(ACTION_DIM, size=num_rows)]
    ends = np.arange(1, num_rows + 1) % episode == 0
    ends[-1] = True
    terminal = ends & (np.arange(num_rows) < num_rows - 1)
    return Dataset(
        Transitions(
            obs=rng.normal(size=(num_rows, OBS_DIM)).astype(np.float32),
            action=action,
            reward=rng.normal(size=num_rows).astype(np.float32),
            next_obs=rng.normal(size=(num_rows, OBS_DIM)).astype(np.float32),
            terminal=terminal,
        ),
        timeout=ends & ~terminal,
    )


def random_demonstrations(kind: str = "continuous", seed: int = 0, num_rows: int = 60) -> Demonstrations:
    discrete = kind == "discrete"
    return Demonstrations(random_dataset(seed, 30, discrete), random_dataset(seed + 1, num_rows, discrete))


def fit_tiny(name: str, kind: str = "continuous", data: Demonstrations | None = None, **changes: Any) -> Run:
    options = {"seeds": [SEED], "iterations": STEPS, "log_every": CHUNK, "progress": False, **changes}
    return train.fit(tiny(name), data or random_demonstrations(kind), **options)


@functools.cache
def alone(name: str, kind: str) -> Run:
    """Ten steps of one member on the CPU: what other ways to compute them are compared with."""
    return fit_tiny(name, kind)


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """What a finished run is compared by. The configuration holds a clock."""
    return {name: (folder / name).read_bytes() for name in ("policy.safetensors", "metrics.jsonl")}


def tree(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, with its content."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Killed(Exception):
    pass


def kill_at(iteration: int) -> Any:
    """A callback that ends the run when this iteration's metrics are on disk and its checkpoint is not."""

    class Kill(Callback):
        def on_log(self, position: int, metrics: Any) -> None:
            if position == iteration:
                raise Killed

    return [Kill()]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The iterations that chunks start from, as they are trained."""
    firsts, advance = [], Cohort.advance

    def spy(cohort: Cohort, first: int, steps: int) -> Any:
        firsts.append(first)
        return advance(cohort, first, steps)

    monkeypatch.setattr(Cohort, "advance", spy)
    return firsts


# Files that take longest, longest first: a worker that takes one last leaves the other idle.
SLOWEST_FIRST = [
    *("contract", "experiments", "recipe", "sift_scoring", "train", "docs", "cli", "collect", "updates", "fused"),
    *("probes", "report_tables", "old_files", "sift_page", "formats", "theory_linear", "report", "sift_train"),
    "simulate",
]
LONG_SECONDS = 1200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}.py": index for index, name in enumerate(SLOWEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))


@pytest.fixture(scope="session", autouse=True)
def details(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the command line's last net leaves its files, also in processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("details")
        patch.setenv("DEMOSIFT_DETAILS", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def no_defects(details: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """The last net is for defects: a test in which something fell into it fails, unless it is marked `defect`."""
    yield
    found = [(path, path.read_text()) for path in details.iterdir()]
    for path, _ in found:
        path.unlink()
    if found and not request.node.get_closest_marker("defect"):
        pytest.fail(f"an internal error of the command line:\n{found[0][1]}", pytrace=False)


@pytest.fixture(scope="module", autouse=True)
def few_programs() -> Iterator[None]:
    """Each compiled program maps some memory, and a process that has more mappings than Linux allows crashes."""
    yield
    mappings = Path("/proc/self/maps")
    if mappings.exists() and len(mappings.read_bytes().splitlines()) > MOST_MAPPINGS:
        jax.clear_caches()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts the test and the processes it starts, also in a background job, where a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
