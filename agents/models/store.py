"""Networks on disk, as safetensors: numbers and text, of which loading executes nothing.

A file holds nested dictionaries and lists of arrays, numbers and text. Arrays are tensors of the file, named
by where they stand (`policy.action_net.weight`); the rest is JSON in its header. The configuration beside it
(`config.yaml`) says how the network is built that the numbers belong to.

stable-baselines3's own zips hold pickles, and loading one runs whatever its author wrote into it. They are
read by `agents.convert` alone, once somebody has said that they trust it.
"""

from __future__ import annotations

import json
from itertools import pairwise, starmap
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from llmscale_env._writing import replace_file

if TYPE_CHECKING:
    from agents.configuration.config import TrainConfig

SUFFIX = ".safetensors"
BEST, LAST, COPY = (f"model_{which}{SUFFIX}" for which in ("best", "last", "copy"))
MODEL = f"model{SUFFIX}"
"""Files of a run: the network that validated best, the last one, a copied policy; and the one that ships."""

_FORMAT = "llmscale-model-1"
_ARRAY = "array"
_LONGEST_HEADER = 100_000_000
"""That safetensors reads, in bytes."""


class ModelError(ValueError):
    """A model that is not there, cannot be read, or does not fit; the message says which and why."""


def find_model(path: str | Path) -> Path:
    """The model file meant by `path`: a run folder's best model, a shipped policy's, or the file itself.

    Raises:
        ModelError: there is none, or no `config.yaml` beside it.
    """
    place = Path(path)
    if place.is_dir():
        meant = (BEST, LAST, MODEL)
        found = next((place / n for n in meant if (place / n).is_file()), None)
        if found is None:
            old = sorted(place.glob("model*.zip"))
            if old:
                raise ModelError(_refusal(old[0]))
            raise ModelError(f"model {str(path)!r}: the folder holds none of {', '.join(meant)}")
        place = found
    if not place.is_file():
        raise ModelError(f"model {str(path)!r}: there is no such file")
    if not (place.parent / "config.yaml").is_file():
        raise ModelError(
            f"model {str(path)!r}: config.yaml of its run is missing beside it, and without it "
            "nobody knows which environment it was trained on"
        )
    return place


def contents_of(model: Any) -> dict[str, Any]:
    """What makes up a network of stable-baselines3: weights, spaces, and the steps it has learnt from."""
    seen, chosen = model.observation_space, model.action_space
    return {
        "timesteps": int(model.num_timesteps),
        "spaces": {"low": seen.low, "high": seen.high, "choices": chosen.nvec},
        "policy": {name: value.numpy() for name, value in model.policy.state_dict().items()},
    }


def model_of(contents: dict[str, Any], config: TrainConfig, env: Any = None) -> Any:
    """The network that `contents` make up, on the CPU.

    Args:
        contents: see `contents_of`.
        config: of its run, which says how it is built.
        env: to learn on; None: for use alone.

    Raises:
        ModelError: they are not whole, or do not go together with the configuration.
    """
    import torch

    from agents.models.algorithms import make_model

    try:
        found = contents["spaces"]
        own = (
            spaces.Box(found["low"], found["high"], dtype=found["low"].dtype.type),
            spaces.MultiDiscrete(found["choices"]),
        )
        # Before a network is made that no weights are there for, and that takes all memory.
        there = sum(value.size for value in contents["policy"].values())
        memory = getattr(config.hyper, "lstm_size", 0)
        choices = sum(found["choices"].ravel().tolist())
        layers = (memory or found["low"].size, *config.hyper.net, choices)
        most = max(4 * memory * max(memory, found["low"].size), *starmap(mul, pairwise(layers)))
        if most > there:
            raise ModelError("has fewer weights than the network of config.yaml needs")
        if env is not None and own != (env.observation_space, env.action_space):
            raise ModelError(
                "was trained with other observations or actions than its environment has"
            )
        model = make_model(config, env, own)
        weights = {name: torch.from_numpy(value) for name, value in contents["policy"].items()}
        model.policy.load_state_dict(weights)
        check_finite(model)
        model.num_timesteps = _steps(contents)
    except ModelError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        KeyError,
        MemoryError,
        TypeError,
        ValueError,
        RuntimeError,
        AssertionError,
    ) as error:
        said = " ".join(str(error).split())[:200]
        raise ModelError(f"does not go together with config.yaml ({said})") from None
    return model


def check_finite(model: Any) -> None:
    """Raises ModelError if weights are NaN or infinite: what such a network chooses means nothing."""
    if not all(bool(part.isfinite().all()) for part in model.policy.state_dict().values()):
        raise ModelError("has weights that are no finite numbers")


def load_model(path: Path, config: TrainConfig, env: Any = None) -> Any:
    """The network of a model file; see `model_of`.

    Raises:
        ModelError: no model file, a damaged one, or one that does not fit its configuration.
    """
    try:
        return model_of(read(path), config, env)
    except ModelError as error:
        text = str(error)
        raise ModelError(
            text if text.startswith("model ") else f"model {str(path)!r}: {text}"
        ) from None


def write(path: Path, contents: dict[str, Any]) -> Path:
    """Write contents as one file, whole or not at all."""
    data = dumps(contents)
    return replace_file(path, lambda part: part.write_bytes(data))


