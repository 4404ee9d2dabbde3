"""From the text of a fleet.yaml to data with lines, and from wrong data to problems in our words. Pure."""
