"""A stand-in of the Hugging Face Hub: the part of its HTTP interface that ``huggingface_hub`` uses for models."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse


class Hub(BaseHTTPRequestHandler):
    """Keeps the files of repositories in memory: ``server.repositories[repo][path]``."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        parts = urlparse(self.path).path.strip("/").split("/")
        data = self.rfile.read(int(self.headers["Content-Length"] or 0))
        repositories = self.server.repositories
        if self.headers.get("Authorization") != "Bearer hf_right":
            return self.answer({"error": "Invalid username or password."}, status=401)
        if parts[:3] == ["api", "repos", "create"]:
            request = json.loads(data)
            repo = f"{request['organization']}/{request['name']}"
            known = repo in repositories
            repositories.setdefault(repo, {})
            return self.answer({"url": f"{self.server.address}/{repo}"}, status=409 if known else 200)
        if parts[:2] == ["api", "validate-yaml"]:
            return self.answer({"errors": [], "warnings": []})
        repo, action = "/".join(parts[2:4]), parts[4]
        if action == "preupload":
            files = [{"path": file["path"]} for file in json.loads(data)["files"]]
            return self.answer({"files": [file | {"uploadMode": "regular", "shouldIgnore": False} for file in files]})
        assert action == "commit"
        for line in map(json.loads, data.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                repositories[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del repositories[repo][value["path"]]
        sha = self.sha(repo)
        return self.answer(
            {"commitUrl": f"{self.server.address}/{repo}/commit/{sha}", "commitOid": sha, "success": True}
        )

    def do_GET(self):
        parts = urlparse(self.path).path.strip("/").split("/")
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        files = self.server.repositories.get(repo)
        if files is None:
            return self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        if parts[0] != "api":  # user/name/resolve/revision/path
            content = files["/".join(parts[4:])]
            headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": self.sha(repo)}
            return self.answer(content, 200, headers)
        if parts[4:5] == ["tree"]:
            return self.answer(
                [
                    {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for path, content in files.items()
                ]
            )
        siblings = [{"rfilename": path} for path in files]
        return self.answer({"id": repo, "modelId": repo, "sha": self.sha(repo), "siblings": siblings, "tags": []})

    do_HEAD = do_GET

    def sha(self, repo):
        """The name of the newest commit: a hash of all files."""
        files = sorted(self.server.repositories[repo].items())
        return hashlib.sha1(b"".join(path.encode() + content for path, content in files)).hexdigest()

    def answer(self, content, status=200, headers=()):
        if not isinstance(content, bytes):
            content, headers = json.dumps(content).encode(), {"Content-Type": "application/json"} | dict(headers)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def serving():
    """A hub that listens on ``server.address``, with its repositories in ``server.repositories``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    server.address, server.repositories = f"http://127.0.0.1:{server.server_port}", {}
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
