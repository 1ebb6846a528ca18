import pytest

from tests.problems import probs_and_labels


@pytest.fixture(name="problem")
def overconfident_probs():
    """Over-confident probabilities with their labels: 600 rows, 4 classes, some ties."""
    return probs_and_labels(seed=3)
