"""A small Hub on 127.0.0.1 for tests: repositories with commits, LFS uploads, tokens, and faults on demand.

It answers the requests that `huggingface_hub` makes for a model repository, so that the real client can be run
against it. Content is kept in memory. Uploads go through the basic LFS transfer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

LFS_SUFFIX = ".safetensors"
_REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
_ROUTES: dict[str, tuple[str, re.Pattern[str]]] = {
    "whoami": ("GET", re.compile(r"/api/whoami-v2")),
    "create": ("POST", re.compile(r"/api/repos/create")),
    "validate": ("POST", re.compile(r"/api/validate-yaml")),
    "auth": ("GET", re.compile(rf"/api/models/{_REPO}/auth-check/write")),
    "tree": ("GET", re.compile(rf"/api/models/{_REPO}/tree/(?P<revision>\w+)")),
    "preupload": ("POST", re.compile(rf"/api/models/{_REPO}/preupload/main")),
    "commit": ("POST", re.compile(rf"/api/models/{_REPO}/commit/main")),
    "info": ("GET", re.compile(rf"/api/models/{_REPO}(/revision/(?P<revision>\w+))?")),
    "batch": ("POST", re.compile(rf"/{_REPO}\.git/info/lfs/objects/batch")),
    "upload": ("PUT", re.compile(r"/lfs/(?P<oid>[0-9a-f]{64})")),
    "download": ("GET", re.compile(rf"/{_REPO}/resolve/(?P<revision>\w+)/(?P<path>.+)")),
}


@dataclass
class Fault:
    """What goes wrong with the next `times` requests of a route (-1: with all of them).

    `drop` hangs up before the body is read, `lose answer` after the request took effect; `race` lets somebody else
    commit an `adapter_config.json` just before.
    """

    route: str
    kind: Literal["status", "drop", "lose answer", "race"]
    times: int = 1
    status: int = 503


@dataclass
class Repo:
    """One repository: its commits, oldest first, each with its whole tree (path -> content)."""

    private: bool
    commits: list[tuple[str, str, dict[str, bytes]]] = field(default_factory=list)

    @property
    def head(self) -> str:
        """Id of the newest commit."""
        return self.commits[-1][0]

    @property
    def tree(self) -> dict[str, bytes]:
        """Content of the newest commit."""
        return self.commits[-1][2]

    def add_commit(self, title: str, tree: dict[str, bytes]) -> str:
        """Append a commit and return its id."""
        parent = self.head if self.commits else ""
        text = json.dumps([parent, title, {path: hashlib.sha256(data).hexdigest() for path, data in tree.items()}])
        self.commits.append((hashlib.sha1(text.encode()).hexdigest(), title, dict(tree)))
        return self.head


class _Refused(Exception):
    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class HubServer:
    """The server; a context manager. `endpoint` is what `HF_ENDPOINT` has to be."""

    def __init__(self) -> None:
        self.tokens: dict[str, str] = {}
        """Token -> role (`write`, `read`). Every token belongs to the user `alice`."""
        self.repos: dict[str, Repo] = {}
        self.read_only: set[str] = set()
        """Repositories, or owners, that nobody may write to."""
        self.objects: dict[str, bytes] = {}
        """LFS objects by SHA-256."""
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        """Names of the routes that were asked, in order, failed ones included."""
        self.lock = threading.RLock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def endpoint(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def add_repo(self, repo_id: str, private: bool = True) -> Repo:
        """Make a repository as the Hub does, with a first commit of its own."""
        repo = self.repos[repo_id] = Repo(private)
        repo.add_commit("initial commit", {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"})
        return repo

    def next_fault(self, route: str) -> Fault | None:
        """Take the fault that this request meets, if any."""
        with self.lock:
            self.requests.append(route)
            for fault in self.faults:
                if fault.route == route and fault.times != 0:
                    fault.times -= 1
                    return fault
            return None

    def answer(self, route: str, match: re.Match[str], body: bytes, authorization: str) -> Any:
        """Handle one request; returns bytes or a JSON value, or raises `_Refused`."""
        with self.lock:
            if route == "upload":
                return self._upload(match["oid"], body)
            role = self.tokens.get(authorization.removeprefix("Bearer "))
            if role is None:
                raise _Refused(401, "Invalid credentials in Authorization header")
            action: Callable[[re.Match[str], bytes, str], Any] = getattr(self, f"_{route}")
            return action(match, body, role)

    def _whoami(self, match: re.Match[str], body: bytes, role: str) -> Any:
        return {"type": "user", "name": "alice", "orgs": [{"name": "lab"}], "auth": {"accessToken": {"role": role}}}

    def _create(self, match: re.Match[str], body: bytes, role: str) -> Any:
        wanted = json.loads(body)
        repo_id = f"{wanted['organization']}/{wanted['name']}"
        if repo_id in self.repos:
            raise _Refused(409, "You already created this model repo")
        self._require_write(wanted["organization"], role)
        self.add_repo(repo_id, private=wanted.get("visibility") == "private")
        return {"url": f"{self.endpoint}/{repo_id}"}

    def _validate(self, match: re.Match[str], body: bytes, role: str) -> Any:
        if not json.loads(body)["content"].startswith("---\n"):
            raise _Refused(400, "no metadata")
        return {"errors": [], "warnings": []}

    def _auth(self, match: re.Match[str], body: bytes, role: str) -> Any:
        self._require_write(match["repo"], role)
        return {}

    def _info(self, match: re.Match[str], body: bytes, role: str) -> Any:
        repo = self._repo(match)
        commit, tree = self._commit_at(repo, match["revision"] or "main")
        siblings = [{"rfilename": path} for path in tree]
        return {"id": match["repo"], "sha": commit, "private": repo.private, "siblings": siblings, "tags": []}

    def _tree(self, match: re.Match[str], body: bytes, role: str) -> Any:
        _, tree = self._commit_at(self._repo(match), match["revision"])
        return [_describe(path, content) for path, content in tree.items()]

    def _download(self, match: re.Match[str], body: bytes, role: str) -> bytes:
        _, tree = self._commit_at(self._repo(match), match["revision"])
        if match["path"] not in tree:
            raise _Refused(404, "Entry not found", "EntryNotFound")
        return tree[match["path"]]

    def download_headers(self, match: re.Match[str], content: bytes) -> dict[str, str]:
        """Return what the client's cache needs: the commit, and the content's own name."""
        commit, _ = self._commit_at(self._repo(match), match["revision"])
        return {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}

    def _preupload(self, match: re.Match[str], body: bytes, role: str) -> Any:
        self._repo(match)
        self._require_write(match["repo"], role)
        return {"files": [_upload_mode(entry["path"]) for entry in json.loads(body)["files"]]}

    def _batch(self, match: re.Match[str], body: bytes, role: str) -> Any:
        self._require_write(match["repo"], role)
        answers = []
        for wanted in json.loads(body)["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.objects:
                answer["actions"] = {"upload": {"href": f"{self.endpoint}/lfs/{wanted['oid']}?Signature=secret"}}
            answers.append(answer)
        return {"transfer": "basic", "objects": answers}

    def _upload(self, oid: str, body: bytes) -> bytes:
        if hashlib.sha256(body).hexdigest() != oid:
            raise _Refused(400, "content does not match its digest")
        self.objects[oid] = body
        return b""

    def _commit(self, match: re.Match[str], body: bytes, role: str) -> Any:
        repo = self._repo(match)
        self._require_write(match["repo"], role)
        header, *operations = [json.loads(line) for line in body.splitlines()]
        if header["value"].get("parentCommit", repo.head) != repo.head:
            raise _Refused(412, "A commit has happened since")
        tree = dict(repo.tree)
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                tree[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                tree[value["path"]] = self.objects[value["oid"]]
            elif operation["key"] == "deletedFile":
                del tree[value["path"]]
        oid = repo.add_commit(header["value"]["summary"], tree)
        return {"success": True, "commitOid": oid, "commitUrl": f"{self.endpoint}/{match['repo']}/commit/{oid}"}

    def _repo(self, match: re.Match[str]) -> Repo:
        if match["repo"] not in self.repos:
            raise _Refused(404, "Repository not found", "RepoNotFound")
        return self.repos[match["repo"]]

    def _commit_at(self, repo: Repo, revision: str) -> tuple[str, dict[str, bytes]]:
        wanted = repo.head if revision == "main" else revision
        for oid, _, tree in repo.commits:
            if oid == wanted:
                return oid, tree
        raise _Refused(404, "Revision not found", "RevisionNotFound")

    def _require_write(self, name: str, role: str) -> None:
        if role != "write" or {name, name.partition("/")[0]} & self.read_only:
            raise _Refused(403, f"You don't have the rights to write to {name}")


def _upload_mode(path: str) -> dict[str, Any]:
    return {"path": path, "uploadMode": "lfs" if path.endswith(LFS_SUFFIX) else "regular", "shouldIgnore": False}


def _describe(path: str, content: bytes) -> dict[str, Any]:
    size, digest = len(content), hashlib.sha256(content).hexdigest()
    lfs = {"oid": digest, "size": size, "pointerSize": 130} if path.endswith(LFS_SUFFIX) else None
    stored = f"pointer to {digest}".encode() if lfs else content
    blob = hashlib.sha1(f"blob {len(stored)}\0".encode() + stored).hexdigest()
    return {"type": "file", "path": path, "size": size, "oid": blob, **({"lfs": lfs} if lfs else {})}


def _handler_for(server: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            path = self.path.partition("?")[0]
            found = [
                (name, match)
                for name, (method, pattern) in _ROUTES.items()
                if method == self.command.replace("HEAD", "GET") and (match := pattern.fullmatch(path))
            ]
            if not found:
                self._send(404, json.dumps({"error": f"no such route: {self.command} {path}"}).encode())
                return
            route, match = found[0]
            fault = server.next_fault(route)
            if fault is not None and fault.kind == "drop":
                # Before the body is read: the client sees the connection break in the middle of its upload.
                self._hang_up()
                return
            body = self._read_body()
            if fault is not None and fault.kind == "status":
                self._send(fault.status, b"<html>Bad gateway</html>")
                return
            if fault is not None and fault.kind == "race":
                repo = server.repos[match["repo"]]
                repo.add_commit("by somebody else", repo.tree | {"adapter_config.json": b"{}"})
            self._answer(route, match, body, is_lost=fault is not None and fault.kind == "lose answer")

        do_GET = do_HEAD = do_POST = do_PUT = _serve

        def _answer(self, route: str, match: re.Match[str], body: bytes, is_lost: bool) -> None:
            try:
                value = server.answer(route, match, body, self.headers.get("Authorization", ""))
            except _Refused as refusal:
                headers = {"X-Error-Message": refusal.message, "X-Error-Code": refusal.code}
                self._send(refusal.status, json.dumps({"error": refusal.message}).encode(), headers)
                return
            if is_lost:
                self._hang_up()
            else:
                headers = server.download_headers(match, value) if route == "download" else {}
                self._send(200, value if isinstance(value, bytes) else json.dumps(value).encode(), headers)

        def _read_body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _hang_up(self) -> None:
            self.close_connection = True
            self.connection.close()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    return Handler
