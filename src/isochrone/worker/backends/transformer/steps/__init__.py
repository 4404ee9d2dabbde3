"""Steps on the device: rows are packed, copied, computed and sampled."""
