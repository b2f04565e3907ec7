"""The cluster a command talks to, with the caller's own kubeconfig and rights."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from controller import names
from controller.cli import formatting
from controller.cli.connection import REQUEST_TIMEOUT, USUAL, Connection
from controller.cli.failure import Exit, Failure, of_api
from controller.cli.terminal import say
from controller.kube import wire
from controller.kube.client import Api, Object
from controller.kube.connection import NoCredentials
from controller.kube.direct import DirectTransport
from controller.kube.errors import ApiError, NotFound, from_response
from controller.kube.kubeconfig import BadKubeconfig, Caller, NoContext, PluginRefused, as_caller
from controller.kube.lease import UnwrittenNote, left_since, refused, renewed_lately, served, unwritten
from controller.kube.resources import GPUPOOLS, LEASES, NAMESPACES, RLHFJOBS, SELF_ACCESS_REVIEWS, Resource
from controller.policy.wording import agreeing, some

MANAGER = "evalstop-cli"

T = TypeVar("T")


class CallerApi(Api):
    """An API client with the caller's rights; ``namespace`` is the one that was asked for."""

    def __init__(self, caller: Caller, namespace: str = "", timeout: float = REQUEST_TIMEOUT) -> None:
        way = caller.connection
        super().__init__(
            way,
            timeout,
            user_agent="evalstop-cli",
            manager=MANAGER,
            transport=DirectTransport(way) if way.direct else None,
        )
        self.caller = caller
        self.namespace = namespace or caller.namespace

    async def _decoded(self, data: bytes) -> Object:
        return wire.decode_briefly(data) if len(data) <= wire.SMALL else await super()._decoded(data)

    async def raw(self, method: str, path: str, body: Object | None = None) -> bytes:
        """Any request; the answer as it came.

        Raises:
            ApiError: it is no success.
        """
        try:
            status, data, headers = await self._request(method, path, None, body, "application/json")
        except (OSError, NoCredentials) as error:
            raise ApiError(0, "Unavailable", f"{method} {path}: {error or type(error).__name__}") from error
        if 200 <= status <= 299:
            return data
        raise from_response(status, data, headers)

    async def may(
        self, verb: str, resource: Resource, namespace: str | None = None, subresource: str = ""
    ) -> bool:
        """Return whether the caller has a right, by the API server's own word."""
        asked = {"verb": verb, "group": resource.group, "resource": resource.plural}
        if namespace:
            asked["namespace"] = namespace
        if subresource:
            asked["subresource"] = subresource
        answer = await self.create(
            SELF_ACCESS_REVIEWS,
            {
                "apiVersion": SELF_ACCESS_REVIEWS.api_version,
                "kind": SELF_ACCESS_REVIEWS.kind,
                "metadata": {},
                "spec": {"resourceAttributes": asked},
            },
        )
        return bool((answer.get("status") or {}).get("allowed"))


def run(
    work: Callable[[CallerApi], Awaitable[T]],
    connection: Connection = USUAL,
    namespace: str = "",
) -> T:
    """Run ``work`` with a cluster, in an event loop of its own, and return its result.

    Raises:
        Failure: there is no way to the cluster, or the API server said no to something unforeseen.
    """

    async def whole() -> T:
        try:
            caller = await as_caller(connection.kubeconfig, connection.context)
        except NoContext as error:
            raise Failure(Exit.UNREACHABLE, str(error), _contexts(connection.context, error.known)) from None
        except PluginRefused as error:
            raise Failure(
                Exit.FORBIDDEN, str(error), "log in to the cluster again, as its program says"
            ) from None
        except (NoCredentials, BadKubeconfig) as error:
            raise Failure(
                Exit.UNREACHABLE,
                str(error),
                "set KUBECONFIG or give --kubeconfig FILE; kubectl config view shows what kubectl uses",
            ) from None
        async with CallerApi(caller, namespace, connection.timeout) as api:
            try:
                return await work(api)
            except ApiError as error:
                raise of_api(error, "talk to the cluster") from error

    return asyncio.run(whole())


def _close(wanted: str, known: Sequence[str], most: int) -> list[str]:
    import difflib

    return difflib.get_close_matches(wanted, known, most)


def _contexts(wanted: str, known: tuple[str, ...]) -> str:
    close = _close(wanted, known, 3)
    there = ", ".join(close or known[:10]) or "none"
    return f"choose one with --context; {'closest' if close else 'there are'}: {there}"


async def listed(
    api: CallerApi, resource: Resource, namespace: str | None, labels: str = "", fields: str = ""
) -> tuple[list[Object], str]:
    """Return all objects of a kind, by namespace and name, and the resourceVersion of that moment."""
    try:
        found, version = await api.list(resource, namespace, labels=labels, fields=fields)
    except ApiError as error:
        where = f" in namespace {namespace}" if namespace else ""
        failure = of_api(error, f"list {resource.kind}s{where}")
        if resource is RLHFJOBS and namespace is None and failure.code is Exit.FORBIDDEN:
            narrow = f"evalstop list -n {api.namespace} lists those of one namespace"
            failure.next_step = f"{narrow}\n{failure.next_step}"
        raise failure from error
    found.sort(key=lambda o: (o["metadata"].get("namespace", ""), o["metadata"]["name"]))
    return found, version


