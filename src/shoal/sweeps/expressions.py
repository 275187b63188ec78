"""Arithmetic in sweep files, such as ``num_samples ** 2``: allowed syntax only, no ``eval``."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import InputError, nearest

LONGEST = 200  # Characters.
LARGEST = 1e15  # Bound of every intermediate number.

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_PLAIN = (abs, math.ceil, math.exp, math.floor, int, math.log, math.log2, max, min, math.sqrt)
_FUNCTIONS: dict[str, Callable[..., Any]] = {f.__name__: f for f in _PLAIN}
_FUNCTIONS["round"] = lambda x: round(x)  # a second argument could be huge
Number = int | float


def _bounded(number: Any) -> Number:
    if isinstance(number, complex):
        raise ValueError("this is a root of a negative number.")
    if not abs(number) <= LARGEST:
        raise ValueError(f"an intermediate number is not finite or beyond {LARGEST:.0e}.")
    return number


def _power(base: Number | None, exponent: Number | None) -> Number | None:
    """A power, bounded before it is computed: the result could be huge."""
    if exponent is not None and abs(exponent) > math.log2(LARGEST):
        raise ValueError(f"an exponent is beyond {math.log2(LARGEST):.0f}.")
    if base is None or exponent is None:
        return None
    if base and abs(exponent) * abs(math.log2(abs(base))) > math.log2(LARGEST):
        raise ValueError(f"a power is beyond {LARGEST:.0e}, or below its inverse.")
    return _bounded(base**exponent)


def _tree(text: Any) -> ast.expr:
    if not isinstance(text, str) or len(text) > LONGEST:
        msg = f"an expression must be text of at most {LONGEST} characters, not {str(text)[:40]!r}."
        raise InputError(msg)
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        msg = f"{text[:60]!r} is not arithmetic; write, for example, 'num_samples ** 2'."
        raise InputError(msg) from None


def names_in(text: Any) -> set[str]:
    """The settings that an expression uses.

    >>> sorted(names_in("max(width, 2 * dim)"))
    ['dim', 'width']
    """
    names = {node.id for node in ast.walk(_tree(text)) if isinstance(node, ast.Name)}
    return names - set(_FUNCTIONS)


def evaluate(text: Any, known: Mapping[str, Any], *, partly: bool = False) -> Any:
    """The value of an expression, given numbers by name.

    With ``partly`` the value is None if a name is not known; the rest is checked all the same.

    >>> evaluate("num_samples ** 2 // 3", {"num_samples": 10})
    33
    >>> evaluate("__import__('os')", {})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    shoal.errors.InputError: "__import__('os')": no function is called '__import__'; ...
    """

    def value(node: ast.expr) -> Number | None:
        match node:
            case ast.Constant(value=number) if type(number) in (int, float):
                return _bounded(number)
            case ast.Name(id=name) if name in known:
                if isinstance(known[name], bool) or not isinstance(known[name], int | float):
                    raise ValueError(f"{name} is not a number but {known[name]!r}.")
                return _bounded(known[name])
            case ast.Name(id=name):
                if partly:
                    return None
                raise ValueError(f"no setting is called {name!r}; {nearest(name, known)}")
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                return _power(value(left), value(right))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return of(_OPERATORS[type(op)], left, right)
            case ast.UnaryOp(op=op, operand=inner) if type(op) in _OPERATORS:
                return of(_OPERATORS[type(op)], inner)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                if name not in _FUNCTIONS:
                    raise ValueError(f"no function is called {name!r}; {nearest(name, _FUNCTIONS)}")
                return of(_FUNCTIONS[name], *args)
            case _:
                raise ValueError("expected numbers, settings, + - * / // % ** and a few functions.")

    def of(function: Callable[..., Any], *nodes: ast.expr) -> Number | None:
        values = [value(node) for node in nodes]  # all of them: each may be refused
        return None if None in values else _bounded(function(*values))

    tree = _tree(text)
    try:
        return value(tree)
    except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
        why = "too deeply nested" if isinstance(error, RecursionError) else str(error).rstrip(".")
        raise InputError(f"{text[:60]!r}: {why}.") from None
