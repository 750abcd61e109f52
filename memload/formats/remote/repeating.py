"""Requests to a store that are made again where they failed, and what their errors are where that cures nothing."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from memload.errors import ShardReadError, ShardWriteError
from memload.sizes import counted

_ATTEMPTS, _WRITING_ATTEMPTS = 8, 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before the second attempt, and before any other
_MOST_SAID = 300  # characters of what a store said
NO_BUCKET = "there is no such bucket"
_OF_BUCKETS = "check its name, and the endpoint that obstore takes from the environment or from its store object"
_NO_BUCKET_CODES = ("NoSuchBucket", "ContainerNotFound")  # of S3 and Google, and of Azure
_NO_TRUST = "InvalidCertificate"  # in the text of an error of obstore's
_NO_RANGES = "Range request not supported"  # likewise
_DEBUG = "Debug source:"  # what obstore says from here on is for those who develop it
_REASON = re.compile(r'\b(?:message|error): "((?:[^"\\]|\\.)*)"')  # in that part: the reason of the system, at the end
_METADATA = re.compile(  # requests to a service of a cloud machine, which are made where no credentials are stated
    r"//(?:169\.254\.170\.2/|[^/\s]+/(?:latest/(?:api/token|meta-data/iam/)|computeMetadata/v1/|metadata/identity/))"
)
_STATED = {
    "S3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (~/.aws is not read), or for a public bucket "
    "AWS_SKIP_SIGNATURE=true",
    "GCS": "set GOOGLE_APPLICATION_CREDENTIALS, or for a public bucket GOOGLE_SKIP_SIGNATURE=true",
    "MicrosoftAzure": "set AZURE_STORAGE_ACCOUNT_KEY, or for a public container AZURE_SKIP_SIGNATURE=true",
}
_CREDENTIALS = "check the credentials, which obstore takes from the environment or from its store object"

T = TypeVar("T")


@dataclass(frozen=True)
class Requests:
    """Requests for the objects under one address.

    Attributes:
        url: the address, for messages.
        patience: after so many seconds a request that failed twice is given up, since the store itself repeats, too.
    """

    url: str
    patience: float

    def url_of(self, name: str) -> str:
        """Return the address of an object."""
        return f"{self.url}/{name}"

    async def again(
        self,
        name: str,
        doing: str,
        request: Callable[[], Awaitable[T]],
        begin: int = 0,
        *,
        writing: bool = False,
        failed: int = 0,
        is_wanted: Callable[[], bool] | None = None,
    ) -> T:
        """Return the answer to a request, which is repeated where it fails and that may pass by.

        Args:
            name: of the object.
            doing: what the request does, such as "write it", for messages.
            request: makes the request once, and raises what `named` returns.
            begin: the first byte that it reads.
            writing: whether it writes.
            failed: how many attempts have failed just now, which count.
            is_wanted: whether the answer is still of use, which is asked before each further attempt.

        Raises:
            FileNotFoundError, FileExistsError, PermissionError, ShardReadError: those of the request, at once.
            ShardReadError, ShardWriteError: it failed again and again.
        """
        began, most = time.monotonic(), _WRITING_ATTEMPTS if writing else _ATTEMPTS
        if failed:
            await _pause(failed)
        for attempt in range(1 + failed, most + 1):
            try:
                return await request()
            except (FileNotFoundError, FileExistsError, PermissionError, ShardReadError):
                raise
            except Exception as error:
                took = time.monotonic() - began
                is_last = attempt == most or (is_wanted is not None and not is_wanted())
                if is_last or _stays(error) or (attempt > 1 and took >= self.patience):
                    tried = f"{counted(attempt, 'attempt')} in {took:.1f} s to {doing}"
                    raise self._given_up(name, tried, error, begin, writing) from error
            await _pause(attempt)
        raise AssertionError

    def _given_up(
        self, name: str, tried: str, error: Exception, begin: int, writing: bool
    ) -> ShardReadError | ShardWriteError:
        url = self.url_of(name)
        failed = f"{url}: {tried} failed; the last: {said(error)}. Check the address, the network and the store"
        if writing:
            return ShardWriteError(f"{failed}, and write again", file=url)
        return ShardReadError(f"{failed}; a loop goes on from the loader's state", file=url, offset=begin)

    def named(self, name: str, error: Exception) -> Exception:
        """Return the error of a request as what cannot be cured by another one, or else unchanged."""
        import obstore

        refusals, url, text = obstore.exceptions, self.url_of(name), str(error)
        is_bucket_missing = any(code in text for code in _NO_BUCKET_CODES)
        if isinstance(error, FileNotFoundError) or is_bucket_missing:  # listings have no error of their own
            missing = f"{NO_BUCKET}; {_OF_BUCKETS}" if is_bucket_missing else "there is no such object"
            return FileNotFoundError(f"{url}: {missing}")
        refused = (refusals.PermissionDeniedError, refusals.UnauthenticatedError)
        if isinstance(error, refused) or "status code: 403" in text or "status code: 401" in text:
            if _are_credentials_missing(text):  # the store was not asked
                return PermissionError(f"{url}: {said(error)}")
            return PermissionError(f"{url}: the store refuses it ({said(error)}); {_CREDENTIALS}")
        if _NO_RANGES in text:
            return ShardReadError(
                f"{url}: this server does not answer requests for ranges, which blocks of shards are read by; serve "
                "the folder by one that does, such as nginx, or copy it to this machine",
                file=url,
            )
        if isinstance(error, refusals.AlreadyExistsError):
            return FileExistsError(f"{url}: there is one already")
        return error


def _stays(error: Exception) -> bool:
    """Return whether further attempts fail as this one did."""
    return _NO_TRUST in str(error)


async def _pause(attempts: int) -> None:
    """Wait after so many attempts that failed."""
    pause = min(_FIRST_PAUSE * 2 ** (attempts - 1), _LONGEST_PAUSE)
    await asyncio.sleep(pause * random.uniform(0.5, 1))


def said(error: BaseException) -> str:
    """Return what an error says, in one line of bounded length, with what to do if credentials are missing."""
    text = str(error)
    if _NO_TRUST in text:
        return "its certificate is not one that this machine trusts; SSL_CERT_FILE names a file of others that are"
    told, _, debugging = text.partition(_DEBUG)
    if _are_credentials_missing(told):
        kind = next((kind for kind in _STATED if f"Generic {kind} error" in told), "S3")
        return f"no credentials are stated, and no metadata service of a cloud machine gives any: {_STATED[kind]}"
    line, reasons = " ".join(told.split())[:_MOST_SAID], _REASON.findall(debugging)
    return f"{line}: {reasons[-1]}" if reasons and reasons[-1] not in line else line


def _are_credentials_missing(text: str) -> bool:
    """Return whether the request that failed is one for credentials, which obstore makes where none are stated."""
    return _METADATA.search(text.partition(_DEBUG)[0]) is not None
