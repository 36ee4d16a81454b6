"""Chat messages to token ids, by the model's own template."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

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

    def tokens(self, messages: list[dict[str, str]]) -> list[int]:
        """The prompt's token ids up to where the model begins to answer.

        A model without a template gets the texts one after the other. Errors:
        `NodeError` with the code ``invalid_prompt`` when the template refuses.
        """
        if self._plain:
            text = "\n\n".join(message["content"] for message in messages)
            return self._tokenizer.encode(text)
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as e:  # a template is a program of the model's author
            raise NodeError(
                f"the model's chat template refused the messages: {e}",
                code="invalid_prompt",
                hint="Some models take no system text: put it into the prompt.",
            ) from e
        return self._tokenizer.encode(text, add_special_tokens=False)
