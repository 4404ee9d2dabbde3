"""Autoscaling of real processes under a load that rises and falls."""
