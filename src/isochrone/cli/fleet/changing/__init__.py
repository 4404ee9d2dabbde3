"""Commands that start a fleet or change it. All but ``up`` act through a controller's API alone."""
