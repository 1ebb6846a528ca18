"""How far long work is: counted across nested loops, for whoever watches, and shown on terminals
alone.
"""

from __future__ import annotations

import io
import sys
import threading

import pytest

from recal import ViewStacking
from recal.cli.app import run
from recal.progress import Stage, Watcher, counting, shown, track, watching
from tests.problems import views


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch):
    """In the test itself: pytest sets standard error anew after its fixtures."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(shown.__wrapped__.__kwdefaults__, "patience", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_inner_loops_are_parts_of_the_outer_one():
    shares = []
    with watching() as seen:
        for _ in track(range(2), "outer"):
            for _ in track([1, 2, 3, 4], "inner"):
                shares.append(seen.share())
        assert seen.stages == []
    assert shares == [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875]


def test_loops_of_other_threads_are_left_alone():
    with watching() as seen:
        counts = []
        thread = threading.Thread(
            target=lambda: counts.extend(len(seen.stages) for _ in track(range(3), "elsewhere"))
        )
        thread.start()
        thread.join()
        assert counts == [0, 0, 0]


def test_a_library_call_shows_nothing_on_a_terminal(monkeypatch):
    terminal = on_a_terminal(monkeypatch)
    ViewStacking().fit(views(200, scale=2, noise=0.5, keep=1, transforms=["zoom:0.5"]))
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("more", [[], ["--quiet"]])
def test_a_fit_shows_how_far_it_is_unless_asked_not_to(tmp_path, monkeypatch, more):
    terminal = on_a_terminal(monkeypatch)
    file = views(200, scale=2, noise=0.5).write(tmp_path / "v.npz")
    drawn = threading.Event()
    real = Watcher.line

    def line(*arguments):
        drawn.set()
        return real(*arguments)

    monkeypatch.setattr(Watcher, "line", line)
    if not more:  # the fit waits until a line was drawn
        monkeypatch.setattr("recal.TemperatureScaling._fit", _waits_for(drawn))
    assert run(["fit", str(file), "--method", "ts", "--out", str(tmp_path / "c.recal"), *more]) == 0
    assert ("Fitting ts" in terminal.getvalue()) is not bool(more)


def _waits_for(drawn):
    from recal import TemperatureScaling

    real = TemperatureScaling._fit

    def fit(self, *arguments, **options):
        drawn.wait(timeout=20)
        return real(self, *arguments, **options)

    return fit


def test_rounds_of_an_earlier_run_count_as_done_but_not_as_fast(monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: 30.0)
    seen = Watcher(0, [Stage("input", 100, 60, first=20, began=10.0)])
    assert "60 % in 20 s, about 20 s left; input 61 of 100" in seen.line("Collecting", 20.0)


def test_without_a_terminal_there_is_a_line_now_and_then(capsys):
    printed = threading.Event()
    with shown("Collecting", lines=True, every=0.01), counting("input", 100, 20) as advance:
        advance(40)
        printed.wait(0.2)
    assert "recal: Collecting: 60 % in 0 s" in capsys.readouterr().err
    with shown("Collecting", every=0.01), counting("input", 100, 20) as advance:
        printed.wait(0.05)
    assert capsys.readouterr().err == ""
