"""Tells outside autoscalers how busy each pool is. Decides nothing about the number of workers."""
