"""Which configuration to measure next, and which one to recommend. Pure: no clock, no model."""
