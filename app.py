"""Stepwise in the browser: the menu over the path and its lessons, and the server that runs this file for each visitor."""

from __future__ import annotations

# A process that computes for the pages imports this file under another name (multiprocessing, spawn): it draws nothing, and
# need not wait for what draws.
if __name__ == "__main__":
    import gc
    from functools import partial
    from importlib import import_module
    from pathlib import Path

    import streamlit as st

    from explainers import PATH
    from explainers.course import glossary_page, hub, proof, readings_page
    from explainers.course.document import said
    from explainers.kit import session

    ASSETS = Path(__file__).parent / "assets"
    # An entry of our own also keeps the menu, and in it the choice of theme, which toolbarMode "minimal" hides.
    ABOUT = "**Stepwise**: a course on how LLM servers schedule requests. Its pictures are a simulation that you can change."

    @st.cache_resource(show_spinner=False)
    def opened(key):
        """The lesson's page, imported when it is first opened. Modules are no garbage: Streamlit looks through all that is not
        frozen after every run of the script, which costs 70 ms a press."""
        module = import_module(f"explainers.{key}.page")
        gc.freeze()
        return module

    def show(key):
        """Draw the lesson's page."""
        opened(key).page()

    st.html(ASSETS / "style.css")
    st.logo(str(ASSETS / "favicon.svg"), size="small")
    # The root address shows the path; each lesson has an address of its own, which links carry.
    lessons = {entry.key: st.Page(partial(show, entry.key), title=entry.menu, url_path=entry.key) for entry in PATH}
    st.session_state[session.PAGES] = lessons
    home = st.Page(lambda: hub.page(lessons), title="The path", url_path="home", default=True)
    words = st.Page(lambda: glossary_page.page(lessons), title="Words", url_path="glossary")
    papers = st.Page(lambda: readings_page.page(lessons), title="Readings", url_path="readings")
    held = st.Page(proof.page, title="Proof", url_path="proof")
    page = st.navigation([home, *lessons.values(), words, papers, held], position="top")
    title, _ = said(page.url_path)
    st.set_page_config(page_title=title, page_icon=str(ASSETS / "favicon.svg"), layout="wide", menu_items={"About": ABOUT})
    page.run()
# The server; not a process that computes for the pages.
elif __name__ != "__mp_main__":
    from streamlit.starlette import App

    from explainers.course.document import routes

    app = App("app.py", routes=routes())
