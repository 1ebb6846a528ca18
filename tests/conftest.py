"""Shared set-up of all tests, and the tests that are skipped if packages are missing."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

# The slowest files come first: if one of them started last, a single process would be busy at the
# end.
LONGEST = ("test_ray.py", "test_examples.py", "test_calibrators.py", "test_urls.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: (
            LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST)
        )
    )


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """A machine that loses power is not tested, and each wait takes milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True)
def _seed_torch() -> None:
    """Give a network the same random weights whichever tests ran before it in this process."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--skip-missing",
        action="store_true",
        help="Skip what needs a package that is not installed.",
    )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Skip a file whose import needs a package that is not installed, unless it is recal itself."""
    report = yield
    lacking = (
        re.search(r"No module named '(?!recal\b)(\w+)", str(report.longrepr))
        if report.failed
        else None
    )
    if lacking and collector.config.getoption("--skip-missing"):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, f"Skipped: needs {lacking[1]}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, Any]:
    """Skip a test that was told which extra to install, or that imports one itself."""
    report = yield
    if call.excinfo is not None and report.failed and item.config.getoption("--skip-missing"):
        texts = [str(report.longrepr), *(text for _, text in report.sections)]
        lacking = re.search(
            r"the package `\w+`, which is not|No module named '(?!recal\b)", "".join(texts)
        )
        if lacking:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"Skipped: {lacking[0]}")
    return report
