"""Commands that make a model meet its budget."""
