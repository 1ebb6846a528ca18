"""The output of --json follows the schema of its command in docs/schemas."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import recal
from recal.cli.app import COMMANDS, run
from tests import problems
from tests.problems import write_graded, write_questions

SCHEMAS = recal.docs_dir() / "schemas"
TABLE = "--correct right --signals stated,length --risk 0.2"
PANEL = "--truth key --system small=small_answer --system large=large_answer --risk 0.2"
# One line per kind of output. Those of `demo` and `serve` take minutes, or never end.
LINES = [
    "fit v.npz --method ts --out c.recal",
    "fit v.npz --method stack --out d.recal",
    "calibrate v.npz --method ts --risk 0.1 --out fv",
    f"calibrate g.csv {TABLE} --out fg",
    "calibrate fg --more h.csv",
    "calibrate fg --rollback",
    f"calibrate p.csv {PANEL} --out fp",
    f"calibrate p.csv {PANEL} --cost small=1 --cost large=2 --cascade --review-cost 9 --out fc",
    "apply fc p.csv --out b.csv",
    "check fc p.csv --label-column key",
    "plan fc",
    "plan fp",
    "apply fv v.npz --out p.npz",
    "apply c.recal v.npz --out q.npz",
    "apply fg g.csv --out a.csv",
    "collect --model schema_net:net --data x.npy --out w.npz",
    "evaluate p.npz --bootstrap 50",
    "evaluate v.npz --bootstrap 0 --report r.html",
    "evaluate g.csv --correct right --calibration fg --bootstrap 50",
    "compare v.npz --methods ts,vs --splits 2",
    "decide v.npz --risk 0.1 --out rule.recal",
    "decide v.npz --risk 0.1 --guarantee average",
    "decide h.csv --calibration fg --correct right --risk 0.0001",
    "decide v.npz --risk 0.1 --per-class --curve",
    "apply fg g.csv --out a2.csv",
    "audit fg a2.csv --checks 20 --out to-check.csv",
    "audit fg",
    "check fv v.npz",
    "check fg g.csv --correct right",
    "watch c.recal v.npz",
    "watch fg g.csv",
    "watch v.npz --save prof.recal",
    "report p.npz --out r2.html",
    "groups v.npz",
    "plan c.recal",
    "plan d.recal",
    "plan fg",
    "plan prof.recal",
    "plan rule.recal",
    "transforms",
    "transforms zoom",
    "doctor",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemas")
    write_graded(folder / "g.csv")
    write_graded(folder / "h.csv", seed=1)
    write_questions(folder / "p.csv", 400, 0)
    problems.views(900, transforms=["zoom:0.5"], noise=0.8).write(folder / "v.npz")
    np.save(folder / "x.npy", np.zeros((6, 4, 4), np.uint8))
    net = "def net(batch):\n    return batch.reshape(len(batch), -1)[:, :2] * 1.0\n"
    (folder / "schema_net.py").write_text("import numpy as np\n\n" + net)
    return folder


def test_every_command_has_a_schema_and_every_schema_a_line():
    names = {path.stem for path in SCHEMAS.glob("*.json")}
    assert names >= set(COMMANDS)
    lines = {line.split()[0] for line in LINES}
    assert names - lines <= {"demo", "serve", "export"}  # tested where their models are


def test_outputs_follow_their_schemas(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    for line in LINES:
        code = run([*line.split(), "--json"])
        shown = capsys.readouterr()
        assert code in (0, 1), (line, shown.err)
        schema = json.loads((SCHEMAS / f"{line.split()[0]}.json").read_text())
        found = json.loads(shown.out, parse_constant=pytest.fail)  # no NaN, no Infinity
        jsonschema.validate(found, schema)
        if "properties" in schema and isinstance(found, dict):
            assert set(found) <= set(schema["properties"]), line


def test_a_schema_refuses_another_output():
    for path in Path(SCHEMAS).glob("*.json"):
        schema = json.loads(path.read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate("text", schema)
