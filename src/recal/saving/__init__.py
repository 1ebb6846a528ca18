"""What a fit leaves behind, as one file: which classes may be saved, and that what a file holds can belong to them."""
