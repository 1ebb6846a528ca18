"""`recal calibrate`: from labelled inputs or graded answers to automated answers."""
