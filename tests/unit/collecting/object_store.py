"""An S3 server on this machine, for tests of places that are named by URLs."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Start a server with an empty bucket named `bucket`, and yield the variables by which clients find it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):  # a busy machine starts it slowly
            try:
                urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT"))
                break
            except OSError:
                time.sleep(0.2)
        yield {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.terminate()
        server.wait()
