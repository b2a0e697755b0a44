"""A store that speaks as much S3 as an archive needs, and is strict: signatures, sums and conditions count.

It holds one bucket of bytes by key. `conditional` off: it is one of those that know no If-Match. Faults (a
status) are put down for it, and come before its answers; so does `lose`: the act is done and not answered.
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
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

ACCESS, SECRET = "AKIDHOLDFAST", "an-obvious/secret+of=tests"
CREDENTIAL = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(\w+)/(\d{8})/([\w-]+)/s3/aws4_request, ?"
    r"SignedHeaders=([\w;-]+), ?Signature=([0-9a-f]{64})"
)
PAGE = 3  # keys of one answer: so that every list has several


@dataclass
class Server:
    """What is in the bucket, and how it behaves."""

    bucket: str = "archive"
    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    faults: list[int | str] = field(default_factory=list[int | str])
    asked: list[str] = field(default_factory=list[str])
    conditional: bool = True
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/cold/rows?endpoint=http://127.0.0.1:{self.port}&region=auto"


def tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


@contextmanager
def serving() -> Iterator[Server]:
    """A store on this machine, for as long as it is needed."""
    server = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
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


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._act(self._get)

        def do_HEAD(self) -> None:
            self._act(self._get)

        def do_PUT(self) -> None:
            self._act(self._put)

        def do_DELETE(self) -> None:
            self._act(self._delete)

        def do_POST(self) -> None:
            self._act(self._delete_many)

        def _act(self, act: object) -> None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            self.query = parse_qsl(parts.query, keep_blank_values=True)
            self.key = unquote(parts.path).removeprefix(f"/{server.bucket}").removeprefix("/")
            server.asked.append(f"{self.command} {self.key}")
            fault = server.faults.pop(0) if server.faults else None
            if isinstance(fault, int):
                self._answer(fault, b"<Error><Code>Fault</Code></Error>")
                return
            if not self._signed():
                self._answer(403, f"<Error><AWSAccessKeyId>{ACCESS}</AWSAccessKeyId></Error>".encode())
                return
            with server.lock:
                status, body, headers = act()  # type: ignore[operator]
            if fault == "lose":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            self._answer(status, body, headers)

        def _get(self) -> tuple[int, bytes, dict[str, str]]:
            if not self.key:
                return 200, self._listed(), {"Content-Type": "application/xml"}
            if self.key not in server.objects:
                return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
            body = server.objects[self.key]
            return 200, body, {"ETag": tag(body), "Last-Modified": "Mon, 02 Mar 2026 08:00:00 GMT"}

        def _listed(self) -> bytes:
            asked = dict(self.query)
            found = sorted(key for key in server.objects if key.startswith(asked.get("prefix", "")))
            begin = int(asked.get("continuation-token", "0"))
            page, more = found[begin : begin + PAGE], len(found) > begin + PAGE
            listed = "".join(
                f"<Contents><Key>{escape(key)}</Key><LastModified>2026-03-02T08:00:00.000Z</LastModified>"
                f"<ETag>{escape(tag(server.objects[key]))}</ETag><Size>{len(server.objects[key])}</Size></Contents>"
                for key in page
            )
            token = f"<NextContinuationToken>{begin + PAGE}</NextContinuationToken>" if more else ""
            cut = "true" if more else "false"
            return (
                f"<ListBucketResult><KeyCount>{len(page)}</KeyCount><IsTruncated>{cut}</IsTruncated>"
                f"{token}{listed}</ListBucketResult>"
            ).encode()

        def _put(self) -> tuple[int, bytes, dict[str, str]]:
            there = server.objects.get(self.key)
            match, none = self.headers.get("If-Match"), self.headers.get("If-None-Match")
            if (match or none) and not server.conditional:
                return 501, b"<Error><Code>NotImplemented</Code></Error>", {}
            if none == "*" and there is not None:
                return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
            if match and (there is None or tag(there) != match):
                return (
                    (412 if there is not None else 404),
                    b"<Error><Code>PreconditionFailed</Code></Error>",
                    {},
                )
            server.objects[self.key] = self.body
            return 200, b"", {"ETag": tag(self.body)}

        def _delete(self) -> tuple[int, bytes, dict[str, str]]:
            server.objects.pop(self.key, None)
            return 204, b"", {}

        def _delete_many(self) -> tuple[int, bytes, dict[str, str]]:
            names = [
                one.text or "" for one in ElementTree.fromstring(self.body).iter() if one.tag.endswith("Key")
            ]
            for name in names:
                server.objects.pop(name, None)
            told = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
            return 200, f"<DeleteResult>{told}</DeleteResult>".encode(), {}

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _signed(self) -> bool:
            """Whether the request has the signature (version 4) of our secret, and that body."""
            found = CREDENTIAL.fullmatch(self.headers.get("Authorization", ""))
            if not found or found[1] != ACCESS:
                return False
            _, day, region, names, signature = found.groups()
            headers = "".join(f"{name}:{self.headers[name].strip()}\n" for name in names.split(";"))
            body = self.headers["x-amz-content-sha256"]
            if body not in ("UNSIGNED-PAYLOAD", hashlib.sha256(self.body).hexdigest()):
                return False
            path, pairs = urlsplit(self.path).path, sorted(self.query)
            query = "&".join(
                f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs
            )
            request = f"{self.command}\n{path}\n{query}\n{headers}\n{names}\n{body}"
            scope = f"{day}/{region}/s3/aws4_request"
            text = f"AWS4-HMAC-SHA256\n{self.headers['x-amz-date']}\n{scope}\n{_sha(request)}"
            key = f"AWS4{SECRET}".encode()
            for part in scope.split("/"):
                key = hmac.digest(key, part.encode(), "sha256")
            return hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), signature)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
