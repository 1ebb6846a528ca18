"""What type checkers and editors see: the names of `__init__.py`, each from its home."""

from .local import collect as collect
from .local import apply as apply
from .ray import RayEngine as RayEngine
from ..transforms.preprocessing import Normalize as Normalize
from ..transforms.preprocessing import PROBABILITY_FLOOR as PROBABILITY_FLOOR
from .sources import Source as Source, as_source as as_source
from .files import ImageFolder as ImageFolder
from .files import SoundFolder as SoundFolder, TextFolder as TextFolder
from .models.base import Model as Model
from .models import as_model as as_model
from .models.torch import HuggingFaceModel as HuggingFaceModel
from .models.onnx import OnnxModel as OnnxModel
from .models.torch import TorchModel as TorchModel
