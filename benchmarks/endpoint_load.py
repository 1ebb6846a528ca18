"""Load on `recal serve`, beside a bare FastAPI service that returns what it gets.

    python -m benchmarks.endpoint_load --seconds 20 --clients 4
    python -m benchmarks.endpoint_load --seconds 600          # memory over ten minutes

Both services run on this machine and are asked in turns, so that other load affects both. Rows are
graded answers with signals; a tenth of the accepted ones is drawn for a check and graded. In the
end the calibrated service is killed and started again: no grade may be lost.
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

from recal import DecisionRule, SignalCalibration, save

ECHO = """
from fastapi import FastAPI, Request
app = FastAPI()
@app.post("/answers")
async def answers(request: Request):
    return await request.json()
@app.get("/healthz")
async def healthz():
    return {}
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """A service in a process of its own."""

    def __init__(self, words: list[str], folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if httpx.get(f"{self.url}/healthz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        raise SystemExit(f"{words} did not start.")

    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def end(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(20)


async def ask(url: str, seconds: float, clients: int, *, grades: bool) -> list[float]:
    """Ask with several clients at once; return the latency of each request in milliseconds."""
    until, latencies = time.monotonic() + seconds, []

    async def client(seed: int) -> None:
        rng = np.random.default_rng(seed)
        async with httpx.AsyncClient() as http:
            while time.monotonic() < until:
                row = {"signals": {"stated": float(rng.random()), "length": float(rng.random())}}
                begin = time.perf_counter()
                answer = (await http.post(f"{url}/answers", json=row)).json()
                latencies.append(1e3 * (time.perf_counter() - begin))
                if grades and answer.get("check"):
                    right = bool(rng.random() < answer["confidence"])
                    await http.post(f"{url}/grades", json={"id": answer["id"], "right": right})

    await asyncio.gather(*(client(seed) for seed in range(clients)))
    return latencies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=1)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    stated, length = rng.random(1000), rng.random(1000)
    right = rng.random(1000) < stated
    calibrator = SignalCalibration().fit({"stated": stated, "length": length}, right)
    calibrator.decision_ = DecisionRule((0.8,), risk=0.2, confidence=0.95)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(calibrator, folder / "calibration.recal")
        (folder / "echo.py").write_text(ECHO)
        ports = free_port(), free_port()
        serve = [sys.executable, "-m", "recal", "serve", ".", "--check-rate", "0.1"]
        echo = [sys.executable, "-m", "uvicorn", "echo:app", "--log-level", "warning"]
        servers = {
            "recal serve": Server([*serve, "--port", str(ports[0])], folder, ports[0]),
            "bare FastAPI": Server([*echo, "--port", str(ports[1])], folder, ports[1]),
        }
        found: dict[str, list[float]] = {one: [] for one in servers}
        rounds = max(2, round(given.seconds / 10))
        for server in servers.values():
            asyncio.run(ask(server.url, 1.0, given.clients, grades=True))
        before = {one: server.megabytes() for one, server in servers.items()}
        for _ in range(rounds):
            for one, server in servers.items():
                slot = given.seconds / rounds / 2
                found[one] += asyncio.run(ask(server.url, slot, given.clients, grades=True))
        for one, server in servers.items():
            p50, p95 = np.percentile(found[one], [50, 95])
            rate = len(found[one]) / (given.seconds / 2)
            grown = server.megabytes() - before[one]
            print(
                f"{one:13} {rate:7.0f} requests/s  p50 {p50:5.2f} ms  p95 {p95:5.2f} ms  "
                f"{server.megabytes():5.0f} MB ({grown:+.1f})"
            )
        first = servers["recal serve"]
        graded = httpx.get(f"{first.url}/status").json()["graded"]
        first.end(signal.SIGKILL)
        again = Server([*serve, "--port", str(ports[0])], folder, ports[0])
        kept = httpx.get(f"{again.url}/status").json()["graded"]
        print(f"{graded} grades before SIGKILL, {kept} after")
        again.end()
        servers["bare FastAPI"].end()


if __name__ == "__main__":
    main()
