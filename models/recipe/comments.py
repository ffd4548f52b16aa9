"""Owns the rules by which a function's statements are commented."""

import ast
from collections.abc import Callable
from typing import Any


def add_comments(code: str) -> str:
    """The code with a comment line above every statement that a rule covers, indented as the statement is."""
    statements = [node for node in ast.walk(ast.parse(code)) if type(node) in _RULES]
    comments = {node.lineno: _RULES[type(node)](node) for node in statements if isinstance(node, ast.stmt)}
    lines: list[str] = []
    for number, line in enumerate(code.split("\n"), start=1):
        comment = comments.get(number)
        if comment and not line.lstrip().startswith("elif"):
            lines.append(line[: len(line) - len(line.lstrip())] + "# " + comment)
        lines.append(line)
    return "\n".join(lines)


def _called(node: ast.expr) -> str:
    """The name of what is called, or the expression itself where nothing is."""
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def _of_return(node: ast.Return) -> str:
    if node.value is None:
        return "Stop here."
    if isinstance(node.value, ast.Call):
        return f"Return the result of {_called(node.value)}."
    simple = isinstance(node.value, ast.Name | ast.Attribute | ast.Constant)
    return f"Return {ast.unparse(node.value)}." if simple else "Return the computed value."


def _of_assign(node: ast.Assign) -> str | None:
    if len(node.targets) > 1:
        return None
    target = ast.unparse(node.targets[0])
    return (
        f"Set {target} with {_called(node.value)}." if isinstance(node.value, ast.Call) else f"Set {target}."
    )


_RULES: dict[type[ast.AST], Callable[[Any], str | None]] = {
    ast.FunctionDef: lambda node: f"Define {node.name}.",
    ast.Return: _of_return,
    ast.Assign: _of_assign,
    ast.AugAssign: lambda node: f"Update {ast.unparse(node.target)}.",
    ast.Expr: lambda node: f"Call {_called(node.value)}." if isinstance(node.value, ast.Call) else None,
    ast.If: lambda node: f"Check whether {ast.unparse(node.test)}.",
    ast.For: lambda node: f"Loop over each {ast.unparse(node.target)}.",
    ast.While: lambda node: f"Repeat while {ast.unparse(node.test)}.",
    ast.With: lambda node: f"Use {_called(node.items[0].context_expr)}.",
    ast.Try: lambda node: "Try this and catch errors.",
    ast.Raise: lambda node: f"Raise {_called(node.exc)}." if node.exc else None,
    ast.Assert: lambda node: f"Make sure that {ast.unparse(node.test)}.",
    ast.Import: lambda node: f"Import {node.names[0].name}.",
    ast.ImportFrom: lambda node: f"Import from {node.module}.",
}
