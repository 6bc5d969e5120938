"""How text from outside (links, file names, errors) is shown: clipped, printable, and inert in Markdown."""

from __future__ import annotations

import re

# Everything that Streamlit's Markdown gives a meaning: CommonMark and GFM punctuation, `$` for LaTeX, `:` for emoji,
# icons and colours, and `&` and `<` for HTML. A backslash in front makes each of them plain (CommonMark 2.4).
_SPECIAL = re.compile(r"([!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~])")


def clip(text: str, limit: int = 32) -> str:
    """`text` on one line, at most `limit` characters, with what cannot be printed (controls, direction marks) as `?`."""
    shown = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def plain(text: str, limit: int = 400) -> str:
    """`text` so that Streamlit's Markdown shows it letter by letter: no formatting, no link, no HTML, no formula."""
    # Bare addresses become links even with their punctuation escaped (GFM looks for them after unescaping), unless
    # an invisible word joiner stands inside.
    kept = re.sub(r"(?i)(https?:|ftp:|mailto:|xmpp:|www|@)", "\\1\u2060", clip(text, limit))
    return _SPECIAL.sub(r"\\\1", kept)
