"""Tokens for Amazon MSK by IAM: `Where(..., kafka_token="statelog.msk:token")`, with the extra `statelog[msk]`.

The environment gives the region, and the credentials that AWS's clients find there: variables, a profile, or the role
of the machine, the container or the pod. A token is a request that is signed locally, without a call to AWS; only the
credentials may have to be fetched.
"""

import os

from statelog.errors import ConfigError

_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")


def token() -> tuple[str, float]:
    """Return a token for a quarter of an hour, and its expiry in seconds since 1970.

    Raises ConfigError without the extra, a region, or any credentials.
    """
    region = next(filter(None, map(os.environ.get, _REGIONS)), None)
    if region is None:
        raise ConfigError("no AWS region is set", hint=f"Set {_REGIONS[0]} to the region of the cluster")
    try:
        from aws_msk_iam_sasl_signer.MSKAuthTokenProvider import generate_auth_token
    except ImportError as error:
        hint = "Install the extra: pip install 'statelog[msk]'"
        raise ConfigError(f"AWS's signer for MSK is not installed: {error}", hint=hint) from None
    try:
        text, expires_ms = generate_auth_token(region)
    except AttributeError:  # The signer reads the key of None if AWS's client finds no credentials.
        hint = "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
        raise ConfigError("AWS's client finds no credentials", hint=hint, region=region) from None
    return text, expires_ms / 1000
