"""The commands of the socket types as processes, with peers of omq and of libzmq."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import termios
import time
from pathlib import Path

import pytest
import zmq

import omq
from omq.cli.sockets.table import SOCKETS
from tests.support.fork_server import ForkedProcess
from tests.support.waits import until
from tests.system.cli.command_process import BOUND, failed, finished, on_terminal, run, screen_of, start

TCP = "tcp://127.0.0.1:*"


def lines(process: ForkedProcess, status: int = 0) -> list[bytes]:
    return finished(process, status).splitlines()


def read_line(process: ForkedProcess) -> bytes:
    return bytes(process.stdout.readline())


def bound(process: ForkedProcess) -> str:
    """Returns the endpoint that a command has bound."""
    line = process.stderr.readline().decode()
    assert line.startswith("omq: bound to "), line
    return str(line.split()[-1])


# ---------------------------------------------------------------------- one direction


def test_lines_become_messages_of_a_libzmq_peer_and_back() -> None:
    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        pull.setsockopt(zmq.RCVTIMEO, 20_000)
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        run("push", "-c", f"tcp://127.0.0.1:{port}", input=b"one\ntwo\tparts\nlast")
        assert [pull.recv_multipart() for _ in range(3)] == [[b"one"], [b"two", b"parts"], [b"last"]]
        process = start("pull", "-b", TCP, "-n", "2")
        push.connect(bound(process))
        push.send(b"one")
        push.send_multipart([b"two", b"parts"])
        assert finished(process) == b"one\ntwo\tparts\n"


def test_a_line_is_sent_as_soon_as_it_is_read() -> None:
    with omq.PULL(bind=TCP) as pull:
        process = start("push", "-c", pull.endpoints[0], stdin=subprocess.PIPE)
        for word in (b"first", b"second"):
            process.stdin.write(word + b"\n")
            process.stdin.flush()
            assert pull.recv(timeout=BOUND) == word
        process.stdin.close()
        process.stdin = None
        finished(process)


def test_many_lines_arrive_whole_and_in_order() -> None:
    text = b"".join(b"%d\n" % number for number in range(100_000))
    process = start("pull", "-b", TCP, "-n", "100000")
    endpoint = bound(process)
    sender = start("push", "-c", endpoint, stdin=subprocess.PIPE)
    sender.stdin.write(text)
    sender.stdin.close()
    sender.stdin = None
    assert finished(process) == text
    finished(sender)


@pytest.mark.parametrize("name", ["quoted", "hex", "json", "msgpack"])
def test_bytes_pass_two_commands_unchanged(name: str) -> None:
    message = [b"\x00\xff\n\t\\", "é".encode(), b""]
    receiver = start("pull", "-b", TCP, "-F", name, "-n", "1")
    with omq.PUSH(connect=bound(receiver)) as push:
        push.send_multipart(message)
        text = finished(receiver)
    with omq.PULL(bind=TCP) as pull:
        run("push", "-c", pull.endpoints[0], "-F", name, input=text)
        assert pull.recv_multipart(timeout=BOUND) == message


def test_files_and_directories_are_messages(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "b.bin").write_bytes(b"\n\x00")
    (tree / "below" / "a.bin").write_bytes(b"x" * 100_000)
    single = tmp_path / "single"
    single.write_bytes(b"alone")
    with omq.PULL(bind=TCP) as pull:
        endpoint = pull.endpoints[0]
        run("push", "-c", endpoint, single, tree)
        assert pull.recv(timeout=BOUND) == b"alone"
        assert pull.recv(timeout=BOUND) == b"\n\x00"
        assert pull.recv(timeout=BOUND) == b"x" * 100_000
        run("push", "-c", endpoint, "--with-names", tree)
        assert pull.recv_multipart(timeout=BOUND) == [b"b.bin", b"\n\x00"]
        assert pull.recv_multipart(timeout=BOUND) == [b"below/a.bin", b"x" * 100_000]
        single.write_bytes(b"two\nlines\n")
        run("push", "-c", endpoint, "-F", "text", single)
        assert [pull.recv(timeout=BOUND) for _ in range(2)] == [b"two", b"lines"]


def test_a_publisher_waits_for_a_subscription_and_repeats_data() -> None:
    process = start("pub", "-b", TCP, "-D", "AAPL 189.95", "-i", "0.01", "-n", "3")
    with omq.SUB(connect=bound(process), subscribe=b"AAPL") as sub:
        assert [sub.recv(timeout=BOUND) for _ in range(3)] == [b"AAPL 189.95"] * 3
        finished(process)


def test_a_subscriber_gets_the_messages_with_its_prefixes() -> None:
    with omq.PUB(bind=TCP) as pub:
        process = start("sub", "-c", pub.endpoints[0], "-s", "A", "-s", "B", "-n", "2")
        pub.wait_subscribed(n=2, timeout=BOUND)
        for word in (b"A1", b"C1", b"B1"):
            pub.send(word)
        assert finished(process) == b"A1\nB1\n"


def test_groups_of_radio_and_dish() -> None:
    with omq.DISH(bind=TCP, join=["weather", "news"]) as dish:
        run("radio", "-c", dish.endpoints[0], input=b"weather\tsunny\tand warm\n")
        message = dish.recv_message(timeout=BOUND)
        assert (message.group, message.body) == ("weather", b"sunny\tand warm")
        run("radio", "-c", dish.endpoints[0], "-g", "news", input=b"none\ttoday\n")
        message = dish.recv_message(timeout=BOUND)
        assert (message.group, message.body) == ("news", b"none\ttoday")
    with omq.RADIO(bind=TCP) as radio:
        process = start("dish", "-c", radio.endpoints[0], "-g", "weather", "-n", "1")
        radio.wait_subscribed("weather", timeout=BOUND)
        radio.send(b"sunny", group="weather")
        assert finished(process) == b"weather\tsunny\n"


def test_datagrams_are_sent_without_a_subscription(free_port: int) -> None:
    endpoint = f"udp://127.0.0.1:{free_port}"
    with omq.DISH(bind=endpoint, join="news") as dish:
        run("radio", "-c", endpoint, "-g", "news", "-D", "hello")
        assert dish.recv(timeout=BOUND) == b"hello"


def test_rate_and_count() -> None:
    with omq.PULL(bind=TCP) as pull:
        run("push", "-c", pull.endpoints[0], "-D", "x", "--rate", "1000", "-n", "50")
        assert [pull.recv(timeout=BOUND) for _ in range(50)] == [b"x"] * 50
        run("push", "-c", pull.endpoints[0], "-n", "1", input=b"first\nsecond\n")
        assert pull.recv(timeout=BOUND) == b"first"
        with pytest.raises(omq.ReceiveTimeout):
            pull.recv(timeout=0.1)


# ---------------------------------------------------------------------- two directions


def test_requests_and_replies() -> None:
    server = start("rep", "-b", TCP, "--exec", "tr a-z A-Z", "-n", "3")
    endpoint = bound(server)
    assert run("req", "-c", endpoint, input=b"one\ntwo\tparts\n") == b"ONE\nTWO\tPARTS\n"
    assert run("req", "-c", endpoint, "-D", "three") == b"THREE\n"
    assert finished(server) == b"one\ntwo\tparts\nthree\n"


def test_replies_from_standard_input_and_their_end() -> None:
    server = start("rep", "-b", TCP, stdin=subprocess.PIPE)
    server.stdin.write(b"first\n")
    server.stdin.close()
    server.stdin = None
    with omq.REQ(connect=bound(server)) as req:
        req.send(b"a")
        assert req.recv(timeout=BOUND) == b"first"
        req.send(b"b")
        assert "the input has ended" in failed(server)


@pytest.mark.parametrize("client", ["req", "dealer"])
def test_a_router_replies_to_the_peer_that_the_first_part_names(client: str) -> None:
    router = start("router", "-b", TCP, "-n", "1", stdin=subprocess.PIPE)
    process = start(client, "-c", bound(router), "--identity", "me", "-D", "hello", "-n", "1")
    envelope = b"me\t\t" if client == "req" else b"me\t"
    assert read_line(router) == envelope + b"hello\n"
    router.kill()
    echo = start("router", "-b", TCP, "--echo", "-n", "1")
    process.kill()
    assert run(client, "-c", bound(echo), "-D", "hello", "-n", "1") == b"hello\n"
    assert finished(echo).endswith(b"\thello\n")  # the identity may have a newline


def test_input_is_sent_while_messages_are_printed() -> None:
    with omq.PAIR(bind=TCP) as pair:
        process = start("pair", "-c", pair.endpoints[0], "-n", "2", stdin=subprocess.PIPE)
        pair.send(b"before")
        assert read_line(process) == b"before\n"
        process.stdin.write(b"input\n")
        process.stdin.flush()
        assert pair.recv(timeout=BOUND) == b"input"
        pair.send(b"after")
        assert finished(process) == b"after\n"


def test_a_server_names_its_clients_by_number() -> None:
    server = start("server", "-b", TCP, "-n", "2", stdin=subprocess.PIPE)
    with omq.CLIENT(connect=bound(server)) as client:
        client.send(b"hello")
        number, body = read_line(server).rstrip(b"\n").split(b"\t")
        assert (number.isdigit(), body) == (True, b"hello")
        server.stdin.write(number + b"\tgood\tday\n")
        server.stdin.flush()
        assert client.recv(timeout=BOUND) == b"good\tday"
        server.stdin.write(b"nonsense\n")
        server.stdin.flush()
        assert "must be the number of a peer" in failed(server)


def test_xpub_prints_subscriptions() -> None:
    process = start("xpub", "-b", TCP, "-F", "json", "-n", "1", "--wait", "0")
    with omq.SUB(connect=bound(process), subscribe=b"AAPL"):
        assert json.loads(finished(process)) == ["\x01AAPL"]


# ---------------------------------------------------------------------- security


def test_curve_keys_by_file(tmp_path: Path) -> None:
    for name in ("server", "client", "other"):
        run("keygen", tmp_path / name)
    (tmp_path / "allowed").write_text(omq.load_certificate(tmp_path / "client").public_key.decode())
    server = (
        "--curve-secret-key-file",
        tmp_path / "server_secret",
        "--curve-authorized-keys-file",
        tmp_path / "allowed",
    )
    process = start("pull", "-b", TCP, *server, "-n", "1")
    endpoint = bound(process)
    key = ("--curve-server-key-file", tmp_path / "server", "--curve-secret-key-file")
    refused = start("push", "-c", endpoint, *key, tmp_path / "other_secret", "-D", "no", "--linger", "0.5")
    assert "lost" in failed(refused)
    run("push", "-c", endpoint, *key, tmp_path / "client_secret", "-D", "yes")
    assert finished(process) == b"yes\n"


def test_plain_users_by_file(tmp_path: Path) -> None:
    users, user = tmp_path / "users", tmp_path / "user"
    users.write_text("joe:secret\nann:other\n")
    user.write_text("joe:secret\n")
    for path in (users, user):
        path.chmod(0o600)
    process = start("pull", "-b", TCP, "--plain-users-file", users, "-n", "1")
    run("push", "-c", bound(process), "--plain-user-file", user, "-D", "hello")
    assert finished(process) == b"hello\n"


# ---------------------------------------------------------------------- ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_receiver_with_status_0(number: int) -> None:
    process = start("pull", "-b", TCP)
    with omq.PUSH(connect=bound(process)) as push:
        push.send(b"hello")
        assert read_line(process) == b"hello\n"
        os.kill(process.pid, number)
        assert process.wait(BOUND) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sender_after_what_it_has_sent(number: int) -> None:
    with omq.PULL(bind=TCP) as pull:
        process = start("push", "-c", pull.endpoints[0], stdin=subprocess.PIPE)
        process.stdin.write(b"x\n" * 500)
        process.stdin.flush()
        assert pull.recv(timeout=BOUND) == b"x"
        os.kill(process.pid, number)
        assert process.wait(BOUND) == 0, process.stderr.read()
        assert [pull.recv(timeout=BOUND) for _ in range(499)] == [b"x"] * 499


@pytest.mark.parametrize("name", SOCKETS)
def test_a_signal_ends_each_command_that_has_nothing_to_do(name: str) -> None:
    process = start(name, "-b", TCP, *(["-g", "news"] if name == "dish" else []), stdin=subprocess.PIPE)
    bound(process)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(BOUND) == 0, process.stderr.read()
    assert all(b": no peer yet at " in line for line in process.stderr)


@pytest.mark.parametrize("name", ["push", "scatter", "pub", "radio", "req", "dealer", "pair", "client"])
def test_a_command_reports_that_it_waits_for_a_peer_and_ends_after_its_timeout(free_place: str, name: str) -> None:
    group = ["-g", "news"] if name == "radio" else []
    process = start(name, "-c", free_place, "-D", "x", "-t", "1.5", *group)
    _, err = process.communicate(BOUND)
    assert process.wait(BOUND) == 1
    first, last = err.decode().splitlines()
    assert first == f"omq: no peer yet at {free_place}; waits for one"
    assert last.startswith("Error: ")


def test_a_slow_peer_has_the_timeout_for_each_message_and_not_for_all() -> None:
    with omq.PULL(bind=TCP, recv_hwm=1, recv_buffer=4096) as pull:
        process = start("push", "-c", pull.endpoints[0], "-t", "1", "--send-hwm", "20", stdin=subprocess.PIPE)
        process.stdin.write((b"x" * 500_000 + b"\n") * 20)
        process.stdin.close()
        process.stdin = None
        for _ in range(20):
            assert len(pull.recv(timeout=BOUND)) == 500_000
            time.sleep(0.15)  # all of them together take three times the timeout
        assert finished(process) == b""


def test_a_quiet_command_and_one_whose_peer_is_there_report_nothing() -> None:
    process = start("push", "-q", "-c", "tcp://127.0.0.1:1", "-D", "x", "-t", "1.2")
    assert failed(process) == "Error: no peer has taken a message for 1.2 s (--timeout): those that wait are lost"
    with omq.PULL(bind=TCP) as pull:
        process = start("push", "-c", pull.endpoints[0], stdin=subprocess.PIPE)
        process.stdin.write(b"a\n")
        process.stdin.flush()
        assert pull.recv(timeout=BOUND) == b"a"
        time.sleep(1.5)  # longer than a command waits before it reports that
        process.stdin.close()
        process.stdin = None
        assert process.communicate(BOUND)[1] == b""


def test_messages_that_are_lost_at_a_signal_are_reported(free_place: str) -> None:
    process = start("push", "-v", "-c", free_place, "-D", "x", "-i", "0.01")
    assert b"connect_failed" in iter_until(process, b"connect_failed")
    os.kill(process.pid, signal.SIGINT)
    assert failed(process) == "Error: messages that no peer has taken are lost"


def iter_until(process: ForkedProcess, word: bytes) -> bytes:
    """Returns the first line of standard error with a word."""
    for line in process.stderr:
        if word in line:
            return bytes(line)
    raise AssertionError(f"no line with {word!r}")


def test_a_closed_pipe_ends_a_receiver_silently() -> None:
    process = start("pull", "-b", TCP)
    with omq.PUSH(connect=bound(process), linger=0) as push:
        process.stdout.close()
        process.stdout = None
        until(lambda: push.send(b"x" * 100, timeout=BOUND) or process.poll() is not None)
        assert process.wait(BOUND) == 1
        assert process.stderr.read() == b""


def test_a_full_disk_is_named() -> None:
    with open("/dev/full", "w") as full:
        process = start("pull", "-b", TCP, "-n", "1", stdout=full)
        with omq.PUSH(connect=bound(process)) as push:
            push.send(b"hello")
            assert failed(process) == "Error: standard output: No space left on device"


def test_a_slow_reader_holds_the_sender_back() -> None:
    """Nothing is lost: the receiver waits for its pipe, and the sender for the receiver."""
    process = start("pull", "-b", TCP, "-n", "3000")
    with omq.PUSH(connect=bound(process), send_hwm=10) as push:
        sent = push.send_many([b"%d" % number + b"." * 10_000 for number in range(3000)], timeout=1)
        assert 0 < sent < 3000
        found = [read_line(process) for _ in range(sent)]
        for number in range(sent, 3000):
            push.send(b"%d" % number + b"." * 10_000, timeout=BOUND)
            found.append(read_line(process))
    assert [int(line.split(b".")[0]) for line in found] == list(range(3000))
    finished(process)


def test_timeouts_end_with_status_1(free_place: str) -> None:
    assert "no message within 0.1 s" in failed(start("pull", "-b", TCP, "-t", "0.1"))
    assert "within 0.1 s" in failed(start("pub", "-b", TCP, "-D", "x", "-t", "0.1"))
    assert "no message within 0.1 s" in failed(start("req", "-c", free_place, "-D", "x", "-t", "0.1"))


def test_invalid_input_ends_after_what_is_before_it(free_place: str) -> None:
    process = start("push", "-c", free_place, "-F", "json", stdin=subprocess.PIPE)
    process.stdin.write(b'["good"]\n{"bad": 1}\n')
    process.stdin.flush()
    unread = bytearray(4)
    until(lambda: not fcntl.ioctl(process.stdin, termios.FIONREAD, unread) and unread == bytes(4))
    process.stdin.close()
    process.stdin = None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)  # it waits for its first peer
    with omq.PULL(bind=free_place) as pull:
        assert pull.recv(timeout=BOUND) == b"good"
        assert failed(process).startswith("Error: standard input: line 2: must be text")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("push",), "--bind or --connect is missing"),
        (("push", "-c", "nonsense"), "nonsense"),
        (("push", "-c", TCP), "tcp://127.0.0.1:*"),
        (("push", "-c", "tcp://127.0.0.1:1", "-D", "x", __file__), "--data does not go with FILE"),
        (("push", "-c", "tcp://127.0.0.1:1", "--with-names"), "--with-names is for FILE"),
        (("push", "-c", "tcp://127.0.0.1:1", "-i", "1", "--rate", "1"), "--interval does not go with --rate"),
        (("rep", "-b", TCP, "-e", "--exec", "cat"), "--echo does not go with --exec"),
        (("rep", "-b", TCP, "-e", "-D", "x"), "--echo does not go with --data"),
        (("push", "-b", TCP, "-F", "hex", "-D", "xyz"), "--data"),
        (("push", "-b", TCP, "-F", "hex", "--delimiter", "a"), "--delimiter"),
        (("push", "-b", TCP, "--delimiter", "\\q"), "--delimiter"),
        (("push", "-b", TCP, "/nowhere/at/all"), "/nowhere/at/all"),
        (("dish", "-b", TCP), "--group"),
        (("pull", "-b", TCP, "--curve-secret-key-file", __file__), "--curve-secret-key-file"),
        (("pull", "-b", TCP, "--curve-authorized-keys-file", __file__), "--curve-authorized-keys-file"),
        (("pull", "-b", TCP, "-t", "nan"), "--timeout"),
    ],
)
def test_an_argument_that_is_not_valid_is_named(words: tuple[str, ...], named: str) -> None:
    assert named in failed(start(*words), 2)


def test_an_endpoint_in_use_ends_with_status_1() -> None:
    with omq.PULL(bind=TCP) as pull:
        assert "address already in use" in failed(start("pull", "-b", pull.endpoints[0]))


# ---------------------------------------------------------------------- terminals


def test_bytes_are_escaped_on_a_terminal(free_place: str) -> None:
    process, terminal = on_terminal("pull", "-b", free_place, "-n", "1")
    with omq.PUSH(connect=free_place) as push:
        push.send_multipart([b"\x1b[2J\x00", b"ok"])
        assert process.wait(BOUND) == 0
    assert screen_of(terminal) == b"\\x1b[2J\\x00\tok\r\n"


def test_files_have_a_progress_bar_on_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    with omq.PULL(bind=TCP) as pull:
        process, terminal = on_terminal("push", "-c", pull.endpoints[0], path)
        assert pull.recv(timeout=BOUND) == b"x" * 1000
        assert process.wait(BOUND) == 0
        screen = screen_of(terminal)
    assert b"Sending" in screen
    assert b"100%" in screen
