"""A user's mistake is reported in the driver, in the first line."""

from typing import Any

import pytest

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("method", "options", "error"),
    [
        (
            "read",
            {"socket": "PULL", "connect": "tcp://h:1", "maxRow": "5"},
            "OptionError: unknown option 'maxrow'; did you",
        ),
        ("readStream", {"socket": "PULL", "connect": "tcp://h:1", "triggerSecond": "5"}, "OptionError: unknown option"),
        pytest.param(
            "readStream",
            {"socket": "PULL", "connect": ""},
            "OptionError: option connect='': must be an endpoint",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "read",
            {"connect": "tcp://h:1", "topik": "t"},
            "OptionError: unknown option 'topik'; did you mean 'topic'",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "read",
            {"socket": "PULL", "connect": "tcp//h", "maxRows": "1"},
            "OptionError: option 'connect': endpoint",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_invalid_option_of_a_read_is_reported_in_the_first_line(
    spark: Any, method: str, options: dict[str, str], error: str
) -> None:
    reader = getattr(spark, method).format("omq").options(**options)
    with pytest.raises(Exception, match=error) as caught:
        reader.load()
    first = str(caught.value).splitlines()[0]
    assert error in first
    assert "Traceback" not in str(caught.value)


def test_an_invalid_option_of_a_write_is_reported_in_the_first_line(spark: Any) -> None:
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    writer = frame.write.format("omq").mode("append").option("socket", "PUSH").option("connect", "tcp://h:1")
    with pytest.raises(Exception, match="OptionError") as caught:
        writer.option("topic", "t").save()
    assert "OptionError: options 'topic' and 'subscribers' are for a PUB" in str(caught.value).splitlines()[0]


def test_a_table_of_the_catalog_is_refused_with_what_to_do(spark: Any) -> None:
    with pytest.raises(Exception, match="createOrReplaceTempView"):
        spark.sql("CREATE TABLE ticks USING omq OPTIONS (socket 'PULL', connect 'tcp://h:1')")


def test_errors_of_an_executor_are_reported_without_a_traceback(spark: Any) -> None:
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    writer = frame.write.format("omq").mode("append").option("socket", "PUSH").option("connect", "tcp://127.0.0.1:1")
    with pytest.raises(Exception, match=r"connectTimeout=0\.3 s") as caught:
        writer.option("connectTimeout", 0.3).save()
    assert "Traceback" not in str(caught.value)
