"""`recal serve`: score answers where they are made."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

from typer import Option

from recal.cli import options as opt
from recal.cli.files import load_saved
from recal.cli.printing import print_json, say
from recal.errors import InputError, MissingExtraError


def serve(
    folder: opt.Calibration,
    model: opt.Model = None,
    host: Annotated[str, Option(help="Where to listen; by default on this machine only.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, Option(help="The port; 0 takes a free one.")] = 8000,
    workers: Annotated[int, Option(help="Processes; they share one journal.", min=1)] = 1,
    check_rate: Annotated[float, Option(help="The share of accepted answers to check.")] = 0.05,
    max_rows: Annotated[int, Option(help="The most rows of one request.", min=1)] = 1000,
    max_bytes: Annotated[int, Option(help="The most bytes of one request.", min=1)] = 4_000_000,
    outputs: opt.Outputs = None,
    trust: opt.Trust = None,
) -> None:
    """Serve a calibration over HTTP: scores in, decisions out, grades back.

    POST /answers takes one row or a list: {"signals": {...}}, {"answers": {...}, "signals": {...}},
    {"logits": [...]}, or with --model {"input": [...]}; with "group" if the fit had groups. It
    returns answer, confidence, accepted, and whether a person should check the answer. POST /grades
    takes {"id": ..., "right": true}. GET / is a status page, GET /metrics is for Prometheus, GET
    /healthz says that the service is up. If the environment has RECAL_TOKEN, requests need it.

    Example: [bold]recal serve calibrated --port 8000[/bold]
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError:
        raise MissingExtraError("uvicorn", "serve", "recal serve") from None

    file, content = load_saved(folder)
    if not hasattr(content, "predict_confidence"):
        raise InputError(f"{file} holds no calibration. See: recal plan {file}")
    settings: dict[str, Any] = {
        "folder": str(file.parent),
        "file": str(file),
        "model": model,
        "outputs": outputs,
        "trust": trust,
        "check_rate": check_rate,
        "max_rows": max_rows,
        "max_bytes": max_bytes,
    }
    from recal.serving.app import VARIABLE, make_service

    make_service(settings)  # shows errors before the first process starts
    print_json(
        {"url": f"http://{host}:{port}", "rule": getattr(content, "decision_", None) is not None}
    )
    say(f"Serving {file} at http://{host}:{port} (status page, /answers, /grades, /metrics).")
    if host not in ("127.0.0.1", "localhost", "::1") and not os.environ.get("RECAL_TOKEN"):
        say(
            "Warning: anybody who reaches this port can use it. Set RECAL_TOKEN to require a token."
        )
    os.environ[VARIABLE] = json.dumps(settings)
    uvicorn.run(
        "recal.serving.app:make",
        factory=True,
        host=host,
        port=port,
        workers=workers if workers > 1 else None,
        log_level="warning",
        timeout_graceful_shutdown=5,
    )
