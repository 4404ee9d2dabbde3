"""Memory of a GPU over loads and unloads, and what a failing model costs the others."""
