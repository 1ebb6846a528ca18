"""What a command imports: a refusal, a list or a look at a file must not wait for compilers and
frameworks.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import recal
from recal.files.probabilities import write_prob_file
from tests import problems

# Whose import takes longer than all the rest of such a command.
HEAVY = "numba scipy sklearn torch onnx onnxruntime zarr matplotlib pandas pyarrow ray"
SCRIPT = """
import contextlib, io, json, shlex, sys
from recal.cli.app import run

codes = []
for line in sys.argv[2:]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        codes.append(run(shlex.split(line)))
print(json.dumps([codes, [name for name in json.loads(sys.argv[1]) if name in sys.modules]]))
"""


def commands(text):
    return [line.strip() for line in text.split(";")]


REFUSED = commands("""
fit none.npz --out c.recal; apply none.recal views.npz --out p.npz;
apply ts.recal none.npz --out p.npz;
apply ts.recal --model none.onnx --data views.npz --out p.npz;
collect --model none.onnx --data views.npz --out v.npz; evaluate none.npz; decide none.npz;
compare none.npz; report none.npz; watch none.recal views.npz; groups none.npz;
export none.recal --out m.onnx; plan views.npz; demo --out ts.recal
""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("startup")
    views = problems.views(2000, 2, scale=2, noise=0.5, keep=1, transforms=["zoom:0.5"])
    plain = recal.Views(views.logits, labels=views.labels)
    plain.write(place / "views.npz")
    views.write(place / "three.npz")
    scaling = recal.TemperatureScaling().fit(plain)
    recal.save(scaling, place / "ts.recal")
    recal.save(recal.ReCal(max_iter=2).fit(views), place / "recal.recal")
    recal.save(recal.ViewStacking().fit(views), place / "stack.recal")
    recal.save(recal.profile(plain), place / "profile.recal")
    write_prob_file(place / "probs.npz", scaling.predict_proba(plain), views.labels)
    return place


def loaded(folder, heavy, *lines):
    command = [sys.executable, "-c", SCRIPT, json.dumps(heavy), *lines]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_what_is_refused_loads_nothing_heavy(folder):
    codes, found = loaded(folder, HEAVY.split(), *REFUSED)
    assert dict(zip(REFUSED, codes)) == dict.fromkeys(REFUSED, 2)
    assert found == []


def test_help_and_lists_load_nothing_heavy(folder):
    lines = ("--help", "transforms", "transforms zoom", "collect --help", "decide --help")
    codes, found = loaded(folder, HEAVY.split(), *lines)
    assert codes == [0] * len(lines)
    assert found == []


WORK = commands("""
fit views.npz --method ts --out c.recal; apply ts.recal views.npz --out p.npz;
apply stack.recal three.npz --out s.npz; watch profile.recal views.npz; plan ts.recal;
plan recal.recal; plan stack.recal
""")
# Exact bounds are beta functions.
SCIPY = ("decide probs.npz --risk 0.3", "evaluate probs.npz", "evaluate probs.npz --bootstrap 50")


@pytest.mark.parametrize(("lines", "needed"), [(WORK, set()), (SCIPY, {"scipy"})])
def test_small_work_loads_what_it_needs_alone(folder, lines, needed):
    heavy = [*HEAVY.split(), "scipy.stats", "scipy.optimize", "PIL"]
    codes, found = loaded(folder, heavy, *lines)
    assert dict(zip(lines, codes)) == dict.fromkeys(lines, 0)
    assert set(found) <= needed
