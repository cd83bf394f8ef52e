"""Errors for optional dependencies that are not installed."""

from omq.serving.extras import missing_extra


def test_the_package_and_the_extra_are_named() -> None:
    error = missing_extra("omq.goby", ImportError("No module", name="google.protobuf"), "goby")
    assert str(error) == "omq.goby needs protobuf: pip install 'omq-zmtp[goby]'"
    assert error.name == "google.protobuf"


def test_an_error_that_is_explained_twice_stays_as_it_is() -> None:
    once = missing_extra("the broker", ModuleNotFoundError("No module", name="lmdb"), "broker")
    assert str(missing_extra("the broker", once, "broker")) == str(once)
