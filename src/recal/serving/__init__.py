"""One process that scores answers where they are made: `recal serve`."""
