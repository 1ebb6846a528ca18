"""The demo with a network that is trained for a moment only; `make test-slow` runs it as it is."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from recal import demo, load, read_views
from recal.cli.app import run

digits = cache(demo.load_digits)


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(demo, "load_digits", digits)
    monkeypatch.setattr(demo, "_EPOCHS", 2)
    monkeypatch.setattr(demo, "_COPIES", 1)
    monkeypatch.setattr(demo, "_DRAWS", 50)
    monkeypatch.setattr(demo, "_HIDDEN", 30)
    monkeypatch.setattr(demo, "POOL", "zoom:0.5-0.9:6")


def told(capsys, *arguments) -> dict:
    assert run(["demo", "--json", *arguments]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return json.loads(shown.out)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # as outside of tests: others' are no news to users
def test_the_demo_end_to_end_twice_the_same(hasty, tmp_path, capsys):
    first = told(capsys, "--out", str(tmp_path / "a"))
    second = told(capsys, "--out", str(tmp_path / "b"))
    assert first["methods"] == second["methods"], "same seed, same numbers"
    assert list(first["methods"]) == ["uncalibrated", "temperature", "ReCal", "default"]
    errors = {m["metrics"]["error_rate"]["value"] for m in first["methods"].values()}
    assert len(errors) == 1
    assert "data:image/png" in (tmp_path / "a" / "report.html").read_text()
    one, two = (load(tmp_path / folder / "calibration.recal").decision_ for folder in "ab")
    assert one == two
    assert len(read_views(tmp_path / "a" / "new.npz")) == 1000


@pytest.mark.slow
def test_the_demo_as_it_is_calibrates_an_overconfident_network(tmp_path, capsys):
    found = told(capsys, "--out", str(tmp_path))["methods"]
    before, after = (found[name]["metrics"] for name in ("uncalibrated", "default"))
    assert before["ece"]["value"] > 0.03
    assert after["ece"]["value"] < before["ece"]["interval"][0]
    assert after["nll"]["value"] < before["nll"]["value"]


def test_ctrl_c_ends_the_training(monkeypatch):
    """scikit-learn would take it for the wish to train no longer, and the demo would go on."""
    from sklearn.neural_network import MLPClassifier

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(MLPClassifier, "_backprop", interrupted)
    images = np.zeros((60, 28, 28), dtype=np.uint8)
    with pytest.raises(KeyboardInterrupt):
        demo.train_network(images, np.arange(60) % 10, seed=0)
