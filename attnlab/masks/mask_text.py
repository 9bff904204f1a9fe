"""Masks as text, for configs and the command line, and masks as pictures made of characters.

    parse("causal & sliding_window(64)", 256)
    parse("prefix_lm(16) | window(left=2, right=2)", 256)
    parse("causal(align=bottom_right) & ~key_padding(lengths=[8])", 4, 12)

Grammar, with the precedence of Python's operators:

    union        = intersection ("|" intersection)*
    intersection = complement ("&" complement)*
    complement   = "~" complement | "(" union ")" | NAME ["(" [argument ("," argument)*] ")"]
    argument     = [NAME "="] value
    value        = INTEGER | NAME | "[" [value ("," value)*] "]"

Names of values are None, True, False, top_left and bottom_right. Nothing is evaluated as Python.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from attnlab import masks
from attnlab.masks import Mask

_CONSTRUCTORS: dict[str, Callable[..., Mask]] = {
    build.__name__: build
    for build in (
        masks.full,
        masks.causal,
        masks.window,
        masks.sliding_window,
        masks.prefix_lm,
        masks.chunked,
        masks.block_causal,
        masks.key_padding,
        masks.key_mask,
        masks.documents,
        masks.cross_documents,
        masks.graph,
        masks.dense,
    )
}
_WORDS = {
    "None": None,
    "True": True,
    "False": False,
    "top_left": "top_left",
    "bottom_right": "bottom_right",
}
_LENGTHS = ("q_len", "kv_len")
_TOKEN = re.compile(r"\s*(?:(?P<int>-?\d+)|(?P<name>[A-Za-z_]\w*)|(?P<op>[&|~()\[\],=]))", re.ASCII)


def parse(text: str, q_len: int, kv_len: int | None = None) -> Mask:
    """The mask that `text` describes, for `q_len` queries and `kv_len` (default q_len) keys.

    Raises ValueError, one line with the column (from 1), for anything not in the grammar, unknown
    names (with the nearest known one), wrong arguments, and what the constructors themselves refuse.
    """
    if not isinstance(text, str):
        raise TypeError(f"a mask text must be a string, not {type(text).__name__}")
    parser = _Parser(text, _tokens(text), q_len, q_len if kv_len is None else kv_len)
    try:
        mask = parser.union()
    except RecursionError:
        parser.fail("nested too deeply")
    if parser.token.kind != "end":
        parser.fail(f"expected '&', '|' or the end, found {parser.token.text!r}")
    return mask


def render(mask: Mask) -> str:
    """The mask drawn with characters, `x` = may read, and lo, hi and keys beside each row.

    Several batch rows or heads are drawn one below the other under a heading. O(T S) characters.
    """
    allowed = np.asarray(mask.as_array())
    lo, hi = np.asarray(mask.lo), np.asarray(mask.hi)
    several = lo.shape[0] * lo.shape[1] > 1
    parts = []
    for b, h in np.ndindex(lo.shape[:2]):
        heading = [f"batch {b}, head {h}"] if several else []
        parts.append("\n".join(heading + _draw(allowed[b, h], lo[b, h], hi[b, h])))
    return "\n\n".join(parts)


def _draw(allowed: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> list[str]:
    T, S = allowed.shape
    width, label = max(len(str(S)), len("keys")), len(str(T - 1))
    # A ruler: the last digit of every key's number.
    ruler = "".join(str(k % 10) for k in range(S))
    lines = [f"{'i':>{label}}  {ruler}  {'lo':>{width}} {'hi':>{width}} {'keys':>{width}}"]
    for i in range(T):
        cells = "".join("x" if cell else "." for cell in allowed[i])
        count = int(allowed[i].sum())
        lines.append(f"{i:>{label}}  {cells}  {lo[i]:>{width}} {hi[i]:>{width}} {count:>{width}}")
    return lines


@dataclass(frozen=True)
class _Token:
    kind: str  # "int", "name", "op" or "end"
    text: str
    column: int  # from 1


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            _fail(text, at + 1, f"unexpected character {text[at]!r}")
        kind = match.lastgroup or "op"
        tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
        at = match.end()
    return [*tokens, _Token("end", "the end", end + 1)]


class _Parser:
    """Recursive descent: one method per rule of the grammar, one token of look-ahead."""

    def __init__(self, text: str, tokens: list[_Token], q_len: int, kv_len: int) -> None:
        self.text, self.tokens, self.at = text, tokens, 0
        self.q_len, self.kv_len = q_len, kv_len

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def fail(self, problem: str, token: _Token | None = None) -> NoReturn:
        _fail(self.text, (token or self.token).column, problem)

    def next(self) -> _Token:
        token = self.token
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def accept(self, op: str) -> bool:
        found = self.token.kind == "op" and self.token.text == op
        if found:
            self.next()
        return found

    def expect(self, *ops: str) -> str:
        if self.token.kind != "op" or self.token.text not in ops:
            wanted = " or ".join(map(repr, ops))
            self.fail(f"expected {wanted}, found {self.token.text!r}")
        return self.next().text

    def union(self) -> Mask:
        mask = self.intersection()
        while self.accept("|"):
            mask = mask | self.intersection()
        return mask

    def intersection(self) -> Mask:
        mask = self.complement()
        while self.accept("&"):
            mask = mask & self.complement()
        return mask

    def complement(self) -> Mask:
        if self.accept("~"):
            return ~self.complement()
        if self.accept("("):
            mask = self.union()
            self.expect(")")
            return mask
        return self.constructor()

    def constructor(self) -> Mask:
        name = self.next()
        if name.kind != "name":
            self.fail(f"expected a mask, found {name.text!r}", name)
        if name.text not in _CONSTRUCTORS:
            self.fail(_unknown("mask", name.text, _CONSTRUCTORS), name)
        build = _CONSTRUCTORS[name.text]
        parameters = inspect.signature(build).parameters
        allowed = {n: p for n, p in parameters.items() if n not in _LENGTHS}
        given = self.arguments(name.text, allowed) if self.accept("(") else {}
        missing = [n for n, p in allowed.items() if p.default is p.empty and n not in given]
        if missing:
            self.fail(f"{name.text} needs {' and '.join(missing)}", name)
        lengths = {n: getattr(self, n) for n in _LENGTHS if n in parameters}
        try:
            mask = build(**lengths, **given)
        except (TypeError, ValueError) as error:
            self.fail(f"{name.text}: {error}", name)
        for length, wanted in (("q_len", self.q_len), ("kv_len", self.kv_len)):
            if getattr(mask, length) != wanted:
                self.fail(f"{name.text} has {length} {getattr(mask, length)}, not {wanted}", name)
        return mask

    def arguments(self, owner: str, allowed: dict[str, inspect.Parameter]) -> dict[str, Any]:
        """Everything from behind the opening parenthesis up to and including the closing one."""
        positional = [n for n, p in allowed.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        given: dict[str, Any] = {}
        if self.accept(")"):
            return given
        while True:
            start = self.token
            if start.kind == "name" and self.tokens[self.at + 1].text == "=":
                self.next()
                self.next()
                name = start.text
                if name not in allowed:
                    self.fail(_unknown(f"argument of {owner}", name, allowed), start)
            elif len(given) < len(positional):
                name = positional[len(given)]
            else:
                self.fail(f"{owner} takes {_listed(positional) or 'nothing'} without a name", start)
            if name in given:
                self.fail(f"{owner} is given {name} twice", start)
            given[name] = self.value()
            if self.expect(",", ")") == ")":
                return given

    def value(self) -> Any:
        token = self.next()
        if token.kind == "int":
            return int(token.text)
        if token.kind == "name":
            if token.text not in _WORDS:
                self.fail(_unknown("value", token.text, _WORDS), token)
            return _WORDS[token.text]
        if token.text != "[" or token.kind != "op":
            self.fail(f"expected a number, a name or a list, found {token.text!r}", token)
        values: list[Any] = []
        if self.accept("]"):
            return values
        while True:
            values.append(self.value())
            if self.expect(",", "]") == "]":
                return values


def _fail(text: str, column: int, problem: str) -> NoReturn:
    raise ValueError(f"mask {text!r}, column {column}: {problem}")


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ";"
    return f"unknown {what} {name!r}{hint} allowed: {_listed(names) or 'none'}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
