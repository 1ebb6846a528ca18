from .logs import read_log as read_log
from .scores import OptionScores as OptionScores, join_scores as join_scores
from .tables import read_table as read_table
