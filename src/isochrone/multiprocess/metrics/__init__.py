"""One metrics page for all processes."""
