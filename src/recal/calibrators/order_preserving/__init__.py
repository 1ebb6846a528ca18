"""A small network that keeps the order of the classes. `estimator.py` is the method, `network.py` what it trains."""
