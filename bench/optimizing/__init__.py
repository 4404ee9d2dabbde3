"""The optimizer on three small trained models: speed-up, size and accuracy in one table."""
