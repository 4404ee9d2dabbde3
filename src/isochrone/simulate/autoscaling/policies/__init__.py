"""Autoscaling algorithms, one file each: ours, and those of Kubernetes, KEDA, Ray Serve and llm-d as they decide."""
