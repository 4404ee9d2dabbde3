"""Commands that look at a running fleet or change it, through a controller."""
