"""Options that would have no effect are refused, and messages name what was typed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from recal import Views
from recal.cli.app import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    logits = 2 * np.eye(3)[labels] + rng.normal(size=(60, 3))
    Views(logits, labels=labels).write(tmp_path / "views.npz")
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.savez(tmp_path / "probs.npz", probs=probs, labels=labels)
    lines = [{"A": 0.7, "B": 0.3, "label": "A"}, {"A": 0.2, "B": 0.8, "label": "B"}]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    np.savez(tmp_path / "data.npz", inputs=rng.normal(size=(60, 4)), labels=labels)
    (tmp_path / "unused_net.py").write_text("def net(batch):\n    return batch[:, :3]\n")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], command: str) -> str:
    assert run(command.split()) == 2
    return " ".join(capsys.readouterr().err.split())


def test_an_unfinished_store_is_resumed_with_the_same_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "calls = []\ndef net(batch):\n    calls.append(1)\n    if len(calls) > 9:\n        raise KeyboardInterrupt\n"
    (folder / "stopping_net.py").write_text(body + "    return batch[:, :3]\n")
    command = shlex.split(
        "collect --model stopping_net:net --data data.npz --batch-size 4 --out v.zarr"
    )
    assert run(command) == 130
    capsys.readouterr()
    text = said(capsys, "fit v.zarr --out c.recal")
    assert "v.zarr is unfinished" in text
    assert "Run the same collect again" in text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "calibrate views.npz --divide 255 --out out",
            "--divide cannot be used with the views views.npz",
        ),
        (
            "collect --data log.jsonl --pool zoom:0.5 --out v.npz",
            "--pool cannot be used with the log log.jsonl",
        ),
        (
            "collect --model unused_net:net --data data.npz --max-tokens 2 --out v.npz",
            "--max-tokens cannot be used with the",
        ),
        (
            "report probs.npz --methods ts --splits 3 --out r.html",
            "--methods and --splits cannot be used with the prob",
        ),
        (
            "report probs.npz views.npz --out r.html",
            "TEST_VIEWS cannot be used with the probabilities probs.npz",
        ),
    ],
)
def test_an_option_without_effect_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    before = set(folder.iterdir())
    assert message in said(capsys, command)
    assert set(folder.iterdir()) == before
