"""A program with Jupyter's blocking client: it prints what its kernel has done, as JSON."""

import json
import sys
import time

from jupyter_client.manager import KernelManager

TIMEOUT_S = 60


class Session:
    """A kernel with a client."""

    def __init__(self, kernel: str, options: dict) -> None:
        self.manager = KernelManager(kernel_name=kernel, **options)
        self.manager.start_kernel()
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT_S)

    def run(self, code: str, **options) -> dict:
        """Runs a cell; returns its texts, its result and its error."""
        seen = {"stdout": "", "result": None, "error": None}

        def look(message: dict) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                seen[content["name"]] = seen.get(content["name"], "") + content["text"]
            elif message["msg_type"] == "execute_result":
                seen["result"] = content["data"]["text/plain"]
            elif message["msg_type"] == "error":
                seen["error"] = content["ename"]

        reply = self.client.execute_interactive(code, timeout=TIMEOUT_S, output_hook=look, **options)
        return {**seen, "status": reply["content"]["status"]}

    def interrupt(self, code: str) -> str:
        """Interrupts a cell that has begun; returns the name of its error."""
        number = self.client.execute(f"print('begun', flush=True)\n{code}", stop_on_error=False)
        while True:
            message = self.client.get_iopub_msg(timeout=TIMEOUT_S)
            if message["msg_type"] == "stream" and "begun" in message["content"]["text"]:
                break
        self.manager.interrupt_kernel()
        while True:
            reply = self.client.get_shell_msg(timeout=TIMEOUT_S)
            if reply["parent_header"]["msg_id"] == number:
                return reply["content"]["ename"]


def maps_of(pid: object) -> str:
    with open(f"/proc/{pid}/maps") as file:
        return file.read()


def beats(session: Session) -> bool:
    """Returns whether the heartbeat of the kernel arrives."""
    end = time.monotonic() + TIMEOUT_S
    while not session.client.hb_channel.is_beating():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def main(kernel: str, options: dict) -> None:
    session = Session(kernel, options)
    found = {"endpoint": session.client._make_url("shell"), "encrypted": session.manager.curve_secretkey is not None}
    found["maps"] = {"client": maps_of("self")}
    found["maps"]["kernel"] = session.run("print(open('/proc/self/maps').read())")["stdout"]
    found["execute"] = session.run("import math\nprint('out')\nmath.factorial(10)")
    found["error"] = session.run("1 / 0")
    found["many"] = session.run("for number in range(5000): print(number, flush=number % 10 == 0)")["stdout"]
    found["large"] = len(session.run("print('x' * 5_000_000)")["stdout"])
    found["input"] = session.run("print(input('name') * 2)", stdin_hook=lambda _: session.client.input("ab"))["stdout"]
    found["interrupt of a sleep"] = session.interrupt("import time\ntime.sleep(600)")
    found["interrupt of a loop"] = session.interrupt("while True: pass")
    found["after the interrupts"] = session.run("value = 6 * 7\nvalue")["result"]
    found["heartbeat"] = beats(session)
    first = session.run("import os\nos.getpid()")["result"]
    session.manager.restart_kernel(now=False)
    session.client.wait_for_ready(timeout=TIMEOUT_S)
    found["restart"] = {"other process": session.run("import os\nos.getpid()")["result"] != first}
    found["restart"]["names"] = session.run("value")["error"]
    session.manager.restart_kernel(now=True)
    session.client.wait_for_ready(timeout=TIMEOUT_S)
    found["restart"]["result after a kill"] = session.run("1 + 1")["result"]
    provisioner = session.manager.provisioner
    session.client.stop_channels()
    session.manager.shutdown_kernel(now=False)
    found["shut down"] = not session.manager.is_alive() and provisioner.process is None
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
