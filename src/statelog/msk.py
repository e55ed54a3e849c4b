"""Tokens for Amazon MSK by IAM: `Where(..., kafka_token="statelog.msk:token")`, with the extra `statelog[msk]`.

The region is that of the environment, and the credentials are what AWS's clients find there: variables, a profile, the
role of the machine, the container or the pod. A token is a request that is signed here: nobody is asked for it, though
the credentials may have to be fetched.
"""

import os

from statelog.errors import ConfigError

_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")


def token() -> tuple[str, float]:
    """A token, for a quarter of an hour, and when it expires, in seconds since 1970.

    Raises ConfigError without the extra, a region, or any credentials.
    """
    region = next(filter(None, map(os.environ.get, _REGIONS)), None)
    if region is None:
        raise ConfigError("no AWS region is set", hint=f"Set {_REGIONS[0]} to the region of the cluster")
    try:
        from aws_msk_iam_sasl_signer.MSKAuthTokenProvider import generate_auth_token
    except ImportError as error:
        hint = "pip install 'statelog[msk]'"
        raise ConfigError(f"AWS's signer for MSK is not installed: {error}", hint=hint) from None
    try:
        text, expires_ms = generate_auth_token(region)
    except AttributeError:  # What it asks for its key is None where AWS's own client has found nothing.
        hint = "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
        raise ConfigError("AWS's client finds no credentials", hint=hint, region=region) from None
    return text, expires_ms / 1000
