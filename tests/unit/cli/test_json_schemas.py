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
# One line per kind of output. Those of `demo` and `serve` take minutes, or never end.
LINES = Path(__file__).with_name("json_lines.txt").read_text(encoding="utf-8").splitlines()


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
