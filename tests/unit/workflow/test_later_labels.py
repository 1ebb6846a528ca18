"""A folder is published whole, takes labels that arrive later, and its promise can be checked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom

from recal import load
from recal.cli.app import run
from recal.workflow.folder import folder_of_run, publishing
from recal.workflow.graded import _probability
from recal.workflow.run import extend
from tests import problems
from tests.problems import write_graded

RNG = np.random.default_rng(0)


views = partial(problems.views, n=900, noise=0.5, transforms=())


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_graded(tmp_path / "g.csv")
    views().write(tmp_path / "v.npz")
    return tmp_path


TABLE = ["calibrate", "g.csv", "--correct", "right", "--signals", "stated,length", "--risk", "0.2"]
VIEWS = ["calibrate", "v.npz", "--method", "ts", "--risk", "0.1"]


def answer(capsys, *words, code=0):
    capsys.readouterr()
    assert run([*words, "--json"]) == code, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", [TABLE, VIEWS])
def test_later_labels_join_the_old_ones(place, capsys, command):
    before = answer(capsys, *command, "--out", "f")
    if command is TABLE:
        write_graded(place / "new", 300, seed=1).rename(place / "new.csv")
        new = "new.csv"
    else:
        new = str(views(n=300, seed=1).write(place / "new.npz"))
    after = answer(capsys, "calibrate", "f", "--more", new)
    assert sum(before["parts"].values()) == 900
    assert sum(after["parts"].values()) == 1200
    assert after["parts"]["fit"] == before["parts"]["fit"] + 150
    assert any("threshold" in line for line in after["changes"])
    previous = (place / "f/previous/calibration.recal").read_bytes()
    assert (place / "f/calibration.recal").read_bytes() != previous
    assert run(["calibrate", "f", "--rollback"]) == 0
    assert (place / "f/calibration.recal").read_bytes() == previous
    assert json.loads((place / "f/summary.json").read_text())["parts"] == before["parts"]


@pytest.mark.parametrize(("command", "same"), [(TABLE, "g.csv"), (VIEWS, "v.npz")])
def test_rows_that_the_folder_holds_are_refused(place, capsys, command, same):
    assert run([*command, "--out", "f"]) == 0
    held = (place / "f/summary.json").read_bytes()
    assert run(["calibrate", "f", "--more", same]) == 2
    assert "holds all of these 900 rows" in capsys.readouterr().err
    assert (place / "f/summary.json").read_bytes() == held
    if command is TABLE:  # a table of old and new rows
        lines = write_graded(place / "new.csv", 100, seed=1).read_text().splitlines()
        lines += (place / "g.csv").read_text().splitlines()[1:101]
        (place / "new.csv").write_text("\n".join(lines) + "\n")
        assert run(["calibrate", "f", "--more", "new.csv"]) == 2
        assert "about 100 of these 200 rows" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{"])
def test_a_summary_that_cannot_be_read_is_refused(place, capsys, text):
    (place / "f").mkdir()
    (place / "f/calibration.recal").write_bytes(b"")
    (place / "f/summary.json").write_text(text)
    write_graded(place / "new.csv", 20, seed=1)
    assert run(["calibrate", "f", "--more", "new.csv"]) == 2
    assert "summary.json" in capsys.readouterr().err


def test_old_rows_keep_their_part_and_clusters_stay_whole():
    clusters = np.repeat(np.arange(40), 5)
    sizes = (100, 60, 40)
    both = np.concatenate([clusters, np.repeat([3, 100, 101, 102, 103], 5)])
    parts = extend(sizes, 25, 0, both)
    for old, rows in zip(np.split(np.arange(200), [100, 160]), parts):
        assert set(old) <= set(rows)
    named = [set(both[rows]) for rows in parts]
    assert 3 in named[0]
    assert not named[0] & named[1]
    assert not (named[0] | named[1]) & named[2]


def test_later_labels_of_another_kind_or_for_a_folder_without_rows_are_refused(place, capsys):
    assert run([*TABLE, "--out", "f", "--drop-rows"]) == 0
    assert not (place / "f/labelled.csv").exists()
    assert run(["calibrate", "f", "--more", "g.csv"]) == 2
    assert "--drop-rows" in capsys.readouterr().err
    assert run([*TABLE, "--out", "kept"]) == 0
    assert run(["calibrate", "kept", "--more", "v.npz"]) == 2
    assert "a table of graded answers" in capsys.readouterr().err
    assert run(["calibrate", "nothing", "--more", "g.csv"]) == 2


def test_cross_fit_lets_all_graded_answers_but_the_checked_ones_decide(place, capsys):
    plain = answer(capsys, *TABLE, "--out", "plain")
    crossed = answer(capsys, *TABLE, "--cross-fit", "--out", "crossed")
    assert crossed["parts"] == {"fit": 720, "decide": 720, "check": 180}
    assert crossed["cross_fit"]
    assert crossed["decision"]["coverage"] > plain["decision"]["coverage"] - 0.05
    write_graded(place / "new.csv", 900, seed=1)
    more = answer(capsys, "calibrate", "crossed", "--more", "new.csv")
    assert sum(more["parts"].values()) - more["parts"]["fit"] == 1800


@pytest.mark.parametrize("step", ["json_text", "save", "write_rows"])
def test_a_kill_leaves_the_folder_as_it_was(place, capsys, step):
    assert run([*TABLE, "--out", "f"]) == 0
    held = {path.name: path.read_bytes() for path in (place / "f").iterdir()}
    module = "graded" if step == "write_rows" else "run"
    code = (
        "import os, signal, sys\nfrom recal.cli.app import run\n"
        f"import recal.workflow.{module} as module\n"
        f"true = module.{step}\n"
        "def killed(*a, **k):\n    true(*a, **k)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"module.{step} = killed\nrun(sys.argv[1:])"
    )
    words = [*TABLE, "--risk", "0.4", "--out", "f", "--force"]
    done = subprocess.run([sys.executable, "-c", code, *words], check=False)
    assert done.returncode == -signal.SIGKILL
    assert {path.name: path.read_bytes() for path in (place / "f").iterdir()} == held
    (folder_of_run(place / "f") / ".report.html.part").write_text("half")
    assert run(words) == 0, capsys.readouterr().err
    assert not list((place / "f").glob(".*"))
    summary = json.loads((place / "f/summary.json").read_text())
    assert summary["decision"]["risk"] == load("f/calibration.recal").decision_.risk == 0.4
    assert not folder_of_run(place / "f").exists()


def test_a_first_run_that_was_killed_needs_no_force(place):
    work = folder_of_run(place / "f")
    work.mkdir()
    (work / "report.html").write_text("half")
    assert run([*TABLE, "--out", "f"]) == 0
    assert not work.exists()


def test_of_two_runs_one_is_refused(place, capsys):
    with publishing(place / "f") as work:
        assert run([*TABLE, "--out", "f"]) == 2
        assert "Another run is writing" in capsys.readouterr().err
        (work / "calibration.recal").write_text("mine")
    assert (place / "f/calibration.recal").read_text() == "mine"


def test_permissions_and_other_files_stay(place):
    assert run([*TABLE, "--out", "f"]) == 0
    for name in ("calibration.recal", "labelled.csv"):
        os.chmod(place / "f" / name, 0o600)
    (place / "f/audit.jsonl").write_text("graded by hand")
    assert run([*TABLE, "--out", "f", "--force"]) == 0
    for name in ("calibration.recal", "labelled.csv"):
        assert (place / "f" / name).stat().st_mode & 0o777 == 0o600
    assert (place / "f/audit.jsonl").read_text() == "graded by hand"


# --- the promise


@pytest.mark.parametrize(("shift", "code"), [(0.0, 0), (0.35, 1)])
def test_check_tells_a_broken_promise_by_its_exit_code(place, capsys, shift, code):
    assert run([*TABLE, "--out", "f"]) == 0
    write_graded(place / "fresh.csv", 600, seed=5, shift=shift)
    found = answer(capsys, "check", "f", "fresh.csv", "--correct", "right", code=code)
    assert found["holds"] is (code == 0)
    assert found["accepted"] > 50


def test_check_says_that_a_single_rule_may_exceed_an_average(place, capsys):
    assert run([*TABLE, "--guarantee", "average", "--out", "f"]) == 0
    write_graded(place / "fresh.csv", 600, seed=5, shift=0.35)
    assert run(["check", "f", "fresh.csv", "--correct", "right"]) == 1
    assert "--guarantee average" in capsys.readouterr().out


def test_check_reads_views_and_refuses_what_promises_nothing(place, capsys):
    assert run([*VIEWS, "--out", "f"]) == 0
    views(n=500, seed=9).write(place / "fresh.npz")
    found = answer(capsys, "check", "f", "fresh.npz")
    assert found["samples"] == 500
    assert run(["fit", "v.npz", "--method", "ts", "--out", "c.recal"]) == 0
    assert run(["check", "c.recal", "fresh.npz"]) == 2
    assert run(["check", "f", "g.csv"]) == 2


def test_dependent_rows_refute_less(place):
    from recal.decisions import DecisionRule
    from recal.workflow.auditing import check_promise

    rule = DecisionRule((0.5,), 0.1, 0.95)
    right = np.repeat(np.arange(20) >= 4, 10)
    taken = np.ones(200, bool)
    found = check_promise(rule, taken, right)
    assert found.refuted
    assert (found.p_value, found.alpha) == (pytest.approx(binom.sf(39, 200, 0.1)), 0.05)
    assert check_promise(rule, taken, taken).p_value == 1.0
    assert not check_promise(rule, taken, right, np.repeat(np.arange(20), 10)).refuted


# --- graded tables in every command


def test_a_rule_is_chosen_again_and_graded_answers_are_measured_and_watched(place, capsys):
    assert run([*TABLE, "--out", "f"]) == 0
    write_graded(place / "fresh.csv", 600, seed=5)
    words = ("--correct", "right")
    decide = ["decide", "fresh.csv", "--calibration", "f", "--risk", "0.3", "--out", "r.recal"]
    found = answer(capsys, *decide, *words)
    assert found["n_samples"] == 600
    assert load("r.recal").decision_.risk == 0.3
    measured = answer(capsys, "evaluate", "fresh.csv", "--calibration", "f", *words)
    assert run(["apply", "f", "fresh.csv", "--out", "accepted.csv"]) == 0
    assert answer(capsys, "evaluate", "accepted.csv", *words)["metrics"] == measured["metrics"]
    assert not answer(capsys, "watch", "f", "fresh.csv")["alarm"]
    assert run(["watch", "f", "fresh.csv", "--cluster", "account"]) == 2
    assert "recal calibrate with --cluster COLUMN" in capsys.readouterr().err
    lines = [line.split(",") for line in (place / "fresh.csv").read_text().splitlines()]
    lines[1:] = [[str(float(one) ** 4), *rest] for one, *rest in lines[1:]]
    (place / "fresh.csv").write_text("\n".join(map(",".join, lines)) + "\n")
    assert answer(capsys, "watch", "f", "fresh.csv")["alarm"]


def test_answers_of_the_fit_decide_nothing_and_are_named_in_every_figure(place, capsys):
    assert run([*TABLE, "--out", "f"]) == 0
    for command, code in (("decide", 2), ("evaluate", 0)):
        words = [command, "g.csv", "--calibration", "f", "--correct", "right"]
        assert run(words) == code
        assert "fitted on about 45" in capsys.readouterr().err
    assert run(["check", "f", "g.csv", "--correct", "right"]) == 0
    assert "fitted on about 45" in capsys.readouterr().err


def test_the_better_of_two_stated_probabilities_is_shown_before_the_calibration():
    right = np.arange(40) % 4 > 0
    shares = {"coin": np.full(40, 0.5), "stated": np.where(right, 0.9, np.nan)}
    calibrator = SimpleNamespace(table_=SimpleNamespace(shares=tuple(shares)))
    name, before = _probability(calibrator, shares, right.astype(float), np.arange(20))
    assert (name, before[0]) == ("stated", pytest.approx(0.9)), "a gap is filled by the mean"


def test_graded_answers_are_measured_by_group_and_on_a_page(place, capsys):
    assert run([*TABLE, "--out", "f"]) == 0
    write_graded(place / "fresh.csv", 60, seed=5)
    words = ["evaluate", "fresh.csv", "--calibration", "f", "--correct", "right"]
    found = answer(capsys, *words, "--group", "account", "--report", "page.html")
    assert len(found["groups"]) == 20
    assert "Calibration report" in (place / "page.html").read_text()
