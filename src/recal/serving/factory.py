"""Makes the application from settings in the environment, as each worker process does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recal.serving.app import Limits, make_app
from recal.serving.scoring import Scorer
from recal.serving.service import Service

if TYPE_CHECKING:
    from fastapi import FastAPI

VARIABLE = "RECAL_SERVE"


def encoded(settings: dict[str, Any]) -> str:
    return json.dumps(settings)


def check(settings: dict[str, Any]) -> None:
    """Build the service once, so that errors are shown before the first process starts."""
    _service(settings)


def make() -> FastAPI:
    """Return the application that the environment describes."""
    settings = json.loads(os.environ[VARIABLE])
    limits = Limits(
        settings["max_bytes"], settings["max_rows"], os.environ.get("RECAL_TOKEN") or None
    )
    return make_app(_service(settings), limits)


def _service(settings: dict[str, Any]) -> Service:
    from recal import load

    calibration = load(settings["file"])
    predict = None if settings["model"] is None else _predictor(calibration, settings)
    scorer = Scorer(calibration, predict)
    return Service(Path(settings["folder"]), scorer, settings["check_rate"])


def _predictor(calibration: Any, settings: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a function from inputs to predictions of the model and its calibration."""
    import numpy as np

    from recal.collecting import apply
    from recal.collecting.models.base import as_model, import_model

    trusted = () if settings["trust"] is None else settings["trust"].split(",")
    opened = as_model(import_model(settings["model"], trusted=trusted))

    def predict(inputs: list[Any]) -> Any:
        texts = all(isinstance(one, str) for one in inputs)
        batch = inputs if texts else np.asarray(inputs)
        how = {"outputs": settings["outputs"], "progress": False, "keep_logits": True}
        return apply(calibration, opened, batch, **how)

    return predict
