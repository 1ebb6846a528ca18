"""What a newcomer types wrongly, and what is said: the fault, and what to type instead."""

from __future__ import annotations

import json

import numpy as np
import pytest

from recal import TemperatureScaling, Views, load, save
from recal.cli.app import run
from recal.cli.failures import as_typed
from recal.errors import InputError

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 60)
LOGITS = 3 * (np.eye(3)[Y] + RNG.normal(0, 0.7, (60, 3)))


def said(arguments, capsys) -> str:
    assert run([str(argument) for argument in arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


@pytest.fixture(name="views")
def file_of_views(tmp_path):
    return Views(LOGITS, labels=Y).write(tmp_path / "views.npz")


@pytest.fixture
def unlabelled(tmp_path):
    return Views(LOGITS).write(tmp_path / "unlabelled.npz")


@pytest.fixture
def calibration(tmp_path):
    return save(TemperatureScaling().fit(LOGITS, Y), tmp_path / "ts.recal")


def test_swapped_arguments_are_recognised(views, calibration, tmp_path, capsys):
    shown = said(["apply", views, calibration, "--out", tmp_path / "p.npz"], capsys)
    assert f"{views} holds views, not a calibration. The calibration comes first" in shown
    shown = said(["fit", calibration, "--method", "ts", "--out", tmp_path / "c.recal"], capsys)
    assert f"{calibration} is a calibration, not views" in shown
    shown = said(["groups", calibration], capsys)
    assert "is a calibration, not views" in shown


def test_probabilities_in_place_of_views_are_recognised(views, calibration, tmp_path, capsys):
    assert run(["apply", str(calibration), str(views), "--out", str(tmp_path / "p.npz")]) == 0
    capsys.readouterr()
    shown = said(
        ["fit", tmp_path / "p.npz", "--method", "ts", "--out", tmp_path / "c.recal"], capsys
    )
    assert "holds probabilities, not views. Logits are needed" in shown


def test_missing_labels_are_asked_for_by_their_option(unlabelled, tmp_path, capsys):
    shown = said(["fit", unlabelled, "--method", "ts", "--out", tmp_path / "c.recal"], capsys)
    assert "--labels FILE" in shown


@pytest.mark.parametrize("names", [False, True])
def test_labels_come_from_a_file_of_lines(unlabelled, tmp_path, names, capsys):
    words = np.array(["cat", "dog", "owl"])
    (tmp_path / "y.txt").write_text("\n".join(words[Y] if names else Y.astype(str)) + "\n")
    more = ["--classes", "cat,dog,owl"] if names else []
    out = tmp_path / "c.recal"
    files = [str(unlabelled), "--labels", str(tmp_path / "y.txt"), "--out", str(out)]
    assert run(["fit", *files, "--method", "ts", *more]) == 0
    fitted = load(out)
    assert fitted.beta_ == TemperatureScaling().fit(LOGITS, Y).beta_
    assert fitted.classes_.tolist() == (words.tolist() if names else [0, 1, 2])


@pytest.mark.parametrize(
    ("labels", "remedy"),
    [
        (Y + 1, "subtract 1 from each"),
        (Y.astype(float), "store them as whole numbers"),
        (np.eye(3, dtype=int)[Y], "the column of the 1"),
        (np.array(["a", "b", "c"])[Y], "(--classes a,b,c)"),
        (Y[:50], "there are 60 samples but 50 labels"),
    ],
)
def test_labels_of_another_form_are_refused_with_the_remedy(
    unlabelled, tmp_path, labels, remedy, capsys
):
    np.save(tmp_path / "y.npy", labels)
    files = [unlabelled, "--labels", tmp_path / "y.npy", "--out", tmp_path / "c.recal"]
    assert remedy in said(["fit", *files, "--method", "ts"], capsys)


MODEL = """
import numpy as np

def net(batch):
    return np.asarray(batch, dtype=float).reshape(len(batch), -1)[:, :2]

def broken(batch):
    raise KeyError("weights")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that holds a module and inputs, and is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    (tmp_path / "my_first_model.py").write_text(MODEL)
    np.save(tmp_path / "x.npy", RNG.integers(0, 256, (6, 4, 4), dtype=np.uint8))
    return tmp_path


def test_a_module_in_the_current_folder_is_found(folder, capsys):
    assert (
        run(
            [
                "collect",
                "--model",
                "my_first_model:net",
                "--data",
                "x.npy",
                "--out",
                "v.npz",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["classes"] == 2


def test_a_models_own_exception_is_shown_as_the_models(folder, capsys):
    shown = said(
        ["collect", "--model", "my_first_model:broken", "--data", "x.npy", "--out", "v.npz"], capsys
    )
    assert "bug in recal" not in shown
    where = "while collecting the original of samples 0..5, a batch of uint8 of the shape (6, 4, 4)"
    assert f"The model broken failed {where}. It raised KeyError: 'weights'" in shown


@pytest.mark.parametrize(
    ("out", "words"), [("v.zarr", "run the same command again"), ("v.npz", "No files were written")]
)
def test_sigterm_ends_a_command_in_one_line_and_writes_nothing_half(folder, capsys, out, words):
    (folder / "ended_model.py").write_text(
        "import os, signal\n\ndef net(batch):\n    os.kill(os.getpid(), signal.SIGTERM)\n    return batch\n"
    )
    assert run(["collect", "--model", "ended_model:net", "--data", "x.npy", "--out", out]) == 143
    shown = capsys.readouterr().err
    assert shown.startswith("recal: Terminated.")
    assert words in shown
    assert shown.count("\n") == 1
    assert not (folder / "v.npz").exists()


@pytest.mark.parametrize(
    ("out", "words"), [("v.zarr", "run the same command again to resume"), ("v.npz", "NAME.zarr")]
)
def test_an_interrupted_collect_says_how_to_go_on(folder, monkeypatch, capsys, out, words):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("recal.collecting.collect", interrupted)
    assert run(["collect", "--model", "my_first_model:net", "--data", "x.npy", "--out", out]) == 130
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "typed", "named"),
    [
        ("batch_size", ["--batch-size=0"], "--batch-size"),
        ("n_bins", ["--bins", "0"], "--bins"),
        ("pixels", ["--gray"], "--gray"),
        ("seed", ["--batch-size", "0"], "`seed`"),
        (("cost_error", "cost_review"), ["--cost-error", "5"], "--cost-error and --cost-review"),
    ],
)
def test_arguments_are_named_as_they_were_typed(argument, typed, named):
    error = InputError("must be 1, got 0", argument=argument, remedy="Pass x=1 (--x 1)")
    assert as_typed(error, ["collect", *typed]) == f"{named} must be 1, got 0. Pass x=1 (--x 1)."


def test_names_in_a_file_cannot_steer_the_terminal(tmp_path, capsys):
    (tmp_path / "p.csv").write_text("\x1b[2Jcat,dog,truth\n0.5,0.5,dog\n")
    assert run(["evaluate", str(tmp_path / "p.csv"), "--label-column", "none"]) == 2
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert r"\x1b[2Jcat" in shown
