"""`broker.toml`: valid values are read, and errors name the place of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omq.broker.config import Config, ConfigError, TopicSpec, parse_topic, read_config, topic_spec
from omq.broker.core.permissions import Permission
from omq.broker.core.user_limits import UserLimit
from omq.broker.server import Server
from omq.broker.settings import DELIVERIES, InvalidSetting, check_topic
from omq.keyfiles import SecurityFiles

WHOLE = """
bind = ["tcp://127.0.0.1:*", "ipc:///tmp/broker"]
sexp = "tcp://127.0.0.1:*"
http = "127.0.0.1:0"

[[topic]]
name = "prices"
delivery = "broadcast"
persistence = "strong"
max_messages = 1_000_000
max_bytes = 10_000_000
max_age = 3600.5

[[topic]]
name = "jobs"
delivery = "round-robin"
persistence = "weak"
max_deliveries = 5
dead_letter = "jobs.dead"

[[topic]]
name = "plain"

[security]
mechanism = "plain"
users_file = "users"

[[permission]]
who = "alice"
topics = "prices*"
may = ["publish", "create"]

[[permission]]
who = "*"
topics = "*"
may = ["subscribe"]

[[user_limit]]
who = "*"
connections = 10
topics = 5

[[user_limit]]
who = "alice"
bytes = 1_000_000
publish_byte_rate = 1000
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "broker.toml"
    path.write_text(text)
    return path


def test_everything_is_read(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, WHOLE))
    assert config == Config(
        bind=("tcp://127.0.0.1:*", "ipc:///tmp/broker"),
        sexp="tcp://127.0.0.1:*",
        http="127.0.0.1:0",
        topics=(
            TopicSpec(
                "prices",
                "broadcast",
                "strong",
                {"max_messages": 1_000_000, "max_bytes": 10_000_000, "max_age": 3600.5},
            ),
            TopicSpec("jobs", "round-robin", "weak", {"max_deliveries": 5, "dead_letter": "jobs.dead"}),
            TopicSpec("plain", "broadcast", "strong"),
        ),
        security=SecurityFiles("plain", users_file=tmp_path / "users"),
        permissions=(Permission("alice", "prices*", ["publish", "create"]), Permission("*", "*", ["subscribe"])),
        user_limits=(
            UserLimit("*", connections=10, topics=5),
            UserLimit("alice", bytes=1_000_000, publish_byte_rate=1000),
        ),
    )


