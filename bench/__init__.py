"""Every published number has a script here; peers run beside our own servers in the same alternating run."""
