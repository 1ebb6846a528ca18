"""An S3 server on this machine, for tests of places that are named by URLs."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from s3fs import S3FileSystem

from recal.files.paths import is_remote

# The server takes a port that is free and says which. Had the tests chosen one, another process
# could take it first.
SERVER = """
import time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), sep=":", flush=True)
while True:
    time.sleep(60)
"""


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Start a server with an empty bucket named `bucket`, and yield the variables by which clients
    find it.
    """
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = f"http://{server.stdout.readline().strip()}"  # waits for as long as a busy machine needs
        urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT"))
        yield {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        S3FileSystem.clear_instance_cache()  # they would go on asking this server after the next one started
        server.terminate()
        server.wait()


def contents(folder):
    """Return the bytes of every file in a folder, here or in an object store, by name."""
    if is_remote(folder):
        root = folder.path.rstrip("/") + "/"
        names = folder.fs.find(folder.path)
        return {name.removeprefix(root): folder.fs.cat_file(name) for name in names}
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
