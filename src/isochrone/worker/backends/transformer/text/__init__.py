"""Text to tokens and back, and the prompts of chats."""
