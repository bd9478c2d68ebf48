"""What can go wrong between us and the API server, as a short tree.

    KubeError
    ├── ConfigError          the kubeconfig or the service account cannot be used
    ├── InvalidName          a name that cannot be an object's name, refused before it becomes a URL
    ├── Unreachable          no answer: refused, reset, TLS, name resolution
    │   └── TimedOut         no answer in time
    │       └── WentSilent   no byte on a stream for too long: the connection is half open
    ├── Malformed            an answer that cannot be read
    └── ApiError             the API server answered, and said no
        ├── Unauthorized     401
        ├── Forbidden        403
        ├── NotFound         404
        ├── Conflict         409, also AlreadyExists
        ├── Gone             410, the resource version or the continue token has expired
        └── TooManyRequests  429

Every text says what failed, where, and what to do if that is not plain from the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_MAX_BODY_IN_TEXT = 300


class KubeError(Exception):
    """Anything that goes wrong between us and the API server."""


class ConfigError(KubeError):
    """The kubeconfig or the service account cannot be used."""


class InvalidName(KubeError, ValueError):
    """A name that cannot be an object's name; using it in a URL could reach another object."""


class Unreachable(KubeError):
    """No answer came. `sent` is False when the request certainly never left this machine."""

    def __init__(self, text: str, *, sent: bool = True) -> None:
        super().__init__(text)
        self.sent = sent


class TimedOut(Unreachable):
    """No answer in time."""


class WentSilent(TimedOut):
    """No byte on a stream for too long: the connection is half open."""


class Malformed(KubeError):
    """An answer that cannot be read: not JSON, or not of the expected shape."""


class ApiError(KubeError):
    """The API server's refusal: HTTP status, reason, message, and the request it answers."""

    hint = ""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        where: str,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(status, reason, message, where)
        self.status = status
        self.reason = reason
        self.message = message
        self.where = where
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        text = f"{self.where}: {self.status} {self.reason}: {self.message}"
        return f"{text} ({self.hint})" if self.hint else text


class Unauthorized(ApiError):
    """The credentials were refused, also after they were read again."""

    hint = "the credentials were read again and are still refused: expired, revoked, or not theirs"


class Forbidden(ApiError):
    """The identity lacks a permission; the message names verb and resource."""

    hint = "grant this to the identity; the roles gpushare needs are in deploy/"


class NotFound(ApiError):
    """No such object, or no such resource."""


class Conflict(ApiError):
    """The object is not in the state the request assumed, or exists already."""


class Gone(ApiError):
    """The resource version or continue token has expired: list again."""


class TooManyRequests(ApiError):
    """The API server sheds load; `retry_after_s` says when to come again."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: TooManyRequests,
}


class StatusDetails(msgspec.Struct, rename="camel", gc=False):
    """`details` of a Status, as far as used."""

    retry_after_seconds: int | None = None


class Status(msgspec.Struct, rename="camel", gc=False):
    """`meta/v1` Status: what the API server answers instead of an object."""

    reason: str = ""
    message: str = ""
    code: int = 0
    details: StatusDetails | None = None

    def error(
        self, where: str, http_status: int = 0, retry_after_s: float | None = None
    ) -> ApiError:
        """The typed error of this Status; `http_status` counts where the Status has no code."""
        code = self.code or http_status
        if retry_after_s is None and self.details and self.details.retry_after_seconds:
            retry_after_s = float(self.details.retry_after_seconds)
        kind = _BY_STATUS.get(code, ApiError)
        return kind(code, self.reason or "Unknown", self.message, where, retry_after_s)


_decode_status = msgspec.json.Decoder(Status).decode


def error_from_answer(
    http_status: int, body: bytes, where: str, headers: Mapping[str, str]
) -> ApiError:
    """The typed error of an HTTP answer that is not a success, whoever wrote it."""
    try:
        status = _decode_status(body)
    except msgspec.DecodeError:
        # A proxy or a load balancer in between speaks for itself.
        text = body[:_MAX_BODY_IN_TEXT].decode("utf-8", "replace").strip()
        status = Status(reason="NotFromAPIServer", message=text or "no text")
    retry_after = headers.get("Retry-After", "")
    return status.error(where, http_status, float(retry_after) if retry_after.isdigit() else None)
