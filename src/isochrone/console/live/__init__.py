"""The live part of the console: computed and encoded once a second, and sent to all browsers as the same bytes."""
