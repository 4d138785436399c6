"""Addresses of Redis stores: what is taken, and how mistakes are told without telling a password."""

import pytest

from perdure import StoreError
from perdure.storage.redis.address import address_of
from perdure.storage.urls import parse


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://localhost", "redis://localhost:6379/0?prefix=perdure"),
        ("redis://", "redis://localhost:6379/0?prefix=perdure"),
        ("REDIS://Host:7000/3?prefix=shop:jobs", "redis://host:7000/3?prefix=shop:jobs"),
        ("rediss://u:secret@host/1", "rediss://host:6379/1?prefix=perdure"),
        ("valkey://host", "valkey://host:6379/0?prefix=perdure"),
        ("valkeys://host", "valkeys://host:6379/0?prefix=perdure"),
        ("redis://[::1]:6380/0", "redis://[::1]:6380/0?prefix=perdure"),
        ("redis+unix:///run/redis.sock?db=2", "redis+unix:///run/redis.sock?prefix=perdure"),
        ("redis+sentinel://a,b:7,[::1]/shop", "redis+sentinel://a:26379,b:7,[::1]:26379/shop/0?prefix=perdure"),
        ("valkey+sentinel://u:p@a/shop/3?prefix=x", "valkey+sentinel://a:26379/shop/3?prefix=x"),
    ],
)
def test_what_is_taken(url, told):
    assert str(parse(url)) == told


def test_user_and_password_are_unquoted():
    address = address_of("redis://ada:p%40ss%2Fw%23rd@host")
    assert (address.username, address.password) == ("ada", "p@ss/w#rd")
    assert address_of("redis://:secret@host").password == "secret"
    assert address_of("redis://host").password is None


def test_names_of_the_product():
    assert [address_of(f"{scheme}://host").product for scheme in ("redis", "rediss", "valkey", "valkeys")] == [
        "Redis",
        "Redis",
        "Valkey",
        "Valkey",
    ]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis:/host", "two slashes"),
        ("redis://host:port", "this is no Redis URL"),
        ("redis://host:99999999", "this is no Redis URL"),
        ("redis://host/jobs", "a Redis database is a number"),
        ("redis://host/-1", "a Redis database is a number"),
        ("redis://host/٣", "a Redis database is a number"),
        ("redis://host?prefix=", "prefix=''"),
        ("redis://host?prefix=a{b}", "no braces"),
        ("redis://host?prefix=" + "a" * 65, "1 to 64"),
        ("redis://host?prefx=a", "did you mean prefix?"),
        ("redis://host?db=1", "stands in the path"),
        ("redis://host?ca=/x", "use rediss://"),
        ("redis://host?cert=/x", "cert= is for TLS: use rediss://"),
        ("redis+sentinel://a,b", "the name that they give the primary"),
        ("redis+sentinel://a,b/shop/x", "a Redis database is a number"),
        ("redis+sentinel://a:x/shop", "these are no Sentinels"),
        ("redis+sentinel://a/shop?db=1", "db= is not for Sentinels"),
        ("redis://:pass#word@host", "special characters of a password"),
        ("redis://host#1", "no #"),
        ("redis+unix://run/redis.sock", "three slashes"),
    ],
)
def test_mistakes(url, words):
    with pytest.raises(StoreError) as refused:
        parse(url)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["redis://:s3cret@host/x", "redis://:s3cret@host:1x", "redis://u:s3cret#@host", "redis://u:s3cret@host?prefix=+"],
)
def test_a_password_is_never_told(url):
    with pytest.raises(StoreError) as refused:
        parse(url)
    assert "s3cret" not in str(refused.value)


def test_an_address_does_not_show_its_password():
    address = address_of("redis://ada:s3cret@host")
    assert "s3cret" not in f"{address} {address!r}"
