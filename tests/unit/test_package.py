"""`import omq`: what it loads at once, and the names that load the rest."""

import ast
import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import omq

SOURCE = Path(omq.__file__)


def printed(code: str) -> str:
    """The output of a new process that runs *code*."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    env = {**os.environ, "PYTHONPATH": str(SOURCE.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_import_loads_no_event_loop() -> None:
    code = "import sys, omq; print({'asyncio', 'ssl', 'uvloop', 'nacl', 'omq.engine'} & set(sys.modules))"
    assert printed(code) == "set()"


def test_every_name_is_that_of_its_module() -> None:
    """Type checkers read imports, which do not run."""
    branches = [node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If)]
    [block] = [node for node in branches if ast.unparse(node.test) == "_typing.TYPE_CHECKING"]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    declared = {alias.name: str(node.module) for node in imports for alias in node.names}
    assert declared.keys() | set(omq.errors.__all__) | {"__version__"} == set(omq.__all__)
    for name, module in declared.items():
        assert getattr(omq, name) is getattr(importlib.import_module(module), name)


def test_type_checkers_find_a_wrong_name(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text("import omq\nomq.PUSH\nomq.PSUH\n")
    command = [sys.executable, "-m", "mypy", "--config-file=", "--cache-dir", str(tmp_path / "cache"), str(program)]
    env = {**os.environ, "MYPYPATH": str(SOURCE.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, check=False)
    assert [line for line in done.stdout.splitlines() if "error" in line] == [
        f'{program}:3: error: Module has no attribute "PSUH"  [attr-defined]',
        "Found 1 error in 1 file (checked 1 source file)",
    ]


def test_all_names_are_listed_before_their_use() -> None:
    assert printed("import omq; print(set(omq.__all__) <= set(dir(omq)), 'PULL' in vars(omq))") == "True False"


def test_a_star_import_has_all_names() -> None:
    assert printed("from omq import *; import omq; print(set(omq.__all__) - set(globals()))") == "set()"


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'omq' has no attribute 'PULLL'"):
        _ = omq.PULLL  # type: ignore[attr-defined]


def test_a_name_that_the_program_has_replaced_stays() -> None:
    assert printed("import omq; omq.PULL = 'mine'; omq.PUSH; print(omq.PULL)") == "mine"


def test_the_pyzmq_interface_leaves_the_proxy_its_name() -> None:
    assert printed("import omq, omq.zmq; print(callable(omq.proxy))") == "True"


def test_threads_that_make_the_first_sockets_at_once() -> None:
    code = """
        import omq, threading
        ready = threading.Barrier(8)
        found = []
        def work():
            ready.wait()
            with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
                push.send(b"x")
                found.append(pull.recv(timeout=30))
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(len(found))
    """
    assert printed(code) == "8"


def test_the_first_socket_within_a_running_loop() -> None:
    code = """
        import asyncio
        async def main():
            import omq
            with omq.PULL(bind="inproc://x") as pull, omq.PUSH(connect="inproc://x") as push:
                push.send(b"x")
                return pull.recv(timeout=30)
        print(asyncio.run(main()))
    """
    assert printed(code) == "b'x'"


def test_exit_functions_of_the_program_use_sockets_made_later() -> None:
    """Registered after the import, they run before omq closes the sockets."""
    code = """
        import atexit, omq
        atexit.register(lambda: (push.send(b"last"), print(pull.recv(timeout=30))))
        pull = omq.PULL(bind="tcp://127.0.0.1:*")
        push = omq.PUSH(connect=pull.endpoints[0])
    """
    assert printed(code) == "b'last'"


def test_the_first_use_at_exit() -> None:
    assert printed("import atexit, omq; atexit.register(lambda: print(len(omq.curve_keypair())))") == "2"


def test_fork_functions_of_the_program_make_sockets_in_the_child() -> None:
    """Registered after the import, they run in a child whose default context is new."""
    code = """
        import os, omq
        def renew():
            with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
                push.send(b"child")
                os.write(1, pull.recv(timeout=30))
        os.register_at_fork(after_in_child=renew)
        with omq.PULL(bind="tcp://127.0.0.1:*"):
            child = os.fork()
            if not child:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    """
    assert printed(code) == "child"


def test_a_child_forked_before_the_first_use() -> None:
    code = """
        import os, omq
        child = os.fork()
        with omq.PULL(bind="tcp://127.0.0.1:*") as pull, omq.PUSH(connect=pull.endpoints[0]) as push:
            push.send(b"x")
            assert pull.recv(timeout=30) == b"x"
        if not child:
            os._exit(0)
        print(os.waitpid(child, 0)[1])
    """
    assert printed(code) == "0"


def test_a_fork_waits_for_the_first_use_in_another_thread() -> None:
    code = """
        import importlib.abc, os, signal, sys, threading, omq
        importing = threading.Event()
        class Slow(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == "omq.options":
                    importing.set()
                    threading.Event().wait(0.3)  # time for the fork
        sys.meta_path.insert(0, Slow())
        thread = threading.Thread(target=lambda: omq.PULL)
        thread.start()
        importing.wait()
        child = os.fork()
        if not child:
            signal.alarm(20)
            omq.PULL(bind="tcp://127.0.0.1:*").stop()
            os._exit(0)
        thread.join()
        print(os.waitpid(child, 0)[1])
    """
    assert printed(code) == "0"
