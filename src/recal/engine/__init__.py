"""What happens to logits: scaled, tabled, grouped, fitted by a temperature, replayed."""
