"""Parts of a plan: its steps, what it takes away, and settings that differ. Pure; ``plan`` puts them together."""
