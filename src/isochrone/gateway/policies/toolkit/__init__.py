"""What several policies are built of: checks of options, random draws, score boards. No policy stands here."""
