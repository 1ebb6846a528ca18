"""What type checkers and editors see: the names of `__init__.py`, each from its home."""

import typing

from .base import Calibrator as Calibrator
from .auto import AutoCalibration as AutoCalibration
from .binning import BayesianBinning as BayesianBinning
from .logistic import BetaCalibration as BetaCalibration
from .ensemble import CalibrationEnsemble as CalibrationEnsemble
from .scaling import DirichletCalibration as DirichletCalibration
from .temperature import EnsembleTemperatureScaling as EnsembleTemperatureScaling
from .gaussian_process import GaussianProcessCalibration as GaussianProcessCalibration
from .binning import HistogramBinning as HistogramBinning
from .isotonic import IsotonicCalibration as IsotonicCalibration
from .isotonic import IsotonicMulticlass as IsotonicMulticlass
from .isotonic import IsotonicOneVsAll as IsotonicOneVsAll
from .scaling import MatrixScaling as MatrixScaling
from .binning import MutualInformationBinning as MutualInformationBinning
from .order_preserving import OrderPreserving as OrderPreserving
from .logistic import PlattScaling as PlattScaling
from .recal import ReCal as ReCal
from .isotonic import SplineCalibration as SplineCalibration
from .scaling import StructuredMatrixScaling as StructuredMatrixScaling
from .scaling import StructuredVectorScaling as StructuredVectorScaling
from .temperature import TemperatureScaling as TemperatureScaling
from .scaling import VectorScaling as VectorScaling
from .isotonic import VennAbers as VennAbers
from .stacking import ViewAveraging as ViewAveraging
from .panel import PanelCalibration as PanelCalibration
from .signals import SignalCalibration as SignalCalibration
from .stacking import ViewStacking as ViewStacking

CALIBRATORS: tuple[type[Calibrator], ...]
METHODS: dict[str, str]

def find_method(name: str) -> tuple[type[Calibrator], dict[str, typing.Any]]: ...
def name_of(calibrator: Calibrator) -> str: ...
