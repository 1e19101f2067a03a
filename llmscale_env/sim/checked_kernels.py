"""`LLMSCALE_CHECKED=1`: kernels whose every index, sum, difference and product of integers is checked.

Numba checks indices by itself (`boundscheck`), but lets whole numbers wrap. So the source of a kernel is
rewritten before it is compiled: `a + b` becomes a call that raises where the result does not fit 64 bits.
Unsigned numbers wrap as they are meant to (they are hashes). It takes some minutes to compile and several
times as long to run: it is for tests of the simulator itself.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import os
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

CHECKED = os.environ.get("LLMSCALE_CHECKED", "") not in ("", "0")


_MOST, _LEAST = 2**63 - 1, -(2**63)
"""Of 64 bits, signed."""


def plus(a: Any, b: Any) -> Any:
    """`a + b`; compiled, an OverflowError where it does not fit."""
    return a + b


def minus(a: Any, b: Any) -> Any:
    """`a - b`, likewise."""
    return a - b


def times(a: Any, b: Any) -> Any:
    """`a * b`, likewise."""
    return a * b


_CALLS = {ast.Add: plus, ast.Sub: minus, ast.Mult: times}


class _Rewrite(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        call = _CALLS.get(type(node.op))
        return node if call is None else _call(call, node.left, node.right)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        call = _CALLS.get(type(node.op))
        if call is None:
            return node
        source = ast.parse(ast.unparse(node.target), mode="eval").body
        return ast.Assign(targets=[node.target], value=_call(call, source, node.value))


def _call(function: Callable[..., Any], *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(f"_checked_{function.__name__}", ast.Load()), list(args), [])


def rewritten(function: Any) -> Any:
    """The function with its sums, differences and products checked."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    made = _Rewrite().visit(tree)
    made.body[0].decorator_list = []
    ast.increment_lineno(made, first - 1)
    code = compile(
        ast.fix_missing_locations(made),
        inspect.getfile(function),
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    names = function.__globals__
    names.update({f"_checked_{call.__name__}": call for call in _CALLS.values()})
    inner = next(c for c in code.co_consts if getattr(c, "co_name", "") == function.__name__)
    found = FunctionType(inner, names, function.__name__, function.__defaults__)
    found.__module__, found.__qualname__ = function.__module__, function.__qualname__
    return found


def teach_numba() -> None:
    """Tell Numba how to compile the three calls."""
    from numba import types
    from numba.extending import overload

    def whole(*kinds: Any) -> bool:
        return all(isinstance(t, types.Integer) and getattr(t, "signed", False) for t in kinds)

    @overload(plus, strict=False)
    def _plus(a: Any, b: Any) -> Any:
        if not whole(a, b):
            return lambda a, b: a + b

        def checked(a: Any, b: Any) -> Any:
            if (b > 0 and a > _MOST - b) or (b < 0 and a < _LEAST - b):
                raise OverflowError("a sum does not fit 64 bits")
            return a + b

        return checked

    @overload(minus, strict=False)
    def _minus(a: Any, b: Any) -> Any:
        if not whole(a, b):
            return lambda a, b: a - b

        def checked(a: Any, b: Any) -> Any:
            if (b < 0 and a > _MOST + b) or (b > 0 and a < _LEAST + b):
                raise OverflowError("a difference does not fit 64 bits")
            return a - b

        return checked

    @overload(times, strict=False)
    def _times(a: Any, b: Any) -> Any:
        if not whole(a, b):
            return lambda a, b: a * b

        def checked(a: Any, b: Any) -> Any:
            # Unsigned, as the compiler takes for granted that signed numbers never wrap. A wrapped product
            # is a multiple of 2^64 away from the float, a whole one at most the float's rounding.
            product = np.int64(np.uint64(a) * np.uint64(b))
            if abs(float(product) - float(a) * float(b)) > 2.0**62:
                raise OverflowError("a product does not fit 64 bits")
            return product

        return checked
