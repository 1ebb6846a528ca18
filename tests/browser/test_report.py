"""The report in a real browser: what people see when they move the slider is what numpy says."""

import importlib.util
import json
import os
import re
from functools import partial
from pathlib import Path

import pytest

from recal import compare
from recal.reporting import report as write_report
from tests.problems import views

problem = partial(views, n_classes=6, scale=5, keep=0.7, blur=1.5)

spec = importlib.util.spec_from_file_location("chromium", Path(__file__).with_name("chromium.py"))
chromium = importlib.util.module_from_spec(spec)
spec.loader.exec_module(chromium)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.PROGRAM is None, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def comparison():
    return compare(["ts", "vs", "recal"], problem(1500), problem(1300, seed=1), bootstrap=100)


@pytest.fixture(scope="module")
def report(comparison, tmp_path_factory):
    return write_report(comparison, tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="module")
def browser():
    opened = chromium.Browser()
    yield opened
    opened.close()


def move(browser, index):
    browser.ask(
        f"(() => {{ const s = document.getElementById('threshold'); s.value = {index};"
        " s.dispatchEvent(new Event('input')); })()"
    )


def place_of(report, threshold):
    data = json.loads(re.search(r'id="data">(.*?)</script>', report.read_text(), re.S)[1])
    return data["thresholds"].index(threshold)


def choose(browser, method):
    browser.ask(
        f"(() => {{ const s = document.getElementById('method'); s.value = {json.dumps(method)};"
        " s.dispatchEvent(new Event('change')); })()"
    )


def check_numbers(browser, rows, key, threshold):
    above = rows.confidence >= threshold
    accepted, right = int(above.sum()), int(rows.correct[above].sum())
    share = f"{100 * right / accepted:.1f} %" if accepted else "–"
    assert browser.text(f"coverage-{key}") == f"{100 * accepted / len(above):.1f} %"
    assert browser.text(f"accepted-{key}") == f"{accepted:,} of {len(above):,}"
    assert browser.text(f"accuracy-{key}") == share
    assert browser.text(f"errors-{key}") == f"{accepted - right:,}"
    assert browser.text(f"range-{key}").endswith("if calibrated")
    expected = float(browser.text(f"expected-{key}").replace(",", ""))
    assert expected == pytest.approx((1 - rows.confidence[above]).sum(), abs=0.502)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.83, 0.9, 0.99, 0.9999])
def test_the_slider_shows_what_numpy_counts(browser, report, comparison, threshold):
    browser.open(report)
    move(browser, place_of(report, threshold))
    assert float(browser.text("threshold-value")) == threshold
    shown = browser.ask("document.getElementById('method').value")
    check_numbers(browser, comparison.samples["uncalibrated"], "before", threshold)
    check_numbers(browser, comparison.samples[shown], "after", threshold)


def test_the_page_says_the_same_before_and_after_its_script_ran(browser, report, comparison):
    static = report.read_text()
    browser.open(report)
    for name in ("coverage", "accepted", "accuracy", "errors", "expected"):
        for key in ("before", "after"):
            assert f'id="{name}-{key}">{browser.text(f"{name}-{key}")}<' in static


def test_choosing_a_method_changes_numbers_verdict_and_figures(browser, report, comparison):
    browser.open(report)
    for method in ("vs", "ts", "recal"):
        choose(browser, method)
        check_numbers(browser, comparison.samples[method], "after", 0.9)
        assert (
            f"with {method}" in browser.ask("document.getElementById('verdict').innerText").lower()
        )
        visible = browser.ask(
            "[...document.querySelectorAll('[data-method]')]"
            ".filter(e => e.offsetParent).map(e => e.dataset.method)"
        )
        assert set(visible) == {method}


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_of_the_screen_fails_or_is_fetched(browser, report, tmp_path, width):
    browser.open(report, width=width)
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("file:")] == []
    small = browser.ask(
        "[...document.querySelectorAll('main p, main td, main th')].filter(e => e.offsetParent)"
        ".filter(e => parseFloat(getComputedStyle(e).fontSize) < 10).length"
    )
    assert small == 0
    # To be looked at; RECAL_SCREENSHOTS names a folder outside the repository.
    folder = Path(os.environ.get("RECAL_SCREENSHOTS", tmp_path))
    browser.screenshot(folder / f"report-{width}.png")
    assert (folder / f"report-{width}.png").stat().st_size > 20_000


_UNREADABLE = """(() => {
  const found = [];
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect();
    const words = [...svg.querySelectorAll("text")]
      .filter((e) => e.textContent.trim() && frame.width)
      .map((e) => [e.textContent, e.getBoundingClientRect()]);
    words.forEach(([text, a], i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1) found.push(text + " is cut off");
      for (const [other, b] of words.slice(i + 1))
        if (a.left < b.right - 1 && b.left < a.right - 1 &&
            a.top < b.bottom - 2 && b.top < a.bottom - 2)
          found.push(text + " lies on " + other);
    });
  }
  return found;
})()"""


@pytest.mark.parametrize("width", [1280, 390])
def test_no_words_of_a_figure_are_cut_off_or_lie_on_others(browser, report, width):
    browser.open(report, width=width)
    assert browser.ask(_UNREADABLE) == []


def test_a_screen_reader_hears_the_numbers_and_no_symbols(browser, report, comparison):
    static = re.search('aria-valuetext="(.*?)"', report.read_text())[1]
    browser.open(report)
    said = "document.getElementById('threshold').getAttribute('aria-valuetext')"
    assert browser.ask(said) == static
    move(browser, place_of(report, 0.5))
    above = comparison.samples["uncalibrated"].confidence >= 0.5
    assert browser.ask(said).startswith(
        f"at least 0.5 confidence; uncalibrated: {100 * above.mean():.1f} % accepted"
    )
    figures = (
        "[...document.querySelectorAll('section')].filter(e => e.querySelector('figure.card'))"
    )
    assert browser.ask(f"{figures}.length") >= 3
    assert browser.ask(f"{figures}.every(e => e.querySelector('table'))"), (
        "every figure has its numbers in a table"
    )


def test_without_scripts_the_page_is_whole(browser, report, comparison):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(report)
        assert browser.text("threshold-value") == "0.9"
        chosen = browser.ask("document.getElementById('method').value")
        method = "document.querySelector('[data-method]:not([hidden])').dataset.method"
        assert browser.ask(method) == chosen
        assert browser.ask(
            "[...document.querySelectorAll('noscript')].some(e => e.innerText.includes('scripts'))"
        )
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)
