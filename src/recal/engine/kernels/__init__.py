"""Compiled loops: arrays in, arrays out; no classes, no checks, no files, no randomness."""
