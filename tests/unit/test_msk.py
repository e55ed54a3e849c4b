"""Tokens for Amazon MSK, from AWS's own signer, with region and credentials of the environment, without a network."""

import base64
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from statelog import msk
from statelog.errors import ConfigError
from statelog.log import Where

KEY, SECRET = "AKIDEXAMPLE", "canary-7f3a-aws"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Set a region and keys in the environment, and no other place where AWS's client would look."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return monkeypatch


@pytest.fixture
def signer() -> None:
    """Skip without the extra `statelog[msk]`."""
    pytest.importorskip("aws_msk_iam_sasl_signer", reason="MSK's signer is not tested in this run: it is not installed")


@pytest.mark.usefixtures("signer")
@pytest.mark.parametrize("region", ["eu-central-1", "us-east-2"])
def test_a_token_is_a_signed_request_to_connect(aws: pytest.MonkeyPatch, region: str) -> None:
    """A token is for the environment's region, AWS_REGION first, lasts a quarter of an hour, and lacks the key."""
    aws.setenv("AWS_REGION", region)
    text, expires_s = msk.token()
    url = urlsplit(base64.urlsafe_b64decode(text + "==").decode())
    assert url.hostname == f"kafka.{region}.amazonaws.com"
    query = parse_qs(url.query)
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert query["X-Amz-Credential"][0].startswith(f"{KEY}/")
    assert 800 < expires_s - time.time() <= 900
    assert SECRET not in url.query


@pytest.mark.usefixtures("aws")
def test_it_is_named_in_a_where() -> None:
    """A `Where` has the function or its name, and another process needs no more."""
    kafka = {"bootstrap.servers": "b-1.example:9098"}
    assert Where(kafka, "/logs", kafka_token=msk.token) == Where(kafka, "/logs", kafka_token="statelog.msk:token")


def test_what_is_missing_is_told(aws: pytest.MonkeyPatch) -> None:
    """A missing extra or region is a typed error, without a traceback of AWS's client."""
    aws.setitem(sys.modules, "aws_msk_iam_sasl_signer.MSKAuthTokenProvider", None)
    with pytest.raises(ConfigError, match="is not installed") as caught:
        msk.token()
    assert "statelog[msk]" in caught.value.hint
    aws.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ConfigError, match="no AWS region"):
        msk.token()


@pytest.mark.usefixtures("signer")
def test_missing_credentials_are_told(aws: pytest.MonkeyPatch) -> None:
    """Missing credentials are an error with what to set, and not a missing attribute of None."""
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ConfigError, match="finds no credentials") as caught:
        msk.token()
    assert "AWS_PROFILE" in caught.value.hint
