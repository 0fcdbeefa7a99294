"""Every public class, function and method says what it is for; an override may inherit that."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
TREES = {p: ast.parse(p.read_text(encoding="utf-8")) for p in sorted(SOURCE.rglob("*.py"))}

# Where two classes have one name, either says enough of what is inherited.
CLASSES = {
    node.name: node
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
}
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public(body):
    return [n for n in body if isinstance(n, DEFINITIONS) and not n.name.startswith("_")]


def is_second_form(node):
    """Overloads and setters belong to another definition, which has the docstring."""
    words = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(word.endswith(("overload", ".setter")) for word in words)


def base_name(base):
    """``Host`` for ``Host``, ``hosts.Host`` and ``Host[Task]``."""
    base = base.value if isinstance(base, ast.Subscript) else base
    return ast.unparse(base).split(".")[-1]


def is_inherited(method, owner):
    """Whether a class that ``owner`` builds on documents the method."""
    for name in map(base_name, owner.bases):
        base = CLASSES.get(name)
        if base is None:
            continue
        own = [n for n in public(base.body) if n.name == method]
        if any(ast.get_docstring(n) for n in own) or is_inherited(method, base):
            return True
    return False


def undocumented(body, owner=None):
    for node in public(body):
        inherited = owner is not None and is_inherited(node.name, owner)
        if not (ast.get_docstring(node) or is_second_form(node) or inherited):
            yield node
        if isinstance(node, ast.ClassDef):
            yield from undocumented(node.body, node)


def test_every_public_name_has_a_docstring():
    missing = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"
        for path, tree in TREES.items()
        for node in undocumented(tree.body)
    ]
    assert missing == []
