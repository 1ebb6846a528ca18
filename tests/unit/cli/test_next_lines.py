"""Every "Next:" line can be pasted: commands are run, and then what they say is run as it is
printed.
"""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest

from recal import Views
from recal.cli.app import run
from tests.problems import views

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


def test_a_table_of_texts_from_the_model_to_the_answers(texts, capsys):
    command = shlex.split(
        "calibrate --model topics.skops --data labelled.csv --out made --pool none "
        "--text-column text --label-column topic"
    )
    assert run([*command, "--risk", "0.2"]) == 0
    following(capsys, NEW="new.csv")
    (texts / "answers.csv").unlink()
    assert run(["plan", "made"]) == 0  # the folder is a calibration to every command
    following(capsys, MODEL="topics.skops", NEW="new.csv")
    assert run(["watch", "made", "made/check.zarr"]) == 0
    lines = (texts / "answers.csv").read_text().splitlines()
    assert lines[0] == "input,answer,confidence,accepted"
    assert len(lines) == 21


def test_the_commands_one_by_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    every = views(900, noise=0.75, keep=1, transforms=["flip"])
    for part, name in enumerate(("fit.npz", "decide.npz", "new.npz")):
        every[300 * part : 300 * part + 300].write(name)
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


@pytest.fixture
def grouped(tmp_path, monkeypatch):
    """A model, and labelled and new inputs, views, probabilities and tables of rows with a subject
    and a user.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "grouped_model.py").write_text("def net(batch):\n    return batch\n")
    rng = np.random.default_rng(0)
    for name in ("labelled", "other", "new"):
        y, law = rng.integers(0, 3, 900), np.arange(900) % 2 == 0
        logits = np.where(law, 3.0, 6.0)[:, None] * np.eye(3)[y] + rng.normal(size=(900, 3))
        np.savez(f"{name}-pixels.npz", inputs=logits, labels=y)
        Views(logits, labels=y).write(f"{name}.npz")
        probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.savez(f"{name}-probs.npz", probs=probs, labels=y)
        rows = [f"{'law' if one else 'art'},{row // 3}" for row, one in enumerate(law)]
        (tmp_path / f"{name}-rows.csv").write_text("\n".join(["subject,user", *rows]))
    return tmp_path


def test_columns_that_are_no_class_are_named_again(grouped, capsys):
    head, *rows = (grouped / "other-rows.csv").read_text().splitlines()
    with np.load("other-probs.npz") as file:
        cells = [",".join(map(str, [*row, y])) for row, y in zip(file["probs"], file["labels"])]
    lines = [f"0,1,2,label,{head}", *(f"{cell},{row}" for cell, row in zip(cells, rows))]
    (grouped / "p.csv").write_text("\n".join(lines))
    by = ["--group", "subject", "--cluster", "user"]
    assert run(["evaluate", "p.csv", *by, "--bootstrap", "0"]) == 0
    following(capsys)
    assert run(["decide", "p.csv", *by, "--risk", "0.2", "--out", "made"]) == 0
    following(capsys, **{"NEW_PROBS.csv": "p.csv"})
    assert (grouped / "answers.csv").exists()


_ROWS = ["--rows", "other-rows.csv", "--group", "subject", "--cluster", "user", "--risk", "0.2"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            shlex.split("calibrate --model grouped_model:net --data other-pixels.npz --pool none"),
            "--model grouped_model:net --data NEW --rows NEW_ROWS.csv --group subject",
        ),
        (["calibrate", "other.npz"], "NEW_VIEWS --rows NEW_ROWS.csv --group subject"),
        (
            ["decide", "other.npz", "--calibration", "ts.recal"],
            "NEW_VIEWS.npz --rows NEW_ROWS.csv --group subject",
        ),
        (["decide", "other-probs.npz"], "NEW_PROBS.npz --rows NEW_ROWS.csv --group subject"),
    ],
    ids=["model", "views", "calibration", "probabilities"],
)
def test_a_rule_with_groups_is_followed_by_the_groups_of_new_inputs(
    words, expected, grouped, capsys
):
    assert run(["fit", "labelled.npz", "--method", "ts", "--out", "ts.recal"]) == 0
    method = ["--method", "ts"] if words[0] == "calibrate" else []
    assert run([*words, *_ROWS, *method, "--out", "made"]) == 0
    shown = capsys.readouterr().out
    assert f"Next: recal apply made {expected} --out answers.csv" in shown
    names = {"NEW": "new-pixels.npz", "NEW_VIEWS": "new.npz", "NEW_ROWS.csv": "new-rows.csv"}
    names |= {"NEW_VIEWS.npz": "new.npz", "NEW_PROBS.npz": "new-probs.npz"}
    names |= {"COLUMN": "subject", "MODEL": "grouped_model:net"}
    print(shown)  # `following` reads it again
    following(capsys, **names)
    answers = (grouped / "answers.csv").read_text()
    assert ",true" in answers
    (grouped / "answers.csv").unlink()
    assert run(["plan", "made"]) == 0
    following(capsys, **names)
    assert (grouped / "answers.csv").read_text() == answers
