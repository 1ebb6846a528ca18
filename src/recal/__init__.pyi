"""The one list of public names: what `recal` loads on first use, and what type checkers and editors see.

A class listed from a module of `calibrators` is thereby known to the command line, to `load` and to the contract tests.
"""

from . import calibrators as calibrators, collecting as collecting, decisions as decisions
from . import metrics as metrics, transforms as transforms
from .views import Views as Views
from .files.views import read_views as read_views
from .transforms.pool import pool as pool
from .collecting.local import collect as collect
from .engine.grouping import Group as Group, group as group
from .plan import Blend as Blend, Plan as Plan, Step as Step
from .calibrators.aggregate import LearnedAggregation as LearnedAggregation
from .calibrators.auto import AutoCalibration as AutoCalibration
from .calibrators.bbq import BayesianBinning as BayesianBinning
from .calibrators.beta import BetaCalibration as BetaCalibration
from .calibrators.consistency import ConsistencyCalibration as ConsistencyCalibration
from .calibrators.dirichlet import DirichletCalibration as DirichletCalibration
from .calibrators.ets import EnsembleTemperatureScaling as EnsembleTemperatureScaling
from .calibrators.gaussian_process import GaussianProcessCalibration as GaussianProcessCalibration
from .calibrators.histogram import HistogramBinning as HistogramBinning
from .calibrators.isotonic import IsotonicCalibration as IsotonicCalibration
from .calibrators.irm import IsotonicMulticlass as IsotonicMulticlass
from .calibrators.irova import IsotonicOneVsAll as IsotonicOneVsAll
from .calibrators.matrix import MatrixScaling as MatrixScaling
from .calibrators.imax import MutualInformationBinning as MutualInformationBinning
from .calibrators.matta import MATTA as MATTA
from .calibrators.order_preserving import OrderPreserving as OrderPreserving
from .calibrators.platt import PlattScaling as PlattScaling
from .calibrators.recal import ReCal as ReCal
from .calibrators.spline import SplineCalibration as SplineCalibration
from .calibrators.structured_matrix import StructuredMatrixScaling as StructuredMatrixScaling
from .calibrators.structured_vector import StructuredVectorScaling as StructuredVectorScaling
from .calibrators.temperature import TemperatureScaling as TemperatureScaling
from .calibrators.vatta import VATTA as VATTA
from .calibrators.vector import VectorScaling as VectorScaling
from .calibrators.view_averaging import ViewAveraging as ViewAveraging
from .calibrators.view_stacking import ViewStacking as ViewStacking
from .metrics.evaluation import evaluate as evaluate
from .decisions.decision import Decision as Decision, decide as decide
from .decisions.rule import DecisionRule as DecisionRule
from .decisions.sets import PredictionSets as PredictionSets, prediction_sets as prediction_sets
from .comparison.results import Comparison as Comparison
from .comparison.run import compare as compare
from .runtime.classifier import CalibratedClassifier as CalibratedClassifier
from .runtime.torch.module import CalibratedModule as CalibratedModule
from .files.saved import load as load, save as save
from .errors import (
    ConvergenceWarning as ConvergenceWarning,
    DoubtfulLabelsWarning as DoubtfulLabelsWarning,
    FewSamplesWarning as FewSamplesWarning,
    FileError as FileError,
    InputError as InputError,
    MissingExtraError as MissingExtraError,
    NotFittedError as NotFittedError,
    RecalError as RecalError,
)

__version__: str
