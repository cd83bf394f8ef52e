"""The layers hold: imports go downward, I/O stays where it belongs, files are well named.

The picture is in docs/explanation/architecture.md. Everything is read from the sources; nothing is imported.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeGuard

import pytest

PACKAGE = Path(__file__).parents[2] / "omq"

#: From top to bottom. The key is the first name below `omq` ("" is the package itself).
LAYERS = {
    "start": {"__main__"},
    "face": {"cli", "zmq", "spark"},
    "system": {"broker", "pzq", "goby", "metrics"},
    "serving": {"serving"},
    "workqueue": {"workqueue"},
    "store": {"store"},
    "executor": {"executor"},
    "public": {"", "socket", "asyncio", "socket_base", "context", "monitor", "proxies", "security", "keyfiles"},
    "engine": {"engine"},
    "middle": {"routing", "transport"},
    "zmtp": {"zmtp"},
    "core": {"_core"},
    "base": {
        "ranges",
        "errors",
        "libzmq_options",
        "option_values",
        "options",
        "types",
        "message",
        "event",
        "process_hooks",
        "unpatched",
        "_version",
    },
}
ORDER = list(LAYERS)
#: The floors of the core, from top to bottom; other modules serve all.
FLOORS = ["zmq", "calls", "link", "queues", "wire"]
LAYER_OF = {room: layer for layer, rooms in LAYERS.items() for room in rooms}

#: Layers whose rooms may import one another; elsewhere neighbours on one floor are strangers.
ONE_ROOM = {"public", "base"}
#: Faces and systems stand on the public API, as any user's program does.
PUBLIC_ONLY = {"face", "system", "serving", "workqueue", "store"}
BELOW_PUBLIC = {"engine", "middle", "zmtp", "core"}
#: What systems and faces use of the core: blocks of records, these as columns, and the compiled calls of pyzmq's face.
MAY_USE = {
    "omq._core.blocks": {"store", "workqueue", "broker", "pzq"},
    "omq._core.columns": {"broker"},
    "omq._core.zmq": {"zmq", "metrics"},
    "omq._core.wire.loan": {"zmq"},
    "omq._core.calls.readable_event": {"zmq"},
}
#: Where the asyncio twins of systems stand: `omq.asyncio.broker` is in the broker's room.
TWINS = "asyncio"

ASYNC = {"asyncio", "uvloop"}
#: What gevent and eventlet patch: `omq.unpatched` has it as it was. Commands are programs of their own.
PATCHED = {"_thread", "queue", "select", "selectors", "socket", "subprocess", "threading"}
UNPATCHED = "omq.unpatched"
MAY_BE_PATCHED = ("omq.cli", "omq.spark.java", "omq.goby.protobuf.generate", UNPATCHED)
IO = ASYNC | PATCHED | {"ssl"}
CLOCK = {"time", "datetime"}
#: What a room may not import from outside the package.
FORBIDDEN = {"routing": IO, "zmtp": IO | CLOCK}
#: Names without a loop behind them: what a cancellation is.
HARMLESS = ("asyncio.exceptions.",)
MAY_AWAIT = {"face", "system", "serving", "workqueue", "store", "executor", "engine"}

#: Where every scheme has its object; the room itself is all that others see of it.
TRANSPORT = "transport"
#: Rooms whose modules import at their head only. A command imports an extra when it runs: `omq --help` needs none.
AT_HEAD = {"engine", "transport"}

#: Optional libraries that take a program longer to import than the rest of what it needs there.
LOADED_LATE = {"wsproto"}


@dataclass(frozen=True)
class Import:
    """One import: the dotted name it reaches for, and the line."""

    target: str
    line: int


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Every source file under the package folder *root* with its dotted name."""
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd"):
            parts = [root.name, *path.relative_to(root).with_suffix("").parts]
            if parts[-1] == "__init__":
                parts.pop()
            yield ".".join(parts), path


def absolute(name: str, level: int, package: str) -> str:
    """The dotted name that a relative import of *level* dots in *package* means."""
    if not level:
        return name
    base = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*base, *([name] if name else [])])


