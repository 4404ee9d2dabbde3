"""`python -m bench.picker`: picks per second on one core, and how long a decision takes at a fixed rate."""
