"""What the console shows, as plain data: from the fleet's records and figures, without I/O and without NiceGUI."""
