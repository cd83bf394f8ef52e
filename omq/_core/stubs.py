"""Writes the stubs of the compiled modules from their Cython sources, for editors and mypy.

`setup.py` calls `write_stubs` in each build; git ignores the stubs. A stub has the module's classes with their bases,
public and readonly attributes, `cpdef` functions, and each `def` with a return annotation. A parameter of a C type
needs no annotation. Comments of the `.pyx` declare types that Cython has no grammar for; they replace the
declaration of the same name:

    # stub: T = TypeVar("T")
    # stub: class Slot(Generic[T]):
        # stub: origin: str | None
        # stub: def close(self) -> None: ...
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path

from Cython.Compiler import ExprNodes, Nodes
from Cython.Compiler.TreeFragment import StringParseContext, parse_from_strings

CLASS = re.compile(r"^(?:cdef )?class (\w+)", re.MULTILINE)
MEMBER = re.compile(
    r"^(?:cdef )?class (?P<kind>\w+)"
    r"|^    cdef (?P<access>public|readonly) (?P<type>[\w ]+) (?P<attributes>\w+(?:, \w+)*)"
    r"|^ +# stub: (?P<text>(?P<name>\w+): (?P<annotation>.*)|def (?P<function>\w+).*)$",
    re.MULTILINE,
)
HEAD = re.compile(r"^# stub: (?:class (?P<kind>\w+)|.*? import (?P<imported>\w+)|(?P<name>\w+)).*$", re.MULTILINE)
IMPORT = re.compile(r"^from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)
#: Python types by C type.
PYTHON_TYPES = dict.fromkeys(
    ("int", "long", "long long", "Py_ssize_t", "size_t", "uint32_t", "uint64_t", "int64_t"), "int"
) | {
    "bint": "bool",
    "double": "float",
    "object": "Any",
    "dict": "dict[Any, Any]",
    "list": "list[Any]",
    "tuple": "tuple[Any, ...]",
}


class StubError(Exception):
    """A source lacks information for a stub."""


class Stub:
    """The stub of one module.

    Args:
        source: The `.pyx`.
        declarations: The `.pxd`; empty for none.
        modules: The module of each class of the core.

    Raises:
        StubError: A parameter has no type, or an annotation has a name that is from nowhere.
    """

    def __init__(self, source: str, declarations: str, modules: dict[str, str]) -> None:
        imported = {name: found[1] for found in IMPORT.finditer(source) for name in re.findall(r"\w+", found[2])}
        self._modules = {**imported, **modules}
        self._members: dict[str, dict[str, str]] = {}  # by class and name
        for found in MEMBER.finditer(f"{declarations}\n{source}"):
            if found["kind"]:
                members = self._members.setdefault(found["kind"], {})
            elif found["attributes"]:
                kind = PYTHON_TYPES.get(found["type"], found["type"])
                for name in found["attributes"].split(", "):
                    members[name] = _attribute(name, kind, found["access"] == "public")
            elif found["annotation"]:
                is_public = members.get(found["name"], "").startswith(f"{found['name']}:")
                members[found["name"]] = _attribute(found["name"], found["annotation"], is_public)
            else:
                members[found["function"]] = found["text"]
        self._heads = {found["kind"]: found[0][8:] for found in HEAD.finditer(source) if found["kind"]}
        self._given = {found["name"] or found["imported"]: found[0][8:] for found in HEAD.finditer(source)}
        self._given.pop(None, None)
        context = StringParseContext("stub")
        context.set_language_level(3)
        tree = parse_from_strings("stub", source, context=context)
        body = [line for node in _statements(tree.body) for line in self._lines(node, {})]
        body = [*self._given.values(), *body, ""]
        used = (one for one in ast.walk(ast.parse("\n".join(body))) if isinstance(one, ast.Name))
        names = {one.id for one in used if isinstance(one.ctx, ast.Load)}
        names -= {*self._given, *self._members, *dir(builtins)}
        self.text = "\n".join([*_docstring(tree.doc), *sorted(map(self._import, names)), *body])

    def _import(self, name: str) -> str:
        if name in self._modules:
            return f"from {self._modules[name]} import {name}"
        if name == "Buffer":  # that of collections.abc came with Python 3.12
            return "from typing_extensions import Buffer"
        for module in (collections.abc, typing):
            if hasattr(module, name):
                return f"from {module.__name__} import {name}"
        if name == "asyncio":
            return "import asyncio"
        raise StubError(f"{name!r} is not defined: add # stub: from ... import {name}")

    def _lines(self, node: Nodes.Node, members: dict[str, str]) -> list[str]:
        """Returns the lines of a statement; *members*: those of its class that are still to be written."""
        match node:
            case Nodes.CClassDefNode():
                return self._class(node.class_name, node)
            case Nodes.PyClassDefNode():
                return self._class(node.name, node)
            case Nodes.DefNode() if node.return_type_annotation is not None:
                returned = node.return_type_annotation.string.value
                name = "__init__" if node.name == "__cinit__" else node.name
                decorators = [f"@{_dotted(one.decorator)}" for one in node.decorators or ()]
                return decorators + self._function(name, self._parameters(node), returned, node.doc, members)
            case Nodes.CFuncDefNode(overridable=True):
                parameters = [self._parameter(one) for one in node.declarator.args]
                returned = PYTHON_TYPES.get(_c_name(node.base_type), _c_name(node.base_type))
                return self._function(node.declarator.base.name, parameters, returned, node.doc, members)
        return []

    def _class(self, name: str, node: Nodes.Node) -> list[str]:
        bases = ", ".join(base.name for base in node.bases.args) if node.bases else ""
        head = self._heads.get(name) or f"class {name}({bases}):"
        members = self._members[name]
        lines = [*_docstring(node.doc)]
        for inner in _statements(node.body):
            lines += self._lines(inner, members)
        lines += members.values()
        return ["", head, textwrap.indent("\n".join(lines or ["..."]), "    ")]

    def _function(
        self, name: str, parameters: list[str], returned: str, doc: str, members: dict[str, str]
    ) -> list[str]:
        given = members.pop(name, None)
        head = given.removesuffix(" ...") if given else f"def {name}({', '.join(parameters)}) -> {returned}:"
        lines = _docstring(doc)
        return [head, textwrap.indent("\n".join(lines), "    ")] if lines else [f"{head} ..."]

    def _parameters(self, node: Nodes.DefNode) -> list[str]:
        found: list[str] = []
        for at, argument in enumerate(node.args):
            if argument.kw_only and not node.star_arg and "*" not in found:
                found.append("*")
            found.append(self._parameter(argument))
            if at + 1 == node.num_posonly_args:
                found.append("/")
        plain = sum(not argument.kw_only for argument in node.args)
        for stars, argument in (("*", node.star_arg), ("**", node.starstar_arg)):
            if argument:
                kind = argument.annotation.string.value if argument.annotation else "Any"
                found.insert(plain if stars == "*" else len(found), f"{stars}{argument.name}: {kind}")
        return found

    def _parameter(self, argument: Nodes.CArgDeclNode) -> str:
        base, name = _c_name(argument.base_type), argument.declarator.name
        if not name:  # the parser takes a name without a type for a type without a name
            base, name = "", base
        if name == "self" and base in ("", "object"):
            return name
        if argument.annotation is not None:
            kind = argument.annotation.string.value
        elif base in ("", "object", "list", "dict", "tuple"):
            raise StubError(f"line {argument.pos[1]}: the parameter {name} needs an annotation")
        else:
            kind = PYTHON_TYPES.get(base, base)
        return f"{name}: {kind}" + ("" if argument.default is None else f" = {_literal(argument.default)}")


def _attribute(name: str, kind: str, is_public: bool) -> str:
    return f"{name}: {kind}" if is_public else f"@property\ndef {name}(self) -> {kind}: ..."


def _statements(body: Nodes.Node) -> list[Nodes.Node]:
    return list(body.stats) if isinstance(body, Nodes.StatListNode) else [body]


def _docstring(doc: str | None) -> list[str]:
    text = inspect.cleandoc(doc or "").replace("\\", "\\\\")
    return f'"""{text}\n"""'.splitlines() if "\n" in text else [f'"""{text}"""'] if text else []


def _dotted(node: ExprNodes.ExprNode) -> str:
    return f"{_dotted(node.obj)}.{node.attribute}" if isinstance(node, ExprNodes.AttributeNode) else str(node.name)


def _c_name(base: Nodes.CSimpleBaseTypeNode) -> str:
    return {1: "long", 2: "long long"}.get(base.longness, base.name) if base.is_basic_c_type else base.name or "object"


def _literal(node: ExprNodes.ExprNode) -> str:
    match node:
        case ExprNodes.NoneNode():
            return "None"
        case ExprNodes.BoolNode() | ExprNodes.IntNode() | ExprNodes.FloatNode():
            return str(node.value)
    return "..."


def stubs(root: Path) -> Iterator[tuple[Path, str]]:
    """Yields the path and the text of each stub below *root*, the folder of the core."""
    sources = {path: path.read_text() for path in sorted(root.rglob("*.pyx"))}
    names = {path: ".".join(path.relative_to(root.parents[1]).with_suffix("").parts) for path in sources}
    modules = {kind: names[path] for path, source in sources.items() for kind in CLASS.findall(source)}
    for path, source in sources.items():
        declared = path.with_suffix(".pxd")
        try:
            yield (
                path.with_suffix(".pyi"),
                Stub(source, declared.read_text() if declared.exists() else "", modules).text,
            )
        except StubError as error:
            raise SystemExit(f"{path}: {error}") from None


def write_stubs(root: Path) -> None:
    """Writes the stubs below *root* where they have changed."""
    for path, text in stubs(root):
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
