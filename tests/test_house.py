"""The house keeps its order: who may import whom, and what no module may do. Read from the source, nothing is run.

The checks take sources as a dict from path to text, so that each one is also shown a house where it is broken.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

Sources = Mapping[str, str]

# sim/ from the bottom up. A module imports from its own floor and those below it. A new module is written in here; one that
# stands higher than its package has a place of its own.
FLOORS = (
    ("trace",),
    ("workloads", "readers", "hardware", "service", "policy"),
    ("orders", "kv"),
    ("run", "routers"),
    ("engine", "static"),
    ("visits", "fleet"),
    ("slots",),
    ("metrics", "lifecycle", "kv.stays", "kv.occupancy", "kv.fifo", "kv.holdings"),
    ("capacity",),
    ("record",),
    ("cli",),
    ("__main__",),
)
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}

# The half of the kit that draws in Streamlit; the other half, and all of a lesson but its page, is free of it.
STREAMLIT_KIT = {
    f"explainers.kit.{name}"
    for name in ("components", "lesson", "progress", "served", "session", "standard", "upload", "widgets", "worker")
} | {f"explainers.course.{page}" for page in ("document", "hub", "glossary_page", "readings_page", "proof", "share")}

# A lesson's rooms from the bottom up: figures and story stand side by side.
ROOMS = {"scenario": 0, "figures": 1, "story": 1, "page": 2}

# What a user installs to run the course (requirements.txt), and the part of it that the core may use.
CORE = {"numpy", "pandas"}
COURSE = CORE | {"streamlit", "starlette", "plotly", "segno"}


# ---- what the sources say ----


def house(root: Path) -> dict[str, str]:
    """The sources of the course: app.py, sim/ and explainers/."""
    files = [root / "app.py", *sorted((root / "sim").rglob("*.py")), *sorted((root / "explainers").rglob("*.py"))]
    return {str(file.relative_to(root)): file.read_text(encoding="utf-8") for file in files if file.exists()}


def module(path: str) -> str:
    """sim/readers/__init__.py → sim.readers"""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def parents(name: str) -> list[str]:
    """The packages whose __init__ runs when `name` is imported."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def imports(sources: Sources) -> Iterator[tuple[str, int, str, str]]:
    """Each import, wherever in the file it stands: (path, line, importing module, imported module)."""
    known = {module(path) for path in sources}
    for path, text in sources.items():
        here = module(path)
        for node in ast.walk(ast.parse(text, path)):
            for name in _imported(node, here, path.endswith("/__init__.py"), known):
                yield path, node.lineno, here, name  # type: ignore[attr-defined]


def _imported(node: ast.AST, here: str, is_package: bool, known: set[str]) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            base = node.module or ""
            if node.level:
                up = node.level - 1 if is_package else node.level
                package = here.split(".")[: len(here.split(".")) - up]
                base = ".".join([*package, base] if base else package)
            names = [f"{base}.{alias.name}" for alias in node.names]
            return [name if name in known else base for name in names]
        case ast.Call(func=ast.Name("__import__" | "import_module") | ast.Attribute(attr="import_module"), args=[first, *_]):
            return [_start(first) or "<computed>"]
    return []


def _start(name: ast.expr) -> str:
    """A module's name as far as the source spells it out: "a.b", and of f"explainers.{key}.page" the "explainers"."""
    if isinstance(name, ast.JoinedStr) and name.values:
        return _start(name.values[0]).rstrip(".")
    return str(name.value) if isinstance(name, ast.Constant) else ""


# ---- the rules: each yields what breaks it ----


def foreign_packages(sources: Sources) -> Iterator[str]:
    """sim/ uses numpy and pandas only; the course nothing beyond requirements.txt; and sim/ knows nothing of explainers/."""
    for path, line, here, name in imports(sources):
        top = name.partition(".")[0]
        core = here.partition(".")[0] == "sim"
        allowed = CORE | {"sim"} if core else COURSE | {"sim", "explainers"}
        if top not in sys.stdlib_module_names and top != "__future__" and top not in allowed:
            yield f"{path}:{line}: {'sim/' if core else 'the course'} may not import {name}"


def sim_floors(sources: Sources) -> Iterator[str]:
    """No module of sim/ imports one above it."""
    for path in sources:
        room = module(path).split(".")[1:2]
        if path.startswith("sim/") and room and room[0] not in FLOOR:
            yield f"{path}: has no place in FLOORS (tests/test_house.py)"
    for path, line, here, name in imports(sources):
        if not (here + ".").startswith("sim.") or not (name + ".").startswith("sim."):
            continue
        if floor(name) > floor(here):
            yield f"{path}:{line}: {name} stands above {here}"


def floor(name: str) -> int:
    """The floor of a module of sim/; sim/__init__.py stands under the lowest."""
    parts = name.split(".")
    return FLOOR.get(".".join(parts[1:3]), FLOOR.get(parts[1] if parts[1:] else "", -1))


