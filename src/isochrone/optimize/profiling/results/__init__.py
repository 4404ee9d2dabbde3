"""What a profile leaves: a changed config.pbtxt and a report."""
