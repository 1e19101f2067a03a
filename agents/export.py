"""Write a trained policy as an ONNX file that needs neither torch nor this package.

    llmscale export model=RUN [out=FILE.onnx]   (or: python -m agents.export ...)

    model=PATH        run folder (its best model) or model file in one; pretrained:NAME: one that
                      ships
    out=FILE.onnx     where to write (default: policy.onnx beside the model, NAME.onnx if it ships)

Inputs: `observation` (n, k) as the environment gives it (fixed scales, no running statistics; the
file clips it to its bounds), for maskable-ppo `mask` (n, sum of choices) of bool, for
recurrent-ppo `hidden` and `cell` (layers, n, units), zeros at the start of an episode. Outputs:
`action` (n, parts), the most probable choice of each part (of instance counts the run's
`quantile`, if it has one), and for recurrent-ppo the next `hidden_out` and `cell_out`. The file's
metadata name the entries of the observation, the parts and their choices. It is compared with the
original on 1,000 random observations before the command says that it is done.

Examples:
    llmscale export model=runs/mixed-slo-hours-ppo-seed0
    llmscale export model=runs/mixed-slo-hours-ppo-seed0 out=policy.onnx
    llmscale export model=pretrained:NAME out=shipped.onnx
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from llmscale_env._cli import Slip, check_file, parse_options, run_command
from llmscale_env._writing import replace_file

COMPARED = 1000
"""Observations on which the file is compared with the original."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 done, 2 after a slip (named in one line), 130 when interrupted."""
    return run_command("export", __doc__, argv, _export)


def _export(words: Sequence[str]) -> int:
    options = parse_options(words, ("model", "out"))
    if "model" not in options:
        raise Slip("model= is missing, such as model=runs/mixed-slo-hours-ppo-seed0")
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(name)
        except ImportError:
            raise Slip(f"{name} is missing: pip install 'llmscale[onnx]'") from None
    from agents.learned import LearnedPolicy
    from agents.models.store import ModelError, find_model
    from agents.pretrained import PretrainedError, find, is_pretrained

    try:
        if is_pretrained(options["model"]):
            ships = find(options["model"])
            place, default = ships.model, Path(f"{ships.name}.onnx")
        else:
            place = find_model(options["model"])
            default = place.parent / "policy.onnx"
        out = Path(options.get("out", default))
        if out.suffix != ".onnx":
            raise Slip(f"out = {str(out)!r}: must end in .onnx")
        policy = LearnedPolicy(place)
    except (ModelError, PretrainedError) as error:
        raise Slip(str(error)) from None
    check_file("out", out)
    replace_file(out, lambda part: write(policy, part))
    differences = compare(policy, out)
    if differences:
        out.unlink()
        raise Slip(
            f"{differences} of {COMPARED} actions differ from the original's; nothing was written"
        )
    print(
        f"{out}  ({out.stat().st_size / 1024:.0f} KiB; {COMPARED} random observations: same actions)"
    )
    return 0


