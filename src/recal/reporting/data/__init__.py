"""From results to numbers and sentences; nothing here draws."""
