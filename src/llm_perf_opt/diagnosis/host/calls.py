"""What a line of source code does, as names a pattern can know: calls, contexts, operators, with imports resolved.

`from zlib import compress as pack` and `pack(data)` give `zlib.compress`; `h = hashlib.sha256()` and `h.update(data)`
give `hashlib.sha256().update`. What a name is bound to is read from the file itself; the types that the sampler inside
the running program saw (`types`) go before that. Nothing is executed.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_LITERALS: Mapping[type[ast.expr], str] = {
    ast.List: "list",
    ast.ListComp: "list",
    ast.Dict: "dict",
    ast.DictComp: "dict",
    ast.Set: "set",
    ast.SetComp: "set",
    ast.JoinedStr: "str",
    ast.Tuple: "tuple",
}
# Frames without a name, and what they are in the source code. A lambda belongs to its call.
_NAMELESS: Mapping[str, type[ast.expr]] = {
    "<genexpr>": ast.GeneratorExp,
    "<listcomp>": ast.ListComp,
    "<setcomp>": ast.SetComp,
    "<dictcomp>": ast.DictComp,
}
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOP = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
# What a loop that only waits may ask for, besides the time.
_ASKED = (
    "is_set",
    "done",
    "empty",
    "full",
    "qsize",
    "is_alive",
    "poll",
    "locked",
    "exists",
    "ready",
    "is_file",
    "query",
)
# Names of a file that is this long are looked up in no time; a generated one may be longer.
MOST_BYTES = 2_000_000

Types = Mapping[str, str]
NO_TYPES: Types = {}


@dataclass(frozen=True, kw_only=True)
class _Around:
    """The innermost function and loop that a line lies in."""

    function: ast.FunctionDef | ast.AsyncFunctionDef | None
    in_loop: bool
    spins: bool


@dataclass(kw_only=True)
class SourceNames:
    """One file of source code: what its names are bound to, by function."""

    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    bound: dict[tuple[str, str], str] = field(default_factory=dict)

    def names(
        self, line: int, types: Types = NO_TYPES, span: tuple[int, int] | None = None, inside: str = ""
    ) -> tuple[str, ...]:
        """What the statement at a line does; with `span`, columns on that line, what the expression there does.

        `inside` is the name of the frame: of a comprehension, what is around it is another frame's.
        """
        statement, around = self._at(line)
        if statement is None:
            return ()
        scope = around.function.name if around.function is not None else ""
        namer = _Namer(source=self, scope=scope, types=types)
        own = _NAMELESS.get(inside)
        nameless = [] if own is None else [node for node in _expressions(statement, line) if isinstance(node, own)]
        if nameless:
            found = dict.fromkeys(
                name for one in nameless for node in ast.walk(one) for name in _of_expression(node, namer)
            )
        else:
            found = dict.fromkeys(_described(statement, line, span, namer))
        extra = [f"arg {types[name]}" for name in dict.fromkeys(_plain_names(statement, line)) if name in types]
        if around.in_loop:
            extra.append("loop")
        if around.spins:
            extra.append("busy wait")
        return (*found, *extra)

    def _at(self, line: int) -> tuple[ast.stmt | None, _Around]:
        """The innermost statement that covers a line, and what is around it."""
        body: list[ast.stmt] = self.tree.body
        found: ast.stmt | None = None
        function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
        in_loop = spins = False
        while True:
            inner = next((s for s in body if s.lineno <= line <= (s.end_lineno or s.lineno)), None)
            if inner is None:
                return found, _Around(function=function, in_loop=in_loop, spins=spins)
            found = inner
            blocks = list(_blocks(inner))
            if isinstance(inner, _FUNCTION) and any(s.lineno <= line for s in inner.body):
                function, in_loop, spins = inner, False, False
            if isinstance(inner, _LOOP):
                in_loop, spins = True, isinstance(inner, ast.While) and _spins(inner, self)
            body = [statement for block in blocks for statement in block]


def read_source(text: str) -> SourceNames | None:
    """The names of a file; None where it is not Python that this interpreter reads."""
    if len(text) > MOST_BYTES:
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    source = SourceNames(tree=tree)
    for node in ast.walk(tree):
        source.imports.update(_imported(node))
    _bind(tree.body, "", source)
    return source


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield (alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0])
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            yield (alias.asname or alias.name, f"{node.module}.{alias.name}")


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The statements inside a compound one."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list):
            yield block
    for handler in getattr(statement, "handlers", []):
        yield handler.body
    for case in getattr(statement, "cases", []):
        yield case.body


def _bind(body: list[ast.stmt], scope: str, source: SourceNames) -> None:
    """What names are assigned, by the function they are assigned in; attributes of `self` count for the whole file."""
    for statement in body:
        namer = _Namer(source=source, scope=scope, types=NO_TYPES)
        if isinstance(statement, _FUNCTION):
            for argument in (*statement.args.posonlyargs, *statement.args.args, *statement.args.kwonlyargs):
                if argument.annotation is not None:
                    source.bound[(statement.name, argument.arg)] = _annotated(argument.annotation, namer)
            _bind(statement.body, statement.name, source)
            continue
        for target, value in _assigned(statement):
            name = _target(target)
            known = _annotated(value, namer) if isinstance(statement, ast.AnnAssign) else namer.name(value)
            if name is not None and known:
                source.bound.setdefault(("" if "." in name else scope, name), known)
        for block in _blocks(statement):
            _bind(block, scope, source)


def _spins(loop: ast.While, source: SourceNames) -> bool:
    """Whether a loop does nothing but look whether it may continue."""
    namer = _Namer(source=source, scope="", types=NO_TYPES)

    def only_looks(node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            called = namer.name(node.func)
            return (called.startswith("time.") and called != "time.sleep") or called.rpartition(".")[2] in _ASKED
        return not isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom)

    def is_nothing(statement: ast.stmt) -> bool:
        if isinstance(statement, ast.If):
            inner = (*statement.body, *statement.orelse)
            return all(only_looks(node) for node in ast.walk(statement.test)) and all(is_nothing(one) for one in inner)
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        return is_text or isinstance(statement, ast.Pass | ast.Continue | ast.Break)

    return all(only_looks(node) for node in ast.walk(loop.test)) and all(is_nothing(one) for one in loop.body)


def _assigned(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from _unpacked(target, statement.value)
    elif isinstance(statement, ast.AnnAssign):
        # A plain annotation of a container says less than the value.
        yield statement.target, statement.annotation if statement.value is None else statement.value
    elif isinstance(statement, ast.With | ast.AsyncWith):
        for item in statement.items:
            if item.optional_vars is not None:
                yield item.optional_vars, item.context_expr


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each of `a, b = f()` is an item of what the call returns."""
    if isinstance(target, ast.Tuple | ast.List):
        items = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        if len(items) != len(target.elts):
            items = [ast.Subscript(value=value, slice=ast.Constant(place)) for place in range(len(target.elts))]
        for one, item in zip(target.elts, items, strict=True):
            yield from _unpacked(one, item)
    else:
        yield target, value