def test_a_topic_has_its_place(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    assert [topic.place for topic in read_config(path).topics] == [
        f'{path}: [[topic]] number {number} ("{name}")' for number, name in enumerate(("prices", "jobs", "plain"), 1)
    ]
    assert parse_topic("a:broadcast:weak").place == 'topic "a:broadcast:weak"'
    assert topic_spec({"name": "a"}).place == ""


def test_an_empty_file_is_the_default_configuration(tmp_path: Path) -> None:
    assert read_config(written(tmp_path, "")) == Config()


def test_security_of_the_caller_holds_instead_of_the_files(tmp_path: Path) -> None:
    instead = SecurityFiles("plain", users_file=Path("/elsewhere"))
    text = WHOLE.replace('mechanism = "plain"', 'mechanism = "no such"')
    assert read_config(written(tmp_path, text), security=instead).security is instead


FAULTS = {
    "unknown key": ('binds = "tcp://*:1"', ["binds", "tcp://*:1", "did you mean bind?"]),
    "bind": ("bind = 3", ["bind = 3"]),
    "bind in list": ('bind = ["tcp://*:1", 4]', ["bind", "4"]),
    "sexp": ("sexp = true", ["sexp = true"]),
    "http": ('http = "localhost"', ["http", '"localhost"', "HOST:PORT"]),
    "memory": ('memory = "yes"', ['memory = "yes"']),
    "topic as a table": ("[topic]\nname = 'a'", ["[[topic]]"]),
    "topic without a name": ("[[topic]]\ndelivery = 'broadcast'", ["[[topic]] number 1", "name is missing"]),
    "name": ("[[topic]]\nname = 3", ["[[topic]] number 1", "name = 3"]),
    "slash": ("[[topic]]\nname = 'a/b'", ["[[topic]] number 1", '"a/b"', "must not contain a slash"]),
    "long name": (f"[[topic]]\nname = '{'x' * 10240}'", ["[[topic]] number 1", "name", "has 10240 bytes"]),
    "newline": ('[[topic]]\nname = "a\\nb"', ["[[topic]] number 1", r"a\nb", "control"]),
    "delivery": (
        "[[topic]]\nname = 'a'\n[[topic]]\nname = 'b'\ndelivery = 'random'",
        ["[[topic]] number 2", '("b")', 'delivery = "random"', "round-robin"],
    ),
    "persistence": ("[[topic]]\nname = 'a'\npersistence = 'stong'", ["[[topic]] number 1", 'persistence = "stong"']),
    "setting": (
        "[[topic]]\nname = 'a'\nmax_message = 3",
        ["number 1", "max_message = 3", "did you mean max_messages?"],
    ),
    "count": ("[[topic]]\nname = 'a'\nmax_messages = 0", ["number 1", "max_messages = 0"]),
    "true is not a count": ("[[topic]]\nname = 'a'\nmax_bytes = true", ["max_bytes = true"]),
    "seconds": ("[[topic]]\nname = 'a'\nmax_age = -1.5", ["max_age = -1.5"]),
    "endless seconds": ("[[topic]]\nname = 'a'\nmax_age = inf", ["max_age = inf"]),
    "reader of a work queue": (
        "[[topic]]\nname = 'a'\ndelivery = 'round-robin'\nretain_for = 'b'",
        ['retain_for = "b"', "broadcast"],
    ),
    "no deliveries": ("[[topic]]\nname = 'a'\nmax_deliveries = 0", ["max_deliveries = 0", "whole number"]),
    "own dead letters": (
        "[[topic]]\nname = 'a'\ndelivery = 'round-robin'\ndead_letter = 'a'",
        ['dead_letter = "a"', "itself"],
    ),
    "twice": ("[[topic]]\nname = 'a'\n[[topic]]\nname = 'a'", ["[[topic]] number 2", '"a"', "duplicate"]),
    "table in a table": ("[[topic]]\nname = 'a'\n[topic.settings]\nmax_age = 1", ["[[topic]] number 1", "settings"]),
    "security": ("security = 'curve'", ["security", "[security]"]),
    "mechanism missing": ("[security]\nusers_file = 'u'", ["[security]", "mechanism is missing"]),
    "mechanism": ("[security]\nmechanism = 'gssapi'", ["[security]", 'mechanism = "gssapi"', "curve"]),
    "key of security": ("[security]\nmechanism = 'null'\nuser_file = 'u'", ["user_file", "did you mean users_file?"]),
    "file without use": (
        "[security]\nmechanism = 'null'\nusers_file = 'u'",
        ["[security]", "users_file", "does not use it"],
    ),
    "file missing": ("[security]\nmechanism = 'curve'", ["[security]", "secret_key_file is missing"]),
    "who missing": ("[[permission]]\ntopics = '*'\nmay = []", ["[[permission]] number 1", "who is missing"]),
    "may": (
        "[[permission]]\nwho = '*'\ntopics = '*'\nmay = ['publish', 'drink']",
        ["[[permission]] number 1", "may", "'drink'"],
    ),
    "who without security": (
        "[[permission]]\nwho = 'alice'\ntopics = '*'\nmay = ['publish']",
        ["[[permission]] number 1", 'who = "alice"', "[security]"],
    ),
    "who is not a key": (
        "[security]\nmechanism = 'curve'\nsecret_key_file = 'k'\n[[permission]]\nwho = 'al'\ntopics = '*'\nmay = []",
        ["[[permission]] number 1", 'who = "al"', "40 characters"],
    ),
    "limit without a user": ("[[user_limit]]\ntopics = 1", ["[[user_limit]] number 1", "who is missing"]),
    "key of a limit": (
        "[[user_limit]]\nwho = '*'\ntopic = 1",
        ["[[user_limit]] number 1", "topic = 1", "did you mean topics?"],
    ),
    "value of a limit": (
        "[[user_limit]]\nwho = '*'\ntopics = 1\n[[user_limit]]\nwho = '*'\nbytes = 0",
        ["[[user_limit]] number 2", "bytes=0", "whole number"],
    ),
    "user with two limits": (
        "[[user_limit]]\nwho = '*'\ntopics = 1\n[[user_limit]]\nwho = '*'\nbytes = 1",
        ["[[user_limit]] number 2", 'who = "*"', "duplicate"],
    ),
    "limit of a user without a mechanism": (
        "[[user_limit]]\nwho = 'alice'\ntopics = 1",
        ["[[user_limit]] number 1", 'who = "alice"', "[security]"],
    ),
    "connections without a mechanism": (
        "[[user_limit]]\nwho = '*'\nconnections = 1",
        ["[[user_limit]] number 1", "connections = 1", "use [limits]"],
    ),
    "limits that are not tables": ("user_limit = 3", ["user_limit must be an array of tables"]),
    "key of a permission": ("[[permission]]\nwhom = '*'", ["[[permission]] number 1", "whom", "did you mean who?"]),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_does_not_fit_is_named_with_its_place(tmp_path: Path, case: str) -> None:
    text, named = FAULTS[case]
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        read_config(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert [part for part in named if part not in message] == []
    assert len(message) < 700
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file"):
        read_config(tmp_path / "missing.toml")
    (tmp_path / "latin.toml").write_bytes(b'bind = "\xff"')
    with pytest.raises(ConfigError, match=r"latin\.toml is not valid TOML"):
        read_config(tmp_path / "latin.toml")
    with pytest.raises(ConfigError, match=r"broker\.toml is not valid TOML: .*line 1"):
        read_config(written(tmp_path, "bind = \nsexp = 1"))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("prices:broadcast:strong", TopicSpec("prices", "broadcast", "strong")),
        ("a:b:round-robin:weak", TopicSpec("a:b", "round-robin", "weak")),
        ("two words:broadcast:transient", TopicSpec("two words", "broadcast", "transient")),
        (
            "j:round-robin:async:max_age=0.5:max_messages=10:dead_letter=7",
            TopicSpec("j", "round-robin", "async", {"max_age": 0.5, "max_messages": 10, "dead_letter": "7"}),
        ),
    ],
)
def test_a_topic_of_the_command_line(text: str, spec: TopicSpec) -> None:
    assert parse_topic(text) == spec
    assert topic_spec(text) == spec


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prices", "NAME:DELIVERY:PERSISTENCE"),
        ("prices:strong", "NAME:DELIVERY:PERSISTENCE"),
        ("", "NAME:DELIVERY:PERSISTENCE"),
        (":broadcast:strong", "has 0 bytes"),
        ("prices:broadcst:strong", "broadcst"),
        ("prices:broadcast:stronk", "stronk"),
        ("prices:broadcast:strong:max_age", "max_age"),
        ("prices:broadcst:strong:max_age=5", "broadcst"),
        ("prices:broadcast:strong:max_age=soon", "soon"),
        ("prices:broadcast:strong:max_age=1:max_age=2", 'max_age="2": duplicate; give it once'),
    ],
)
def test_a_topic_of_the_command_line_that_does_not_fit(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_topic(text)


def test_the_forms_of_a_topic() -> None:
    spec = TopicSpec("t", "round-robin", "weak", {"max_age": 5})
    row = {"name": "t", "delivery": "round-robin", "persistence": "weak"}
    assert topic_spec(spec) is spec
    assert topic_spec({**row, "max_age": 5}) == spec
    assert topic_spec({**row, "settings": {"max_age": 5}}) == spec
    for wrong in (3, {"name": "t", "deliver": "x"}, {}):
        value: Any = wrong
        with pytest.raises(ConfigError):
            topic_spec(value)


CYCLE = ("a:round-robin:weak:dead_letter=b", "b:round-robin:weak:dead_letter=c", "c:round-robin:weak:dead_letter=a")


def test_topics_that_are_each_others_dead_letter_topics_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"topic \"a\": .* 'a' -> 'b' -> 'c' -> 'a'; give one of these"):
        Server(memory=True, topics=CYCLE)
    Server(memory=True, topics=CYCLE[:2])


