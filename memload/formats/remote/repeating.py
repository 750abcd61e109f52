"""Requests to a store that are made again where they failed, and what their errors are where that cures nothing."""

from __future__ import annotations

import asyncio
import random
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
_NO_BUCKET_CODES = ("NoSuchBucket", "ContainerNotFound")  # of S3 and Google, and of Azure
_NO_TRUST = "InvalidCertificate"  # in the text of an error of obstore's

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
                if is_last or _NO_TRUST in str(error) or (attempt > 1 and took >= self.patience):
                    tried = f"{counted(attempt, 'attempt')} in {took:.1f} s to {doing}"
                    raise self._given_up(name, tried, error, begin, writing) from error
            await _pause(attempt)
        raise AssertionError

    def _given_up(
        self, name: str, tried: str, error: Exception, begin: int, writing: bool
    ) -> ShardReadError | ShardWriteError:
        url = self.url_of(name)
        failed = f"{url}: {tried} failed; the last: {said(error)}. Check the network and the store"
        if writing:
            return ShardWriteError(f"{failed}, and write again", file=url)
        return ShardReadError(f"{failed}, and go on from the loader's state", file=url, offset=begin)

    def named(self, name: str, error: Exception) -> Exception:
        """Return the error of a request as what cannot be cured by another one, or else unchanged."""
        import obstore

        refusals, url, text = obstore.exceptions, self.url_of(name), str(error)
        is_bucket_missing = any(code in text for code in _NO_BUCKET_CODES)
        if isinstance(error, FileNotFoundError) or is_bucket_missing:  # listings have no error of their own
            missing = NO_BUCKET if is_bucket_missing else "there is no such object"
            return FileNotFoundError(f"{url}: {missing}")
        refused = (refusals.PermissionDeniedError, refusals.UnauthenticatedError)
        if isinstance(error, refused) or "status code: 403" in text or "status code: 401" in text:
            return PermissionError(
                f"{url}: the store refuses it ({said(error)}); check the credentials, which obstore takes from the "
                "environment or from its store object"
            )
        if isinstance(error, refusals.AlreadyExistsError):
            return FileExistsError(f"{url}: there is one already")
        return error


async def _pause(attempts: int) -> None:
    """Wait after so many attempts that failed."""
    pause = min(_FIRST_PAUSE * 2 ** (attempts - 1), _LONGEST_PAUSE)
    await asyncio.sleep(pause * random.uniform(0.5, 1))


def said(error: BaseException) -> str:
    """Return what an error says, in one line of bounded length."""
    if _NO_TRUST in str(error):
        return "its certificate is not one that this machine trusts; SSL_CERT_FILE names a file of others that are"
    return " ".join(str(error).split())[:_MOST_SAID]
