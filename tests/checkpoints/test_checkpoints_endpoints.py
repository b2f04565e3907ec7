"""Where an object store may be: not at a metadata service, nor on the machine itself, nor in the open."""

from __future__ import annotations

import pytest

from controller.checkpoints import endpoints
from controller.checkpoints.endpoints import check, parse, problem
from controller.checkpoints.errors import AccessError, Reason
from controller.checkpoints.object_store import ObjectStore
from controller.checkpoints.stores import open_store

DEFAULT = parse(endpoints.DEFAULT)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "https://169.254.169.254",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://[::ffff:169.254.169.254]/",
        "http://2852039166/",
        "http://0xa9fea9fe/",
        "http://0251.0376.0251.0376/",
        "http://169.254.43518/",
        "https://metadata.google.internal/",
        "https://METADATA.google.internal./",
        "http://100.100.100.200",
        "http://0.0.0.0:80",
    ],
)
def test_a_metadata_service_is_never_a_store(url: str) -> None:
    assert problem(url, parse(",".join(endpoints.KINDS))) is not None


@pytest.mark.parametrize(
    ("url", "opened_by"),
    [
        ("https://s3.eu-central-1.amazonaws.com", None),
        ("https://store.example.org:9000", None),
        ("http://minio.team.svc:9000", None),
        ("http://minio.team.svc.cluster.local:9000/", None),
        ("http://minio:9000", None),
        ("http://10.1.2.3:9000", None),
        ("http://store.example.org", "Http"),
        ("http://8.8.8.8", "Http"),
        ("http://127.0.0.1:9000", "Loopback"),
        ("https://localhost:9000", "Loopback"),
        ("https://[::1]", "Loopback"),
    ],
)
def test_what_is_refused_is_opened_by_a_setting(url: str, opened_by: str | None) -> None:
    assert (problem(url, DEFAULT) is None) == (opened_by is None)
    if opened_by is not None:
        assert problem(url, DEFAULT | {opened_by}) is None


@pytest.mark.parametrize("url", ["file:///etc", "169.254.169.254", "gopher://x", "http://", "http://[x"])
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    assert problem(url, parse(",".join(endpoints.KINDS))) is not None


def test_the_variable_is_named_and_credentials_may_come_from_where_they_do() -> None:
    credentials = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://169.254.169.254",
        "AZURE_MSI_ENDPOINT": "http://169.254.169.254/metadata",
    }
    check(credentials)
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ENDPOINT"):
        with pytest.raises(AccessError) as caught:
            check({**credentials, name: "http://169.254.169.254"})
        assert caught.value.reason is Reason.BAD_REQUEST
        assert caught.value.message.startswith(f"{name} of the trainer's container: ")
        assert endpoints.ALLOWED_ENV in caught.value.message
    with pytest.raises(ValueError, match="'Everywhere': expected some of Https, ClusterHttp, Http, Loopback"):
        parse("Everywhere")


def test_the_access_program_asks_before_it_opens_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://169.254.169.254")
    with pytest.raises(AccessError) as caught:
        open_store("s3://bucket/run")
    assert caught.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize(
    "uri", ["s3a://b/x", "gcs://b/x", "abfs://b/x", "azure://b/x", "file:///etc", "memory://x"]
)
def test_a_bucket_has_one_name_and_a_folder_of_the_pod_is_no_store(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from controller.checkpoints import object_store

    monkeypatch.setattr(object_store, "LOCAL", ())
    with pytest.raises(AccessError, match="expected one of s3, gs, az"):
        ObjectStore.at(uri)
