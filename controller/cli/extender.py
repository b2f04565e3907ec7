"""`evalstop extender`: what an installation of the scheduler extender needs, made on the spot."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller import names

if TYPE_CHECKING:
    from controller.web.certificates import Pem

app = typer.Typer(
    name="extender",
    help="The scheduler extender: run it, and write what its installation needs.",
    no_args_is_help=True,
)

SERVICE = "evalstop-extender"
_HOSTS = (SERVICE, f"{SERVICE}.{names.NAMESPACE}", f"{SERVICE}.{names.NAMESPACE}.svc")


_STEPS = "evalstop-steps"
_STEPS_HOSTS = (_STEPS, f"{_STEPS}.{names.NAMESPACE}", f"{_STEPS}.{names.NAMESPACE}.svc")
_METRICS_HOSTS = [f"evalstop-{name}.{names.NAMESPACE}.svc" for name in ("operator", "extender")]


@app.command("serve")
def serve() -> None:
    """Serve kube-scheduler; settings come from EVALSTOP_EXTENDER_* (python -m controller.extender --help)."""
    from controller.extender.main import main

    raise typer.Exit(main([]))


@app.command("config")
def config(
    url: Annotated[
        str, typer.Option(help="Where kube-scheduler finds the extender.")
    ] = f"https://{_HOSTS[2]}:8443",
    ca: Annotated[str, typer.Option(help="Path, in the scheduler's pod, of the authority.")] = "/tls/ca.crt",
    certificate: Annotated[str, typer.Option(help="Path of the client certificate.")] = "/tls/tls.crt",
    key: Annotated[str, typer.Option(help="Path of its key.")] = "/tls/tls.key",
    embed: Annotated[
        bool, typer.Option(help="The three are files here, whose contents go into the configuration.")
    ] = False,
    ignorable: Annotated[
        bool, typer.Option(help="RLHF pods pass when the extender fails; default: they wait.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for one request.")] = 1.0,
    weight: Annotated[int, typer.Option(help="Weight of the extender's scores.")] = 10,
    qps: Annotated[float, typer.Option(help="kube-scheduler's requests per second to the API.")] = 1000.0,
    manifest: Annotated[bool, typer.Option(help="As a ConfigMap for kubectl apply.")] = False,
) -> None:
    """Print the KubeSchedulerConfiguration of the scheduler that asks the extender."""
    import yaml

    from controller.extender.scheduler_config import ConfigError, Options, write

    try:
        if embed:
            ca, certificate, key = (Path(path).read_text() for path in (ca, certificate, key))
        options = Options(
            url,
            ca,
            certificate,
            key,
            files=not embed,
            ignorable=ignorable,
            timeout=timeout,
            weight=weight,
            qps=qps,
        )
    except (ConfigError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    text = write(options)
    if manifest:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": names.SCHEDULER_NAME, "namespace": names.NAMESPACE},
            "data": {"config.yaml": text},
        }
        text = yaml.safe_dump(body, sort_keys=False)
    typer.echo(text, nl=False)


@app.command("certificates")
def certificates(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            help="Where an authority is kept, made if missing; default: one that is forgotten at once.",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="One more name or address of the extender and of the step API; repeatable."),
    ] = None,
) -> None:
    """Print the Secrets of extender, scheduler, metrics and step API; run it again to renew them all.

    With --ca, from the same authority: keep its key as you keep root's.
    """
    import yaml

    from controller.web import certificates as made

    now = datetime.now(UTC)
    try:
        authority = made.make_authority(now) if folder is None else _authority(folder, now)
        server = made.issue_server(authority, [*_HOSTS, *(host or [])], now)
        client = made.issue_client(authority, names.SCHEDULER_NAME, now)
        metrics = made.issue_server(authority, _METRICS_HOSTS, now)
        steps = made.issue_server(authority, [*_STEPS_HOSTS, *(host or [])], now)
    except (made.CertificateError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="--ca") from None
    secrets = [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": name, "namespace": names.NAMESPACE},
            "stringData": {
                "ca.crt": authority.certificate,
                "tls.crt": pair.certificate,
                "tls.key": pair.key,
            },
        }
        for name, pair in (
            (f"{SERVICE}-tls", server),
            (f"{names.SCHEDULER_NAME}-tls", client),
            ("evalstop-metrics-tls", metrics),
            (f"{_STEPS}-tls", steps),
        )
    ]
    typer.echo(yaml.safe_dump_all(secrets, sort_keys=False), nl=False)


def _authority(folder: Path, now: datetime) -> Pem:
    """Return the authority in a folder; its key is readable by its owner only."""
    from controller.web import certificates as made

    certificate, key = folder / "ca.crt", folder / "ca.key"
    if certificate.exists() or key.exists():
        return made.Pem(certificate.read_text(), key.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    pair = made.make_authority(now)
    key.touch(mode=0o600)
    key.write_text(pair.key)
    certificate.write_text(pair.certificate)
    return pair
