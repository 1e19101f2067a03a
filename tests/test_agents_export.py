"""Policies as ONNX files: the same actions as the original, on random observations and in an episode."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents import export
from agents.configuration.environments import are_counts, make_scenario, make_vector_env
from agents.exploration.held_noise import parts_of
from agents.learned import LearnedPolicy
from agents.models.decoding import decided
from agents.models.store import contents_of, find_model, write
from agents.pretrained import find
from tests.small_runs import copying, network_of

AGENTS = ["ppo", "maskable-ppo", "recurrent-ppo"]


def run_of(agent: str, folder: Path, quantile: float | None = None) -> Path:
    """A run folder with an untrained network, its logits spread so that no two choices tie."""
    import torch

    asked = f"quantile={'null' if quantile is None else quantile}"
    config = copying("n_envs=1", f"{agent}.batch_size=8", asked, agent=agent)
    model = network_of(config)
    with torch.no_grad():
        torch.nn.init.normal_(model.policy.action_net.weight, std=1.0)
    folder.mkdir()
    (folder / "config.yaml").write_text(config.to_yaml())
    write(folder / "model_best.safetensors", contents_of(model))
    return folder


QUANTILES = [*((agent, None) for agent in AGENTS), ("ppo", 0.3), ("maskable-ppo", 0.5)]


@pytest.mark.parametrize("agent, quantile", QUANTILES)
def test_the_module_that_is_exported_acts_as_the_original(
    agent: str, quantile: float | None, tmp_path: Path
):
    """Needs no ONNX: what is traced is the same function, out-of-bounds observations clipped apart."""
    import torch

    policy = LearnedPolicy(run_of(agent, tmp_path / "run"), quantile=quantile)
    policy.fit(make_scenario(policy.config))
    model: Any = policy.model
    parts = policy._codec.decoder.parts
    inputs = export._random_inputs(model, 200, seed=3)
    with torch.no_grad():
        found = export.network_of(model, parts, quantile)(
            *(torch.as_tensor(a) for a in inputs.values())
        )
    more: dict[str, Any] = {}
    if agent == "maskable-ppo":
        more["action_masks"] = inputs["mask"]
    if agent == "recurrent-ppo":
        more = {"state": (inputs["hidden"], inputs["cell"]), "episode_start": np.zeros(200, bool)}
    mine, state = model.predict(inputs["observation"], deterministic=True, **more)
    actions = found[0] if agent == "recurrent-ppo" else found
    if agent != "recurrent-ppo":
        # What the policy does without the library's distributions is what these say.
        with torch.no_grad():
            theirs = parts_of(
                model.policy.get_distribution(torch.as_tensor(inputs["observation"]), **more)
            )
        of_library = decided([part.logits for part in theirs], are_counts(parts), quantile)
        np.testing.assert_array_equal(policy.choose(inputs["observation"], **more), of_library)
    if quantile is not None:
        modes, mine = mine, policy.choose(inputs["observation"], **more)
        counts = [part.endswith("/instances") for part in parts]
        assert (mine != modes)[:, counts].any()
        np.testing.assert_array_equal(mine[:, np.invert(counts)], modes[:, np.invert(counts)])
        one = {key: value[7] for key, value in more.items()}
        np.testing.assert_array_equal(policy.choose(inputs["observation"][7], **one), mine[7])
    np.testing.assert_array_equal(mine, actions.numpy())
    assert len(np.unique(mine, axis=0)) > 20
    if agent == "recurrent-ppo":
        np.testing.assert_allclose(state[0], found[1].numpy(), rtol=1e-6)


@pytest.mark.parametrize("agent, quantile", QUANTILES)
@pytest.mark.filterwarnings("ignore")  # of the exporter, about itself
def test_the_file_acts_as_the_original(
    agent: str, quantile: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    folder, out = run_of(agent, tmp_path / "run", quantile), tmp_path / "policy.onnx"
    assert export.main([f"model={folder}", f"out={out}"]) == 0, capsys.readouterr().err
    assert "same actions" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(out))
    told = session.get_modelmeta().custom_metadata_map
    assert told["agent"] == agent
    assert json.loads(told["parts"])[0] == "interactive/instances"
    assert len(json.loads(told["choices"])) == 8
    policy = LearnedPolicy(folder)
    assert policy.quantile == quantile
    policy.fit(make_scenario(policy.config))
    env = make_vector_env(policy.config, make_scenario(policy.config), 2)
    obs, _ = env.reset(seed=5)
    assert len(json.loads(told["observation"])) == obs.shape[1]
    memory = {n: np.zeros((1, 2, 64), np.float32) for n in ("hidden", "cell")}
    state, start = None, np.ones(2, bool)
    for _ in range(11):
        inputs: dict[str, Any] = {"observation": obs}
        more: dict[str, Any] = {}
        if agent == "maskable-ppo":
            inputs["mask"] = more["action_masks"] = env.action_masks()
        if agent == "recurrent-ppo":
            inputs |= memory
            more = {"state": state, "episode_start": start}
        found = session.run(None, inputs)
        if agent == "recurrent-ppo":
            action, state = policy.model.predict(obs, deterministic=True, **more)
        else:
            action = policy.choose(obs, **more)
        start = np.zeros(2, bool)
        np.testing.assert_array_equal(found[0], action)
        if agent == "recurrent-ppo":
            memory = {"hidden": found[1], "cell": found[2]}
        obs, *_ = env.step(action)
    env.close()


def test_a_policy_that_ships(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """By its name or its folder; nothing is written beside it in the package."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    ships = find("pretrained:burst-multicast-maskable-ppo-seed0")
    before = sorted(path.name for path in ships.folder.iterdir())
    assert export.main([f"model=pretrained:{ships.name}"]) == 0, capsys.readouterr().err
    assert find_model(ships.folder) == ships.model
    assert [path.name for path in tmp_path.iterdir()] == [f"{ships.name}.onnx"]
    assert sorted(path.name for path in ships.folder.iterdir()) == before


def test_slips(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert export.main(["model"]) == 2
    assert export.main(["out=x.onnx"]) == 2
    assert "model= is missing" in capsys.readouterr().err
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        assert export.main([f"model={tmp_path}"]) == 2
        assert "pip install 'llmscale[onnx]'" in capsys.readouterr().err
    else:
        assert export.main([f"model={tmp_path}"]) == 2
        assert "the folder holds none of" in capsys.readouterr().err
        assert export.main(["model=pretrained:nobody"]) == 2
        assert "burst-multicast-maskable-ppo-seed0" in capsys.readouterr().err


def test_a_place_that_takes_nothing_is_told_before_the_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for name in ("onnx", "onnxscript", "onnxruntime"):  # neither is asked for anything
        monkeypatch.setitem(sys.modules, name, sys)
    monkeypatch.setattr(export, "write", lambda *_: pytest.fail("it is exported"))
    model = run_of("ppo", tmp_path / "run")
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    for name, said in (
        ("folder.onnx", "is a folder; must be a file's name\n"),
        ("file/policy.onnx", f"nothing can be written to {tmp_path / 'file'} ("),
    ):
        assert export.main([f"model={model}", f"out={tmp_path / name}"]) == 2
        line = capsys.readouterr().err
        assert line.startswith(f"export: out = {str(tmp_path / name)!r}: {said}")
        assert line.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
