"""ONNX files: the same actions as the policy, whatever its kind; and a check that notices when they are not."""

import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conftest import fit_tiny, random_demonstrations
from test_data import make_dataset

from demosift.cli.main import main
from demosift.data import load, write_hdf5
from demosift.policy import Layer, Policy
from demosift.results import export
from demosift.results.export import compare, export_onnx, make_model
from demosift.simulation.evaluation import load_policy
from demosift.types import EnvironmentSpec, InputError

DOCS = Path(__file__).parent.parent / "docs" / "export.md"
WIDE = EnvironmentSpec("Wide-v0", {"a": 1}, (-2.0, 0.0), (2.0, 10.0))


def make_policy(kind: str = "tanh-gaussian", environment: EnvironmentSpec | None = None, members: int = 2) -> Policy:
    """Random weights, large enough that tanh saturates and the limit on the mean is reached now and then."""
    rng = np.random.default_rng(0)
    sizes = (3, 16, 16, 4)
    layers = tuple(
        Layer(rng.normal(size=(members, a, b)).astype(np.float32), rng.normal(size=(members, b)).astype(np.float32))
        for a, b in itertools.pairwise(sizes)
    )
    shift, scale = rng.normal(size=(2, members, 3)).astype(np.float32)
    limit = 3.0 if kind == "tanh-gaussian" else None
    return Policy(kind, layers, shift, np.abs(scale) + 0.1, limit, environment, {"algorithm": "wbcu"})  # pyright: ignore


def run_onnx(path: Path, obs: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["action"], {"obs": obs})[0])


OBS = np.random.default_rng(1).normal(size=(500, 3)).astype(np.float32)


def test_the_runtime_reports_to_nobody(tmp_path: Path):
    """By itself it keeps an id of the machine in the home folder, and sends it."""
    code = "from demosift.results.export import import_onnxruntime as load; load().InferenceSession"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "HOME": str(tmp_path)}, check=True)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("batch", [1, 7, 500])
def test_continuous_actions_in_the_environments_units(tmp_path: Path, batch: int) -> None:
    policy = make_policy(environment=WIDE)
    done = export_onnx(policy, tmp_path / "a.onnx", member=1)
    found = run_onnx(tmp_path / "a.onnx", OBS[:batch])
    expected = WIDE.scale_action(policy.member(1).act_members(OBS[None, :batch])[0])
    np.testing.assert_allclose(found, expected, atol=1e-4)  # of actions up to 10, in float32
    assert found.shape == (batch, 2)
    assert found[:, 1].min() >= 0
    assert done.difference is not None
    assert done.difference < 1e-4


def test_the_limit_on_the_mean_is_in_the_graph(tmp_path: Path) -> None:
    policy = make_policy()
    export_onnx(policy, tmp_path / "a.onnx")
    assert np.abs(run_onnx(tmp_path / "a.onnx", 10 * OBS)).max() == pytest.approx(np.tanh(3), abs=1e-6)
    export_onnx(replace(policy, mean_limit=None), tmp_path / "b.onnx")
    assert np.abs(run_onnx(tmp_path / "b.onnx", 10 * OBS)).max() > np.tanh(3.5)


def test_discrete_actions_are_indices(tmp_path: Path) -> None:
    policy = make_policy("categorical", EnvironmentSpec("CartPole-v1", num_actions=4))
    done = export_onnx(policy, tmp_path / "a.onnx")
    found = run_onnx(tmp_path / "a.onnx", OBS)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.argmax(policy.member(0).act_members(OBS[None])[0], axis=1))
    assert done.difference == 0


