"""Options that would have no effect are refused, by name."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("calibrate views.npz --pool zoom:0.5 --out out", "--pool cannot be used with the views views.npz"),
        ("calibrate views.npz --divide 255 --out out", "--divide cannot be used with the views views.npz"),
        ("calibrate views.npz --one-rule --out out", "--one-rule cannot be used with answers without groups"),
        (
            "collect --data log.jsonl --pool zoom:0.5 --out v.npz",
            "--pool cannot be used with the log log.jsonl",
        ),
        ("collect --data log.jsonl --divide 255 --out v.npz", "--divide cannot be used with the log log.jsonl"),
        ("collect --model unused_net:net --data data.npz --permute 2 --out v.npz", "--permute cannot be used with the"),
        ("calibrate --model unused_net:net --data data.npz --permute 2 --out out", "--permute cannot be used with the"),
        (
            "report probs.npz --methods ts --splits 3 --out r.html",
            "--methods and --splits cannot be used with the prob",
        ),
        ("report probs.npz views.npz --out r.html", "TEST_VIEWS cannot be used with the probabilities probs.npz"),
    ],
)
def test_an_option_without_effect_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    before = set(folder.iterdir())
    assert run(command.split()) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert set(folder.iterdir()) == before