def _target(target: ast.expr) -> str | None:
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        return f"{target.value.id}.{target.attr}"
    return None


def _annotated(annotation: ast.expr, namer: "_Namer") -> str:
    """An annotation names a class: its instances are written as calls of it, as built-in types are by name."""
    plain = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    known = namer.name(plain)
    return (
        known
        if known in ("list", "dict", "set", "str", "bytes", "bytearray", "tuple") or "(" in known
        else f"{known}()"
    )


@dataclass(frozen=True, kw_only=True)
class _Namer:
    """Names of expressions, seen from one function."""

    source: SourceNames
    scope: str
    types: Types

    def name(self, node: ast.expr) -> str:
        """What an expression is, as far as its names say; an empty text for what no name leads to."""
        if isinstance(node, ast.Name):
            return self._of_name(node.id)
        if isinstance(node, ast.Attribute):
            whole = _target(node)
            if whole is not None and (known := self._bound(whole)):
                return known
            base = self.name(node.value)
            return f"{base}.{node.attr}" if base else f"?.{node.attr}"
        if isinstance(node, ast.Call):
            called = self.name(node.func)
            return f"{called}()" if called else ""
        if isinstance(node, ast.Await):
            return self.name(node.value)
        if isinstance(node, ast.Subscript):
            base = self.name(node.value)
            return f"{base}[]" if base else ""
        if isinstance(node, ast.Constant):
            return type(node.value).__name__
        if isinstance(node, ast.BinOp):
            return self.name(node.left) or self.name(node.right)
        return _LITERALS.get(type(node), "")

    def _of_name(self, name: str) -> str:
        return self._bound(name) or self.source.imports.get(name, name)

    def _bound(self, name: str) -> str:
        seen = self.types.get(name)
        if seen is not None:
            return _instance(seen)
        bound = self.source.bound
        return bound.get((self.scope, name)) or bound.get(("", name), "")


