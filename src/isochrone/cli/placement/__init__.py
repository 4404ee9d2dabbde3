"""``isochrone placement``: plans and explanations of model placement; ``group`` has the commands."""