async def operator_away(api: CallerApi, now: float, shown: Iterable[Object]) -> str:
    """Return a sentence where no operator has renewed its Lease for long, or it is refused what it must
    read or write: what is shown may be long past. Or that it does not serve a namespace of what is shown, or
    cannot write the status of some of it, or that several are at work: it may be either's.

    "": nothing of it is so, or the caller may not read that Lease, or it is installed elsewhere.

    Args:
        api: the caller's.
        now: s.
        shown: objects that an operator writes the status of.
    """
    everywhere = True
    try:
        found = await _leases(api)
    except ApiError:
        everywhere = False
        try:
            found = [await api.get(LEASES, names.OPERATOR, names.NAMESPACE)]
        except ApiError:
            return ""
    if told := _rivals(found, now):
        return f"{told}; see evalstop doctor"
    shown = list(shown)
    if everywhere and not found and any(written_in_a_term(one) for one in shown):
        return (
            "there is no Lease of an operator in this cluster any more: no run is watched or stopped until "
            "one is installed, and states are as they were; see evalstop doctor"
        )
    here = next((one for one in found if _namespace(one) == names.NAMESPACE), None)
    if here is None:
        return ""
    return left(here, now) or unserved(here, map(_namespace, shown)) or frozen(here, shown, now)


def written_in_a_term(obj: Object) -> bool:
    """Return whether an operator that held a Lease has written an object's status."""
    return bool((obj.get("status") or {}).get("epoch"))


def unserved(lease: Object, namespaces: Iterable[str]) -> str:
    """Return the sentence for namespaces that the holder of a Lease does not serve; "": it serves them
    all."""
    among = served(lease)
    if among is None or not (out := sorted({one for one in namespaces if one} - among)):
        return ""
    of = agreeing(len(out), "namespace", "namespaces")
    return (
        f"the operator does not serve {of} {some(out, 4)}, but {some(sorted(among), 4)} alone "
        "(EVALSTOP_WATCH_NAMESPACES): no run there is watched or stopped, and states are as they were; "
        "see evalstop doctor"
    )


def frozen(lease: Object, shown: Iterable[Object], now: float) -> str:
    """Return the sentence for objects whose status the API server refuses to take from the holder of a Lease;
    "": it takes them, as far as is known. ``now``: s."""
    if (every := unwritten(lease)) is None:
        return ""
    keys = {
        "/".join(filter(None, (str(one.get("kind")), _namespace(one), one["metadata"]["name"])))
        for one in shown
    }
    if (found := every.among(keys)) is not None:
        return f"{refusal(found, now)}; see evalstop doctor"
    if not keys or every.number == len(every.named):
        return ""
    return f"{refusal(every, now)}; what is shown may be among them; see evalstop doctor"


def refusal(note: UnwrittenNote, now: float) -> str:
    """Return what it means that these statuses are refused, without a remedy. ``now``: s."""
    upto = "up to " if note.number > 1 or not note.why else ""
    why = f" ({note.why})" if note.why else ""
    return (
        f"the API server has refused {note.which()} for {upto}{formatting.span(now - note.since)}"
        f"{why}: nothing is judged, started or stopped there until it takes "
        f"{agreeing(note.number, 'it', 'them')}, and states are as they were before"
    )


async def rivals(api: CallerApi, now: float) -> str:
    """Return the sentence that operators are at work by Leases in several namespaces; "": they are not, or
    the caller may not list Leases of all namespaces. ``now``: s."""
    try:
        return _rivals(await _leases(api), now)
    except ApiError:
        return ""


async def _leases(api: CallerApi) -> list[Object]:
    """Return the Leases by which operators are at work, of all namespaces."""
    found, _ = await api.list(LEASES, None, fields=f"metadata.name={names.OPERATOR}")
    return [lease for lease in found if lease["metadata"]["name"] == names.OPERATOR]


def _namespace(lease: Object) -> str:
    return str(lease["metadata"].get("namespace", ""))


def _rivals(leases: list[Object], now: float) -> str:
    alive = sorted(
        (_namespace(lease), str(lease["spec"]["holderIdentity"]))
        for lease in leases
        if renewed_lately(lease, now)
    )
    if len(alive) < 2:
        return ""
    who = ", ".join(f"{holder} by that of namespace {namespace}" for namespace, holder in alive)
    return (
        f"{len(alive)} operators are at work in this cluster, each by a Lease {names.OPERATOR} of its own "
        f"({who}): each undoes what the other decides, and what is shown of a run may be either's"
    )


