"""One method, one file. `CALIBRATORS` is the one list that the command line, the loader and the contract tests read."""

from __future__ import annotations

from recal.calibrators._bbq import BayesianBinning
from recal.calibrators._beta import BetaCalibration
from recal.calibrators._compile import Iteration
from recal.calibrators._dirichlet import DirichletCalibration
from recal.calibrators._ets import EnsembleTemperatureScaling
from recal.calibrators._gaussian_process import GaussianProcessCalibration
from recal.calibrators._histogram import HistogramBinning
from recal.calibrators._imax import MutualInformationBinning
from recal.calibrators._irm import IsotonicMulticlass
from recal.calibrators._irova import IsotonicOneVsAll
from recal.calibrators._isotonic import IsotonicCalibration
from recal.calibrators._matrix import MatrixScaling
from recal.calibrators._order_preserving import OrderPreserving
from recal.calibrators._platt import PlattScaling
from recal.calibrators._recal import ReCal
from recal.calibrators._spline import SplineCalibration
from recal.calibrators._structured_matrix import StructuredMatrixScaling
from recal.calibrators._structured_vector import StructuredVectorScaling
from recal.calibrators._temperature import TemperatureScaling
from recal.calibrators._vector import VectorScaling
from recal.calibrators._view_averaging import ViewAveraging
from recal.calibrators.base import Calibrator

# One line per method, in alphabetical order.
CALIBRATORS: tuple[type[Calibrator], ...] = (
    BayesianBinning,
    BetaCalibration,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    GaussianProcessCalibration,
    HistogramBinning,
    IsotonicCalibration,
    IsotonicMulticlass,
    IsotonicOneVsAll,
    MatrixScaling,
    MutualInformationBinning,
    OrderPreserving,
    PlattScaling,
    ReCal,
    SplineCalibration,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
    ViewAveraging,
)

__all__ = [
    "CALIBRATORS",
    "BayesianBinning",
    "BetaCalibration",
    "Calibrator",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "GaussianProcessCalibration",
    "HistogramBinning",
    "IsotonicCalibration",
    "IsotonicMulticlass",
    "IsotonicOneVsAll",
    "Iteration",
    "MatrixScaling",
    "MutualInformationBinning",
    "OrderPreserving",
    "PlattScaling",
    "ReCal",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "VectorScaling",
    "ViewAveraging",
]
