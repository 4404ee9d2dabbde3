"""Commands that change versions: rollouts and canaries, and how they are shown."""
