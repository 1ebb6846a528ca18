"""What several methods share: solvers, folds, binning, monotone curves, penalties, checks of parameters."""
