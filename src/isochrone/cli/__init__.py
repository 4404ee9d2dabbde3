"""The command line: one file per command or group of commands. Must never decide anything that a process decides."""
