"""A network that loses packets: a namespace of the test's own, whose wires the test cuts."""

import shutil
import subprocess
import sys
import textwrap

import pytest

#: Loopback, and a device whose wire leads nowhere: what is sent to 192.0.2.0/24 is swallowed. In one of the two ways
#: that kernels know.
SETUP = """
ip link set lo up || exit 77
if ip link add d0 type dummy 2>/dev/null; then ip link set d0 up
else ip link add d0 type veth peer name d1 && ip link set d0 up && ip link set d1 up || exit 77; fi
ip addr add 192.0.2.1/24 dev d0 && ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev d0 || exit 77
exec "$0" -c "$1"
"""


def in_a_namespace(script):
    """Runs a program in a network of its own; gives the words that it prints. Skips where that is not allowed."""
    if not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs unshare(1) and ip(8)")
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", SETUP, sys.executable, textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no network namespaces here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_connect_that_never_returns_ends_with_its_timeout():
    kinds = in_a_namespace(
        """
        import omq
        push = omq.PUSH(connect_timeout=0.2, reconnect_interval=0.05)
        monitor = push.monitor()
        push.connect("tcp://192.0.2.9:5555")
        for _, event in zip(range(6), monitor):
            print(event.kind, "timeout" if "connect_timeout=0.2" in event.reason else "")
        push.stop()
        """
    )
    assert kinds == ["connect_delayed", "connect_failed", "timeout", "connect_retried"] * 2


def test_closing_ends_a_connect_that_never_returns():
    assert (
        in_a_namespace(
            """
        import time, omq
        push = omq.PUSH()
        monitor = push.monitor()
        push.connect("tcp://192.0.2.9:5555")
        assert monitor.recv(timeout=5).kind == "connect_delayed"
        begun = time.monotonic()
        push.close(linger=0)
        assert time.monotonic() - begun < 10
        """
        )
        == []
    )


def test_a_half_open_connection_is_noticed_by_both_ends():
    """The wire is cut: there is no FIN and no reset, and only heartbeats show it."""
    assert (
        in_a_namespace(
            """
        import subprocess, time, omq
        beating = {"heartbeat_interval": 0.1, "heartbeat_timeout": 0.2}
        pull = omq.PULL(bind="tcp://127.0.0.1:*", **beating)
        push = omq.PUSH(connect=pull.endpoints[0], reconnect_interval=0.1, **beating)
        pull.wait_connected(timeout=5)
        push.wait_connected(timeout=5)
        time.sleep(0.5)  # several intervals and more than a timeout
        assert len(pull.peers) == len(push.peers) == 1
        subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
        begun = time.monotonic()
        while pull.peers or push.peers:
            assert time.monotonic() - begun < 5, (pull.peers, push.peers)
            time.sleep(0.01)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        push.send(b"back", timeout=10)
        assert pull.recv(timeout=10) == b"back"
        push.stop()
        pull.stop()
        """
        )
        == []
    )
