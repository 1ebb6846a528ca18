"""Where inputs come from."""
