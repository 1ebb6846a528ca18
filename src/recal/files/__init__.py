"""All that is read or written, and what a file may hold."""