def is_import_call(node: ast.AST) -> TypeGuard[ast.Call]:
    """Returns whether an expression imports what its arguments name."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in ("import_module", "__import__")


@lru_cache(maxsize=1)  # several functions look at a source one after the other
def nodes(source: str) -> list[ast.AST]:
    return [*ast.walk(ast.parse(source))]


def python_imports(source: str, package: str) -> Iterator[Import]:
    """The imports of a Python file, also those inside functions or under TYPE_CHECKING."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node.module or "", node.level, package)
            yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif is_import_call(node):
            yield from (Import(str(arg.value), node.lineno) for arg in node.args if isinstance(arg, ast.Constant))


_QUOTED = re.compile(r'"""(?:[^\\]|\\.)*?"""|\'\'\'(?:[^\\]|\\.)*?\'\'\'', re.DOTALL)
_COMMENT = re.compile(r"#[^\n]*")
_FROM = re.compile(r"^\s*from\s+(\.*)([\w.]*)\s+c?import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)
_IMPORT = re.compile(r"^\s*c?import\s+([^\n]*)", re.MULTILINE)


def stripped_cython(source: str) -> str:
    """Cython source without comments and docstrings; line numbers stay."""
    quiet = _QUOTED.sub(lambda match: "\n" * match.group().count("\n"), source)
    return _COMMENT.sub("", quiet).replace("\\\n", "  ")


def cython_imports(source: str, package: str) -> Iterator[Import]:
    """The import and cimport lines of a Cython file."""
    code = stripped_cython(source)
    for match in _FROM.finditer(code):
        base = absolute(match[2], len(match[1]), package)
        line = code.count("\n", 0, match.start(2)) + 1
        for name in match[3].strip("()").split(","):
            if name.strip():
                yield Import(f"{base}.{name.split()[0]}", line)
    for match in _IMPORT.finditer(code):
        line = code.count("\n", 0, match.start(1)) + 1
        yield from (Import(name.split()[0], line) for name in match[1].split(",") if name.strip())


def late_imports(source: str) -> list[int]:
    """The lines of a Python file that import something when a function is called."""
    functions = (node for node in nodes(source) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inside = (node for function in functions for node in ast.walk(function))
    return sorted({node.lineno for node in inside if is_import(node)})


def is_import(node: ast.AST) -> bool:
    """Returns whether a node imports something, libraries apart that are loaded with their first use."""
    if not is_import_call(node):
        return isinstance(node, ast.Import | ast.ImportFrom)
    name = node.args[0] if node.args else None
    return not (isinstance(name, ast.Constant) and str(name.value).partition(".")[0] in LOADED_LATE)


@dataclass(frozen=True)
class Word:
    """A name or a string in code, and the line. Prose (comments, docstrings) has none."""

    text: str
    line: int
    quoted: bool


def python_words(source: str) -> Iterator[Word]:
    """The names and strings of a Python file; those of f-strings, patterns and annotations, too."""
    prose = {id(node.value) for node in nodes(source) if isinstance(node, ast.Expr)}
    for node in nodes(source):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in prose:
                yield Word(text, node.lineno, quoted=True)
            case ast.Constant(value=bytes(data)):
                yield Word(data.decode("latin-1"), node.lineno, quoted=True)
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.ClassDef(name=text):
                yield Word(text, node.lineno, quoted=False)
            case ast.ImportFrom() | ast.Import():
                yield from (Word(alias.name.split(".")[-1], node.lineno, quoted=False) for alias in node.names)


_WORD = re.compile(r"""[a-zA-Z]*(?P<mark>["'])(?P<text>(?:[^\\\n]|\\.)*?)(?P=mark)|(?P<name>[A-Za-z_]\w*)""")


def cython_words(source: str) -> Iterator[Word]:
    """The names and strings of a Cython file."""
    code = stripped_cython(source)
    for match in _WORD.finditer(code):
        line = code.count("\n", 0, match.start()) + 1
        yield Word(match["name"] or match["text"], line, quoted=match["name"] is None)


@dataclass(frozen=True)
class Transports:
    """The words that only the transports themselves may use.

    Attributes:
        schemes: Their schemes.
        classes: The classes of those modules that are about one scheme.
    """

    schemes: set[str]
    classes: set[str]

    @classmethod
    def of(cls, root: Path) -> "Transports":
        """Reads them from the transports' sources: a module is about one scheme if a class there has it."""
        found = cls(set(), set())
        for path in (root / TRANSPORT).glob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
            schemes = {scheme for one in classes if (scheme := scheme_of(one)) is not None}
            if schemes:
                found.schemes.update(schemes)
                found.classes.update(one.name for one in classes)
        return found

    def trouble(self, word: Word) -> str | None:
        """Returns why a word may not stand outside; `None` if it may."""
        if word.text in self.classes:
            return f"{word.text} is one transport's own"
        if word.quoted:
            for scheme in self.schemes:
                # As a whole, or as an endpoint begins; a word of prose, or a part of one, does not count.
                if word.text == scheme or re.search(rf"\b{re.escape(scheme)}:(?:/|$)", word.text):
                    return f"{word.text!r} names the scheme {scheme}"
        return None


def scheme_of(node: ast.ClassDef) -> str | None:
    """The scheme that a class names in its body."""
    for line in node.body:
        match line:
            case (
                ast.Assign(targets=[ast.Name(id="scheme")], value=ast.Constant(value=str(scheme)))
                | ast.AnnAssign(target=ast.Name(id="scheme"), value=ast.Constant(value=str(scheme)))
            ):
                return scheme
    return None


def awaiting_lines(path: Path, source: str) -> Iterator[int]:
    """The lines that await something or define something that does."""
    if path.suffix == ".py":
        kinds = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef)
        yield from (node.lineno for node in nodes(source) if isinstance(node, kinds))
    elif path.suffix == ".pyx":
        code = stripped_cython(source)
        for match in re.finditer(r"\bawait\b|\basync\s+(?:def|for|with)\b", code):
            yield code.count("\n", 0, match.start()) + 1


def home_of(parts: list[str]) -> str:
    """The room of a dotted name, cut in parts; "" for the package itself."""
    if parts[1:2] == [TWINS] and len(parts) > 2 and parts[2] in LAYERS["system"]:
        return parts[2]
    return parts[1] if len(parts) > 1 else ""


def room_of(target: str, known: set[str], top: str) -> str | None:
    """The room that an import reaches into; `None` for what lies outside the package."""
    parts = target.split(".")
    if parts[0] != top:
        return None
    if len(parts) > 2 or ".".join(parts) in known - {top}:
        return home_of(parts)
    return ""  # `from omq import PUSH`: the package itself


def patch_trouble(name: str, target: str) -> str | None:
    """Returns why module *name* may not import *target*, which gevent or eventlet may patch; `None` if it may."""
    if target.split(".")[0] in PATCHED and not name.startswith(MAY_BE_PATCHED):
        return f"imports {target}, which may be patched, and not from {UNPATCHED}"
    return None


def import_trouble(room: str, target: str, known: set[str], top: str) -> str | None:
    """Returns why a module in *room* may not import *target*; `None` if it may."""
    layer = LAYER_OF[room]
    reached = room_of(target, known, top)
    if reached is None:
        if target.startswith(HARMLESS):
            return None
        outside = target.split(".")[0]
        if outside in FORBIDDEN.get(room, set()):
            return f"{room} does no I/O and reads no clock, but imports {outside}"
        if outside in ASYNC and layer not in MAY_AWAIT and room != "asyncio":
            return f"{layer} does not know of event loops, but imports {outside}"
        return None
    if reached == room:
        return None
    if reached == "unpatched" and room in FORBIDDEN:
        return f"{room} does no I/O and reads no clock, but imports {target}"
    if reached not in LAYER_OF:
        return f"{reached!r} stands in no layer"
    below = LAYER_OF[reached]
    if below == layer:
        return None if layer in ONE_ROOM else f"{room} and {reached} are neighbours, neither stands on the other"
    if ORDER.index(below) < ORDER.index(layer):
        return f"{layer} imports upward, {target} ({below})"
    if layer in PUBLIC_ONLY and below in BELOW_PUBLIC:
        if any(room in rooms and f"{target}.".startswith(f"{module}.") for module, rooms in MAY_USE.items()):
            return None
        return f"{room} uses the public API only, but imports {target} ({below})"
    return None


def floor_trouble(name: str, target: str) -> str | None:
    """Returns why the core's module *name* may not import *target*; `None` if it may."""
    match name.split("."), target.split("."):
        case [_, "_core", here, _], ["omq", "_core", there, *_] if here in FLOORS and there in FLOORS:
            if FLOORS.index(there) < FLOORS.index(here):
                return f"{here} imports upward, {target} ({there})"
    return None


def seam_trouble(room: str, target: str, known: set[str], top: str) -> str | None:
    """Returns why a module in *room* may not import *target* of the transports; `None` if it may."""
    if room == TRANSPORT:
        return None
    seam = f"{top}.{TRANSPORT}"
    if target == seam:
        return f"{target} is imported as a whole, with every transport in it"
    inner = ".".join(target.split(".")[:3])
    if target.startswith(f"{seam}.") and inner in known:
        return f"{inner} is a module within the transports: what others may use is in {seam}"
    return None


def circle(room: str, imports: dict[str, set[str]], top: str) -> list[str]:
    """Modules of a room that import one another, in this order and back to the first; empty if none do."""
    left = {name: targets for name, targets in imports.items() if name.split(".")[:2] == [top, room]}
    while harmless := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in harmless:
            del left[name]
    path: list[str] = []
    name = min(left, default="")
    while left and name not in path:
        path.append(name)
        name = min(left[name] & left.keys())
    return path[path.index(name) :] if left else []


def module_of(target: str, known: set[str]) -> str:
    """The module that an import reaches: *target*, or the one in which *target* is a name."""
    return target if target in known else target.rpartition(".")[0]


def violations(root: Path) -> list[str]:
    """Everything in the package folder *root* that breaks the layering, one line each."""
    found: list[str] = []
    every = list(modules(root))
    known = {name for name, _ in every}
    known |= {".".join(name.split(".")[:2]) for name in known}
    transports = Transports.of(root)
    graph: dict[str, set[str]] = {}
    for name, path in every:
        source = path.read_text(encoding="utf-8")
        room = home_of(name.split("."))
        if room not in LAYER_OF:
            found.append(f"{name}: {room!r} stands in no layer")
            continue
        where = path.relative_to(root)
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        imports = python_imports if path.suffix in (".py", ".pyi") else cython_imports
        for one in imports(source, package):
            graph.setdefault(name, set()).add(module_of(one.target, known))
            if path.suffix == ".pyi" and room_of(one.target, known, root.name) is None:
                continue  # a stub names types; what is used is in the source next to it
            trouble = import_trouble(room, one.target, known, root.name) or floor_trouble(name, one.target)
            trouble = trouble or patch_trouble(name, one.target)
            if trouble := trouble or seam_trouble(room, one.target, known, root.name):
                found.append(f"{where}:{one.line}: {trouble}")
        if room != TRANSPORT and LAYER_OF[room] not in PUBLIC_ONLY:
            words = python_words if path.suffix in (".py", ".pyi") else cython_words
            found += (f"{where}:{word.line}: {why}" for word in words(source) if (why := transports.trouble(word)))
        if room in AT_HEAD and path.suffix == ".py":
            found += (f"{where}:{line}: {room} imports inside a function" for line in late_imports(source))
        if LAYER_OF[room] not in MAY_AWAIT and room != "asyncio":
            found += (f"{where}:{line}: {room or root.name} awaits" for line in awaiting_lines(path, source))
    for room in sorted({name.split(".")[1] for name in known if "." in name}):
        if names := circle(room, graph, root.name):
            found.append(f"{room} imports in a circle: {' -> '.join([*names, names[0]])}")
    return found


def test_the_package_keeps_its_layers() -> None:
    assert violations(PACKAGE) == []


def test_every_room_is_looked_at() -> None:
    seen = {name.split(".")[1] for name, _ in modules(PACKAGE) if "." in name}
    assert {"engine", "routing", "transport", "zmtp", "_core", "errors", "options", "types"} <= seen
    assert any(path.suffix == ".pyx" for _, path in modules(PACKAGE))


def test_every_transport_is_known() -> None:
    found = Transports.of(PACKAGE)
    assert found.schemes >= {"tcp", "ipc", "inproc"}
    assert found.classes >= {"TcpEndpoint", "IpcEndpoint", "InprocEndpoint"}
    assert not found.classes & {"Endpoint", "StreamTransport"}


BAD = [
    ("errors.py", "from omq.zmtp import greeting", "imports upward"),
    ("errors.py", "import omq", "imports upward"),
    ("errors.py", "from omq import PUSH", "imports upward"),
    ("options.py", "import omq.asyncio", "imports upward"),
    ("_core/batch.pyx", "from omq.zmtp cimport greeting", "imports upward"),
    ("_core/batch.pxd", "cimport omq.engine.socket", "imports upward"),
    ("_core/batch.pyx", "from libc.string cimport memcpy\n\nimport asyncio", "event loops"),
    ("_core/batch.pyx", "cdef f():\n    import asyncio", "event loops"),
    ("_core/batch.pyx", "from asyncio import events", "event loops"),
    ("_core/batch.pyx", "async def f():\n    pass", "awaits"),
    ("_core/batch.pyi", "from omq.engine.socket import Socket", "imports upward"),
    ("_core/wire/send_buffer.pyx", "from omq._core.link.poller cimport Poller", "wire imports upward"),
    ("_core/queues/peer.pxd", "from omq._core.calls.call cimport Call", "queues imports upward"),
    ("_core/calls/sync.pyx", "from omq._core.zmq.calls cimport Handle", "calls imports upward"),
    ("zmtp/null.py", "import asyncio", "no I/O"),
    ("zmtp/null.py", "import socket", "no I/O"),
    ("zmtp/null.py", "from time import monotonic", "no clock"),
    ("zmtp/null.py", "from ..routing import base", "imports upward"),
    ("zmtp/null.py", "def f():\n    from omq.engine import socket", "imports upward"),
    ("routing/base.py", "import select", "no I/O"),
    ("routing/base.py", "from omq.transport import tcp", "neighbours"),
    ("transport/tcp.py", "import asyncio", "event loops"),
    ("transport/tcp.py", "async def dial():\n    pass", "awaits"),
    ("transport/tcp.py", "from omq.engine import socket", "imports upward"),
    ("engine/socket.py", "from omq.asyncio import PUSH", "imports upward"),
    ("engine/socket.py", "import importlib\nimportlib.import_module('omq.socket')", "imports upward"),
    (
        "engine/socket.py",
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from omq.context import Context",
        "upward",
    ),
    ("message.py", "import asyncio", "event loops"),
    ("proxies.py", "async def f(x):\n    pass", "awaits"),
    ("proxies.py", "class Hop:\n    def f(self):\n        return (await self for x in ())", "awaits"),
    ("message.py", "from omq.broker import Client", "imports upward"),
    ("asyncio/__init__.py", "from omq.asyncio.broker import Client", "imports upward"),
    ("asyncio/broker.py", "from omq.engine import socket", "public API only"),
    ("asyncio/broker.py", "from omq.pzq import Device", "neighbours"),
    ("broker/client.py", "from omq._core.codec import encode_frame", "public API only"),
    ("goby/portal.py", "from omq._core.blocks import encode", "public API only"),
    ("store/log.py", "from omq._core import codec", "public API only"),
    ("store/log.py", "from omq._core import columns", "public API only"),
    ("spark/read.py", "from omq._core import columns", "public API only"),
    ("store/log.py", "from omq.broker import Client", "imports upward"),
    ("broker/server.py", "from omq.engine import socket", "public API only"),
    ("broker/server.py", "from omq.pzq import Device", "neighbours"),
    ("cli/main.py", "from omq._core.codec import encode_frame", "public API only"),
    ("cli/main.py", "from omq.zmq import Socket", "neighbours"),
    ("cli/main.py", "from omq.attic import old", "stands in no layer"),
    ("attic/old.py", "", "stands in no layer"),
    ("engine/socket.py", "from omq.transport import ipc", "a module within the transports"),
    ("engine/socket.py", "from omq.transport.ipc import listen", "a module within the transports"),
    ("engine/socket.py", "import omq.transport.ipc as one", "a module within the transports"),
    ("engine/socket.py", "if TYPE_CHECKING:\n    from ..transport import ipc", "a module within the transports"),
    ("engine/socket.py", "import importlib\nimportlib.import_module('omq.transport.ipc')", "within the transports"),
    ("context.py", "from omq.transport.base import Endpoint", "a module within the transports"),
    ("engine/socket.py", "import omq.transport", "imported as a whole"),
    ("engine/socket.py", "from omq import transport", "imported as a whole"),
    ("engine/socket.py", "from omq.transport import IpcEndpoint", "one transport's own"),
    ("context.py", "from omq.transport import IpcTransport as Any", "one transport's own"),
    ("engine/socket.py", "def f(one):\n    return type(one).__name__ == 'IpcEndpoint'", "one transport's own"),
    ("engine/socket.py", "def f(one: 'IpcEndpoint'):\n    pass", "one transport's own"),
    ("engine/socket.py", "def f(one, kinds):\n    return isinstance(one, kinds.IpcEndpoint)", "one transport's own"),
    ("engine/socket.py", "def f(text):\n    return text.startswith('ipc:')", "names the scheme ipc"),
    ("engine/socket.py", "def f(name):\n    return f'ipc://{name}'", "names the scheme ipc"),
    ("engine/socket.py", "match WIRED:\n    case 'ipc':\n        pass", "names the scheme ipc"),
    ("engine/socket.py", "WIRED = {b'ipc'}", "names the scheme ipc"),
    ("options.py", "WIRED = {'ipc': 1}", "names the scheme ipc"),
    ("routing/base.py", "def f(text):\n    return text > 'it is ipc://x'", "names the scheme ipc"),
    ("_core/batch.pyx", 'def f(name):\n    raise ValueError(f"ipc://{name}")', "names the scheme ipc"),
    ("_core/batch.pyx", "cdef f(one):\n    return one == 'ipc'", "names the scheme ipc"),
    ("_core/batch.pyx", "cdef f(one):\n    return one.IpcEndpoint", "one transport's own"),
    ("engine/views.py", "from omq.engine import part", "engine.part -> omq.engine.views -> omq.engine.part"),
    ("engine/views.py", "from .part import Part", "imports in a circle"),
    ("engine/views.py", "import omq.engine.part", "imports in a circle"),
    ("engine/views.py", "from omq.engine.whole import Whole", "part -> omq.engine.views -> omq.engine.whole -> omq"),
    ("engine/views.py", "from omq.engine.views import View", "omq.engine.views -> omq.engine.views"),
    ("engine/views.py", "if TYPE_CHECKING:\n    from omq.engine.part import Part", "imports in a circle"),
    ("engine/views.py", "import importlib\nimportlib.import_module('omq.engine.part')", "in a circle"),
    ("transport/base.py", "from omq.transport import TRANSPORTS", "transport imports in a circle"),
    ("cli/main.py", "from omq.cli.command import run", "cli imports in a circle"),
    ("cli/main.py", "def f():\n    from omq.cli import command", "cli imports in a circle"),
    ("broker/part.py", "def f():\n    from omq.broker.part import Part", "broker imports in a circle"),
    ("engine/views.py", "def f():\n    import signal", "inside a function"),
    ("engine/views.py", "async def f():\n    def g():\n        from omq import errors", "inside a function"),
    ("engine/views.py", "def f():\n    return __import__('signal')", "inside a function"),
    ("transport/base.py", "def f():\n    from omq.unpatched import socket", "inside a function"),
    ("engine/socket.py", "import threading", "may be patched"),
    ("zmtp/null.py", "from omq.unpatched import threading", "does no I/O"),
]

GOOD = [
    ("errors.py", "import asyncio_like_name_of_nobody"),
    ("options.py", "from omq.errors import OptionError\nfrom .types import SocketType"),
    ("_core/batch.pyx", "from omq.errors import OmqError\nfrom omq._core.codec cimport Header"),
    ("_core/batch.pyx", 'def f():\n    """Waits.\n\n    import asyncio\n    """\n    # await nothing'),
    ("_core/batch.pyx", "from libc.stdint cimport (uint64_t,\n    int64_t)  # import asyncio"),
    ("_core/batch.pyx", "from asyncio.exceptions import CancelledError"),
    ("_core/batch.pyi", "import asyncio"),
    ("_core/calls/call.pyx", "from omq._core.wire.send_buffer cimport Part\nfrom omq._core.clock cimport now_ns"),
    ("zmtp/null.py", "from omq._core import codec\nfrom omq import errors"),
    ("routing/base.py", "from omq.zmtp import greeting\nfrom omq._core.codec import encode_frame"),
    ("transport/tcp.py", "from omq.unpatched import socket"),
    ("cli/main.py", "import threading"),
    ("cli/main.py", "def f():\n    import lmdb"),
    ("transport/tcp.py", "from omq.transport.ipc import IpcEndpoint\nWHERE = 'ipc://x'"),
    ("engine/socket.py", "from omq.transport import Endpoint, parse_endpoint"),
    ("engine/socket.py", '"""Over ipc://x."""\n\nx = 1\n"""As for "ipc"."""\n# ipc:'),
    (
        "engine/socket.py",
        "def f(ipc):\n    raise ValueError('over ipc: not for that', ipc.tune, 'ipc_tune', 'zipc://')",
    ),
    ("engine/views.py", "from omq.engine import socket\nfrom omq.engine.lone import Lone"),
    ("_core/batch.pyx", 'cdef extern from "<sys/ipc.h>":\n    int ipc  # as in "ipc:"'),
    ("security.py", '"""Over ipc://x."""\n\ndef f():\n    import os'),
    ("cli/main.py", "import omq\nomq.PULL(bind='ipc://x')"),
    ("engine/socket.py", "import asyncio\nfrom omq.transport import Route\nasync def f(x):\n    await x"),
    ("asyncio/__init__.py", "import asyncio\nfrom omq.engine import socket\nasync def f(x):\n    await x"),
    ("asyncio/broker.py", "import asyncio\nimport omq.asyncio as omq\nfrom omq.broker.types import Message"),
    ("broker/types.py", "from omq._core.blocks import Message"),
    ("broker/server.py", "def f():\n    import lmdb"),
    ("broker/columns.py", "from omq._core.columns import Gatherer"),
    ("zmq/socket.py", "from omq._core.zmq.calls import Handle"),
    ("store/log.py", "from omq._core import blocks"),
    ("__init__.py", "from omq import errors\nfrom omq.asyncio import PUSH"),
    ("context.py", "from omq.message import Message\nfrom omq.engine import socket"),
    ("store/log.py", "import asyncio\nfrom omq.errors import OmqError"),
    (
        "broker/server.py",
        "import omq.asyncio as omq\nfrom omq.store import log\nasync def f(x):\n    await x",
    ),
    ("goby/manager.py", ""),
    ("cli/main.py", "from omq.broker import Client\nimport omq.asyncio as omq"),
]

#: The least that stands in each synthetic tree, so that every import above has something to reach.
FLOOR = [
    "__init__.py errors.py types.py unpatched.py asyncio/__init__.py socket.py context.py message.py engine/socket.py",
    "routing/base.py transport/tcp.py zmtp/greeting.py _core/codec.pyx _core/codec.pxd _core/blocks.pyx store/log.py",
    "_core/columns.pyx",
    "broker/__init__.py pzq/__init__.py zmq/__init__.py engine/lone.py engine/views.py transport/base.py",
]
#: What stands in some of it: a transport, and modules that import one another in one direction.
GROUND = {
    "transport/__init__.py": "from omq.transport.ipc import IpcTransport",
    "transport/ipc.py": (
        "from omq.transport.base import Transport\n"
        "class IpcEndpoint:\n    scheme: str = 'ipc'\n"
        "class IpcTransport(Transport):\n    scheme = 'ipc'\n"
    ),
    "engine/part.py": "from omq.engine.views import View",
    "cli/command.py": "from omq.cli.main import main",
    "engine/whole.py": "from omq.engine.part import Part\nfrom omq.engine import views",
}


def planted(root: Path, where: str, source: str) -> Path:
    """A package folder with *source* in the file *where*."""
    top = root / "omq"
    for name, text in {**dict.fromkeys(" ".join(FLOOR).split(), ""), **GROUND, where: source}.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return top


@pytest.mark.parametrize(("where", "source", "complaint"), BAD)
def test_a_bad_tree_is_flagged(tmp_path: Path, where: str, source: str, complaint: str) -> None:
    found = violations(planted(tmp_path, where, source))
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(("where", "source"), GOOD)
def test_a_good_tree_passes(tmp_path: Path, where: str, source: str) -> None:
    assert violations(planted(tmp_path, where, source)) == []


def test_a_complaint_names_file_and_line(tmp_path: Path) -> None:
    source = '"""A module.\n\nIn three lines."""\n\nfrom libc.math cimport sqrt\nfrom omq.zmtp import z85\n'
    assert violations(planted(tmp_path, "_core/batch.pyx", source))[0].startswith("_core/batch.pyx:6: ")
    planted(tmp_path, "_core/batch.pyx", "")
    found = violations(planted(tmp_path, "errors.py", source.replace("cimport", "import")))
    assert found[0].startswith("errors.py:6: ")
