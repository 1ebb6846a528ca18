"""What a newcomer types wrongly, and what is said: the fault, and what to type instead."""

from __future__ import annotations

import numpy as np
import pytest

from recal import TemperatureScaling, Views, load
from recal.cli.app import as_typed
from recal.errors import InputError
from tests.unit.cli.commands import typed

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 60)
LOGITS = 3 * (np.eye(3)[Y] + RNG.normal(0, 0.7, (60, 3)))


@pytest.fixture
def unlabelled(tmp_path):
    return Views(LOGITS).write(tmp_path / "unlabelled.npz")


@pytest.mark.parametrize("names", [False, True])
def test_labels_come_from_a_file_of_lines(unlabelled, tmp_path, names, capsys):
    words = np.array(["cat", "dog", "owl"])
    (tmp_path / "y.txt").write_text("\n".join(words[Y] if names else Y.astype(str)) + "\n")
    more = "--classes cat,dog,owl" if names else ""
    out = tmp_path / "c.recal"
    labels = tmp_path / "y.txt"
    assert typed(f"fit {unlabelled} --labels {labels} --method ts --out {out} {more}") == 0
    fitted = load(out)
    assert fitted.beta_ == TemperatureScaling().fit(LOGITS, Y).beta_
    assert fitted.classes_.tolist() == (words.tolist() if names else [0, 1, 2])


@pytest.mark.parametrize(
    ("out", "words"), [("v.zarr", "run the same command again"), ("v.npz", "No files were written")]
)
def test_sigterm_ends_a_command_in_one_line_and_writes_nothing_half(
    tmp_path, monkeypatch, capsys, out, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ended_model.py").write_text(
        "import os, signal\n"
        "def net(batch):\n    os.kill(os.getpid(), signal.SIGTERM)\n    return batch\n"
    )
    np.save("x.npy", np.zeros((6, 4, 4), np.uint8))
    assert typed(f"collect --model ended_model:net --data x.npy --out {out}") == 143
    shown = capsys.readouterr().err
    assert shown.startswith("recal: Terminated.")
    assert words in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "v.npz").exists()


@pytest.mark.parametrize(
    ("argument", "typed", "named"),
    [
        ("batch_size", ["--batch-size=0"], "--batch-size"),
        ("n_bins", ["--bins", "0"], "--bins"),
        ("seed", ["--batch-size", "0"], "`seed`"),
        (("cost_error", "cost_review"), ["--cost-error", "5"], "--cost-error and --cost-review"),
    ],
)
def test_arguments_are_named_as_they_were_typed(argument, typed, named):
    error = InputError("must be 1, got 0", argument=argument, remedy="Pass x=1 (--x 1)")
    assert as_typed(error, ["collect", *typed]) == f"{named} must be 1, got 0. Pass x=1 (--x 1)."


def test_names_in_a_file_cannot_steer_the_terminal(tmp_path, capsys):
    (tmp_path / "p.csv").write_text("\x1b[2Jcat,dog,truth\n0.5,0.5,dog\n")
    assert typed(f"evaluate {tmp_path / 'p.csv'} --label-column none") == 2
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert r"\x1b[2Jcat" in shown
