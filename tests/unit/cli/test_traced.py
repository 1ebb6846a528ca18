"""Files that a command opens and programs that it starts, seen by Python's audit events."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.problems import views
from tests.unit.export.onnx_zoo import linear

# An EPS file as Pillow would know it; to read it, Pillow starts Ghostscript.
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"

COLLECT = "collect --model net.onnx --divide 255 --classes a,b,c"
COMMANDS = [
    shlex.split(line)
    for line in f"""
{COLLECT} --data images --pool flip --out c.npz;
{COLLECT} --data hostile --on-error skip --out h.npz;
fit v.npz --method ts --out t.recal; apply t.recal v.npz --out p.npz; evaluate p.npz --bootstrap 0;
compare v.npz --methods ts --splits 1 --out results; decide v.npz --risk 0.3 --out rule.recal;
watch v.npz v.npz; groups v.npz; export t.recal --classes 3 --out e.onnx; plan t.recal; transforms;
doctor""".split(";")
]

TRACED = """
import json, sys
events = []
def seen(name, arguments):
    if name in ("open", "os.open") and isinstance(arguments[0], (str, bytes)):
        path = arguments[0].decode() if isinstance(arguments[0], bytes) else arguments[0]
        events.append(["open", path, str(arguments[1])])
    elif name in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect"):
        events.append(["start", name, repr(arguments)[:200]])
sys.addaudithook(seen)
from recal.cli.app import run
told = []
for command in json.loads(sys.argv[1]):
    del events[:]
    code = run(command)
    told.append([command[0], code, list(events)])
with open("told.json", "w") as file:
    json.dump(told, file)
"""
# Other packages ask the machine what it is; none of these reads a file that a user gave.
HARMLESS = shlex.split(
    "fc-list lscpu uname ldconfig /sbin/ldconfig gcc cc ld nvidia-smi lsb_release"
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    views(60, scale=2, noise=0.9, keep=0.6, blur=0.5, transforms=["zoom:0.5"]).write("v.npz")
    secret = tmp_path / "secret" / "private.png"
    secret.parent.mkdir()
    Image.fromarray(np.full((8, 8, 3), 7, np.uint8)).save(secret)
    for folder in ("images/a", "hostile/a"):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(4):
            image = Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))
            image.save(tmp_path / folder / f"{number}.png")
    (tmp_path / "hostile/a/eps.png").write_bytes(EPS)
    (tmp_path / "hostile/a/00.png").symlink_to(secret)
    linear(tmp_path / "net.onnx", (3, 8, 8), 3)
    return tmp_path


@pytest.mark.slow
def test_commands_open_what_they_were_given_and_start_no_program(place):
    done = subprocess.run(
        [sys.executable, "-c", TRACED, json.dumps(COMMANDS)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((place / "told.json").read_text())
    assert [code for _, code, _ in told] == [0] * len(COMMANDS), done.stderr
    for command, _, events in told:
        started = [what for kind, *what in events if kind == "start"]
        known = [what for what in started if any(f"'{name}'" in what[1] for name in HARMLESS)]
        assert started == known, command
        opened = {path: mode for kind, path, mode in events if kind == "open"}
        assert not [path for path in opened if "private.png" in path], command
        written = [path for path, mode in opened.items() if mode and set(mode) & set("wax+")]
        elsewhere = [path for path in written if path.startswith("/")]
        allowed = (str(place), "/dev/null", "/tmp")
        strange = [path for path in elsewhere if not path.startswith(allowed)]
        assert not [path for path in strange if "cache" not in path.lower()], command