def write(policy: Any, path: Path) -> None:
    """Write the network of a `LearnedPolicy` as an ONNX file, with what its numbers mean."""
    import onnx
    import torch

    from agents.configuration.environments import codec_of, make_scenario

    model = policy.model
    codec = codec_of(policy.config, make_scenario(policy.config))
    network = network_of(model, codec.decoder.parts, policy.quantile)
    inputs = {name: torch.as_tensor(a) for name, a in _random_inputs(model, 3, seed=0).items()}
    names = ["action"] + (["hidden_out", "cell_out"] if "hidden" in inputs else [])
    batch = torch.export.Dim("batch")
    axis = {name: ({1: batch} if name in ("hidden", "cell") else {0: batch}) for name in inputs}
    with _quiet_exporter():
        torch.onnx.export(
            network,
            tuple(inputs.values()),
            str(path),
            input_names=list(inputs),
            output_names=names,
            dynamic_shapes=tuple(axis.values()),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    made = onnx.load(str(path))
    for key, value in (
        ("env", policy.config.env),
        ("agent", policy.config.agent),
        ("observation", json.dumps([entry.name for entry in codec.encoder.entries])),
        ("parts", json.dumps(codec.decoder.parts)),
        ("choices", json.dumps(codec.decoder.choices)),
    ):
        made.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(made)
    onnx.save(made, str(path))


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Without what torch's exporter warns and logs about itself: packages that it would know of, say."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def network_of(model: Any, parts: Sequence[str], quantile: float | None) -> Any:
    """The network of a model as a torch module: inputs and outputs as in the module's docstring.

    Args:
        model: of stable-baselines3.
        parts: names of its actions' parts.
        quantile: see `LearnedPolicy`.
    """
    import torch

    from agents.configuration.environments import are_counts
    from agents.models.algorithms import is_recurrent, takes_masks
    from agents.models.decoding import IMPOSSIBLE, decided

    counts = are_counts(parts)
    policy = model.policy
    policy.set_training_mode(False)
    sizes = model.action_space.nvec.tolist()
    low, high = (
        torch.as_tensor(b) for b in (model.observation_space.low, model.observation_space.high)
    )

    class Deterministic(torch.nn.Module):
        """What is decided, without drawing."""

        low: torch.Tensor
        high: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.extractor, self.choose = policy.mlp_extractor.policy_net, policy.action_net
            self.register_buffer("low", low)
            self.register_buffer("high", high)

        def clipped(self, observation: Any) -> Any:
            return torch.minimum(torch.maximum(observation, self.low), self.high)

        def choice(self, latent: Any, mask: Any = None) -> Any:
            logits = self.choose(self.extractor(latent))
            if mask is not None:
                logits = torch.where(mask, logits, torch.full_like(logits, IMPOSSIBLE))
            return decided(torch.split(logits, sizes, dim=1), counts, quantile)

    class Plain(Deterministic):
        def forward(self, observation: Any) -> Any:
            return self.choice(self.clipped(observation))

    class Masked(Deterministic):
        def forward(self, observation: Any, mask: Any) -> Any:
            return self.choice(self.clipped(observation), mask)

    class Recurrent(Deterministic):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = policy.lstm_actor

        def forward(self, observation: Any, hidden: Any, cell: Any) -> Any:
            found, (hidden_out, cell_out) = self.lstm(
                self.clipped(observation).unsqueeze(0), (hidden, cell)
            )
            return self.choice(found.squeeze(0)), hidden_out, cell_out

    kind = Masked if takes_masks(model) else Recurrent if is_recurrent(model) else Plain
    return kind().eval()


def compare(policy: Any, path: Path, n: int = COMPARED) -> int:
    """On how many of `n` random observations the file's action is not the original's.

    Observations are uniform within their bounds (infinite ones are taken as 10), masks and memories random.
    """
    import onnxruntime

    from agents.configuration.environments import make_scenario

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = _random_inputs(policy.model, n, seed=1)
    theirs = session.run(["action"], inputs)[0]
    policy.fit(make_scenario(policy.config))
    if "hidden" in inputs:
        mine, _ = policy.model.predict(
            inputs["observation"],
            state=(inputs["hidden"], inputs["cell"]),
            episode_start=np.zeros(n, bool),
            deterministic=True,
        )
    else:
        masks = {"action_masks": inputs["mask"]} if "mask" in inputs else {}
        mine = policy.choose(inputs["observation"], **masks)
    return int((mine != theirs).any(axis=1).sum())


def _random_inputs(model: Any, n: int, seed: int) -> dict[str, Any]:
    """Inputs by name, as arrays."""
    from agents.models.algorithms import is_recurrent, takes_masks

    rng = np.random.default_rng(seed)
    space = model.observation_space
    low, high = np.clip(space.low, -10, 10), np.clip(space.high, -10, 10)
    inputs: dict[str, Any] = {
        "observation": rng.uniform(low, high, (n, *space.shape)).astype(np.float32)
    }
    if takes_masks(model):
        nvec = model.action_space.nvec
        mask = rng.random((n, int(nvec.sum()))) < 0.6
        mask[:, np.concatenate([[0], np.cumsum(nvec)[:-1]])] = True  # something is always possible
        inputs["mask"] = mask
    if is_recurrent(model):
        lstm = model.policy.lstm_actor
        shape = (lstm.num_layers, n, lstm.hidden_size)
        inputs["hidden"] = rng.uniform(-1, 1, shape).astype(np.float32)
        inputs["cell"] = rng.uniform(-1, 1, shape).astype(np.float32)
    return inputs


if __name__ == "__main__":
    sys.exit(main())
