"""Outputs of commands: no input is overwritten, an existing file needs --force, and other commands
can read them.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from recal.cli.app import run
from tests.problems import views

VIEWS = views(60, transforms=["zoom:0.5"], scale=2, noise=0.9, keep=0.6, blur=0.5)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with one file of each kind."""
    monkeypatch.chdir(tmp_path)
    VIEWS.write("v.npz")
    VIEWS.write("v.zarr")
    assert run(["fit", "v.npz", "--method", "ts", "--out", "c.recal"]) == 0
    assert run(["apply", "c.recal", "v.npz", "--out", "p.npz"]) == 0
    assert run(["apply", "c.recal", "v.npz", "--out", "p.parquet"]) == 0
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


OVER_INPUTS = {
    "fit": ["fit", "v.npz", "--method", "ts", "--out", "v.recal"],
    "apply": ["apply", "c.recal", "v.npz", "--out", "v.npz"],
    "report": ["report", "p.npz", "--out", "p.html"],
    "report-before": ["report", "p.npz", "--before", "b.html", "--out", "b.html"],
    "evaluate": ["evaluate", "p.npz", "--report", "p.html"],
    "export": ["export", "c.recal", "--model", "net.onnx", "--out", "net.onnx"],
    "collect": ["collect", "--model", "net.onnx", "--data", "x.npz", "--out", "x.npz"],
    "compare": ["compare", "v.npz", "--out", "v.npz"],
}


@pytest.mark.parametrize("link", ["same", "symbolic", "hard"])
@pytest.mark.parametrize("name", OVER_INPUTS)
def test_no_output_replaces_an_input_whatever_its_name(place, name, link, capsys):
    command = list(OVER_INPUTS[name])
    (place / "net.onnx").write_bytes(b"a model")
    np.savez(place / "x.npz", inputs=np.zeros((4, 4)))
    (place / "b.html").write_bytes((place / "p.npz").read_bytes())
    # Names whose ending is another than the input's lead to it by a link.
    join = os.link if link == "hard" else os.symlink
    for name in {"v.recal", "p.html"} & set(command):
        join((place / name).with_suffix(".npz"), place / name)
    if link != "same" and command[-1] in ("v.npz", "net.onnx", "x.npz"):
        other = "other" + os.path.splitext(command[-1])[1]
        join(place / command[-1], place / other)
        command[-1] = other
    before = contents(place)
    for forced in ([], ["--force"]):
        assert run([*command, *forced]) == 2
        assert "which would be overwritten" in capsys.readouterr().err
    assert contents(place) == before


WRITES = {
    "c2.recal": ["fit", "v.npz", "--method", "ts", "--out"],
    "p2.npz": ["apply", "c.recal", "v.npz", "--out"],
    "p2.parquet": ["apply", "c.recal", "v.npz", "--out"],
    "r2.html": ["evaluate", "p.npz", "--bootstrap", "0", "--report"],
    "e2.onnx": ["export", "c.recal", "--classes", "3", "--out"],
}


@pytest.mark.parametrize("name", WRITES)
def test_an_existing_file_is_overwritten_only_with_force(place, name, capsys):
    command = [*WRITES[name], name]
    assert run(command) == 0
    # recal's own file, and the user's
    for content in ((place / name).read_bytes(), b"years of work"):
        (place / name).write_bytes(content)
        assert run(command) == 2
        assert f"{name} already exists. Use --force to overwrite it." in capsys.readouterr().err
        assert (place / name).read_bytes() == content
    assert run([*command, "--force"]) == 0
    assert (place / name).read_bytes() != b"years of work"


def test_the_profile_beside_an_exported_file_is_not_overwritten_unasked(place, capsys):
    (place / "e3.profile.recal").write_bytes(b"years of work")
    command = ["export", "c.recal", "--classes", "3", "--out", "e3.onnx"]
    assert run(command) == 2
    assert "e3.profile.recal already exists. Use --force" in capsys.readouterr().err
    assert not (place / "e3.onnx").exists()
    assert run([*command, "--force"]) == 0


def test_a_folder_of_calibrate_is_resumed_until_its_calibration_is_there(tmp_path):
    from recal.cli.files import check_destinations
    from recal.errors import InputError

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "report.html").write_text("page")
    with pytest.raises(InputError, match=r"report\.html already exists"):
        check_destinations("calibrate", {"out": folder})
    (tmp_path / ".run.run").mkdir()
    check_destinations("calibrate", {"out": folder})
    (folder / "calibration.recal").write_bytes(b"done")
    with pytest.raises(InputError, match=r"calibration\.recal already exists"):
        check_destinations("calibrate", {"out": folder})
    check_destinations("calibrate", {"out": folder, "force": True})


# --- what one command writes, the others read


@pytest.mark.parametrize("written", ["p.npz", "p.parquet", "v.npz", "v.zarr"])
@pytest.mark.parametrize(
    "reader",
    [
        ["evaluate", "{}", "--bootstrap", "0", "--json"],
        ["report", "{}", "--out", "r.html", "--json"],
        ["report", "p.npz", "--before", "{}", "--out", "r.html", "--json"],
        ["report", "p.parquet", "--before", "{}", "--out", "r.html", "--json"],
    ],
    ids=["evaluate", "report", "before", "before-table"],
)
def test_what_one_command_writes_the_others_read(place, written, reader, capsys):
    capsys.readouterr()
    assert run([part.format(written) for part in reader]) == 0, capsys.readouterr().err


def test_each_file_in_a_folder_of_results_is_protected(place, capsys):
    from recal.cli.files import files_of

    compare = ["compare", "v.npz", "--methods", "ts", "--splits", "2", "--out", "results"]
    assert run(compare) == 0
    assert {path.name for path in (place / "results").iterdir()} == set(files_of("compare"))
    assert run(compare) == 2
    assert run([*compare, "--force"]) == 0, capsys.readouterr().err
    for name in files_of("compare"):
        mine = place / "mine" / name
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("mine")
        assert run([*compare[:-1], "mine"]) == 2
        assert f"mine/{name} already exists" in capsys.readouterr().err
        assert mine.read_text() == "mine"
        mine.unlink()