def test_metadata(tmp_path: Path) -> None:
    export_onnx(make_policy(environment=WIDE), tmp_path / "a.onnx", member=1)
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    found = session.get_modelmeta().custom_metadata_map
    assert json.loads(found["action_low"]) == [-2, 0]
    assert json.loads(found["action_high"]) == [2, 10]
    assert (found["env_id"], json.loads(found["env_kwargs"])) == ("Wide-v0", {"a": 1})
    assert (found["algorithm"], found["member"], found["kind"]) == ("wbcu", "1", "tanh-gaussian")
    assert found["action"] == "in the environment's units"
    documented = re.findall(r"`(\w+)`", DOCS.read_text().split("## Metadata")[1])
    assert set(found) <= set(documented)
    model = onnx.load(tmp_path / "a.onnx")
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert (model.ir_version, model.opset_import[0].version) == (8, 17)
    export_onnx(make_policy(), tmp_path / "b.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "b.onnx", providers=["CPUExecutionProvider"])
    assert "[-1, 1]" in session.get_modelmeta().custom_metadata_map["action"]


def test_the_same_policy_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        export_onnx(make_policy(environment=WIDE), tmp_path / f"{name}.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_difference_that_is_no_number_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "compare", lambda *_: float("nan"))
    with pytest.raises(InputError, match=r"a\.onnx: not written: it differs from the policy by nan"):
        export_onnx(make_policy(), tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tensor", ["shift", "scale", "kernel_0", "bias_1", "kernel_2", "half", "centre", "mean_high"])
def test_the_check_notices_a_wrong_number(tmp_path: Path, tensor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy(environment=WIDE).member(0)

    def spoiled(policy: Policy, member: int = 0) -> onnx.ModelProto:
        model = make_model(policy, member)
        (stored,) = (each for each in model.graph.initializer if each.name == tensor)
        values = onnx.numpy_helper.to_array(stored).copy()
        values.flat[0] += 0.01 if tensor != "mean_high" else -2
        stored.CopyFrom(onnx.numpy_helper.from_array(values, tensor))
        return model

    monkeypatch.setattr(export, "make_model", spoiled)
    with pytest.raises(InputError, match=r"a\.onnx: not written: it differs from the policy"):
        export_onnx(policy, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_check_notices_wrong_indices_but_not_ties(tmp_path: Path) -> None:
    policy = make_policy("categorical").member(0)
    other = replace(
        policy, layers=(*policy.layers[:-1], Layer(policy.layers[-1].kernel[:, :, ::-1], policy.layers[-1].bias))
    )
    (tmp_path / "a.onnx").write_bytes(make_model(other).SerializeToString())
    assert (compare(tmp_path / "a.onnx", policy, OBS) or 0) > 0.1
    last = policy.layers[-1]
    tied = replace(policy, layers=(*policy.layers[:-1], Layer(np.zeros_like(last.kernel), np.zeros_like(last.bias))))
    (tmp_path / "b.onnx").write_bytes(make_model(tied).SerializeToString())
    assert (
        compare(
            tmp_path / "b.onnx",
            replace(tied, layers=(*tied.layers[:-1], Layer(last.kernel * 0, last.bias * 1e-9))),
            OBS,
        )
        == 0
    )


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_a_run_is_checked_on_its_own_data(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = random_demonstrations(kind)
    assert data.supplementary is not None
    files = {name: tmp_path / f"{name}.hdf5" for name in ("expert", "pile")}
    write_hdf5(data.expert, files["expert"])
    write_hdf5(data.supplementary, files["pile"])
    run = fit_tiny("wbcu", kind, load(files["expert"], files["pile"]), seeds=[2, 3])
    run.save(tmp_path / "run")
    command = ["export", str(tmp_path / "run"), "--member", "1", "--out", str(tmp_path / "a.onnx")]
    assert main([*command, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["checked_on"] == f"{files['expert']} and {files['pile']}"
    assert answer["rows"] == 90
    assert answer["difference"] < 1e-5
    # What JAX says is what the saved policy says (tests/test_contract.py), and now what onnxruntime says.
    policy = load_policy(tmp_path / "run", member=1)
    assert isinstance(policy, Policy)
    assert (compare(tmp_path / "a.onnx", policy, data.union.obs) or 0) < 1e-5
    files["pile"].unlink()
    assert main(command) == 0
    assert "draws from the normaliser's distribution" in capsys.readouterr().out
    assert main([*command, "--data", str(files["pile"])]) == 2
    assert "No such file" in capsys.readouterr().err
    write_hdf5(make_dataset(), tmp_path / "other.hdf5")
    assert main([*command, "--data", str(tmp_path / "other.hdf5")]) == 2
    assert "observations: columns: 4, but the policy has 3" in capsys.readouterr().err


@pytest.mark.parametrize("env", ["hopper", "walker2d", "halfcheetah", "ant"])
def test_shipped_experts(tmp_path: Path, env: str) -> None:
    done = export_onnx("expert", tmp_path / "a.onnx", env=env)
    assert done.difference is not None
    assert done.difference < 1e-4
    assert str(done).startswith(
        f"{tmp_path / 'a.onnx'}: {done.obs_dim} observations to {done.action_dim} actions; largest"
    )


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "a.onnx")]
    policy = make_policy()
    policy.save(tmp_path / "p.safetensors")
    for arguments, part in (
        (["random", "--env", "hopper"], "random policy has nothing to export"),
        (["expert"], "needs an environment"),
        ([str(tmp_path / "nowhere")], "nowhere"),
        ([str(tmp_path / "p.safetensors"), "--member", "2"], "member 2 does not exist"),
        ([str(tmp_path / "p.safetensors"), "--data", str(tmp_path / "a.onnx")], "a.onnx is what is read"),
    ):
        assert main(["export", *arguments, *out]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert part in said
    assert not (tmp_path / "a.onnx").exists()
    policy.save(tmp_path / "run" / "policy.safetensors")
    for read, out_of in (("p.safetensors", "p.safetensors"), ("run", "run/policy.safetensors")):
        with pytest.raises(InputError, match="is what is read"):
            export_onnx(tmp_path / read, tmp_path / out_of)
    assert main(["export", str(tmp_path / "p.safetensors"), "--member", "1", *out]) == 0
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", str(tmp_path / "p.safetensors"), *out]) == 0
    assert "not checked, since onnxruntime is not installed" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", str(tmp_path / "p.safetensors"), *out]) == 2
    assert "pip install 'demosift[onnx]'" in capsys.readouterr().err


def test_the_documented_snippet_runs_without_demosift(tmp_path: Path) -> None:
    export_onnx(make_policy(environment=WIDE), tmp_path / "policy.onnx")
    (snippet,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    code = f"{snippet}\nimport sys\nassert not {{'jax', 'demosift', 'onnx'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Wide-v0" in done.stdout
