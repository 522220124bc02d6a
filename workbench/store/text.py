"""Names and texts that come from files and command lines, made safe to store without changing what they say."""

import re
import unicodedata

MAX_NAME = 60


def readable_text(text: str) -> str:
    """Text that encodes as UTF-8: bytes that an ASCII locale smuggled in as surrogates are decoded again."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if _has_surrogate(text) else text


def safe_name(name: str) -> str:
    """A short ASCII folder name for any text: ``google/gemma-2`` becomes ``google-gemma-2``; never a path, never empty.

    The original belongs into the data; this is only where it lies.
    """
    plain = unicodedata.normalize("NFKD", readable_text(name)).encode("ascii", "ignore").decode("ascii")
    joined = re.sub(r"[^A-Za-z0-9_.]+|\.{2,}", "-", plain)
    return re.sub(r"-{2,}", "-", joined)[:MAX_NAME].strip("-.") or "run"


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