def test_limits_and_heartbeat(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[limits]\nconnections = 100\n[heartbeat]\ninterval = 1\ntimeout = 2.5\n")
    config = read_config(file)
    assert (config.max_connections, config.heartbeat_interval, config.heartbeat_timeout) == (100, 1.0, 2.5)
    file.write_text("")
    config = read_config(file)
    assert (config.max_connections, config.heartbeat_interval, config.heartbeat_timeout) == (None, 5.0, 10.0)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[limits]\nconnections = 0", "connections = 0: must be a whole number of 1 or more"),
        ("[limits]\nconnections = true", "connections = true"),
        ("[limits]\nconnection = 5", "did you mean connections?"),
        ("limits = 5", "limits = 5"),
        ("[heartbeat]\ninterval = 0", "interval = 0: must be seconds"),
        ("[heartbeat]\ntimeout = '5'", "timeout ="),
        ("[heartbeat]\nttl = 5", "ttl = 5"),
    ],
)
def test_limits_that_do_not_fit_are_named(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"broker\.toml") as caught:
        read_config(file)
    assert named in str(caught.value)


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, "a/b", "a\nb", "a\x7fb", "a\x85b", "\ud800"])
def test_a_name_that_no_topic_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^name = "):
        TopicSpec(name)


@pytest.mark.parametrize(
    ("setting", "fit", "unfit"),
    [
        ("max_messages", [1, 2**62 - 1, None], [0, 2**62, True, 1.5, "1"]),
        ("max_age", [1, 0.5, 1e11], [0, 1e12, float("inf"), float("nan"), True, "1"]),
        ("dead_letter", ["a", "b"], ["b/", 7]),
        ("retain_for", ["archiver", "two words"], ["a/b", "", "x" * 256, 7]),
        ("retention", ["read"], ["Read", "limits", "", 1, True, ["read"]]),
        ("inactive_threshold", [1, 0.5, 1e11], [0, -1, 1e12, float("inf"), float("nan"), True, "1"]),
        ("retry_delay", [0, 0.5, [1, 2.5]], [[], [-1], -1, True, "1", float("nan"), [1] * 101]),
        ("overflow", ["reject", "block", "drop-oldest"], ["drop", 1]),
        ("unknown", [], [1]),
    ],
)
def test_the_values_of_settings(setting: str, fit: list[Any], unfit: list[Any]) -> None:
    only = {
        "dead_letter": "round-robin",
        "retry_delay": "round-robin",
        "retain_for": "broadcast",
        "retention": "broadcast",
        "inactive_threshold": "broadcast",
    }
    for delivery in DELIVERIES:
        others = {"max_bytes": 10} if setting == "overflow" else {}
        for value in fit:
            if only.get(setting, delivery) == delivery:
                check_topic(delivery, "weak", {**others, setting: value})
        for value in unfit:
            with pytest.raises(InvalidSetting, match=f"^{setting}="):
                check_topic(delivery, "weak", {**others, setting: value})
    for wrong in ({"overflow": "block"}, {"overflow": "block", "max_bytes": None}):
        with pytest.raises(InvalidSetting, match="needs max_messages or max_bytes"):
            check_topic("broadcast", "weak", wrong)