def left(lease: Object, now: float) -> str:
    """Return the sentence for a Lease that nobody renews any more, or whose holder lacks rights; "": its
    holder may do its work. ``now``: s."""
    if (since := left_since(lease, now)) is None:
        if (found := refused(lease)) is None:
            return ""
        return (
            f"the operator has been refused its rights for {formatting.span(now - found.since)} "
            f"({found.what}): states may be as they were then, and nobody may be stopped until it has them "
            "back; see evalstop doctor"
        )
    return (
        f"no operator has renewed its Lease for {formatting.span(now - since)}: no run is watched or "
        "stopped until one is back, and states are as they were then; see evalstop doctor"
    )


async def say_if_away(api: CallerApi, *shown: Object) -> None:
    """Print on stderr that no operator is there for the objects that are shown, if that is known."""
    if told := await operator_away(api, time.time(), shown):
        say(f"warning: {told}", err=True)


async def job(api: CallerApi, name: str) -> Object:
    """Return the RLHFJob of a name, in the namespace asked for or, as ``namespace/name``, in its own.

    Raises:
        Failure: there is none; the message names those whose names are close.
    """
    namespace, slash, plain = name.rpartition("/")
    where = namespace if slash else api.namespace
    return await _one(api, RLHFJOBS, plain, where)


async def near_namespaces(api: CallerApi, name: str) -> list[str]:
    """Return the namespaces whose names are close to one that is not there, the closest first; []: none is,
    or the caller may not list them."""
    try:
        there = [str(item["metadata"]["name"]) for item in (await api.list(NAMESPACES, None))[0]]
    except ApiError:
        return []
    return _close(name.lower(), there, 3)


async def check_namespace(api: CallerApi, name: str | None) -> None:
    """Check that a namespace is there, as far as the caller may know. None: all of them are meant.

    Raises:
        Failure: there is none of that name; the message names those whose names are close.
    """
    if name is None:
        return
    try:
        await api.get(NAMESPACES, name)
    except NotFound as error:
        if "not found" not in error.message:
            return
        close = ", ".join(await near_namespaces(api, name))
        next_step = f"did you mean {close}?" if close else "evalstop list -A: of all namespaces"
        raise Failure(Exit.NOT_FOUND, f"there is no namespace {name!r}", next_step) from None
    except ApiError:
        return  # who has rights in one namespace alone may not ask which there are


async def pool(api: CallerApi, name: str) -> Object:
    """Return the GPUPool of a name.

    Raises:
        Failure: there is none; the message names those there are.
    """
    return await _one(api, GPUPOOLS, name, None)


async def _one(api: CallerApi, resource: Resource, name: str, namespace: str | None) -> Object:
    at = f" in namespace {namespace}" if namespace else ""
    doing = f"read {resource.kind} {name!r}{at}"
    if not name or "/" in f"{name}{namespace or ''}":
        raise Failure(Exit.USAGE, f"{name!r} is no name", "give NAME, or NAMESPACE/NAME")
    try:
        return await api.get(resource, name, namespace)
    except NotFound as error:
        if "not found" not in error.message or resource.qualified not in error.message:
            raise of_api(error, doing) from error
        raise Failure(
            Exit.NOT_FOUND,
            f"there is no {resource.kind} {name!r}{at}",
            await _near(api, resource, name, namespace),
        ) from None
    except ApiError as error:
        raise of_api(error, doing) from error


async def _near(api: CallerApi, resource: Resource, name: str, namespace: str | None) -> str:
    """Return what the user may have meant: the same name elsewhere, close names here, or a command that
    lists."""
    command = "pools" if resource is GPUPOOLS else f"list -n {namespace}"
    try:
        here, _ = await api.list(resource, namespace)
    except ApiError:
        return f"evalstop {command}"
    names = [item["metadata"]["name"] for item in here]
    close = _close(name.lower(), names, 3)  # no name in a cluster has capitals
    if close:
        return f"did you mean {', '.join(close)}?"
    if namespace:
        try:
            everywhere, _ = await api.list(resource, None, fields=f"metadata.name={name}")
        except ApiError:
            everywhere = []
        if everywhere:
            others = ", ".join(sorted(item["metadata"]["namespace"] for item in everywhere)[:3])
            return f"there is one in namespace {others}: give -n {others.partition(',')[0]}"
    if len(names) <= 10 and names:
        return f"there {'is' if len(names) == 1 else 'are'}: {', '.join(sorted(names))}"
    return f"evalstop {command}" + ("" if names or not namespace else ", or -A for all namespaces")


def called(obj: Object) -> str:
    """``rlhfjob.evalstop.dev/run``, as kubectl says it."""
    kind: Any = obj["kind"]
    group = str(obj["apiVersion"]).partition("/")[0]
    return f"{kind.lower()}.{group}/{obj['metadata']['name']}"
