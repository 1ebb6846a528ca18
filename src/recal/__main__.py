"""`python -m recal` does what `recal` does."""

from recal.cli import main

main()