def lesson_rooms(sources: Sources) -> Iterator[str]:
    """Each lesson has its four rooms, data flow from scenario to page only, and no lesson or kit looks into a lesson.

    explainers/course stands over all lessons.
    """
    folders = {path.split("/")[1] for path in sources if path.count("/") > 1 and path.startswith("explainers/")}
    lessons = folders - {"kit", "course"}
    for lesson in sorted(lessons):
        for room in ROOMS:
            if f"explainers/{lesson}/{room}.py" not in sources:
                yield f"explainers/{lesson}: has no {room}.py"
    for path, line, here, name in imports(sources):
        theirs, ours = (parts[1:3] if parts[0] == "explainers" else [] for parts in (name.split("."), here.split(".")))
        if not theirs or theirs[0] not in lessons or not ours:
            continue
        if ours[0] == "course":
            continue
        if ours[0] != theirs[0]:
            yield f"{path}:{line}: {here} may not look into the lesson {theirs[0]}"
        elif ROOMS.get((*theirs, "")[1], 0) > ROOMS.get((*ours, "")[1], 0):
            yield f"{path}:{line}: {name} stands above {here}"


def streamlit_only_at_the_top(sources: Sources) -> Iterator[str]:
    """Only app.py, pages and the drawing half of the kit reach Streamlit, directly or through what they import."""
    edges: dict[str, set[str]] = {}
    for path in sources:
        edges.setdefault(module(path), set()).update(parents(module(path)))
    for _, _, here, name in imports(sources):
        edges[here] |= {name, *parents(name)}
    for path in sources:
        name = module(path)
        if name == "app" or name.endswith(".page") or any((name + ".").startswith(kit + ".") for kit in STREAMLIT_KIT):
            continue
        way = _way(name, "streamlit", edges)
        if way:
            yield f"{path}: reaches Streamlit: {' → '.join(way)}"


def _way(start: str, goal: str, edges: Mapping[str, set[str]]) -> list[str]:
    """One path of imports from start to goal, empty if there is none."""
    ways = [[start]]
    seen = {start}
    for way in ways:
        for following in sorted(edges.get(way[-1], set()) - seen):
            seen.add(following)
            ways.append([*way, following])
            if following == goal:
                return ways[-1]
    return []


def cycles(sources: Sources) -> Iterator[str]:
    """No module imports itself, however far round."""
    known = {module(path) for path in sources}
    graph: dict[str, set[str]] = {}
    for _, _, here, name in imports(sources):
        graph.setdefault(here, set()).update({name} & known)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "import cycle: " + " → ".join(error.args[1])


def dangerous(sources: Sources) -> Iterator[str]:
    """Nothing turns text into code or markup: no eval, exec, pickle or shell, and HTML only where it is written out here."""
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text, path)):
            what = _danger(node)
            if what:
                yield f"{path}:{node.lineno}: {what}"  # type: ignore[attr-defined]
    for path, line, _, name in imports(sources):
        if name.partition(".")[0] in ("pickle", "marshal", "shelve", "dill"):
            yield f"{path}:{line}: {name} runs what it reads"
        if name == "<computed>":
            yield f"{path}:{line}: imports a module whose name is computed"


def _danger(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Name(("eval" | "exec" | "compile") as name)):
            return f"calls {name}"
        case ast.Call(func=ast.Attribute(attr=("eval" | "read_pickle" | "system" | "popen") as name)):
            return f"calls .{name}"
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            on = not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
            if on and keyword.arg in ("shell", "allow_pickle"):
                return f"passes {keyword.arg}"
            written_out = bool(node.args) and isinstance(node.args[0], ast.Constant)
            if on and keyword.arg == "unsafe_allow_html" and not written_out:
                return "passes computed text with unsafe_allow_html"
    return ""


RULES = (foreign_packages, sim_floors, lesson_rooms, streamlit_only_at_the_top, cycles, dangerous)


# ---- the house as it is ----


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_the_rule(rule):
    sources = house(ROOT)
    assert "sim/engine.py" in sources and "explainers/batching/figures.py" in sources  # it looks at the real house
    assert list(rule(sources)) == []


# ---- and a broken one is noticed ----

LESSON = {f"explainers/memory/{room}.py": "" for room in ROOMS}


