"""Ray gives the bits of a local run, also when a worker is killed; what recal refuses, workers refuse in its words."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
import ray
import torch
from torch.utils.data import DataLoader, TensorDataset

from recal import InputError, TemperatureScaling, collect
from recal.collecting import RayEngine, apply, apply_distributed
from recal.errors import RecalError

ENGINE = RayEngine(workers=2)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One small cluster for all tests here, so that they do not each wait for one."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make_model():
    # A function inside a function travels to the workers whole; they cannot import this file.
    def model(batch):
        values = np.asarray(batch, dtype=np.float32).reshape(len(batch), -1)
        return values @ np.sin(np.arange(64 * 3, dtype=np.float32)).reshape(64, 3) / 50

    return model


def job(images, **options):
    options = {"labels": np.arange(60) % 3, "batch_size": 8, **options}
    return collect(make_model(), images, "zoom:0.5-0.9:3", **options)


@pytest.mark.slow
def test_the_store_has_the_bytes_of_a_local_run(tmp_path, images):
    job(images, out=tmp_path / "local.zarr")
    job(images, out=tmp_path / "ray.zarr", engine=ENGINE)
    assert contents(tmp_path / "ray.zarr") == contents(tmp_path / "local.zarr")


@pytest.mark.slow
def test_memory_and_probabilities_are_those_of_a_local_run(images):
    local, spread = job(images), job(images, engine=ENGINE)
    np.testing.assert_array_equal(spread.logits, local.logits)
    np.testing.assert_array_equal(spread.labels, local.labels)
    for transform in local.transforms:
        np.testing.assert_array_equal(spread.transformed(transform), local.transformed(transform))
    calibrator = TemperatureScaling().fit(local)
    applied = apply(calibrator, make_model(), images, labels=np.arange(60) % 3, batch_size=8, engine=ENGINE)
    np.testing.assert_array_equal(applied.probs, calibrator.predict_proba(local))
    assert applied.labels.tolist() == (np.arange(60) % 3).tolist()


@pytest.mark.slow
def test_a_store_that_one_engine_began_the_other_finishes(tmp_path, images):
    model = make_model()

    def giving_up(batch):
        if (batch[0] == images[24]).all():
            raise KeyboardInterrupt
        return model(batch)

    giving_up.__name__, giving_up.__qualname__ = "model", "make_model.<locals>.model"
    labels = np.arange(60) % 3
    with pytest.raises(KeyboardInterrupt):
        collect(giving_up, images, "zoom:0.5-0.9:3", labels=labels, batch_size=8, out=tmp_path / "v.zarr")
    job(images, out=tmp_path / "v.zarr", engine=ENGINE)
    job(images, out=tmp_path / "whole.zarr")
    assert contents(tmp_path / "v.zarr") == contents(tmp_path / "whole.zarr")


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


def test_what_a_worker_refuses_arrives_in_recals_words(images):
    def broken(batch):
        return np.full((len(batch), 3), np.nan, dtype=np.float32)

    with pytest.raises(InputError, match="broken gave nan for sample 0, class 0, in the original"):
        collect(broken, images[:8], None, engine=RayEngine(workers=1))


def test_a_loader_is_refused_with_the_remedy(images):
    loader = DataLoader(TensorDataset(torch.from_numpy(images)))
    with pytest.raises(InputError, match=r"read in any order.*loader\.dataset"):
        collect(make_model(), loader, None, engine=ENGINE)


def test_tables_are_written_by_the_workers(tmp_path, images):
    import pyarrow.parquet

    calibrator = TemperatureScaling().fit(job(images))
    folder = apply_distributed(calibrator, make_model(), images, tmp_path / "probs", batch_size=16, engine=ENGINE)
    assert sorted(path.name for path in folder.iterdir()) == [f"part-{index:06d}.parquet" for index in range(4)]
    expected = calibrator.predict_proba(collect(make_model(), images, None, batch_size=16))
    table = pyarrow.parquet.read_table(folder).to_pydict()
    np.testing.assert_array_equal(np.stack([table[f"p_{k}"] for k in range(3)], axis=1), expected)
    (folder / "part-000002.parquet").unlink()
    before = (folder / "part-000001.parquet").stat().st_mtime_ns
    apply_distributed(calibrator, make_model(), images, folder, batch_size=16, engine=ENGINE)
    assert (folder / "part-000001.parquet").stat().st_mtime_ns == before
    assert pyarrow.parquet.read_table(folder).num_rows == 60


def test_bad_engines_are_refused():
    with pytest.raises(InputError, match="`workers` must be at least 1, got 0"):
        RayEngine(workers=0)
    with pytest.raises(InputError, match="must not be negative"):
        RayEngine(gpus=-1)


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
    with (
        pytest.raises(RecalError, match=r"cluster at 10\.1\.2\.3:6379: Failed to connect\..*set RAY_AUTH_MODE=token"),
        ENGINE._cluster(),
    ):
        pass


@pytest.mark.slow
def test_a_start_that_takes_too_long_is_told_with_its_remedy(monkeypatch):
    def slow(**options):
        raise Exception("The current node timed out during startup.")  # a bare one, as Ray raises it

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", slow)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(RecalError, match=r"local Ray cluster: .*timed out.*try again.*wait_time_s"), ENGINE._cluster():
        pass


def test_a_local_cluster_is_started_and_shut_down(images):
    ray.shutdown()
    views = job(images, engine="ray")
    assert not ray.is_initialized()
    np.testing.assert_array_equal(views.logits, job(images).logits)
