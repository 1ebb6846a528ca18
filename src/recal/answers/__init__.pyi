"""What type checkers and editors see: the names of `__init__.py`, each from its home."""

from .endpoint import Endpoint as Endpoint
from .logs import read_log as read_log
from .scores import OptionScores as OptionScores, join_scores as join_scores
from ..files.tables import read_table as read_table
