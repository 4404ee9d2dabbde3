"""pytest puts this folder on the path, so that tests in its rooms can import ``fleets``."""
