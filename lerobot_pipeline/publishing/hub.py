"""A publication on the Hub: everything in one commit, or nothing."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    RepoFile,
    get_token,
    is_offline_mode,
)
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import disable_progress_bars
from huggingface_hub.utils import logging as client_logging

from lerobot_pipeline.errors import RunFailure, UsageError
from lerobot_pipeline.publishing.network import status_of, with_retries
from lerobot_pipeline.publishing.policy_files import is_publishable
from lerobot_pipeline.publishing.staging import Publication, PublishedFile

_COMMIT_TITLE = "Publish policy"


@dataclass(frozen=True)
class Pushed:
    """What the Hub holds after a publication."""

    commit: str
    url: str
    changed: bool
    """False when the repository held exactly this already, and no commit was made."""


class HubRepository:
    """One model repository on the Hub. Every method asks the Hub anew, so each may be called again after a failure."""

    def __init__(self, repo_id: str, private: bool) -> None:
        self.repo_id = repo_id
        self.private = private
        self._api = HfApi()
        # The client's own log lines and bars quote upload addresses, which are signed, and fill a batch job's log.
        client_logging.set_verbosity_error()
        if not sys.stderr.isatty():
            disable_progress_bars()

    def check(self) -> None:
        """Raise `UsageError` unless the token may write to the repository, or make it. Changes nothing on the Hub."""
        if is_offline_mode():
            raise UsageError("target", "hub, but HF_HUB_OFFLINE forbids the network; unset it or use --target=folder")
        if get_token() is None:
            raise UsageError("HF_TOKEN", "no Hugging Face token was found; set HF_TOKEN or run `hf auth login`")
        account = with_retries(self._api.whoami)
        if account.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise UsageError("HF_TOKEN", "the token may only read; make one with write access in the Hub's settings")
        if with_retries(self._is_there):
            with_retries(self._require_write_access)
            return
        owner = self.repo_id.partition("/")[0]
        writable = [team.get("name") for team in account.get("orgs", []) if team.get("roleInOrg") != "read"]
        if owner.lower() not in [str(name).lower() for name in (account.get("name"), *writable)]:
            raise UsageError(
                "repo_id", f"{self.repo_id} does not exist, and this token's account may not make it for {owner!r}"
            )

    def push(self, publication: Publication) -> Pushed:
        """Make the repository hold the publication, in one commit; files of ours that it no longer has are deleted.

        Raises `UsageError` (401, 403) or `RunFailure`. An empty repository may remain after a failure, never a part.
        """
        attempts: list[bool] = []

        def attempt() -> str:
            if not self._is_there():
                self._api.create_repo(self.repo_id, private=self.private, exist_ok=True)
            head, operations = self._pending(publication)
            # A try before this one may have been committed although its answer was lost: then nothing is pending.
            attempts.append(bool(operations))
            if not operations:
                return head
            commit = self._commit(publication, operations, parent=head)
            _, left = self._pending(publication, revision=commit)
            if left:
                names = ", ".join(operation.path_in_repo for operation in left)
                raise RunFailure(f"commit {commit} lacks or changes {names}; files changed during the upload")
            return commit

        commit = with_retries(attempt)
        return Pushed(commit, f"{_public_endpoint(self._api.endpoint)}/{self.repo_id}/tree/{commit}", any(attempts))

    def _is_there(self) -> bool:
        try:
            info = self._api.model_info(self.repo_id)
        except RepositoryNotFoundError:
            return False
        if self.private and info.private is False:
            raise UsageError("private", f"{self.repo_id} is public; give --private=false, or name another repository")
        return True

    def _require_write_access(self) -> None:
        try:
            self._api.auth_check(self.repo_id, write=True)
        except Exception as error:
            if status_of(error) in (403, 404):
                raise UsageError("repo_id", f"this token may not write to {self.repo_id}; use another") from error
            raise

    def _pending(
        self, publication: Publication, revision: str | None = None
    ) -> tuple[str, list[CommitOperationAdd | CommitOperationDelete]]:
        """The newest commit (or `revision`), and what a commit on it would have to change."""
        head = revision or self._api.model_info(self.repo_id).sha
        if head is None:
            raise RunFailure(f"the Hub gives no commit for {self.repo_id}; nothing was published, try again")
        tree = self._api.list_repo_tree(self.repo_id, revision=head)
        remote = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
        additions = [
            CommitOperationAdd(path_in_repo=file.path, path_or_fileobj=str(publication.directory / file.path))
            for file in publication.files
            if not _is_same(remote.get(file.path), file, publication.directory / file.path)
        ]
        wanted = {file.path for file in publication.files}
        stale = [name for name in remote if is_publishable(name) and name not in wanted]
        return head, [*additions, *(CommitOperationDelete(path_in_repo=name) for name in stale)]

    def _commit(
        self, publication: Publication, operations: list[CommitOperationAdd | CommitOperationDelete], parent: str
    ) -> str:
        with warnings.catch_warnings():
            # The Hub's hints about the card's metadata; errors in it are raised.
            warnings.simplefilter("ignore", UserWarning)
            return self._api.create_commit(
                self.repo_id,
                operations,
                commit_message=_COMMIT_TITLE,
                commit_description=f"Weights {publication.weights_digest}",
                parent_commit=parent,
            ).oid


def _is_same(remote: RepoFile | None, file: PublishedFile, path: Path) -> bool:
    if remote is None or remote.size != file.size:
        return False
    if remote.lfs is not None:
        return remote.lfs.sha256 == file.sha256
    return remote.blob_id == _git_blob_id(path, file.size)


def _git_blob_id(path: Path, size: int) -> str:
    """Git's name for a file's content: SHA-1 over `blob <size>`, a zero byte and the bytes (git-hash-object)."""
    digest = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            yield chunk


def _public_endpoint(endpoint: str) -> str:
    """The Hub's address without a user name and password that it may carry."""
    parts = urlsplit(endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
