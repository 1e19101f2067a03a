"""The data file of iteration times: models as JSON, read and written.

The shipped one (`data/iteration_times.json`) is written by `python -m llmscale_env.calibrate` from
measurements.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from llmscale_env._reading import Unreadable, read_json
from llmscale_env.cluster.iteration_model import FitError, IterationTimeModel

_SHIPPED = Path(__file__).parent / "data" / "iteration_times.json"
SCHEMA_VERSION = 1
"""Of the data file; raised when a reader of the old one would misread the new one."""


class DataFileError(ValueError):
    """The data file cannot be read; the message names the file and the field."""


def model_to_json(model: IterationTimeModel) -> dict[str, Any]:
    """A model as plain JSON values."""
    # The fields alone: what a model has computed for itself is kept beside them.
    record = {field.name: getattr(model, field.name) for field in fields(model)}
    record["errors"] = {part: vars(error) for part, error in model.errors.items()}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in record.items()}


def model_from_json(record: dict[str, Any]) -> IterationTimeModel:
    """The inverse of `model_to_json`.

    Raises:
        TypeError, ValueError, KeyError: a field is missing, unknown or out of range.
    """
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
    values["errors"] = {part: FitError(**e) for part, e in record.get("errors", {}).items()}
    return IterationTimeModel(**values)


def load_models(path: str | Path | None = None) -> tuple[IterationTimeModel, ...]:
    """All models of a data file: the shipped one, or one written by `llmscale_env.calibrate`.

    Raises:
        DataFileError: the file is missing or malformed; the message says where.
    """
    return _load(None if path is None else str(Path(path).resolve()))


@lru_cache(maxsize=16)
def _load(path: str | None) -> tuple[IterationTimeModel, ...]:
    shown = "the shipped iteration_times.json" if path is None else path
    models = []
    for index, record in enumerate(read_data_file(path)["models"]):
        try:
            models.append(model_from_json(record))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataFileError(f"data = {shown}: models[{index}]: {error}") from None
    return tuple(models)


def read_data_file(path: str | None = None) -> dict[str, Any]:
    """A data file as plain JSON values, its outer shape and version checked.

    Raises:
        DataFileError: the file is missing, not JSON, or of another schema version.
    """
    shown = "the shipped iteration_times.json" if path is None else path
    try:
        content = read_json(_SHIPPED if path is None else Path(path))
    except Unreadable as error:
        raise DataFileError(f"data = {shown}: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("models"), list):
        raise DataFileError(f"data = {shown}: expected an object with a list 'models'")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise DataFileError(
            f"data = {shown}: schema_version = {content.get('schema_version')!r}, this version "
            f"reads {SCHEMA_VERSION}; write the file again with python -m llmscale_env.calibrate"
        )
    return content
