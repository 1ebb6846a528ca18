"""Stacking: logits of a few chosen views blended into one. `estimator.py` is the method, `view_choice.py` the search."""
