"""Loading a sentence-transformers model; the embedder and the reranker share it."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from herasys_rt.engines.tokens import TextTokens
from herasys_rt.errors import HerasysError, ModelUnavailableError


@dataclass(frozen=True, slots=True)
class SentenceModel:
    """A loaded `SentenceTransformer`, its tokenizer and its longest input in tokens."""

    model: Any
    tokens: TextTokens
    max_tokens: int

    @classmethod
    def load(
        cls,
        path: str,
        *,
        threads: int,
        device: str | None,
        dtype: str,
        trust_remote_code: bool,
    ) -> SentenceModel:
        """Load for inference on the calling thread. Errors: `ModelUnavailableError`."""
        with loading(path, threads):
            from sentence_transformers import SentenceTransformer

            model = SentenceTransformer(
                path,
                device=device,
                local_files_only=Path(path).is_dir(),
                trust_remote_code=trust_remote_code,
                model_kwargs={"dtype": dtype},
            )
            model.eval()
            tokens = TextTokens.of(model.tokenizer, path)
            return cls(model, tokens, int(model.max_seq_length or 512))


@contextlib.contextmanager
def loading(path: str, threads: int) -> Iterator[None]:
    """Around loading a model: threads set, progress bars off, failures given a name.

    Errors: `ModelUnavailableError` for whatever the libraries raise.
    """
    try:
        import torch
        import tqdm
        from transformers.utils import logging as transformers_logging

        torch.set_num_threads(threads)
        transformers_logging.disable_progress_bar()
        # Even a bar that shows nothing starts a thread that watches it and never ends.
        tqdm.tqdm.monitor_interval = 0
        logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
        yield
    except HerasysError:
        raise
    except Exception as e:
        raise ModelUnavailableError(
            f"model {path} cannot be loaded: {type(e).__name__}: {e}",
            hint="`herasys doctor` checks models; for a hub id, the hub must be reachable.",
        ) from e


def prefixes(
    prompts: dict[str, str], query: str | None, document: str | None
) -> dict[str, str]:
    """What is put before a query and a document: the option, else the model's prompt."""
    own = next(
        (prompts[n] for n in ("document", "passage", "corpus") if prompts.get(n)), ""
    )
    return {
        "query": prompts.get("query", "") if query is None else query,
        "document": own if document is None else document,
    }


def fingerprint(
    model: str, engine: str, dtype: str, used: dict[str, str], max_tokens: int
) -> str:
    """One name for everything that decides a vector: files, engine, dtype, prefixes, and
    where a longer text is cut."""
    joined = "\0".join([used["query"], used["document"]]).encode()
    digest = hashlib.sha256(joined).hexdigest()[:16]
    return f"{model}/{engine}/{dtype}/{digest}/{max_tokens}"
