"""Reads how busy each pool is, for outside autoscalers and for ours. Decides nothing about the number of workers."""
