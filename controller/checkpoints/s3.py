"""S3 calls that obstore does not offer: copies and uploads in parts, continued after a kill.

CopyObject takes objects of at most 5 GiB; a larger one is copied by UploadPartCopy, part by part, inside the
store. Signing and the search for credentials are minio-py's, requests are urllib3's.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

import urllib3
from minio.credentials.providers import ChainedProvider, EnvAWSProvider, IamAwsProvider
from minio.signer import sign_v4_s3

from controller.checkpoints.errors import Damaged, Vanished, check_interrupted
from controller.checkpoints.workers import each

COPY_LIMIT = 5 << 30  # bytes that CopyObject takes
COPY_PART = 1 << 30  # bytes of a part copied inside the store: nothing of it comes by here
PARTS_MOST = 10_000  # of one upload
WORKERS = 3
UNSIGNED = "UNSIGNED-PAYLOAD"


class S3Error(Exception):
    """An answer that says no: HTTP status, and S3's own code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{code or 'no code'} ({status}): {message}")
        self.status, self.code = status, code


class Head(NamedTuple):
    """An object as it is: ``size`` in bytes, ``tag`` that changes with its content."""

    size: int
    tag: str


class Record(Protocol):
    """Record of one upload in parts, kept from try to try."""

    def load(self) -> dict[str, Any] | None: ...

    def save(self, entry: dict[str, Any]) -> None: ...

    def forget(self) -> None: ...


Send = Callable[[str, int, int, int], str]  # upload id, part number, start, size -> the part's ETag


