"""The whole job in one call: a model and labelled inputs in, a folder with a calibration, a rule and a page out."""
