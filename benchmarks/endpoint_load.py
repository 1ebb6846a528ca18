"""The example endpoint under load, on this machine only: latency next to the bare model, memory,
overload, a kill.

    python -m benchmarks.endpoint_load --requests 10000

A convolutional network is exported twice: bare (only a softmax), and with a blend of one mirrored
view, whose gate sends four answers in ten through it, as on real networks. examples/serve.py serves
both on the loopback address at the same time, and a few clients query them in turns, so that other
load on the machine affects both equally. Then a small queue is overloaded, and a server is killed
while its clients wait.
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
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

SERVE = Path(__file__).parents[1] / "examples" / "serve.py"
SHAPE = (3, 32, 32)
SENT_THROUGH_VIEWS = 0.4
ROUNDS = 10


def export(folder: Path) -> dict[str, Path]:
    """Write the two files and a profile of the calibrated one's answers."""
    import onnxruntime
    import torch

    from recal import Blend, Plan, save
    from recal.decisions import profile
    from recal.export import export_onnx

    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(3, 32, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, stride=2),
    ]
    model = torch.nn.Sequential(
        *layers, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3136, 10)
    ).eval()
    example = torch.zeros(1, *SHAPE)
    with torch.no_grad():
        confidence = model(torch.from_numpy(inputs(2000))).softmax(1).amax(1).numpy()
    gate = float(np.quantile(confidence, SENT_THROUGH_VIEWS))
    blend = Blend(0.6, (("flip", 0.4),), (), 1e-4, gate=gate, gated_own=1.0)
    accept = float(np.median(confidence))
    files = {
        "bare": export_onnx(model, example, folder / "bare.onnx", plan=Plan()),
        "calibrated": export_onnx(
            model, example, folder / "calibrated.onnx", plan=blend, accept=accept
        ),
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

    def cpu_seconds(self) -> float:
        """What the server has computed so far; unlike latency it does not hang on what else the
        machine does.
        """
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Asked:
    """What came back: the seconds of what was answered, how often each code, and which errors of
    the connection.
    """

    seconds: list[float] = field(default_factory=list)
    codes: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


async def ask(url: str, count: int, clients: int, asked: Asked) -> None:
    """Send `count` requests from `clients` at once."""
    bodies, left = [row.tobytes() for row in inputs(512, seed=1)], iter(range(count))

    async def client(session: httpx.AsyncClient) -> None:
        for number in left:
            began = time.perf_counter()
            try:
                answer = await session.post(f"{url}/predict", content=bodies[number % len(bodies)])
            except httpx.HTTPError as error:
                asked.errors[type(error).__name__] += 1
                continue
            asked.codes[answer.status_code] += 1
            if answer.status_code == 200:
                asked.seconds.append(time.perf_counter() - began)

    async with httpx.AsyncClient(
        timeout=60, limits=httpx.Limits(max_connections=clients)
    ) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))


def side_by_side(files: dict[str, Path], requests: int, clients: int) -> None:
    """Ask both servers in turns; print latencies, memory, and what the calibrated one counted."""
    profile = ("--profile", str(files["profile"]))
    with Server(files["bare"]) as bare, Server(files["calibrated"], *profile) as calibrated:
        servers, found = (
            {"bare": bare, "calibrated": calibrated},
            {"bare": Asked(), "calibrated": Asked()},
        )
        for (
            server
        ) in servers.values():  # memory that is loaded on first use does not count as growth
            asyncio.run(ask(server.url, requests // 20, clients, Asked()))
        before = {name: server.megabytes() for name, server in servers.items()}
        begun = {name: server.cpu_seconds() for name, server in servers.items()}
        for _ in range(ROUNDS):
            for name, server in servers.items():
                asyncio.run(ask(server.url, requests // ROUNDS, clients, found[name]))
        for name, server in servers.items():
            p50, p99 = np.percentile(np.array(found[name].seconds) * 1e3, [50, 99])
            memory = f"{before[name]:.0f} -> {server.megabytes():.0f} MB"
            cpu = 1e3 * (server.cpu_seconds() - begun[name]) / sum(found[name].codes.values())
            times = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, {cpu:.2f} ms of CPU an answer"
            print(f"{name}: {dict(found[name].codes)}, {times}, {memory}")
        print("   " + httpx.get(f"{calibrated.url}/metrics").text.replace("\n", "  "))


def overload(file: Path, requests: int = 2000) -> None:
    """Many more clients than a small queue takes: every request gets an answer, of one kind or the
    other.
    """
    with Server(file, "--queue", "4", "--max-batch", "2") as server:
        asked = Asked()
        asyncio.run(ask(server.url, requests, 64, asked))
        told = httpx.get(f"{server.url}/metrics").text
        lost = requests - sum(asked.codes.values())
        print(f"overload: {dict(asked.codes)}, {lost} of {requests} lost; {told.splitlines()[:2]}")


def killed(file: Path) -> None:
    """Kill a server while clients wait: each gets an answer or an error of the connection, and none
    hangs.
    """
    with Server(file) as server:
        asked = Asked()

        async def both() -> None:
            asking = asyncio.create_task(ask(server.url, 2000, 16, asked))
            while sum(asked.codes.values()) < 200:
                await asyncio.sleep(0.001)
            server.process.kill()
            await asking

        began = time.perf_counter()
        asyncio.run(both())
        took, got = (
            time.perf_counter() - began,
            sum(asked.codes.values()) + sum(asked.errors.values()),
        )
        print(
            f"killed: {dict(asked.codes)}, {dict(asked.errors)}, {2000 - got} of 2000 unaccounted; {took:.1f} s in all"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = export(Path(folder))
        side_by_side(files, given.requests, given.clients)
        overload(files["calibrated"])
        killed(files["calibrated"])


if __name__ == "__main__":
    main()
