"""The paper's data sets, networks and recipes."""
