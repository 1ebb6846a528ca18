"""Predicting registers nothing: it is safe under fork, in threads and with joblib."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from recal import TemperatureScaling
from tests.problems import logits_and_labels


@pytest.fixture(scope="module")
def fitted() -> tuple[TemperatureScaling, np.ndarray, np.ndarray]:
    logits, y = logits_and_labels(400)
    calibrator = TemperatureScaling().fit(logits, y)
    return calibrator, logits, calibrator.predict_proba(logits)


def test_children_that_are_forked_while_threads_predict_do_not_hang(fitted) -> None:
    calibrator, logits, probs = fitted
    stop = threading.Event()

    def predict() -> None:
        while not stop.is_set():
            calibrator.predict_proba(logits)

    threads = [threading.Thread(target=predict) for _ in range(3)]
    for thread in threads:
        thread.start()
    children = []
    try:
        for _ in range(10):
            if (pid := os.fork()) == 0:
                os._exit(0 if np.array_equal(calibrator.predict_proba(logits), probs) else 1)
            children.append(pid)
            time.sleep(0.005)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [_exit_code(pid) for pid in children] == [0] * 10


def _exit_code(pid: int) -> int:
    """Wait for a child; end one that hangs."""
    for _ in range(2000):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
