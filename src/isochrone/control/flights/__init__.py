"""Asks the processes of a fleet what they remember of one request."""
