"""What type checkers and editors see: the names of `__init__.py`, each from its home."""

from .base import Calibrator as Calibrator
from .aggregate import LearnedAggregation as LearnedAggregation
from .affine import AffineScaling as AffineScaling
from .auto import AutoCalibration as AutoCalibration
from .bbq import BayesianBinning as BayesianBinning
from .beta import BetaCalibration as BetaCalibration
from .ensemble import CalibrationEnsemble as CalibrationEnsemble
from .isotonic import CentredIsotonic as CentredIsotonic
from .consistency import ConsistencyCalibration as ConsistencyCalibration
from .matrix import DirichletCalibration as DirichletCalibration
from .ets import EnsembleTemperatureScaling as EnsembleTemperatureScaling
from .gaussian_process import GaussianProcessCalibration as GaussianProcessCalibration
from .histogram import HistogramBinning as HistogramBinning
from .isotonic import IsotonicCalibration as IsotonicCalibration
from .isotonic import IsotonicMulticlass as IsotonicMulticlass
from .isotonic import IsotonicOneVsAll as IsotonicOneVsAll
from .matrix import MatrixScaling as MatrixScaling
from .imax import MutualInformationBinning as MutualInformationBinning
from .vatta import MATTA as MATTA
from .order_preserving import OrderPreserving as OrderPreserving
from .platt import PlattScaling as PlattScaling
from .affine import QuadraticScaling as QuadraticScaling
from .recal import ReCal as ReCal
from .spline import SplineCalibration as SplineCalibration
from .structured import StructuredMatrixScaling as StructuredMatrixScaling
from .structured import StructuredVectorScaling as StructuredVectorScaling
from .temperature import TemperatureScaling as TemperatureScaling
from .vatta import VATTA as VATTA
from .vector import VectorScaling as VectorScaling
from .venn_abers import VennAbers as VennAbers
from .view_averaging import ViewAveraging as ViewAveraging
from .signals import SignalCalibration as SignalCalibration
from .stacking import ViewStacking as ViewStacking

CALIBRATORS: tuple[type[Calibrator], ...]

def calibrator_named(name: str) -> type[Calibrator] | None: ...
def short_names() -> dict[str, str]: ...
