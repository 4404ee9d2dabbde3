"""Runs as a page: one HTML file with plots as inline SVG, which loads nothing from elsewhere."""
