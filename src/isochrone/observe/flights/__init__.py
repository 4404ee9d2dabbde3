"""The flight recorder: what each process remembers of its last requests, and how one is explained afterwards."""
