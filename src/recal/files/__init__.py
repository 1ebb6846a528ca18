"""Reading and writing files, and what a file may hold."""
