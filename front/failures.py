"""Errors of every route, in the shape of the interface that it belongs to."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from front.anthropic import errors as anthropic
from front.errors import ProblemError
from front.responses import INSIDE


def failure(problem: ProblemError, path: str) -> Response:
    """In the shape of the interface that `path` belongs to."""
    return anthropic.failure(problem) if path.startswith(anthropic.PATH) else problem.response()


def _of_http(request: Request, error: Exception) -> Response:
    """Of a path that there is not, or a method."""
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "method_not_allowed"
    problem = ProblemError(error.status_code, f"there is no such route: {error.detail}", code)
    return failure(problem, request.url.path)


def _of_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return failure(error, request.url.path)


def _of_anything(request: Request, _error: Exception) -> Response:
    return failure(INSIDE, request.url.path)


HANDLERS: Any = {HTTPException: _of_http, ProblemError: _of_problem, Exception: _of_anything}
