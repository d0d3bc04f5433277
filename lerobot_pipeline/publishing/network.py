"""Network faults: which are worth another try, how long to wait, and what the user is told in one line."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator

import httpx
from huggingface_hub import get_session, get_token
from huggingface_hub.errors import HfHubHTTPError

from lerobot_pipeline.errors import PipelineError, RunFailure, UsageError

logger = logging.getLogger(__name__)

_WAITS_S = (1.0, 2.0, 4.0)
"""Pauses between the tries. The client tries each upload of its own several times before a try of ours counts."""

_TIMEOUT = httpx.Timeout(120.0, connect=20.0)
"""Seconds. The client's default waits for ever, so a silent server would hold a finished training job."""

_PASSING_STATUS = frozenset({408, 409, 412, 429, 500, 502, 503, 504})
"""Answers that another try may change: overload, and 409/412 when somebody else committed in between."""


def with_retries[Result](work: Callable[[], Result]) -> Result:
    """Return what `work` returns, trying again after a network fault.

    `work` has to look at the state of the Hub first, since the try before may have succeeded and lost the answer.
    Raises `UsageError` (token, rights, repository) or `RunFailure`, neither of which holds the token.
    """
    for wait_s in (*_WAITS_S, None):
        try:
            # At each try, because the client throws its session away after a refused connection.
            get_session().timeout = _TIMEOUT
            return work()
        except PipelineError:
            raise
        except Exception as error:
            if wait_s is None or not _is_passing(error):
                raise _as_pipeline_error(error) from error
            logger.info("%s; trying again in %.0f s", _describe(error), wait_s)
            time.sleep(wait_s)
    raise AssertionError("the last try returns or raises")


def status_of(error: BaseException) -> int | None:
    """HTTP status behind an error of the client, if an answer came at all."""
    for cause in _causes(error):
        if isinstance(cause, HfHubHTTPError):
            return cause.response.status_code
    return None


def _is_passing(error: BaseException) -> bool:
    status = status_of(error)
    if status is not None:
        return status in _PASSING_STATUS
    # A gateway's HTML page instead of JSON ends in a decoding error before the client looks at the status.
    return any(isinstance(cause, (httpx.TransportError, json.JSONDecodeError)) for cause in _causes(error))


def _as_pipeline_error(error: Exception) -> PipelineError:
    status = status_of(error)
    if status == 401:
        return UsageError("HF_TOKEN", "the Hub does not know this token (401); set a valid one or run `hf auth login`")
    if status == 403:
        return UsageError("repo_id", f"this token may not write there ({_describe(error)}); use another token")
    if _is_passing(error):
        # Not "nothing was published": the last answer that was lost may have been the commit's.
        tries = len(_WAITS_S) + 1
        return RunFailure(
            f"the Hub failed {tries} times ({_describe(error)}); it has all or nothing, so run this again"
        )
    return RunFailure(f"the Hub refused ({_describe(error)}); nothing was published")


def _describe(error: BaseException) -> str:
    """The fault without headers, query strings (signed addresses are secrets) or the token."""
    for cause in _causes(error):
        if isinstance(cause, HfHubHTTPError):
            said = f": {cause.server_message}" if cause.server_message else ""
            return _without_token(f"{cause.response.status_code} from {cause.response.url.path}{said}")
    root = list(_causes(error))[-1]
    return _without_token(f"{type(root).__name__}: {root}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _without_token(text: str) -> str:
    token = get_token()
    return text.replace(token, "<token>") if token else text
