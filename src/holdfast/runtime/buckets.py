"""Opens buckets of stores that speak S3, for every app that keeps something in one. Asks nothing of them yet.

Credentials come from the standard AWS variables or from the machine's role; none are in an address, and
nothing that could be one is repeated in an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.errors import MissingExtra, SettingsError

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

PATIENCE = timedelta(seconds=30)  # for one answer of a bucket
OPTIONS = ("endpoint", "region", "anonymous")


def open_bucket(
    name: str,
    options: Mapping[str, str],
    *,
    what: str,
    extra: str,
    wrong: Callable[[str], SettingsError],
    prefix: str | None = None,
) -> S3Store:
    """The bucket of that name, by the options of its address; what is below `prefix` alone, if there is one.

    `what` and `extra` are for the error where the library is missing; `wrong` makes that of a wrong address
    out of what is wrong with it.
    """
    if unknown := sorted(options.keys() - set(OPTIONS)):
        raise wrong(f"has {', '.join(unknown)}, and a bucket only knows {', '.join(OPTIONS)}")
    try:
        from obstore import exceptions
        from obstore.store import S3Store
    except ImportError:
        raise MissingExtra(what=what, extra=extra) from None
    config: S3Config = {}
    if endpoint := options.get("endpoint"):
        target = urlsplit(endpoint)
        if target.scheme not in ("http", "https") or not target.hostname or target.username:
            raise wrong("must have an endpoint like https://host, without a user")
        # Both names, or a variable with the second one would take the place of what was set here.
        config |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
    if region := options.get("region"):
        config["region"] = region
    if (public := options.get("anonymous", "false")) not in ("true", "false"):
        raise wrong("must have true or false for anonymous")
    if public == "true":
        config["skip_signature"] = True
    try:
        return S3Store(
            name,
            prefix=prefix,
            config=config,
            client_options={"allow_http": (endpoint or "").startswith("http:"), "timeout": PATIENCE},
            retry_config={"max_retries": 0},  # how often and when is our business
        )
    except (exceptions.BaseError, ValueError):
        raise wrong("is refused by the library for buckets: look at the AWS variables, too") from None
