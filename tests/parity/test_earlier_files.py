"""Files that 1.0.0rc1 wrote, one of each of its 26 methods: they load, and answer as they did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recal import Views, load

WRITTEN = np.load(Path(__file__).with_name("data") / "written_by_1_0_0rc1.npz")
METHODS = sorted(name.removesuffix(".recal") for name in WRITTEN.files if name.endswith(".recal"))


@pytest.mark.parametrize("method", METHODS)
def test_a_file_of_1_0_0rc1_answers_as_it_did(method, tmp_path):
    path = tmp_path / f"{method}.recal"
    path.write_bytes(WRITTEN[f"{method}.recal"].tobytes())
    views = Views(WRITTEN["logits"], {"zoom:0.5": WRITTEN["half"], "zoom:0.8": WRITTEN["most"]})
    np.testing.assert_allclose(load(path).predict_proba(views), WRITTEN[f"{method}.probs"], rtol=0, atol=1e-12)
