"""The layer rules: lower layers never import higher ones, and the core stays free of torch.

Every module under src/smartree is parsed, not imported, so imports inside functions and under TYPE_CHECKING count too.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"

# The place of every top-level module or package. A new one must be added here, so that someone decides where it goes.
LAYERS = {
    "config": 0,
    "guide": 0,
    "sampling_params": 0,
    "errors": 0,
    "cost": 1,
    "tree": 1,
    "policies": 2,
    "simulate": 2,
    "models": 3,
    "drafters": 3,
    "verify": 3,
    "engine": 4,
    "cli": 5,
    "server": 5,
    "bench": 5,
    "train": 5,
    "plugins": 5,
    "__main__": 5,
}
CORE = 2  # the highest layer that any engine can embed: numpy and scipy only
CORE_THIRD_PARTY = {"numpy", "scipy"}
STRANGERS = {frozenset({"cost", "tree"})}  # same layer, and still neither imports the other


def imported_names(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute dotted name) of everything that the source imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                parents = package[: len(package) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            # __import__("torch"), import_module("torch"), importlib.import_module("torch")
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            name = node.args[0]
            if called in {"__import__", "import_module"} and isinstance(name, ast.Constant):
                yield node.lineno, str(name.value)


def violation(importer: str, target: str) -> str | None:
    """Say why the top-level package `importer` may not import the dotted name `target`, or None where it may."""
    layer = LAYERS[importer]
    root, _, rest = target.partition(".")
    if root != "smartree":
        if layer <= CORE and root not in sys.stdlib_module_names | CORE_THIRD_PARTY:
            return f"{importer} (L{layer}) may use numpy and scipy only, not {root}"
        return None
    imported = rest.partition(".")[0]
    if imported == importer or imported == "__version__":
        return None
    if imported not in LAYERS:
        # `import smartree` and `from smartree import LLM` go through the lazy exports, which may load anything.
        if layer < LAYERS["cli"] or importer == "plugins":
            return f"{importer} must name the module that defines it, not import {target!r} from the package root"
        return None
    if LAYERS[imported] > layer:
        return f"{importer} (L{layer}) imports {imported} (L{LAYERS[imported]}), a higher layer"
    if importer == "plugins" and LAYERS[imported] > CORE:
        return f"plugins import L0 to L{CORE} and their host engine only, not {imported} (L{LAYERS[imported]})"
    if frozenset({importer, imported}) in STRANGERS:
        return f"{importer} and {imported} must not know each other"
    return None


def check(module: str, source: str, is_package: bool = False) -> list[str]:
    """Return the violations in the source of `module` (a dotted name under smartree)."""
    importer = module.split(".")[1]
    if importer not in LAYERS:
        return [f"{module}: {importer} has no layer yet: give it one in {Path(__file__).name}"]
    return [
        f"{module}:{line}: {why}"
        for line, target in imported_names(ast.parse(source), module, is_package)
        if (why := violation(importer, target))
    ]


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((SRC / "smartree").rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if module != "smartree":  # its lazy exports name every layer
            yield module, path


def test_every_module_keeps_to_its_layer() -> None:
    found = list(modules())
    assert found, "no modules under src/smartree: is the path right?"
    violations = [
        why
        for module, path in found
        for why in check(module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py")
    ]
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("smartree.policies.smart", "from smartree.drafters import base"),
        ("smartree.drafters.ngram", "from smartree.engine.slots import Slot"),
        ("smartree.tree.forest", "def f():\n    import torch"),
        ("smartree.simulate.roofline", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import transformers"),
        ("smartree.cost.table", "import importlib\nimportlib.import_module('torch.nn')"),
        ("smartree.cost.table", "import pandas"),
        ("smartree.cost.table", "from smartree.tree import Tree"),
        ("smartree.tree.forest", "from ..cost import table"),
        ("smartree.tree.forest", "from .. import policies"),
        ("smartree.config", "from .cost.table import Table"),
        ("smartree.config", "import smartree.engine.engine as e"),
        ("smartree.plugins.host", "from smartree.engine import Engine"),
        ("smartree.plugins.host", "from smartree.drafters import base"),
        ("smartree.plugins.host", "from smartree import LLM"),
        ("smartree.engine.engine", "from smartree import LLM"),
        ("smartree.engine.engine", "from smartree.cli import app"),
        ("smartree.novelty", "import math"),
    ],
)
def test_checker_catches(module: str, source: str) -> None:
    assert len(check(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("smartree.policies.smart", "import math\nimport numpy\nfrom scipy import special\nfrom .base import Policy"),
        ("smartree.policies.smart", "from smartree.cost import table\nfrom ..tree.forest import Forest"),
        ("smartree.simulate.run", "from smartree.policies import make_policy"),
        ("smartree.drafters.ngram", "import torch\nfrom smartree.tree import Tree\nfrom smartree.models import base"),
        ("smartree.engine.drafting", "from smartree import __version__, drafters, policies"),
        ("smartree.plugins.host", "import vllm\nfrom smartree.policies import make_policy\nfrom . import common"),
        ("smartree.cli.app", "from smartree import LLM\nfrom smartree.bench import suites"),
    ],
)
def test_checker_allows(module: str, source: str) -> None:
    assert check(module, source) == []


def test_relative_imports_in_a_package_start_at_the_package() -> None:
    assert check("smartree.tree", "from .cost import helper", is_package=True) == []  # smartree.tree.cost
    assert len(check("smartree.tree", "from ..cost import table", is_package=True)) == 1  # smartree.cost