class Bucket:
    """One bucket of an object store.

    Args:
        base: the URL of its root.
        name: of the bucket.
        region: of the bucket.
        provider: of the credentials.
    """

    def __init__(self, base: str, name: str, region: str, provider: Any) -> None:
        self.copy_limit, self.copy_part = COPY_LIMIT, COPY_PART
        self._base, self._name, self._region, self._provider = base.rstrip("/"), name, region, provider
        retries = urllib3.Retry(
            total=5, backoff_factor=0.3, status_forcelist=(500, 502, 503, 504), allowed_methods=None
        )
        retries.raise_on_status = False
        timeout = urllib3.Timeout(connect=10.0, read=300.0)
        self._http = urllib3.PoolManager(maxsize=WORKERS, retries=retries, timeout=timeout)

    @classmethod
    def of_environment(cls, name: str, environment: Mapping[str, str] = os.environ) -> Bucket:
        """As the environment describes it, by the variables that obstore reads too."""
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoints = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        endpoint = next((environment[v] for v in endpoints if environment.get(v)), "")
        hosted = environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("true", "1")
        base = endpoint or f"https://s3.{region}.amazonaws.com"
        if not (endpoint and hosted):
            base = f"{base.rstrip('/')}/{name}"
        provider = ChainedProvider([EnvAWSProvider(), IamAwsProvider()])
        return cls(base, name, region, provider)

    # -- whole objects -----------------------------------------------------------------------------------

    def head(self, key: str) -> Head:
        """Return size and tag of an object.

        Raises:
            Vanished: there is no such object.
        """
        answer = self._ask("HEAD", key)
        return Head(int(answer.headers["Content-Length"]), str(answer.headers.get("ETag", "")))

    def copy(self, source: str, target: str, size: int, tag: str, record: Record) -> None:
        """Copy an object inside the store, if it still has exactly this size and tag.

        A target that is there already in that size is left: only copies of the same content write to the same
        key.

        Raises:
            Vanished: the source is gone, or has other content by now.
        """
        if self._has(target, size):
            return
        origin = {
            "x-amz-copy-source": quote(f"/{self._name}/{source}"),
            "x-amz-copy-source-if-match": tag,
        }
        if size <= self.copy_limit:
            self._ask("PUT", target, headers=origin)
            return

        def send(upload: str, number: int, start: int, length: int) -> str:
            asked = {**origin, "x-amz-copy-source-range": f"bytes={start}-{start + length - 1}"}
            answer = self._ask("PUT", target, {"partNumber": str(number), "uploadId": upload}, headers=asked)
            return _text(_xml(answer.data), "ETag")

        self.in_parts(target, size, self.copy_part, send, record)

    # -- parts -------------------------------------------------------------------------------------------

    def in_parts(self, key: str, size: int, part: int, send: Send, record: Record) -> None:
        """Make an object of parts; an earlier try may have sent some of them.

        Args:
            key: of the object to make.
            size: bytes of the object.
            part: bytes of each part but the last; made more where there would be too many parts.
            send: writes one part.
            record: remembers the upload for the next try.
        """
        part = part_size(size, part)
        upload, tags = self._known(key, size, part, record)
        if not upload:
            upload = self._create(key)
            record.save({"key": key, "upload": upload, "part": part})
        missing = [n for n in range(1, -(-size // part) + 1) if n not in tags]

        def one(number: int) -> None:
            check_interrupted()
            start = (number - 1) * part
            tags[number] = send(upload, number, start, min(part, size - start))

        try:
            each(missing, one, WORKERS)
            self._complete(key, upload, tags)
        except (S3Error, Vanished) as error:
            # Another worker that went on with the same upload has brought it to its end.
            if getattr(error, "code", "") != "NoSuchUpload" or not self._has(key, size):
                raise
        record.forget()
        self._abort_others(key)

    def put_part(self, key: str, upload: str, number: int, data: bytes | bytearray) -> str:
        """Return one part's content; its ETag."""
        query = {"partNumber": str(number), "uploadId": upload}
        answer = self._ask("PUT", key, query, data)
        return str(answer.headers["ETag"])

    def abort(self, key: str, upload: str) -> None:
        """End an upload and let its parts go; one that is gone is fine."""
        with suppress(S3Error, Vanished):
            self._ask("DELETE", key, {"uploadId": upload})

    def _known(self, key: str, size: int, part: int, record: Record) -> tuple[str, dict[int, str]]:
        """Return the recorded upload and its whole parts; "" if there is none that can be gone on with."""
        entry = record.load()
        if entry is None or entry.get("key") != key or entry.get("part") != part:
            return "", {}
        upload = str(entry.get("upload"))
        try:
            parts = self._parts(key, upload)
        except (S3Error, Vanished):
            return "", {}
        last = -(-size // part)
        lengths = {n: part if n < last else size - (last - 1) * part for n in parts}
        return upload, {n: tag for n, (length, tag) in parts.items() if length == lengths[n]}

    def _parts(self, key: str, upload: str) -> dict[int, tuple[int, str]]:
        found: dict[int, tuple[int, str]] = {}
        marker = ""
        while True:
            query = {"uploadId": upload, **({"part-number-marker": marker} if marker else {})}
            root = _xml(self._ask("GET", key, query).data)
            for part in _all(root, "Part"):
                found[int(_text(part, "PartNumber"))] = int(_text(part, "Size")), _text(part, "ETag")
            if _text(root, "IsTruncated") != "true":
                return found
            marker, before = _text(root, "NextPartNumberMarker"), marker
            if marker == before or len(found) > PARTS_MOST:
                raise Damaged("the store lists the parts of an upload without end")

    def _create(self, key: str) -> str:
        return _text(_xml(self._ask("POST", key, {"uploads": ""}).data), "UploadId")

    def _complete(self, key: str, upload: str, tags: Mapping[int, str]) -> None:
        root = ElementTree.Element("CompleteMultipartUpload")
        for number in sorted(tags):
            part = ElementTree.SubElement(root, "Part")
            ElementTree.SubElement(part, "PartNumber").text = str(number)
            ElementTree.SubElement(part, "ETag").text = tags[number]
        self._ask("POST", key, {"uploadId": upload}, ElementTree.tostring(root))

    def _abort_others(self, key: str) -> None:
        """Abort uploads into the same object that a killed worker began and could not record."""
        try:
            root = _xml(self._ask("GET", "", {"uploads": "", "prefix": key}).data)
        except (S3Error, Vanished):
            return  # not everybody may list them
        for upload in _all(root, "Upload"):
            if _text(upload, "Key") == key:
                self.abort(key, _text(upload, "UploadId"))

    # -- requests ----------------------------------------------------------------------------------------

    def _has(self, key: str, size: int) -> bool:
        try:
            return self.head(key).size == size
        except Vanished:
            return False

    def _ask(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        body: bytes | bytearray = b"",
        headers: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Send one signed request and return the answer.

        Raises:
            Vanished: there is no such object, or not with the content that was asked for.
            S3Error: another answer that says no.
        """
        path = f"/{quote(key)}" if key else ""
        # Sorted and quoted as the signature's canonical form has them.
        text = urlencode(sorted((query or {}).items()), quote_via=quote, safe="")
        url = urlsplit(f"{self._base}{path}?{text}" if text else f"{self._base}{path}")
        now = datetime.now(UTC)
        # Over TLS nobody in between changes the body; a digest more of each part would be for nothing.
        sha256 = UNSIGNED if url.scheme == "https" else hashlib.sha256(body).hexdigest()
        sent: dict[str, Any] = {
            **(headers or {}),
            "Host": url.netloc,
            "x-amz-content-sha256": sha256,
            "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
        }
        if body:
            digest = hashlib.md5(body, usedforsecurity=False).digest()
            sent["Content-MD5"] = base64.b64encode(digest).decode()
        credentials = self._provider.retrieve()
        if credentials.session_token:
            sent["X-Amz-Security-Token"] = credentials.session_token
        signed = sign_v4_s3(
            method=method,
            url=url,
            region=self._region,
            headers=sent,
            credentials=credentials,
            content_sha256=sha256,
            date=now,
        )
        # urllib3 sends a bytearray as it is; to make bytes of it would hold it twice.
        answer = self._http.request(
            method, url.geturl(), body=cast(bytes, body) or None, headers=cast(Any, signed)
        )
        _check(answer, self.describe(key))
        return answer

    def describe(self, key: str) -> str:
        return f"s3://{self._name}/{key}"


def part_size(size: int, wanted: int) -> int:
    """Bytes of a part, a multiple of ``wanted``, so that an object has no more parts than it may."""
    return wanted * max(1, -(-size // (wanted * PARTS_MOST)))


def _check(answer: urllib3.BaseHTTPResponse, where: str) -> None:
    # A copy or a completion may fail after its status was sent: then the body is an error all the same.
    root = None
    if answer.data[:1] == b"<":
        root = _xml(answer.data)
    failed = root is not None and _bare(root.tag) == "Error"
    if answer.status < 300 and not failed:
        return
    code = _text(root, "Code") if root is not None and failed else ""
    message = _text(root, "Message") if root is not None and failed else str(answer.reason or "")
    if code == "NoSuchUpload":
        raise S3Error(answer.status, code, message)
    if answer.status == 404 or code in ("NoSuchKey", "NotFound"):
        raise Vanished(f"{where} is not there")
    if answer.status == 412 or code == "PreconditionFailed":
        raise Vanished(f"{where}: what was to be copied has been written anew since")
    raise S3Error(answer.status, code, message[:300])


def _xml(data: bytes) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        # Without a quote: the message goes into the status, and who answered may be no store at all.
        raise Damaged(f"the store answered {len(data)} bytes that are no XML") from error


def _bare(tag: str) -> str:
    return tag.rpartition("}")[2]  # stores differ in the namespace they name


def _all(root: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return [element for element in root if _bare(element.tag) == tag]


def _text(root: ElementTree.Element, tag: str) -> str:
    found = _all(root, tag)
    return (found[0].text or "") if found else ""
