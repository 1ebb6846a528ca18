"""Files that look like recal's own by chance are the user's: each format that a command writes, with `recal` in it."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import onnx
import pyarrow
import pyarrow.parquet
import pytest
from onnx import TensorProto, helper
from PIL import Image, PngImagePlugin

from recal import Views
from recal.cli.app import run
from recal.errors import FileError
from recal.files.origin import MARK, made_by_recal
from recal.files.prob_tables import write_prob_file

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><title>precision and recall</title><text>{}</text></svg>'


def users_npz(path):
    np.savez(path, recal=np.zeros(3))
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"recall of three models"


def users_png(path):
    words = PngImagePlugin.PngInfo()
    words.add_text("Software", "recall plotter")
    words.add_text("Title", MARK)
    Image.new("L", (4, 4)).save(path, pnginfo=words)


def users_onnx(path):
    node = helper.make_node("Identity", ["x"], ["recal"])
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "recal")]
    onnx.save(helper.make_model(helper.make_graph([node], MARK, value[:1], value[1:]), producer_name="recal"), path)


def users_zarr(path):
    path.mkdir()
    (path / "zarr.json").write_text(json.dumps({"attributes": {"recal": "notes", "of": "recal"}}))


USERS = {
    "mine.npz": users_npz,
    "mine.parquet": lambda path: pyarrow.parquet.write_table(pyarrow.table({"recall": [0.5], "recal": [1]}), path),
    "mine.html": lambda path: path.write_text(f'<meta name="generator" content="recal"><!-- {MARK} --><p>{MARK}'),
    "mine.svg": lambda path: path.write_text(SVG.format(MARK)),
    "mine.png": users_png,
    "mine.pdf": lambda path: path.write_bytes(b"%PDF-1.4\n/Creator (recal) /Keywords (" + MARK.encode() + b")\n%%EOF"),
    "mine.onnx": users_onnx,
    "mine.json": lambda path: path.write_text(json.dumps({"made_by": "recal", "note": {"made_by": MARK}})),
    "mine.md": lambda path: path.write_text("# Recall\nmade by recal <!-- made by recal -->\n"),
    "mine.tex": lambda path: path.write_text("% made by recall tables\n"),
    "mine.recal": lambda path: path.write_bytes((20).to_bytes(8, "little") + b'{"recal": "not ours"}'),
    "mine.zarr": users_zarr,
}


@pytest.mark.parametrize("name", USERS)
def test_the_users_own_file_is_not_taken_for_recals(tmp_path, name):
    USERS[name](tmp_path / name)
    assert not made_by_recal(tmp_path / name)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    logits = 2 * (np.eye(3)[y] + rng.normal(0, 0.9, (60, 3)))
    Views(logits, {"zoom:0.5": logits * 0.6 + rng.normal(0, 0.5, (60, 3))}, y).write("v.npz")
    assert run(["fit", "v.npz", "--method", "ts", "--out", "c.recal"]) == 0
    return tmp_path


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["apply", "c.recal", "v.npz", "--out"], "mine.parquet"),
        (["apply", "c.recal", "v.npz", "--out"], "mine.npz"),
        (["groups", "v.npz", "--chart"], "mine.svg"),
        (["groups", "v.npz", "--chart"], "mine.png"),
        (["groups", "v.npz", "--chart"], "mine.pdf"),
        (["export", "c.recal", "--classes", "3", "--out"], "mine.onnx"),
    ],
)
def test_a_command_asks_before_it_replaces_it_and_knows_its_own_again(place, command, name, capsys):
    USERS[name](place / name)
    before = (place / name).read_bytes()
    assert run([*command, name]) == 2
    assert "--force" in capsys.readouterr().err
    assert (place / name).read_bytes() == before
    assert run([*command, name, "--force"]) == 0
    assert made_by_recal(place / name)


def test_a_table_derived_from_recals_is_the_users(tmp_path):
    path = write_prob_file(tmp_path / "p.parquet", np.array([[0.2, 0.8], [0.6, 0.4]]))
    assert made_by_recal(path)
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.append_column("notes", [["mine", "too"]]), path)
    assert pyarrow.parquet.read_metadata(path).metadata[b"recal"], "or the mark was not carried along"
    assert not made_by_recal(path)


def test_a_results_table_that_was_edited_is_the_users(place, capsys):
    compare = ["compare", "v.npz", "--methods", "ts", "--splits", "2", "--out", "results"]
    assert run(compare) == 0
    assert run(compare) == 0
    with (place / "results" / "comparison.csv").open("a") as file:
        file.write("my,own,line\n")
    assert run(compare) == 2
    assert "comparison.csv" in capsys.readouterr().err


def test_a_folder_of_zarr_that_is_not_views_is_not_replaced(tmp_path):
    users_zarr(tmp_path / "mine.zarr")
    with pytest.raises(FileError, match="did not write"):
        Views([[2.0, 0.0]]).write(tmp_path / "mine.zarr")
    assert "notes" in (tmp_path / "mine.zarr" / "zarr.json").read_text()
