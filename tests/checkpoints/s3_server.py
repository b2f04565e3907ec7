"""A small S3 of the test's own: one bucket in memory, the calls that obstore and our own client make."""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

TOO_LARGE = (
    b"<Error><Code>InvalidRequest</Code><Message>The specified copy source is larger than the maximum "
    b"allowable size for a copy source: 5368709120</Message></Error>"
)
WHEN = "2026-01-01T00:00:00.000Z"


class Bucket(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.refuse_writes = False
        self.copy_limit = 5 << 30  # bytes that one CopyObject takes

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Bucket

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _key(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        _, _, key = unquote(parts.path).lstrip("/").partition("/")
        return key, parse_qs(parts.query, keep_blank_values=True)

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _missing(self) -> None:
        self._send(404, b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>")

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        key, query = self._key()
        if "list-type" in query:
            self._list(query)
        elif "uploadId" in query:
            self._parts(query["uploadId"][0])
        elif "uploads" in query:
            self._send(200, b"<ListMultipartUploadsResult></ListMultipartUploadsResult>")
        elif key:
            self._get()
        else:
            self._missing()

    def _get(self) -> None:
        key, _ = self._key()
        with self.server.lock:
            data = self.server.objects.get(key)
        if data is None:
            self._missing()
            return
        status, body = 200, data
        extra: dict[str, str] = {}
        wanted = self.headers.get("Range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(data) - int(last))
            end = min(len(data), int(last) + 1) if first and last else len(data)
            status, body = 206, data[start:end]
            extra["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        self._send(status, body, {**self._about(data), **extra})

    def _parts(self, upload: str) -> None:
        with self.server.lock:
            parts = self.server.uploads.get(upload)
        if parts is None:
            self._send(404, b"<Error><Code>NoSuchUpload</Code></Error>")
            return
        listed = "".join(
            f"<Part><PartNumber>{n}</PartNumber><Size>{len(data)}</Size><ETag>x</ETag></Part>"
            for n, data in sorted(parts.items())
        )
        self._send(200, f"<ListPartsResult>{listed}</ListPartsResult>".encode())

    @staticmethod
    def _about(data: bytes) -> dict[str, str]:
        tag = f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        return {"ETag": tag, "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        with self.server.lock:
            keys = sorted(key for key in self.server.objects if key.startswith(prefix))
            sizes = {key: len(self.server.objects[key]) for key in keys}
        folders = {
            prefix + key[len(prefix) :].split(delimiter)[0] + delimiter
            for key in keys
            if delimiter and delimiter in key[len(prefix) :]
        }
        listed = [key for key in keys if not (delimiter and delimiter in key[len(prefix) :])]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{WHEN}</LastModified><ETag>&quot;x&quot;</ETag>"
            f"<Size>{sizes[key]}</Size></Contents>"
            for key in listed
        )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders)
        )
        body = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>bucket</Name>'
            f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(listed)}</KeyCount><MaxKeys>1000</MaxKeys>"
            f"<IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"
        )
        self._send(200, body.encode(), {"Content-Type": "application/xml"})

    def do_PUT(self) -> None:
        key, query = self._key()
        body = self._body()
        if self.server.refuse_writes:
            self._send(403, b"<Error><Code>AccessDenied</Code><Message>no writing here</Message></Error>")
            return
        source = self.headers.get("x-amz-copy-source")
        with self.server.lock:
            if source is not None:
                body = self.server.objects[unquote(source).lstrip("/").partition("/")[2]]
                asked = self.headers.get("x-amz-copy-source-range")
                if asked is None and len(body) > self.server.copy_limit:
                    self._send(400, TOO_LARGE)
                    return
                if asked is not None:
                    first, _, last = asked.removeprefix("bytes=").partition("-")
                    body = body[int(first) : int(last) + 1]
            if "uploadId" in query:
                self.server.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
            else:
                self.server.objects[key] = body
        about = self._about(body)
        if source is not None:
            xml = f"<CopyObjectResult><ETag>x</ETag><LastModified>{WHEN}</LastModified></CopyObjectResult>"
            self._send(200, xml.encode())
        else:
            self._send(200, b"", about)

    def do_POST(self) -> None:
        key, query = self._key()
        body = self._body()
        if "uploads" in query:
            with self.server.lock:
                upload = str(len(self.server.uploads) + 1)
                self.server.uploads[upload] = {}
            xml = (
                "<InitiateMultipartUploadResult><Bucket>bucket</Bucket>"
                f"<Key>{escape(key)}</Key><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            )
        elif "uploadId" in query:
            with self.server.lock:
                parts = self.server.uploads.pop(query["uploadId"][0])
                self.server.objects[key] = b"".join(parts[number] for number in sorted(parts))
            xml = (
                "<CompleteMultipartUploadResult><Location>x</Location><Bucket>bucket</Bucket>"
                f"<Key>{escape(key)}</Key><ETag>x</ETag></CompleteMultipartUploadResult>"
            )
        else:  # bulk delete
            keys = [part.partition("</Key>")[0] for part in body.decode().split("<Key>")[1:]]
            with self.server.lock:
                for gone in keys:
                    self.server.objects.pop(gone, None)
            deleted = "".join(f"<Deleted><Key>{gone}</Key></Deleted>" for gone in keys)
            xml = f"<DeleteResult>{deleted}</DeleteResult>"
        self._send(200, xml.encode())

    def do_DELETE(self) -> None:
        key, query = self._key()
        with self.server.lock:
            if "uploadId" in query:
                self.server.uploads.pop(query["uploadId"][0], None)
            else:
                self.server.objects.pop(key, None)
        self._send(204)


@contextmanager
def bucket() -> Iterator[Bucket]:
    """A running server; its bucket is called ``bucket``."""
    server = Bucket()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
