"""The worker beside raw graph replay."""