@pytest.mark.parametrize(
    ("rule", "sources", "expected"),
    [
        (foreign_packages, {"sim/trace.py": "import streamlit as st"}, "sim/trace.py:1: sim/ may not import streamlit"),
        (foreign_packages, {"sim/trace.py": "def f():\n    from plotly import graph_objects"}, "2: sim/ may not import plotly"),
        (foreign_packages, {"sim/trace.py": "from explainers.kit import knobs"}, "may not import explainers.kit"),
        (foreign_packages, {"sim/trace.py": "__import__('streamlit')"}, "may not import streamlit"),
        (foreign_packages, {"explainers/kit/knobs.py": "import simpy"}, "the course may not import simpy"),
        (foreign_packages, {"app.py": "from tests import conftest"}, "the course may not import tests"),
        (sim_floors, {"sim/run.py": "from sim.engine import simulate", "sim/engine.py": ""}, "sim.engine stands above sim.run"),
        (sim_floors, {"sim/run.py": "from sim import engine", "sim/engine.py": ""}, "sim.engine stands above sim.run"),
        (sim_floors, {"sim/run.py": "from .engine import x", "sim/engine.py": ""}, "sim.engine stands above sim.run"),
        (sim_floors, {"sim/readers/azure.py": "from ..metrics import ttft"}, "sim.metrics stands above sim.readers.azure"),
        (sim_floors, {"sim/kv/pool.py": "from sim.run import Run", "sim/run.py": ""}, "sim.run stands above sim.kv.pool"),
        (sim_floors, {"sim/run.py": "from sim.kv import occupancy", "sim/kv/occupancy.py": ""}, "sim.kv.occupancy stands above"),
        (sim_floors, {"sim/__init__.py": "from sim.trace import Trace"}, "sim.trace stands above sim"),
        (sim_floors, {"sim/attic.py": ""}, "sim/attic.py: has no place in FLOORS"),
        (lesson_rooms, {"explainers/memory/page.py": ""}, "explainers/memory: has no scenario.py"),
        (lesson_rooms, {**LESSON, "explainers/memory/story.py": "from explainers.memory import page"}, "page stands above"),
        (lesson_rooms, {**LESSON, "explainers/memory/scenario.py": "from . import figures"}, "figures stands above"),
        (lesson_rooms, {**LESSON, "explainers/kit/quiz.py": "import explainers.memory.story"}, "look into the lesson memory"),
        (streamlit_only_at_the_top, {"explainers/batching/figures.py": "import streamlit"}, "figures.py: reaches Streamlit"),
        (
            streamlit_only_at_the_top,
            {"explainers/batching/story.py": "from explainers.kit import lesson", "explainers/kit/lesson.py": "import streamlit"},
            "explainers.batching.story → explainers.kit.lesson → streamlit",
        ),
        (
            streamlit_only_at_the_top,
            {"explainers/kit/knobs.py": "", "explainers/kit/__init__.py": "import streamlit"},
            "explainers.kit.knobs → explainers.kit → streamlit",
        ),
        (cycles, {"sim/engine.py": "import sim.static", "sim/static.py": "import sim.engine"}, "import cycle: sim."),
        (dangerous, {"app.py": "eval(text)"}, "app.py:1: calls eval"),
        (dangerous, {"app.py": "x = 1\nexec(text)"}, "app.py:2: calls exec"),
        (dangerous, {"app.py": "frame.eval(text)"}, "calls .eval"),
        (dangerous, {"app.py": "import os\nos.system(text)"}, "calls .system"),
        (dangerous, {"app.py": "def f():\n    import pickle"}, "pickle runs what it reads"),
        (dangerous, {"app.py": "np.load(file, allow_pickle=True)"}, "passes allow_pickle"),
        (dangerous, {"app.py": "st.markdown(text, unsafe_allow_html=True)"}, "computed text with unsafe_allow_html"),
        (dangerous, {"app.py": "import importlib\nimportlib.import_module(text)"}, "whose name is computed"),
        (dangerous, {"app.py": "import_module(f'{name}.page')"}, "whose name is computed"),
    ],
)
def test_a_broken_house_is_noticed(rule, sources, expected):
    assert any(expected in found for found in rule(sources)), list(rule(sources))


@pytest.mark.parametrize(
    ("rule", "sources"),
    [
        (foreign_packages, {"sim/trace.py": "import math\nimport numpy as np\nfrom sim.policy import Policy"}),
        (sim_floors, {"sim/engine.py": "from sim.run import Run\nfrom sim import policy", "sim/policy.py": ""}),
        (sim_floors, {"sim/kv/occupancy.py": "from sim.run import Run", "sim/run.py": ""}),
        (lesson_rooms, {**LESSON, "explainers/memory/page.py": "from explainers.memory import figures, story"}),
        (streamlit_only_at_the_top, {"app.py": "import streamlit", "explainers/memory/page.py": "import streamlit"}),
        (streamlit_only_at_the_top, {"explainers/kit/components/__init__.py": "import streamlit"}),
        (cycles, {"sim/kv/__init__.py": "from sim.kv import a", "sim/kv/a.py": "from sim.kv import b", "sim/kv/b.py": ""}),
        (dangerous, {"app.py": "st.markdown('<b>ours</b>', unsafe_allow_html=True)\nre.compile('a')\nf(shell=False)"}),
        (dangerous, {"app.py": "import_module(f'explainers.{key}.page')"}),
    ],
)
def test_a_sound_house_is_let_be(rule, sources):
    assert list(rule(sources)) == []
