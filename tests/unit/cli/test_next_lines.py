"""Every "Next:" line can be pasted: commands are run, and then what they say is run as it is printed."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest

from recal import Views
from recal.cli.app import run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A text model in a file, labelled texts and new ones, in a folder whose name has a blank."""
    skops = pytest.importorskip("skops.io")
    pytest.importorskip("pandas")
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    rng = np.random.default_rng(0)
    words = {"fruit": "apple pear plum fig the a one", "metal": "iron lead zinc tin the a one"}

    def draw(n):
        topics = rng.choice(list(words), n)
        return [(" ".join(rng.choice(words[topic].split(), 4)), str(topic)) for topic in topics]

    place = tmp_path / "my texts"
    place.mkdir()
    monkeypatch.chdir(place)
    sentences, topics = zip(*draw(60))
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(C=100)).fit(sentences, topics)
    skops.dump(model, place / "topics.skops")
    (place / "labelled.csv").write_text("text,topic\n" + "\n".join(map(",".join, draw(400))))
    (place / "new.csv").write_text("text\n" + "\n".join(text for text, _ in draw(20)))
    return place


def following(capsys, **placeholders):
    """Run the last line that says what is next, with files in place of the words in capitals."""
    (line,) = re.findall(r"Next: (recal .*)$", capsys.readouterr().out, re.MULTILINE)[-1:]
    words = [placeholders.get(word, word) for word in shlex.split(line)[1:]]
    assert run(words) == 0, (line, capsys.readouterr().err)


def test_a_table_of_texts_needs_no_option_from_the_model_to_the_answers(texts, capsys):
    command = ["calibrate", "--model", "topics.skops", "--data", "labelled.csv", "--out", "made", "--pool", "none"]
    assert run([*command, "--risk", "0.2"]) == 0
    following(capsys, NEW="new.csv")
    assert run(["plan", "made"]) == 0  # the folder is a calibration to every command
    assert run(["watch", "made", "made/judge.zarr"]) == 0
    lines = (texts / "answers.csv").read_text().splitlines()
    assert lines[0] == "input,answer,confidence,accepted"
    assert len(lines) == 21


def test_a_risk_that_cannot_be_shown_is_followed_by_one_that_can(texts, capsys):
    command = ["calibrate", "--model", "topics.skops", "--data", "labelled.csv", "--out", "made", "--pool", "none"]
    assert run([*command, "--risk", "0.0001"]) == 0
    assert "No answers can be automated with at most 0.01 % errors" in capsys.readouterr().out
    assert run([*command, "--risk=0.0001", "--force"]) == 0  # the same job again reuses the collected views
    following(capsys)
    assert "of the answers can be automated" in capsys.readouterr().out


def test_the_commands_one_by_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 900)
    logits = 4 * np.eye(3)[y] + 3 * rng.normal(size=(900, 3))
    parts = [slice(300 * part, 300 * part + 300) for part in range(3)]
    for name, part in zip(("fit.npz", "decide.npz", "new.npz"), parts):
        view = {"flip": logits[part] + rng.normal(size=(300, 3))}
        Views(logits[part], view, labels=y[part]).write(name)
    assert run(["groups", "fit.npz"]) == 0
    following(capsys)
    assert run(["compare", "fit.npz", "--methods", "ts,vs", "--splits", "2"]) == 0
    (tmp_path / "calibration.recal").unlink()
    following(capsys)
    assert run(["fit", "fit.npz", "--method", "ts", "--out", "calibration.recal", "--force"]) == 0
    following(capsys, NEW_VIEWS="new.npz")
    following(capsys)  # evaluate
    following(capsys)  # decide
    assert run(["plan", "calibration.recal"]) == 0
    following(capsys, NEW_VIEWS="new.npz")
    following(capsys, LABELLED_VIEWS="decide.npz")
    (tmp_path / "answers.csv").unlink()
    following(capsys, **{"NEW_VIEWS.npz": "new.npz"})
    assert run(["decide", "probs.npz", "--risk", "0.2", "--out", "rule.recal"]) == 0
    (tmp_path / "answers.csv").unlink()
    following(capsys, **{"NEW_PROBS.npz": "probs.npz"})
    assert run(["plan", "rule.recal"]) == 0
    (tmp_path / "answers.csv").unlink()
    following(capsys, **{"NEW_PROBS.npz": "probs.npz"})
    assert run(["watch", "fit.npz", "--save", "profile.recal"]) == 0
    following(capsys, NEW_VIEWS="new.npz")
    assert run(["transforms"]) == 0
    following(capsys)


def test_a_function_takes_a_table_of_named_labels_in_alphabetical_order(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "heights.py").write_text(
        "import numpy as np\n\ndef logits(frame):\n    x = frame['height'].to_numpy()\n"
        "    return 4 * np.stack([x, -x], axis=1)\n\ndef swapped(frame):\n    return logits(frame)[:, ::-1]\n"
    )
    rng = np.random.default_rng(0)
    height = rng.normal(size=400)
    kind = np.where(height + rng.normal(size=400) > 0, "oak", "pine")
    rows = [f"{x:.4f},{color},{name}" for x, color, name in zip(height, rng.choice(["red", "blue"], 400), kind)]
    (tmp_path / "trees.csv").write_text("height,color,tree\n" + "\n".join(rows))
    command = ["calibrate", "--model", "heights:logits", "--data", "trees.csv", "--risk", "0.3", "--out", "made"]
    assert run(command) == 2
    assert (
        "columns are height, color, tree. Say which column holds them: --label-column NAME." in capsys.readouterr().err
    )
    command += ["--label-column", "tree", "--pool", "none"]
    assert run(["heights:swapped" if word == "heights:logits" else word for word in command]) == 2
    assert "add: --classes pine,oak" in capsys.readouterr().err
    assert run(command) == 0
    assert "in alphabetical order: oak, pine." in capsys.readouterr().out
