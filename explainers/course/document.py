"""The document at each address: Streamlit's own, with the page's title, description and picture for who shares a link to it.

Whoever previews a link reads the document and runs nothing, so these must stand in it. It also names at once the code that draws
figures, the largest part of a page: otherwise the browser asks for it when the first figure has come.
"""

from __future__ import annotations

from functools import lru_cache
from html import escape
from importlib import import_module
from pathlib import Path

import streamlit
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from explainers import PATH

ASSETS = Path(__file__).resolve().parents[2] / "assets"
STATIC = Path(streamlit.__file__).parent / "static"
NAME = "Stepwise: how LLM servers schedule requests"
PAGES = {
    "": (NAME, "An interactive course: predict, see and explain how an inference server decides which request runs next."),
    "glossary": ("Words · Stepwise", "The words of LLM serving, each in one plain sentence, and what it is not."),
    "readings": ("Readings · Stepwise", "A path through the papers on LLM serving: what each is worth your time for."),
    "proof": ("Proof · Stepwise", "Every figure that the course holds against real engines and papers, computed live."),
}
"""Address → title and description of the pages that are no lessons."""


def routes() -> list[Route]:
    """Those of every page's document, and of the picture."""
    documents = [Route(f"/{key}", _document) for key in (*PAGES, "home", *(entry.key for entry in PATH))]
    return [*documents, Route("/preview.png", _picture)]


def head(key: str, here: str) -> str:
    """What stands in the head of the page's document. `here` is the server's address, which ends in a slash; it is escaped."""
    title, description = said(key)
    meta = {
        "og:type": "website", "og:site_name": "Stepwise", "og:title": title, "og:description": description,
        "og:url": f"{here}{key}", "og:image": f"{here}preview.png", "og:image:alt": f"A page of {NAME}",
    }  # fmt: skip
    lines = [
        f"<title>{escape(title)}</title>",
        f'<meta name="description" content="{escape(description)}">',
        '<meta name="twitter:card" content="summary_large_image">',
        *(f'<meta property="{name}" content="{escape(value)}">' for name, value in meta.items()),
        *(f'<link rel="modulepreload" crossorigin href="./static/js/{file}">' for file in (_code() if _draws(key) else ())),
    ]
    return "\n".join(lines)


def _draws(key: str) -> bool:
    """Whether figures stand on the page."""
    return key in {"", "home", *(entry.key for entry in PATH)}


def said(key: str) -> tuple[str, str]:
    """Title and description."""
    lesson = next((entry for entry in PATH if entry.key == key), None)
    if lesson is None:
        return PAGES.get(key, PAGES[""])
    return f"{lesson.title} · Stepwise", str(import_module(f"explainers.{key}.story").QUESTION)


@lru_cache(maxsize=1)
def _code() -> tuple[str, ...]:
    """The file that draws figures; none if a later Streamlit names it otherwise: it then comes when it is asked for."""
    return tuple(sorted(file.name for file in (STATIC / "static" / "js").glob("PlotlyChart.*.js")))


@lru_cache(maxsize=1)
def _streamlits() -> str:
    return (STATIC / "index.html").read_text(encoding="utf-8")


def _document(request: Request) -> Response:
    key = request.url.path.strip("/").rsplit("/", 1)[-1]
    page = _streamlits().replace("<title>Streamlit</title>", head(key, str(request.base_url)), 1)
    return HTMLResponse(page, headers={"Cache-Control": "no-cache"})


def _picture(request: Request) -> Response:
    return FileResponse(ASSETS / "screenshot.png", headers={"Cache-Control": "public, max-age=86400"})
