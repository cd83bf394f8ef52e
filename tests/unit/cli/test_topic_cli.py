"""Arguments and output of `omq topic`, `omq durable` and `omq group`, without a broker."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from omq.broker.types import DurableInfo, Message, TopicInfo
from omq.cli import topic
from omq.cli.main import main
from omq.cli.report import print_fields, print_message, print_table

BROKER = "tcp://127.0.0.1:1"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "admin.md"
GROUPS = ("topic", "durable", "group")


def run(*words: str, broker: str | None = BROKER, **options: Any) -> Result:
    given = [] if broker is None else ["--broker", broker]
    return CliRunner().invoke(main, [*words, *given], catch_exceptions=False, **options)


def error_of(result: Result) -> str:
    """Returns the one line of the error."""
    (line,) = (line for line in result.output.splitlines() if line.startswith("Error: "))
    assert result.output.endswith(f"{line}\n")
    return line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("topic", "info", "a/b"), "'a/b'"),
        (("topic", "info", "a\udcff"), "UTF-8"),
        (("topic", "info"), "TOPIC"),
        (("topic", "create", "t", "max_age"), "max_age"),
        (("topic", "create", "t", "max_age=soon"), "max_age='soon'"),
        (("topic", "create", "t", "max_age=0"), "max_age=0"),
        (("topic", "create", "t", "max_age=1", "max_age=2"), "duplicate; give it once"),
        (("topic", "create", "t", "max_ages=1"), "did you mean max_age?"),
        (("topic", "create", "t", "overflow=block"), "max_messages"),
        (("topic", "create", "t", "dead_letter=t"), "dead_letter"),
        (("topic", "create", "t", "retain_for=x", "--delivery", "round-robin"), "retain_for"),
        (("topic", "create", "t", "--delivery", "some"), "--delivery"),
        (("topic", "create", "t", "--persistence", "some"), "--persistence"),
        (("topic", "alter", "t"), "KEY=VALUE"),
        (("topic", "alter", "t", "max_bytes=-1"), "max_bytes=-1"),
        (("topic", "alter", "t", "retry_delay=1,x"), "retry_delay"),
        (("topic", "alter", "t", "colour=none"), "unknown setting"),
        (("topic", "publish", "t", "b", "--lines"), "BODY does not go with --lines"),
        (("topic", "publish", "t", "b", "--file", __file__), "BODY does not go with --file"),
        (("topic", "publish", "t", "--file", "/nowhere/at/all"), "/nowhere/at/all"),
        (("topic", "publish", "t", "--lines", "--message-id", "m"), "--message-id does not go with --lines"),
        (("topic", "publish", "t", "b", "--message-id", ""), "--message-id"),
        (("topic", "publish", "t", "b", "--message-id", "m" * 256), "not 256"),
        (("topic", "publish", "t", "b", "--header", "source"), "NAME=VALUE"),
        (("topic", "publish", "t", "b", "--header", "a\udcff=1"), "UTF-8"),
        (("topic", "publish", "t", "b", "--header", "a=1", "--header", "a=2"), "given twice"),
        (("topic", "tail", "t", "--from", "now"), "--from"),
        (("topic", "tail", "t", "--from", "2026-03-01T09:00:00"), "time zone"),
        (("topic", "tail", "t", "--from", "1969-03-01T09:00:00Z"), "1970"),
        (("topic", "tail", "t", "--from", "9" * 5000), "--from"),
        (("topic", "tail", "t", "--limit", "0"), "--limit"),
        (("topic", "peek", "t", "--start", "latest"), "--start"),
        (("topic", "peek", "t", "--stop", "-1"), "--stop"),
        (("topic", "peek", "t", "--limit", "0"), "--limit"),
        (("topic", "purge", "t", "--up-to", "0", "--yes"), "--up-to"),
        (("topic", "requeue", "t", "--to", "a/b", "--yes"), "--to"),
        (("topic", "requeue", "t", "--limit", "0", "--yes"), "--limit"),
        (("topic", "delete", "t"), "--yes is missing"),
        (("topic", "purge", "t"), "--yes is missing"),
        (("topic", "requeue", "t"), "--yes is missing"),
        (("durable", "delete", "t", "d"), "--yes is missing"),
        (("group", "delete", "t", "g"), "--yes is missing"),
        (("durable", "delete", "t", "a/b", "--yes"), "NAME"),
        (("durable", "seek", "t", "d", "first"), "latest, earliest, an id or a time"),
        (("group", "seek", "t", "g", "first"), "latest, earliest, an id or a time"),
        (("topic", "ls", "--timeout", "0"), "--timeout"),
        (("topic", "ls", "--timeout", "nan"), "--timeout"),
        (("topic", "ls", "--broker-key-file", "/nowhere/at/all"), "--broker-key-file"),
    ],
)
def test_an_argument_that_is_not_valid_is_named(arguments: tuple[str, ...], named: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert named in error_of(result)


def test_an_endpoint_is_needed_and_checked() -> None:
    result = run("topic", "ls", broker=None, env={"OMQ_BROKER": None})
    assert result.exit_code == 2
    assert "--broker" in error_of(result)
    for result in (
        run("topic", "ls", broker="nonsense"),
        run("topic", "ls", broker=None, env={"OMQ_BROKER": "nonsense"}),
        run("ingest", "--socket", "PULL", "--topic", "t", broker=None, env={"OMQ_BROKER": "nonsense"}),
    ):
        assert result.exit_code == 2
        assert "--broker" in error_of(result)
        assert "nonsense" in error_of(result)


def test_a_cluster_has_several_endpoints(free_place: str) -> None:
    for result in (
        run("topic", "ls", "--timeout", "0.2", broker=f"{free_place}, {BROKER},"),
        run("topic", "ls", "--timeout", "0.2", broker=None, env={"OMQ_BROKER": f"{free_place},{BROKER}"}),
    ):
        assert result.exit_code == 1
        assert error_of(result) == result.output.rstrip("\n")
        text = rf"Error: not connected to a broker in time: (?=.*{free_place}: )(?=.*{BROKER}: )"
        assert re.match(text, result.output), result.output
    for wrong in (f"{free_place},nonsense", ",", ""):
        result = run("topic", "ls", broker=wrong)
        assert result.exit_code == 2
        assert "--broker" in error_of(result)


def test_files_of_the_security_are_checked(tmp_path: Path) -> None:
    user = tmp_path / "user"
    user.write_text("a:b\nc:d\n")
    user.chmod(0o600)
    result = run("topic", "ls", "--broker-user-file", str(user))
    assert result.exit_code == 2
    assert "one line name:password, not 2" in error_of(result)
    result = run("topic", "ls", env={"OMQ_BROKER_USER_FILE": str(user)})
    assert result.exit_code == 2
    assert "one line name:password, not 2" in error_of(result)


def test_a_broker_that_cannot_be_reached_is_an_error_of_one_line(free_place: str) -> None:
    result = run("topic", "ls", "--timeout", "0.2", broker=free_place)
    assert result.exit_code == 1
    assert error_of(result) == result.output.rstrip("\n")
    assert result.output.startswith(f"Error: --broker {free_place}: not connected to a broker in time")


def parameters_of(command: str, *words: str) -> dict[str, Any]:
    """Returns the parsed arguments of a command of `omq topic`."""
    return topic.topic.commands[command].make_context(command, [*words, "--broker", BROKER]).params


def test_settings_are_parsed_as_those_of_a_topic() -> None:
    words = ["t", "max_age=none", "retry_delay=1,2.5", "dead_letter=a:5", "max_bytes=7", "overflow=none"]
    assert parameters_of("alter", *words)["settings"] == {
        "max_age": None,
        "retry_delay": [1, 2.5],
        "dead_letter": "a:5",
        "max_bytes": 7,
        "overflow": None,
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("latest", "latest"),
        ("earliest", "earliest"),
        ("0", 0),
        ("17", 17),
        ("9" * 19, 10**19 - 1),
        ("2026-03-01T09:00:00Z", datetime(2026, 3, 1, 9, tzinfo=UTC)),
        ("2026-03-01T10:00+01:00", datetime(2026, 3, 1, 9, tzinfo=UTC)),
    ],
)
def test_a_position_is_a_word_an_id_or_a_time(text: str, found: object) -> None:
    assert parameters_of("tail", "t", "--from", text)["start"] == found
    if isinstance(found, str):
        with pytest.raises(click.BadParameter, match="must be an id or a time"):
            parameters_of("peek", "t", "--start", text)
    else:
        assert parameters_of("peek", "t", "--start", text)["start"] == found


def test_a_body_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic, "MAX_BODY_BYTES", 3)
    assert topic.read_body(io.BytesIO(b"abc")) == b"abc"
    with pytest.raises(click.UsageError, match="more than 3 bytes"):
        topic.read_body(io.BytesIO(b"abcd"))


# ---------------------------------------------------------------------- output

TOPICS = [
    TopicInfo(
        name="prices",
        id=1,
        delivery="broadcast",
        persistence="strong",
        first=3,
        last=1200,
        settings={"max_age": 86400.0, "retry_delay": [0.5, 1.0], "dead_letter": "x"},
    ),
    TopicInfo(name="j\u202e", id=12, delivery="round-robin", persistence="weak"),
]


def test_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(TopicInfo, TOPICS, False)
    assert capsys.readouterr().out.splitlines() == [
        "NAME     ID  DELIVERY     PERSISTENCE  FIRST  LAST  BYTES  SUBSCRIBERS  SETTINGS",
        "prices    1  broadcast    strong           3  1200      0            0"
        "  max_age=86400 retry_delay=0.5,1 dead_letter=x",
        "j\\u202e  12  round-robin  weak             0     0      0            0",
    ]
    print_table(DurableInfo, [], False)
    assert capsys.readouterr().out == "NAME  POSITION  LAG  HELD  ACTIVE\n"


def test_json_is_one_value(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(TopicInfo, TOPICS, True)
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found] == ["prices", "j\u202e"]
    assert found[0]["settings"] == {"max_age": 86400.0, "retry_delay": [0.5, 1.0], "dead_letter": "x"}
    print_table(TopicInfo, [], True)
    assert capsys.readouterr().out == "[]\n"
    print_fields(DurableInfo(name="d", position=7), True)
    assert json.loads(capsys.readouterr().out) == {"name": "d", "position": 7, "lag": 0, "held": False, "active": 0.0}


def test_fields_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields(DurableInfo(name="d", position=7, held=True, active=1.5), False)
    assert capsys.readouterr().out.splitlines() == [
        "name      d",
        "position  7",
        "lag       0",
        "held      yes",
        "active    1970-01-01T00:00:01.500000Z",
    ]


@pytest.mark.parametrize(
    ("key", "headers", "body", "line"),
    [
        (None, {}, b"a b", "7 1970-01-01T00:00:01.500000Z a b"),
        (None, {}, b"", "7 1970-01-01T00:00:01.500000Z"),
        (
            b"k",
            {"key": b"v", "x": b"\xff"},
            b"a\n\x1b",
            "7 1970-01-01T00:00:01.500000Z key=k key=v x_base64=/w== a\\n\\x1b",
        ),
        (b"\xff", {}, b"\xff", "7 1970-01-01T00:00:01.500000Z key_base64=/w== body_base64=/w=="),
    ],
)
def test_a_message_is_one_line(
    capsys: pytest.CaptureFixture[str], key: bytes | None, headers: dict[str, bytes], body: bytes, line: str
) -> None:
    message = Message(7, "t", body, key, headers, 1.5)
    print_message(message, False)
    assert capsys.readouterr().out == f"{line}\n"
    print_message(message, True)
    row = json.loads(capsys.readouterr().out)
    assert (row["topic"], row["id"], row["timestamp"]) == ("t", 7, 1.5)


# ---------------------------------------------------------------------- the page


@pytest.mark.parametrize("group", GROUPS)
def test_the_page_has_each_command_and_each_option(group: str) -> None:
    text = PAGE.read_text()
    of_all_commands = "".join(re.findall(r"^\| `--.*$", text, re.MULTILINE))
    found = main.get_command(click.Context(main), group)
    assert isinstance(found, click.Group)
    for name, command in found.commands.items():
        (row,) = re.findall(rf"^\| `omq {group} {name}\b.*$", text, re.MULTILINE)
        for option in (one for one in command.params if isinstance(one, click.Option)):
            assert f"`{option.opts[0]}" in row + of_all_commands, f"{group} {name}: {option.opts[0]}"