def dumps(contents: dict[str, Any]) -> bytes:
    """The bytes of a file."""
    from safetensors.numpy import save

    arrays: dict[str, Any] = {}
    plain = _taken_apart(contents, (), arrays)
    # One entry: several would stand in any order, and the same contents are to be the same bytes.
    return save(arrays, {_FORMAT: json.dumps(plain)})


def loads(data: bytes) -> dict[str, Any]:
    """The contents that a file of these bytes has.

    Raises:
        ModelError: they are no such file, or a damaged one.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        # The header first: numbers of something else need not be looked at.
        plain = _plain(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]))
        return dict(_put_together(plain, load(data)))
    except (
        SafetensorError,
        KeyError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        said = " ".join(str(error).split())[:200]
        raise ModelError(f"cannot be read: damaged, or no model of this project ({said})") from None


def read(path: Path) -> dict[str, Any]:
    """The contents of a file.

    Raises:
        ModelError: it cannot be read, or holds no model.
    """
    _header(path)  # it says how long the file is: nothing else is read whole
    try:
        return loads(path.read_bytes())
    except MemoryError:
        raise ModelError(f"model {str(path)!r}: is larger than memory") from None
    except (ModelError, OSError) as error:
        raise ModelError(f"model {str(path)!r}: {error}") from None


def steps_of(path: Path) -> int:
    """The steps that a model has learnt from; by the header of its file alone.

    Raises:
        ModelError: it is something else.
    """
    try:
        return _steps(_header(path))
    except ModelError:
        raise
    except ValueError:
        raise _damaged(path) from None


def cannot_resume(folder: Path) -> str:
    """Why the run in a folder cannot go on; "" if nothing is known against it.

    Runs of older versions hold networks, but not where training was; so does a zip of theirs that
    `agents.convert` has converted.
    """
    path = folder / LAST
    if path.is_file():
        try:
            old = "run" not in _header(path)
        except ModelError as error:
            return str(error)
    else:
        old = path.with_suffix(".zip").is_file()
        if not old and (folder / "validation.csv").is_file():
            return f"model {str(path)!r}: is gone, so the run cannot go on"
    if not old:
        return ""
    return (
        f"run {str(folder)!r}: cannot be resumed: an older version made it, and its last model holds a "
        "network but not where training was. Train anew with another out=FOLDER; its models can still be "
        "evaluated"
    )


def _header(path: Path) -> dict[str, Any]:
    """What is JSON of a file's contents; its arrays are not read.

    Raises:
        ModelError: it is something else, or not as long as its header says.
    """
    if not path.is_file():  # a pipe would wait for ever
        raise ModelError(f"model {str(path)!r}: there is no such file")
    if _is_zip(path):
        raise ModelError(_refusal(path))
    try:
        with path.open("rb") as file:
            size, length = path.stat().st_size, int.from_bytes(file.read(8), "little")
            if length > min(size, _LONGEST_HEADER):
                raise ValueError("is cut off")
            header = json.loads(file.read(length))
        plain = _plain(header)
        arrays = (each for name, each in header.items() if name != "__metadata__")
        if 8 + length + max((each["data_offsets"][1] for each in arrays), default=0) != size:
            raise ValueError("is not as long as it says")
        return plain
    except OSError as error:
        raise ModelError(f"model {str(path)!r}: cannot be read ({error.strerror})") from None
    except (LookupError, RecursionError, TypeError, ValueError):
        raise _damaged(path) from None


def _damaged(path: Path) -> ModelError:
    return ModelError(f"model {str(path)!r}: cannot be read: damaged, or no model of this project")


def _plain(header: Any) -> dict[str, Any]:
    """What is JSON of the contents, out of a file's header.

    Raises:
        ValueError: it is the header of something else.
    """
    said = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(said, dict) or not isinstance(said.get(_FORMAT), str):
        raise ValueError(f"its header lacks {_FORMAT}")
    plain = json.loads(said[_FORMAT])
    if not isinstance(plain, dict):
        raise ValueError(f"its header holds {type(plain).__name__}, must be an object")
    return plain


def _steps(contents: dict[str, Any]) -> int:
    """Raises ValueError if they say nothing that can be a number of steps."""
    found = contents.get("timesteps")
    if type(found) is not int or not 0 <= found < 2**62:
        raise ValueError(f"timesteps = {found!r}: must be a number of steps")
    return found


def _is_zip(path: Path) -> bool:
    """By its first bytes: among weights those of a zip's end may stand, too."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"PK"
    except OSError:
        return False


def _refusal(path: Path) -> str:
    return (
        f"model {str(path)!r}: is a zip of stable-baselines3, and loading it runs whatever its author wrote "
        f"into it. If you trust it: python -m agents.convert model={path} trust=true"
    )


def _taken_apart(value: Any, place: tuple[str, ...], arrays: dict[str, Any]) -> Any:
    """What of `value` is JSON; its arrays go to `arrays`."""
    if isinstance(value, np.ndarray):
        name = ".".join(place)
        arrays[name] = np.ascontiguousarray(value).reshape(value.shape)
        return {_ARRAY: name}
    if isinstance(value, dict):
        return {key: _taken_apart(each, (*place, str(key)), arrays) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_taken_apart(each, (*place, str(k)), arrays) for k, each in enumerate(value)]
    return value.item() if isinstance(value, np.generic) else value


def _put_together(value: Any, arrays: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {key: _put_together(each, arrays) for key, each in value.items()}
    if isinstance(value, list):
        return [_put_together(each, arrays) for each in value]
    return value
