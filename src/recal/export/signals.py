"""SignalCalibration as an ONNX file: signals in, confidence out."""

from __future__ import annotations

import json
import os
from pathlib import Path

from recal.calibrators.signals import SignalCalibration
from recal.export.graph import DOUBLE, OPSET, Nodes, model_of, onnx, tensor
from recal.export.tracer import OPEN, Graph
from recal.files.atomic import replacing


def export_signals(calibration: SignalCalibration, path: str | os.PathLike[str]) -> Path:
    """Write a fitted SignalCalibration to one ONNX file.

    The input `signals` is (n, n_signals) float64 with NaN where a signal is missing. Columns of text and groups hold
    codes: the place of the level among the levels of the fit, which the file's metadata `recal_signals` lists as JSON,
    and NaN for any other level. The output `confidence` is (n,), the probability that each answer is right.
    """
    calibration.state()  # refuses one that is not fitted
    table, graph = calibration.table_, Nodes()
    signals = Graph(graph, OPSET).input("signals", "float64", (OPEN, len(table.names)))
    graph.rename(calibration.map_.confidence(signals).name, "confidence")
    model = model_of(graph, [tensor("signals", DOUBLE, ["n", len(table.names)])], [tensor("confidence", DOUBLE, ["n"])])
    onnx.checker.check_model(model, full_check=True)
    columns = [{"name": name, "levels": list(levels)} for name, levels in zip(table.names, table.levels)]
    model.metadata_props.add(key="recal_signals", value=json.dumps(columns))
    with replacing(path) as file:
        file.write(model.SerializeToString())
    return Path(path)
