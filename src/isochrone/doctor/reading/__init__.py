"""Facts from /proc, /sys, this process's limits and the GPU driver. ``machine`` reads all. Changes nothing."""
