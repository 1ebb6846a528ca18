"""The example endpoint under load, on this machine only: latency beside the bare model, memory, overload.

    python -m benchmarks.endpoint_load --requests 10000

A small convolutional network is exported twice: bare (softmax alone), and with a gated blend of one mirrored view.
Both are served by examples/serve.py on the loopback address, asked by a few clients at once, and stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np

SERVE = Path(__file__).parents[1] / "examples" / "serve.py"
SHAPE = (3, 32, 32)


def export(folder: Path) -> dict[str, Path]:
    """Write the two files and a profile of the calibrated one's answers."""
    import onnxruntime
    import torch

    from recal import Blend, Plan, save
    from recal.decisions import profile
    from recal.runtime.onnx import export_onnx

    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 32, 3, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, stride=2)]
    model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3136, 10)).eval()
    example = torch.zeros(1, *SHAPE)
    blend = Blend(0.6, (("flip", 0.4),), (), 1e-4, gate=0.13, gated_own=1.0)  # about half of the answers pass it
    files = {
        "bare": export_onnx(model, example, folder / "bare.onnx", plan=Plan()),
        "calibrated": export_onnx(model, example, folder / "calibrated.onnx", plan=Plan(blend=blend), accept=0.12),
    }
    session = onnxruntime.InferenceSession(str(files["calibrated"]))
    name = session.get_inputs()[0].name
    probs = session.run(["probs"], {name: inputs(2000)})[0]
    files["profile"] = save(profile(np.log(probs)), folder / "profile.recal")
    return files


def inputs(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, *SHAPE), dtype=np.float32)


class Server:
    """The endpoint in a process of its own, stopped by its process id."""

    def __init__(self, file: Path, *more: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [sys.executable, str(SERVE), str(file), "--port", str(self.port), *more]
        self.process = subprocess.Popen(command)
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        for _ in range(300):
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return self
            except httpx.HTTPError:
                time.sleep(0.2)
        raise SystemExit("the endpoint did not start within a minute")

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)

    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def ask(url: str, count: int, clients: int) -> tuple[list[float], dict[int, int]]:
    """Send `count` requests from `clients` at once; return the seconds of those answered, and the codes."""
    bodies, taken, codes = [row.tobytes() for row in inputs(64, seed=1)], [], {}
    left = iter(range(count))

    async def client(session: httpx.AsyncClient) -> None:
        for number in left:
            began = time.perf_counter()
            answer = await session.post(f"{url}/predict", content=bodies[number % len(bodies)])
            codes[answer.status_code] = codes.get(answer.status_code, 0) + 1
            if answer.status_code == 200:
                taken.append(time.perf_counter() - began)

    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=clients)) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return taken, codes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = export(Path(folder))
        for name, more in (("bare", ()), ("calibrated", ("--profile", str(files["profile"])))):
            with Server(files[name], *more) as server:
                asyncio.run(ask(server.url, 500, given.clients))
                before = server.megabytes()
                taken, codes = asyncio.run(ask(server.url, given.requests, given.clients))
                p50, p99 = np.percentile(np.array(taken) * 1e3, [50, 99])
                print(
                    f"{name}: {codes}, p50 {p50:.2f} ms, p99 {p99:.2f} ms, {before:.0f} -> {server.megabytes():.0f} MB"
                )
                print("   " + httpx.get(f"{server.url}/metrics").text.replace("\n", "  "))
        with Server(files["calibrated"], "--queue", "4", "--max-batch", "2") as server:
            _, codes = asyncio.run(ask(server.url, 2000, 64))
            told = httpx.get(f"{server.url}/metrics").text
            print(f"overload: {codes}, {sum(codes.values())} of 2000 answered; {told.splitlines()[:2]}")


if __name__ == "__main__":
    main()
