"""Ray gives the bits of a local run, also when a worker is killed; what recal refuses, workers
refuse in its words.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import ray

from recal import Blend, ViewStacking, collect
from recal.collecting import RayEngine, apply
from recal.errors import InputError, RecalError
from recal.files.zarr_views import read_ledger
from tests.unit.collecting.conftest import contents

ENGINE = RayEngine(workers=2)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One small cluster for all tests here, so that they do not each wait for one."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Behind other tests of this run, workers of a lower priority would wait for minutes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # a busy machine starts it slowly
    how = {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False}
    for attempt in range(3):
        try:
            ray.init(address="local", logging_level="error", **how)
            break
        except Exception as error:  # Ray raises a bare one when it waited in vain
            ray.shutdown()
            if attempt == 2:
                pytest.skip(f"Ray could not start a cluster on this machine: {error}")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)


def make_model():
    # A function inside a function travels to the workers whole; they cannot import this file.
    def model(batch):
        values = np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)
        return values @ np.sin(np.arange(64 * 3, dtype=np.float32)).reshape(64, 3) / 50

    return model


def job(images, **options):
    options = {"labels": np.arange(60) % 3, "batch_size": 8, **options}
    return collect(make_model(), images, "zoom:0.5-0.9:3", **options)


def test_a_store_has_the_bytes_of_a_local_run(tmp_path, images):
    job(images, out=tmp_path / "ray.zarr", engine=ENGINE, batch_size=4)
    job(images, out=tmp_path / "local.zarr", batch_size=4)
    assert contents(tmp_path / "ray.zarr") == contents(tmp_path / "local.zarr")


PLAN = Blend(0.6, (("zoom:0.5", 0.5), ("flip", 0.4)), (), 1e-4, gate=0.6, gated_own=1.2, start=0.6)


def test_predictions_on_ray_are_those_of_a_local_run(images):
    calibrator = ViewStacking().set_state({"map_": PLAN, "classes_": np.arange(3)})
    local, spread = (
        apply(calibrator, make_model(), images, batch_size=8, engine=engine)
        for engine in ("local", ENGINE)
    )
    assert 60 < local.passes.sum() < 180  # the gate spares views
    np.testing.assert_array_equal(spread.passes, local.passes)
    np.testing.assert_array_equal(spread.probs, local.probs)


def test_a_killed_worker_costs_a_retry_and_no_row(tmp_path, images):
    pids = tmp_path / "pids"
    pids.mkdir()

    model, folder = make_model(), str(pids)

    def slow(batch):
        open(os.path.join(folder, str(os.getpid())), "w").close()
        time.sleep(0.1)
        return model(batch)

    slow.__name__, slow.__qualname__ = "model", "make_model.<locals>.model"
    killed = []

    def kill_the_first():
        while not killed:
            for path in pids.iterdir():
                if int(path.name) != os.getpid():
                    time.sleep(0.15)  # in the middle of its work
                    os.kill(int(path.name), signal.SIGKILL)
                    killed.append(int(path.name))
                    return
            time.sleep(0.01)

    thread = threading.Thread(target=kill_the_first, daemon=True)
    thread.start()
    options = {"labels": np.arange(60) % 3, "batch_size": 8}
    collect(slow, images, "zoom:0.5-0.9:3", out=tmp_path / "ray.zarr", engine=ENGINE, **options)
    thread.join()
    assert len(killed) == 1
    assert len(list(pids.iterdir())) > 1, "another process took over"
    job(images, out=tmp_path / "local.zarr")
    assert contents(tmp_path / "ray.zarr") == contents(tmp_path / "local.zarr")


DRIVER = """
import os, sys, time
import numpy as np
from recal import collect
from recal.collecting import RayEngine

out, held = sys.argv[1:]

def written():
    ledger = out + "/ledger.txt"
    return len(open(ledger).readlines()) - 1 if os.path.exists(ledger) else 0

def make_model():
    def model(batch):
        while written() > 3 and not os.path.exists(held + "/go on"):
            time.sleep(0.05)
        values = np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)
        return values @ np.sin(np.arange(64 * 3, dtype=np.float32)).reshape(64, 3) / 50
    return model

images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
how = {"labels": np.arange(60) % 3, "batch_size": 4, "out": out, "engine": RayEngine(workers=1)}
collect(make_model(), images, "zoom:0.5-0.9:3", **how)
"""


def test_a_killed_driver_costs_the_blocks_without_a_line(tmp_path, images):
    out, address = tmp_path / "v.zarr", ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", DRIVER, str(out), str(tmp_path)]
    environment = {**os.environ, "RAY_ADDRESS": address, "RAY_AUTH_MODE": "token"}

    def n_written():
        return len(read_ledger(out).blocks) if (out / "ledger.txt").exists() else 0

    with subprocess.Popen(command, env=environment) as driver:
        while driver.poll() is None and n_written() < 3:
            time.sleep(0.05)
        assert driver.poll() is None, "it waits for a word that does not come"
        driver.kill()
    assert 3 <= len(read_ledger(out).blocks) < 15
    (tmp_path / "go on").touch()  # for a worker that was left behind
    job(images, out=out, batch_size=4)
    job(images, out=tmp_path / "whole.zarr", batch_size=4)
    assert contents(out) == contents(tmp_path / "whole.zarr")


def test_what_a_worker_refuses_arrives_in_recals_words(images):
    def broken(batch):
        return np.full((len(batch), 3), np.nan, dtype=np.float32)

    with pytest.raises(InputError, match="broken gave nan for sample 0, class 0, in the original"):
        collect(broken, images[:8], None, engine=RayEngine(workers=1))


@pytest.mark.parametrize("address", [None, "10.1.2.3:6379"])
def test_the_address_decides_where_and_only_what_was_started_is_ended(monkeypatch, address):
    asked, ended = [], []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: asked.append(options))
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with ENGINE._cluster():
        assert not ended
    assert ended == [True]
    assert asked[0]["address"] == (address or "local")
    assert ("num_cpus" in asked[0]) == (address is None), "a cluster that is there has its own size"


# Older releases of Ray have no error for tokens.
REFUSAL = getattr(ray.exceptions, "AuthenticationError", ray.exceptions.RaySystemError)


@pytest.mark.parametrize("kind", [ConnectionError, REFUSAL])
def test_a_cluster_that_cannot_be_joined_is_named(monkeypatch, kind):
    def refuse(**options):
        raise kind("Failed to connect")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "10.1.2.3:6379")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    said = r"10\.1\.2\.3:6379: .*Failed to connect\..*set RAY_AUTH_MODE=token"
    with pytest.raises(RecalError, match=said), ENGINE._cluster():
        pass


@pytest.mark.slow
def test_a_local_cluster_is_started_and_shut_down(images):
    ray.shutdown()
    views = job(images, engine="ray")
    assert not ray.is_initialized()
    np.testing.assert_array_equal(views.logits, job(images).logits)
