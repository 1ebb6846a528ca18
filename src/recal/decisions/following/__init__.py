"""Following the inputs: the temperature and the accuracy of a new batch, read off its logits without labels.

Each view of the labelled samples of a fit is a damaged set whose labels are known. `learning` makes many such sets and
notes, for each, nine numbers that logits show (`statistics`), its own best temperature and its accuracy. `process` maps
the numbers to the other two; `following` answers for a new batch, and `powers` applies the answer to probabilities.
"""
