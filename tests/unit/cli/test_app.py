"""The shell of the command line: what loads when, and how every kind of failure leaves it."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from recal.cli import app, doctor
from recal.errors import FewSamplesWarning, InputError


def failing(error: BaseException):
    class Group:
        def make_context(self, *args, **kwargs):
            raise error

    return lambda _: Group()


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_has_a_help_that_teaches_by_example(name, capsys):
    assert app.run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example" in shown
    assert f"recal {name}" in shown


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("The rule is broken."), 2, "recal: The rule is broken."),
        (KeyboardInterrupt(), 130, "recal: Interrupted."),
        (FileNotFoundError(2, "No such file", "x.npz"), 2, "recal: No such file: x.npz"),
        (ZeroDivisionError("by zero"), 1, "recal: Unexpected ZeroDivisionError: by zero."),
        (InputError("two\n   lines"), 2, "recal: two lines"),
    ],
)
def test_a_failure_is_one_sentence_and_its_exit_code(error, code, words, monkeypatch, capsys):
    monkeypatch.delenv("RECAL_DEBUG", raising=False)
    monkeypatch.setattr(app.typer.main, "get_command", failing(error))
    assert app.run(["fit"]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(words)
    assert shown.err.count("\n") == 1


def test_a_reader_that_leaves_is_no_error():
    process = subprocess.Popen(
        [sys.executable, "-m", "recal", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    with process.stderr as stderr:
        assert stderr.read() == b""
    assert process.wait() in (1, 141)  # rich leaves with 1, what is printed plainly with 141


def test_a_reader_that_leaves_in_the_middle_of_a_table_is_no_error():
    code = (
        "import sys; from recal.cli import app, doctor, printing; rows = [['y' * 300]] * 2000; "
        "doctor.doctor = lambda: printing.print_table('Long', ['x'], rows); "
        "sys.exit(app.run(['doctor']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""


def test_help_names_every_command(capsys):
    assert app.run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in app.COMMANDS if f" {name} " not in shown] == []


def test_version(capsys):
    import recal

    assert app.run(["--version"]) == 0
    assert capsys.readouterr().out == f"recal {recal.__version__}\n"


def test_a_warning_is_one_sentence_without_a_place_in_the_code(monkeypatch, capsys):
    def warn():
        warnings.warn("Too few\n  samples.", FewSamplesWarning, stacklevel=1)

    monkeypatch.setattr(doctor, "doctor", warn)
    assert app.run(["doctor"]) == 0
    assert capsys.readouterr().err == "recal: FewSamplesWarning: Too few samples.\n"
