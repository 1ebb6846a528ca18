"""What type checkers and editors see of the names that `__init__.py` loads on first use.

Here `collect` is the function, which a reader of the folders alone would take for the package of that name.
"""

from recal import calibrators as calibrators, metrics as metrics, transforms as transforms
from recal.calibrators import (
    BayesianBinning as BayesianBinning,
    BetaCalibration as BetaCalibration,
    DirichletCalibration as DirichletCalibration,
    EnsembleTemperatureScaling as EnsembleTemperatureScaling,
    GaussianProcessCalibration as GaussianProcessCalibration,
    HistogramBinning as HistogramBinning,
    IsotonicCalibration as IsotonicCalibration,
    IsotonicMulticlass as IsotonicMulticlass,
    IsotonicOneVsAll as IsotonicOneVsAll,
    MatrixScaling as MatrixScaling,
    MutualInformationBinning as MutualInformationBinning,
    OrderPreserving as OrderPreserving,
    PlattScaling as PlattScaling,
    ReCal as ReCal,
    SplineCalibration as SplineCalibration,
    StructuredMatrixScaling as StructuredMatrixScaling,
    StructuredVectorScaling as StructuredVectorScaling,
    TemperatureScaling as TemperatureScaling,
    VectorScaling as VectorScaling,
    ViewAveraging as ViewAveraging,
)
from recal.collect import (
    collect as collect,
)
from recal.comparison import (
    Comparison as Comparison,
    compare as compare,
)
from recal.errors import (
    ConvergenceWarning as ConvergenceWarning,
    FewSamplesWarning as FewSamplesWarning,
    FileError as FileError,
    InputError as InputError,
    MissingExtraError as MissingExtraError,
    NotFittedError as NotFittedError,
    RecalError as RecalError,
)
from recal.grouping import (
    Group as Group,
    group as group,
)
from recal.metrics import (
    evaluate as evaluate,
)
from recal.plan import (
    Plan as Plan,
    Step as Step,
)
from recal.runtime.classifier import (
    CalibratedClassifier as CalibratedClassifier,
)
from recal.runtime.files import (
    load as load,
    save as save,
)
from recal.runtime.torch import (
    CalibratedModule as CalibratedModule,
)
from recal.transforms import (
    pool as pool,
)
from recal.view_files import (
    read_views as read_views,
)
from recal.views import (
    Views as Views,
)

__version__: str
__all__: list[str]
