"""How long prompts are, in characters and tokens: guessed before one is tokenised, learned from those that were.

A prompt with more characters than the model's context could have is refused and never tokenised.
"""

from __future__ import annotations

from isochrone.errors import InvalidArgument
from isochrone.worker.generation.requests.requests import GenerationRequest

#: The longest tokens of common vocabularies are runs of 128 spaces. Longer prompts are refused and not tokenised, also
#: where a tokenizer would drop white space: reading it all would take as long as a prompt that does not fit. Of a chat,
#: the JSON counts, with its escapes.
_CHARACTERS_PER_TOKEN = 128
_BYTES_PER_TOKEN = 6 * _CHARACTERS_PER_TOKEN
#: Characters per token that are assumed before the first prompt, and the weight of a new one.
_ASSUMED = 4.0
_NEW = 0.05


class PromptSizes:
    """The prompts of one version."""

    __slots__ = ("_characters_per_token", "mean_tokens")

    def __init__(self) -> None:
        self.mean_tokens = 1.0
        self._characters_per_token = _ASSUMED

    def tokens_of(self, characters: int) -> int:
        return max(1, int(characters / self._characters_per_token))

    def characters_of(self, tokens: int) -> int:
        return round(tokens * self._characters_per_token)

    def learn(self, characters: int, tokens: int) -> None:
        """Of a prompt that was answered; ``characters``: 0: it was empty."""
        self.mean_tokens += _NEW * (tokens - self.mean_tokens)
        if characters:
            self._characters_per_token += _NEW * (characters / tokens - self._characters_per_token)


def check_size(wanted: GenerationRequest, context_tokens: int) -> None:
    """Raises ``InvalidArgument`` for a prompt that is too long for the context, whatever its tokens are."""
    most = context_tokens * (_CHARACTERS_PER_TOKEN if wanted.text is not None else _BYTES_PER_TOKEN)
    if wanted.size > most:
        raise InvalidArgument(
            f"the prompt has {wanted.size} characters: expected fewer than {most}, since the model's context has "
            f"{context_tokens} tokens"
        )
