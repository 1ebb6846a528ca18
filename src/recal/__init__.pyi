"""What type checkers and editors see: the names of `__init__.py`, each from its home."""

from . import (
    answers as answers,
    calibrators as calibrators,
    collecting as collecting,
    decisions as decisions,
)
from . import errors as errors, metrics as metrics, transforms as transforms
from .views import Views as Views
from .files.views import read_views as read_views
from .transforms.pools import pool as pool
from .collecting.local import collect as collect
from .maps.blend import Blend as Blend
from .maps.steps import Group as Group, Plan as Plan, Step as Step, group as group
from .calibrators.auto import AutoCalibration as AutoCalibration
from .calibrators.recal import ReCal as ReCal
from .calibrators.panel import PanelCalibration as PanelCalibration
from .calibrators.signals import SignalCalibration as SignalCalibration
from .calibrators.temperature import TemperatureScaling as TemperatureScaling
from .calibrators.stacking import ViewStacking as ViewStacking
from .metrics.evaluation import evaluate as evaluate
from .decisions.guarantee import decide as decide
from .decisions.audit import Audit as Audit
from .decisions.cascade import plan_cascade as plan_cascade
from .decisions.rule import DecisionRule as DecisionRule
from .decisions.sets import prediction_sets as prediction_sets
from .decisions.profiles import profile as profile
from .decisions.profiles import watch as watch
from .comparison.run import compare as compare
from .reporting.page import report as report
from .reporting.charts import reliability_diagram as reliability_diagram
from .collecting.classifier import CalibratedClassifier as CalibratedClassifier
from .export.torch_module import CalibratedModule as CalibratedModule
from .files.paths import docs_dir as docs_dir
from .export.onnx_file import export_onnx as export_onnx
from .files.saved import load as load, save as save

__version__: str
