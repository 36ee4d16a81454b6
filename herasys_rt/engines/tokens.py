"""A model's tokenizer as the engines use it: counts, offsets and ids, from any thread."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from herasys_rt.errors import ModelUnavailableError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TextTokens:
    """A tokenizer nobody else configures.

    Truncation and padding are settings inside a tokenizer; a library that changes them
    for one call makes another thread's call fail or lie. This is a copy with both off
    that is only ever read, hence safe from any number of threads.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.specials = self._tokenizer.num_special_tokens_to_add(False)
        """Special tokens added to each text."""

    @classmethod
    def load(cls, path: str | Path) -> TextTokens:
        """The tokenizer of a model directory; needs neither torch nor the model.

        Errors: `ModelUnavailableError` when it holds no ``tokenizer.json``.
        """
        from tokenizers import Tokenizer

        file = Path(path) / "tokenizer.json"
        if not file.is_file():
            raise ModelUnavailableError(
                f"{path} holds no tokenizer.json",
                hint="Save the model with its fast tokenizer and point the pool at it.",
            )
        return cls(Tokenizer.from_file(str(file)))

    @classmethod
    def of(cls, tokenizer: Any, name: str) -> TextTokens:
        """From a transformers tokenizer. Errors: `ModelUnavailableError` for slow ones."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelUnavailableError(
                f"model {name!r} has no fast tokenizer",
                hint="Save the model with its fast tokenizer (tokenizer.json).",
            )
        return cls(backend)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of each token in characters, special tokens left out."""
        return self._tokenizer.encode(text, add_special_tokens=False).offsets

    def count(self, text: str, pair: str | None = None) -> int:
        """Tokens of a text, or of a pair of texts, special ones included."""
        return len(self._tokenizer.encode(text, pair).ids)

    def ids(self, text: str, limit: int) -> list[int]:
        """Token ids with special tokens, the text cut so that ``limit`` holds them all."""
        encoding = self._tokenizer.encode(text)
        if len(encoding.ids) <= limit:
            return encoding.ids
        plain = self._tokenizer.encode(text, add_special_tokens=False)
        plain.truncate(limit - self.specials)
        return self._tokenizer.post_process(plain).ids