def _instance(described: str) -> str:
    """An object of a type that was seen, as a call of that type; built-in types by name alone."""
    kind = described.split(" ")[0]
    return f"{kind}()" if "." in kind else kind


def _header(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement itself, without those of the statements inside it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case | ast.arguments):
            yield child


def _expressions(statement: ast.stmt, line: int) -> Iterator[ast.AST]:
    for child in _header(statement):
        for node in ast.walk(child):
            first = getattr(node, "lineno", line)
            if first <= line <= (getattr(node, "end_lineno", None) or first):
                yield node


def _plain_names(statement: ast.stmt, line: int) -> Iterator[str]:
    """Names and attributes of names whose values a line uses."""
    for node in _expressions(statement, line):
        if isinstance(node, ast.Name | ast.Attribute):
            name = _target(node)
            if name is not None:
                yield name


def _described(statement: ast.stmt, line: int, span: tuple[int, int] | None, namer: _Namer) -> Iterator[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        yield "import"
    if isinstance(statement, ast.With | ast.AsyncWith):
        for item in statement.items:
            yield f"with {namer.name(item.context_expr)}"
    if isinstance(statement, ast.For | ast.AsyncFor):
        yield f"for {namer.name(statement.iter)}"
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        yield f"+= {namer.name(statement.target)}"
        if isinstance(statement.target, ast.Attribute):
            yield "+= attribute"
    # Such as `text = text + piece`.
    if isinstance(statement, ast.Assign) and isinstance(sum_ := statement.value, ast.BinOp):
        target = _target(statement.targets[0])
        if target is not None and target in (_target(sum_.left), _target(sum_.right)):
            yield f"+= {namer.name(statement.targets[0])}"
    if isinstance(statement, ast.Assert):
        yield "assert"
    if isinstance(statement, ast.Raise):
        yield "raise"
    nodes = list(_expressions(statement, line))
    exact = [n for n in nodes if isinstance(n, ast.expr) and n.lineno == line and _span(n) == span]
    # A position that no expression has, such as that of a keyword, says nothing.
    for node in [inner for outer in exact for inner in ast.walk(outer)] or nodes:
        yield from _of_expression(node, namer)


def _span(node: ast.expr) -> tuple[int, int]:
    return node.col_offset, node.end_col_offset if node.end_col_offset is not None else -1


def _of_expression(node: ast.AST, namer: _Namer) -> Iterator[str]:
    if isinstance(node, ast.Call):
        called = namer.name(node.func)
        if called:
            yield called
        for argument in (*node.args, *(k.value for k in node.keywords)):
            # `map(json.loads, lines)`, `executor.submit(compress, data)`.
            if isinstance(argument, ast.Name | ast.Attribute) and "." in (passed := namer.name(argument)):
                yield f"passed {passed}"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        yield "@"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        yield f"op {namer.name(node.left)}"
        yield f"op {namer.name(node.right)}"
    elif isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
        yield f"in {namer.name(node.comparators[0])}"
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load | ast.Store):
        sliced = "[:]" if _has_slice(node.slice) else "[]"
        yield f"{sliced} {namer.name(node.value)}"
    elif isinstance(node, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
        yield "loop"


def _has_slice(node: ast.expr) -> bool:
    return isinstance(node, ast.Slice) or (
        isinstance(node, ast.Tuple) and any(isinstance(e, ast.Slice) for e in node.elts)
    )
