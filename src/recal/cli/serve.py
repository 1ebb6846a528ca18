"""`recal serve`: score answers where they are made."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from recal.cli import options as opt
from recal.cli.files import check_calibration, is_panel, is_signal_calibration, load_saved
from recal.cli.printing import print_json, say
from recal.errors import InputError, needs_extra

if TYPE_CHECKING:
    from fastapi import FastAPI

    from recal.serving import Service

INPUTS = ("model", "outputs", "trust", "device")
VARIABLE = "RECAL_SERVE"  # what a worker process reads its settings from


def serve(
    ctx: Context,
    folder: opt.CalibrationPath,
    host: Annotated[str, Option(help="Where to listen; by default on this machine only.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8000,
    workers: Annotated[int, Option(help="Processes; they share one journal.", min=1)] = 1,
    check_rate: Annotated[float, Option(help="The share of accepted answers to check.")] = 0.05,
    max_rows: Annotated[int, Option(help="The most rows of one request.", min=1)] = 1000,
    max_bytes: Annotated[int, Option(help="The most bytes of one request.", min=1)] = 4_000_000,
    force: Annotated[bool, Option("--force", help="Accept a calibration of another model.")] = (
        False
    ),
) -> None:
    """Serve a calibration over HTTP: scores in, decisions out, grades back.

    POST /answers takes one row or a list: {"signals": {...}}, {"answers": {...}, "signals": {...}},
    {"logits": [...]}, or with --model {"input": ...}; with "group" if the fit had groups. It
    returns answer, confidence, accepted, and whether a person should check the answer. POST /grades
    takes {"id": ..., "right": true}. GET / is a status page, GET /status has its figures as JSON,
    GET /metrics is for Prometheus, GET /healthz says that the service is up. If the environment has
    RECAL_TOKEN, requests need it.

    Example: [bold]recal serve calibrated --port 8000[/bold]

    Example: [bold]recal serve calibrated --model net.onnx[/bold]
    """
    with needs_extra("serve", "recal serve"):
        import fastapi  # noqa: F401
        import uvicorn

    file, content = load_saved(folder)
    if not (hasattr(content, "predict_confidence") or is_panel(content)):
        raise InputError(f"{file} holds no calibration. See: recal plan {file}")
    is_of_tables = is_panel(content) or is_signal_calibration(content)
    if is_of_tables or ctx.obj.model is None:
        what = "a calibration of tables" if is_of_tables else "a service without --model"
        opt.refuse(ctx, what, (*INPUTS, "force"))
    settings: dict[str, Any] = {
        "folder": str(folder),
        "inputs": {name: getattr(ctx.obj, name) for name in INPUTS},
        "force": force,
        "check_rate": check_rate,
        "max_rows": max_rows,
        "max_bytes": max_bytes,
    }
    service = make_service(settings)  # shows errors before the first process starts
    listening = listen(host, port)
    port = listening.getsockname()[1]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    print_json({"url": url, "rule": service.audit is not None})
    say(f"Serving {file} at {url} (status page, /answers, /grades, /metrics).")
    if host not in ("127.0.0.1", "localhost", "::1") and not os.environ.get("RECAL_TOKEN"):
        say(
            "Warning: anybody who reaches this port can use it. Set RECAL_TOKEN to require a token."
        )
    sys.stdout.flush()  # the process that started it may wait for the address
    os.environ[VARIABLE] = json.dumps(settings)
    uvicorn.run(
        "recal.cli.serve:make",
        factory=True,
        fd=listening.fileno(),
        workers=workers if workers > 1 else None,
        log_level="warning",
        timeout_graceful_shutdown=5,
    )


def make() -> FastAPI:
    """Return the application that the environment describes, in each worker process."""
    from recal.serving import make_app

    settings = json.loads(os.environ[VARIABLE])
    limits = {name: settings[name] for name in ("max_bytes", "max_rows")}
    return make_app(make_service(settings), **limits, token=os.environ.get("RECAL_TOKEN"))


def make_service(settings: dict[str, Any]) -> Service:
    """Return the service; errors in the settings are raised here."""
    from recal.serving import Scorer, Service

    file, content = load_saved(Path(settings["folder"]))
    inputs, model = opt.Inputs(**settings["inputs"]), None
    if inputs.model is not None:
        calibrator = check_calibration(file, content)
        stored, refuse = getattr(calibrator, "preprocessing_", None), not settings["force"]
        model = inputs.open_model(stored, refuse=refuse)
    return Service(file.parent, Scorer(content, model), settings["check_rate"])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket at this address; refuse one that cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        found = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]
        raise InputError(
            f"Cannot listen at {host}, port {port}: {why}. Choose another --host or --port; "
            "--port 0 takes a free one."
        ) from None
    # Connections inherit it. Otherwise an answer can wait 40 ms for the client's acknowledgement.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found
