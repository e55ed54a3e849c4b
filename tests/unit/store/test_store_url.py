"""Root URLs, paths and masking: allowed forms, their normal form, and refusals."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import ConfigError, InvalidName
from statelog.store.url import (
    check_options,
    check_path,
    check_prefix,
    is_temporary,
    log_url,
    mask_options,
    mask_url,
    parse_root,
    temporary_name,
)

CWD = Path("/home/somebody")


@pytest.mark.parametrize(
    ("given_url", "protocol", "url"),
    [
        ("state", "file", "file:///home/somebody/state"),
        ("./state/", "file", "file:///home/somebody/state"),
        ("/var/state", "file", "file:///var/state"),
        ("/var/a=b:c/x", "file", "file:///var/a=b:c/x"),
        ("file:///var/state/", "file", "file:///var/state"),
        ("file:///var/my%20state", "file", "file:///var/my state"),
        ("s3://bucket", "s3", "s3://bucket"),
        ("S3A://bucket/a/b/", "s3", "s3://bucket/a/b"),
        ("gcs://bucket/a", "gs", "gs://bucket/a"),
        ("webhdfs://hadoop@namenode:9870/state", "webhdfs", "webhdfs://hadoop@namenode:9870/state"),
        ("abfss://box@account.dfs.core.windows.net/a", "abfs", "abfs://box@account.dfs.core.windows.net/a"),
        ("memory://tests", "memory", "memory://tests"),
    ],
)
def test_allowed_roots_have_one_normal_form(given_url: str, protocol: str, url: str) -> None:
    """Each allowed spelling has one protocol and one URL, and that form is stable."""
    root = parse_root(given_url, cwd=CWD)
    assert (root.protocol, root.url) == (protocol, url)
    assert (root.local is not None) == (protocol == "file")
    assert parse_root(url, cwd=Path("/elsewhere")) == root


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://host/x",
        "https://host/x",
        "github://org:repo@/x",
        "ftp://host/x",
        "s3n://bucket/x",
        "simplecache::s3://bucket/x",
        "zip://a::file:///b",
        "reference://x",
        "s3://",
        "s3:///key",
        "s3://bucket/../x",
        "s3://bucket/a//b",
        "s3://bucket/a?versionId=1",
        "s3://bucket/a#b",
        "s3:/bucket/a",
        "file:/var/x",
        "file://host/var",
        "file:///a/../b",
        "file:///a/%2e%2e/b",
        "../state",
        "/a/../b",
        "/a\0b",
        "/a\nb",
        "file:///a%00b",
        "file:///a%0Ab",
        "a\\b",
        "webhdfs://host:port/x",
        "webhdfs://host/x",
    ],
)
def test_other_roots_are_refused(url: str) -> None:
    """Protocols outside of the list, chains, and paths that could mean another place are ConfigError."""
    with pytest.raises(ConfigError):
        parse_root(url, cwd=CWD)


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:canary@bucket/x",
        "s3://canary@bucket/x",
        "gs://user:canary@bucket/x",
        "webhdfs://user:canary@host:9870/x",
        "abfs://a:canary@b/x",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    """A URL with credentials is refused without repeating its password."""
    with pytest.raises(ConfigError) as caught:
        parse_root(url, cwd=CWD)
    assert ":canary" not in str(caught.value)


def test_masking_hides_passwords_and_nothing_else() -> None:
    """`user:password@` is masked wherever a URL is in a text, and the rest of the text is unchanged."""
    assert mask_url("see https://me:pw@host:9/x?y and s3://b/x@y:z") == "see https://***@host:9/x?y and s3://b/x@y:z"
    signed = "GET /r?sv=1&sig=a%2Fb&se=2 and /tokeninfo?access_token=secret, /o?X-Amz-Signature=cafe"
    shown = "GET /r?sv=1&sig=***&se=2 and /tokeninfo?access_token=***, /o?X-Amz-Signature=***"
    assert mask_url(signed) == shown


def test_masked_options_show_no_secret_at_any_depth() -> None:
    """Values under secret-looking names are masked at any depth. The others stay readable."""
    options = {
        "key": "canary",
        "secret": "canary",
        "endpoint_url": "http://u:canary@localhost:1",
        "client_kwargs": {"aws_session_token": "canary", "region_name": "eu"},
        "connection_string": "canary",
        "anon": False,
    }
    masked = mask_options(options)
    assert "canary" not in repr(masked)
    assert masked["client_kwargs"] == {"aws_session_token": "***", "region_name": "eu"}
    assert masked["endpoint_url"] == "http://***@localhost:1"


@pytest.mark.parametrize("log", ["..", "a/b", "", "a..b", "x" * 129, "a\nb"])
def test_a_log_name_cannot_change_the_place(log: str) -> None:
    """The URL of a log is made of checked names only."""
    with pytest.raises(InvalidName):
        log_url(parse_root("s3://bucket/root", cwd=CWD), log)


def test_the_url_of_a_log_is_below_its_root() -> None:
    """Root and name are joined by one slash."""
    assert log_url(parse_root("s3://bucket/root/", cwd=CWD), "orders") == "s3://bucket/root/orders"
    assert log_url(parse_root("/", cwd=CWD), "orders") == "file:///orders"


@settings(deadline=None)
@given(st.text(alphabet="ab./\\\0\n-t~", max_size=12))
def test_a_path_that_passes_stays_inside(path: str) -> None:
    """A path that passes the check is relative, below the directory, and never a temporary name."""
    try:
        check_path(path)
    except InvalidName:
        return
    parts = path.split("/")
    assert all(part not in ("", ".", "..") for part in parts)
    assert not is_temporary(path)
    assert Path("/log", path).is_relative_to("/log")
    assert check_prefix(path) == path


def test_temporary_names_are_recognised() -> None:
    """Names that temporary_name makes are recognised in any directory, and refused by the checks."""
    name = f"runs/{temporary_name('abc')}"
    assert is_temporary(name)
    assert not is_temporary("runs/abc.parquet")
    with pytest.raises(InvalidName):
        check_path(name)


def test_options_that_break_a_promise_are_refused() -> None:
    """No caller can turn a cache on, share a client, or pass options to a local root."""
    remote, local = parse_root("s3://bucket", cwd=CWD), parse_root("/state", cwd=CWD)
    check_options(remote, {"key": "a", "secret": "b"})
    check_options(local, {})
    for options in ({"use_listings_cache": True}, {"skip_instance_cache": False}, {"asynchronous": True}):
        with pytest.raises(ConfigError):
            check_options(remote, options)
    with pytest.raises(ConfigError):
        check_options(local, {"auto_mkdir": True})
