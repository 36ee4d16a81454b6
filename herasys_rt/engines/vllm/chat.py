"""Chat messages to token ids, by the model's own template.

Text in a message never becomes a special token: a passage that holds ``<|im_end|>``
reads as these characters and cannot end its turn.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from typing import Any

from herasys_rt.engines.prompting import Message
from herasys_rt.errors import NodeError


class Chat:
    """A tokenizer with its chat template, for one thread at a time.

    It works on a copy: a tokenizer that the engine uses at the same time must not have
    its settings changed under it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        template = json.dumps(getattr(tokenizer, "chat_template", None), sort_keys=True)
        self.digest = hashlib.sha256(template.encode()).hexdigest()[:16]
        """Changes when the template does."""
        self._plain = not getattr(tokenizer, "chat_template", None)
        self._special = _special_tokens(tokenizer)

    def tokens(self, messages: list[Message]) -> list[int]:
        """The prompt's token ids up to where the model begins to answer.

        A model without a template gets the texts one after the other. Errors:
        `NodeError` with the code ``invalid_prompt`` when the template refuses.
        """
        broken, seam = self._broken(messages)
        if self._plain:
            text = "\n\n".join(message["content"] for message in broken)
            first, *rest = text.split(seam) if seam else [text]
            return self._tokenizer.encode(first) + self._ids(rest)
        try:
            text = self._tokenizer.apply_chat_template(
                broken, tokenize=False, add_generation_prompt=True
            )
        except Exception as e:  # a template is a program of the model's author
            raise NodeError(
                f"the model's chat template refused the messages: {e}",
                code="invalid_prompt",
                hint="Some models take no system text: put it into the prompt.",
            ) from e
        return self._ids(text.split(seam) if seam else [text])

    def _ids(self, pieces: list[str]) -> list[int]:
        return [
            token
            for piece in pieces
            for token in self._tokenizer.encode(piece, add_special_tokens=False)
        ]

    def _broken(self, messages: list[Message]) -> tuple[list[Message], str]:
        """The messages with a seam inside every text that is a special token's, and the
        seam; "" when there is none. Where the seams were, the prompt is cut before it is
        tokenized: neither half is a token of the model's."""
        special = self._special
        contents = [message["content"] for message in messages]
        if special is None or not any(special.search(content) for content in contents):
            return messages, ""
        number = 0
        while any(f"\ue000{number}\ue001" in content for content in contents):
            number += 1
        seam = f"\ue000{number}\ue001"
        return [
            message | {"content": special.sub(lambda found: found[0] + seam, content)}
            for message, content in zip(messages, contents, strict=True)
        ], seam


def _special_tokens(tokenizer: Any) -> re.Pattern[str] | None:
    """Finds the first character of each text that the tokenizer would make a special
    token of, also of texts that overlap."""
    texts = set(getattr(tokenizer, "all_special_tokens", ()))
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    texts |= {token.content for token in added.values() if token.special}
    found = sorted(re.escape(text) for text in texts if len(text) > 1)
    return re.compile(f"(?=(?:{'|'.join(found)})).", re.DOTALL) if found else None
