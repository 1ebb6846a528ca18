"""The page without a browser: what is in it, and what must never be."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np

from recal.comparison import compare_probs
from recal.reporting.page import Page, report
from recal.reporting.verdict import verdict


class Tags(HTMLParser):
    """Collects elements, and finds those that are not closed in order."""

    VOID = frozenset({"meta", "input", "br", "link", "img"})

    def __init__(self):
        super().__init__()
        self.open, self.attributes, self.ids = [], [], []

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def page(comparison, **options):
    return Page(comparison, **options).html()


def parse(text):
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert len(set(tags.ids)) == len(tags.ids)
    return tags


def data_of(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


def test_the_page_is_well_formed_and_needs_no_network(comparison):
    text = page(comparison)
    tags = parse(text)
    for name, value in tags.attributes:
        assert name not in ("src", "href"), value
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_the_data_of_the_slider_are_counts(comparison):
    data = data_of(page(comparison))
    assert data["samples"] == 500
    for name, table in data["tables"].items():
        rows = comparison.samples[name]
        index = data["thresholds"].index(0.75)
        above = rows.confidence >= 0.75
        assert table["accepted"][index] == above.sum()
        assert table["errors"][index] == (~rows.correct[above]).sum()


def test_names_are_never_markup(comparison):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1, 1], 60)
    evil = "<script>alert(1)</script>@data@&\"'"
    found = compare_probs(
        {evil: probs, "</script>": probs[::-1]}, rng.integers(0, 2, 60), bootstrap=20
    )
    text = page(found, title=evil, command=evil)
    parse(text)
    assert "<script>alert" not in text
    assert set(data_of(text)["tables"]) == {evil, "</script>"}


def test_the_verdict_says_what_numpy_says(comparison):
    sentences = verdict(comparison, "recal").sentences
    for name in ("uncalibrated", "recal"):
        rows = comparison.samples[name]
        above = rows.confidence >= 0.9
        assert f"{above.sum()} answers with at least 0.9 confidence" in sentences[1]
        assert f"{(~rows.correct[above]).sum()} made" in sentences[1]
    apart = (comparison.samples["recal"].nll - comparison.samples["uncalibrated"].nll).mean()
    assert f"NLL {apart:+.4f}".replace("-", "−") in sentences[0]
    assert "Every answer is the same as before." in sentences


def test_the_page_names_model_data_date_rows_and_accuracy(comparison):
    about = {"Model": "<b>net</b>.onnx", "Data": "photos/", "Date": "2026-01-31"}
    text = page(comparison, about=about, rows="checking inputs")
    accuracy = 100 * comparison.samples["ts"].correct.mean()
    for words in (
        "&lt;b&gt;net&lt;/b&gt;.onnx",
        "photos/",
        "2026-01-31",
        f"{accuracy:.1f}\u00a0% on 500 checking inputs",
    ):
        assert words in text
    assert text.count("<small>500 checking inputs</small>") >= 4, "figures name their rows"


def test_graded_answers_make_a_page(tmp_path):
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 1, 600)
    correct = rng.random(600) < confidence**2
    text = report(
        confidence, tmp_path / "r.html", y=correct, before=confidence**0.5, bootstrap=20
    ).read_text()
    parse(text)
    assert f"{100 * correct.mean():.1f}\u00a0% on 600 samples" in text
    assert 'id="classes"' not in text
    assert 'id="reliability"' in text


def test_a_group_in_which_the_rule_is_broken_is_named_in_a_warning():
    rng = np.random.default_rng(0)
    probs = np.tile([0.98, 0.02], (3000, 1))
    group = np.array(["<day>", "night"])[(np.arange(3000) % 10 == 0).astype(int)]
    y = (rng.random(3000) < np.where(group == "night", 0.15, 0.001)).astype(int)
    text = page(compare_probs({"given": probs}, y, bootstrap=0), groups={"time": group}, risk=0.03)
    assert "clearly exceeds 3\u00a0% errors in 1 of 2 groups (night)" in text
    assert "recal decide --group time" in text
    assert "&lt;day&gt;" in text
    assert "<day>" not in text


def test_warnings_stand_above_the_advice_and_are_escaped(comparison):
    text = page(comparison, warnings=("20 rows are <copies>", "20 rows are <copies>"))
    parse(text)
    assert text.count("20 rows are &lt;copies&gt;") == 1
    assert text.index('id="warnings"') < text.index('id="headline"')
    assert 'id="warnings"' not in page(comparison)


def test_a_tie_of_two_sets_of_probabilities_is_called_one():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([0.5] * 3, 300)
    y = (probs.cumsum(1) > rng.random((300, 1))).argmax(1)
    after = probs**1.01 / (probs**1.01).sum(axis=1, keepdims=True)
    text = page(compare_probs({"before": probs, "after": after}, y, bootstrap=20))
    assert text.count("These samples do not show which of the two to use.") == 1
    assert "Leave the model as it is" not in text


def test_samples_to_look_at_are_named_by_their_inputs(alone):
    names = [f"photos/{row}.jpg" for row in range(300)]
    found = replace(alone, ids=np.array(names))
    wrong = np.flatnonzero(~found.samples["given"].correct)
    worst = wrong[np.argmax(found.samples["given"].confidence[wrong])]
    assert f"photos/{worst}.jpg" in page(found)
    assert f"row {worst:,}" in page(alone)
