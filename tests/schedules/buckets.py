"""A store that speaks enough S3 to read from, and is strict about it: every request must be signed rightly.

It holds one bucket of bytes by key. Faults are put down for it, and come before its answers.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

ACCESS, SECRET = "AKIDHOLDFAST", "an-obvious/secret+of=tests"
CREDENTIAL = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(\w+)/(\d{8})/([\w-]+)/s3/aws4_request, ?"
    r"SignedHeaders=([\w;-]+), ?Signature=([0-9a-f]{64})"
)


@dataclass
class Server:
    """What is in the bucket, which faults come next (a status, or `cut`), and which keys were asked for."""

    bucket: str = "captures"
    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    faults: list[int | str] = field(default_factory=list[int | str])
    asked: list[str] = field(default_factory=list[str])
    regions: list[str] = field(default_factory=list[str])
    open: bool = False  # to everybody
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}?endpoint={self.endpoint}&region=auto"


@contextmanager
def serving() -> Iterator[Server]:
    """A store on this machine, for as long as it is needed."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            prefix, path = f"/{server.bucket}/", unquote(self.path)
            server.asked.append(path.removeprefix(prefix))
            fault = server.faults.pop(0) if server.faults else None
            if fault == "cut":  # a body that ends before it is whole
                self._answer(200, b"half", length=8)
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            elif isinstance(fault, int):
                self._answer(fault, b"<Error><Code>Fault</Code></Error>")
            elif not server.open and not self._signed():
                self._answer(403, f"<Error><AWSAccessKeyId>{ACCESS}</AWSAccessKeyId></Error>".encode())
            elif path.startswith(prefix) and path.removeprefix(prefix) in server.objects:
                self._answer(200, server.objects[path.removeprefix(prefix)])
            else:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

        def _answer(self, status: int, body: bytes, length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.send_header("ETag", '"e"')
            self.send_header("Last-Modified", "Mon, 02 Mar 2026 08:00:00 GMT")
            self.end_headers()
            self.wfile.write(body)

        def _signed(self) -> bool:
            """Whether the request has the signature (version 4) of our secret."""
            found = CREDENTIAL.fullmatch(self.headers.get("Authorization", ""))
            if not found or found[1] != ACCESS:
                return False
            _, day, region, names, signature = found.groups()
            server.regions.append(region)
            headers = "".join(f"{name}:{self.headers[name].strip()}\n" for name in names.split(";"))
            body = self.headers["x-amz-content-sha256"]
            request = f"GET\n{self.path}\n\n{headers}\n{names}\n{body}"
            scope = f"{day}/{region}/s3/aws4_request"
            text = f"AWS4-HMAC-SHA256\n{self.headers['x-amz-date']}\n{scope}\n{_sha(request)}"
            key = f"AWS4{SECRET}".encode()
            for part in scope.split("/"):
                key = hmac.digest(key, part.encode(), "sha256")
            return hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), signature)

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.port = http.server_port
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
