"""Who may see what: the API server's word is asked for, remembered for a while, and never guessed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from controller.kube.errors import Refused, Unavailable
from controller.kube.resources import GPUPOOLS, NAMESPACES, RLHFJOBS, Resource
from controller.web.dashboard.access import (
    AUDIENCE,
    CannotReview,
    Forbidden,
    KeyGate,
    ReviewGate,
    Viewer,
    own_rights,
)
from controller.web.reviews import (
    IN_ALL,
    PER_PEER,
    RIGHTS_SECONDS,
    TOKEN_SECONDS,
    Reviews,
    TooMany,
    Unauthenticated,
)

JANE = {"username": "jane", "uid": "7", "groups": ["dev"], "extra": {"scope": ["a", "b"]}}


class AccessServer:
    """An API server that knows tokens and rights, and notes what it is asked."""

    def __init__(self) -> None:
        self.tokens: dict[str, Any] = {"good": JANE}
        self.rights: set[tuple[str, str]] = {("rlhfjobs", "a"), ("gpupools", "")}
        self.namespaces: list[str] | None = None
        self.asked: list[tuple[str, Any]] = []
        self.fails = False

    async def create(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
        spec = body["spec"]
        self.asked.append((resource.kind, spec))
        if self.fails:
            raise Unavailable(0, "Timeout", "no answer")
        if resource.kind == "TokenReview":
            user = self.tokens.get(spec["token"])
            found = {"user": user, "audiences": spec.get("audiences", [])} if user else {}
            return {"status": {"authenticated": user is not None, **found}}
        wanted = spec["resourceAttributes"]
        assert wanted["verb"] == "list"
        assert wanted["group"] == "evalstop.dev"
        return {"status": {"allowed": (wanted["resource"], wanted.get("namespace", "")) in self.rights}}

    async def list(self, resource: Resource) -> tuple[list[dict[str, Any]], str]:
        assert resource is NAMESPACES
        if self.namespaces is None:
            raise Refused(403, "Forbidden", "namespaces is forbidden")
        return [{"metadata": {"name": name}} for name in self.namespaces], "1"

    def count(self, kind: str) -> int:
        return sum(1 for found, _ in self.asked if found == kind)


def gate(server: AccessServer, now: Callable[[], float] = lambda: 0.0, audience: str = "") -> ReviewGate:
    return ReviewGate(Reviews(server, audience, now), audience)  # type: ignore[arg-type]


def seen(gate: ReviewGate, token: str = "good", *namespaces: str, peer: str = "10.0.0.1") -> Viewer:
    return asyncio.run(gate.viewer(token, namespaces or ("a", "b"), peer))


def jwt(**claims: Any) -> str:
    """A token as the API server makes them, signed by nobody."""

    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'RS256'})}.{part(claims)}.c2ln"


def test_a_viewer_is_who_the_api_server_says_and_sees_what_it_allows() -> None:
    reviews = AccessServer()
    assert seen(gate(reviews)) == Viewer("jane", frozenset({"a"}), True)
    subjects = [spec for kind, spec in reviews.asked if kind == "SubjectAccessReview"]
    assert all((s["user"], s["uid"], s["groups"], s["extra"]) == tuple(JANE.values()) for s in subjects)


def test_who_may_list_everywhere_is_asked_about_no_single_namespace() -> None:
    reviews = AccessServer()
    reviews.rights = {("rlhfjobs", "")}
    assert seen(gate(reviews)) == Viewer("jane", None, False)
    assert reviews.count("SubjectAccessReview") == 2


@pytest.mark.parametrize("token", ["", "bad", "good "])
def test_a_token_that_nobody_knows_is_nobody(token: str) -> None:
    with pytest.raises(Unauthenticated):
        seen(gate(AccessServer()), token)


def test_an_answer_without_a_plain_yes_is_a_no() -> None:
    class Odd(AccessServer):
        token: Any
        access: Any

        async def create(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
            return {"status": self.token if resource.kind == "TokenReview" else self.access}

    odd = Odd()
    for odd.token in ({}, {"authenticated": "yes", "user": JANE}, {"authenticated": True}, {"user": JANE}):
        with pytest.raises(Unauthenticated):
            seen(gate(odd))
    odd.token = {"authenticated": True, "user": JANE}
    for odd.access in ({}, {"allowed": "true"}, {"allowed": None}, {"denied": False}):
        assert seen(gate(odd)) == Viewer("jane", frozenset(), False)


def test_answers_are_remembered_and_forgotten_again() -> None:
    reviews, now = AccessServer(), [0.0]
    asks = gate(reviews, lambda: now[0])
    first = seen(asks)
    before = len(reviews.asked)
    now[0] = RIGHTS_SECONDS - 0.1
    assert seen(asks) == first
    assert len(reviews.asked) == before
    reviews.rights = set()
    now[0] = RIGHTS_SECONDS
    assert seen(asks) == Viewer("jane", frozenset(), False)
    assert reviews.count("TokenReview") == 1
    reviews.tokens = {}
    now[0] = TOKEN_SECONDS
    with pytest.raises(Unauthenticated):
        seen(asks)


def test_a_token_that_was_refused_is_refused_without_asking_again_for_a_while() -> None:
    reviews = AccessServer()
    asks = gate(reviews)
    for _ in range(3):
        with pytest.raises(Unauthenticated):
            seen(asks, "bad")
    assert reviews.count("TokenReview") == 1


def test_one_viewers_rights_are_never_anothers() -> None:
    reviews = AccessServer()
    reviews.tokens["other"] = {**JANE, "username": "joe"}
    asks = gate(reviews)
    seen(asks)
    seen(asks, "other")
    assert reviews.count("SubjectAccessReview") == 2 * 4
    reviews.tokens["scoped"] = {**JANE, "extra": {"scope": ["a"]}}
    seen(asks, "scoped")
    assert reviews.count("SubjectAccessReview") == 3 * 4


def test_where_the_api_server_does_not_answer_nobody_sees_anything() -> None:
    reviews = AccessServer()
    reviews.fails = True
    with pytest.raises(CannotReview, match="no answer"):
        seen(gate(reviews))
    reviews.fails = False
    assert seen(gate(reviews)).name == "jane"  # a failure is not remembered


def test_a_full_token_of_the_api_servers_is_not_taken_and_not_even_asked_about() -> None:
    server, soon = AccessServer(), time.time() + 600
    asks = gate(server, audience=AUDIENCE)
    for token in (
        "good",
        jwt(aud=["https://kubernetes.default.svc"], exp=soon),
        jwt(aud=AUDIENCE, exp=time.time() - 3600),
        jwt(aud=AUDIENCE),
        jwt(exp=soon),
        "a." + "[" * 4000 + ".b",
        "a." + base64.urlsafe_b64encode(b"[" * 12000).decode() + ".b",
        "x" * 100_000,
    ):
        server.tokens[token] = JANE
        with pytest.raises(Unauthenticated):
            seen(asks, token)
    assert server.asked == []
    ours = jwt(aud=["something", AUDIENCE], exp=soon)
    server.tokens[ours] = JANE
    assert seen(asks, ours).name == "jane"
    assert server.asked[0] == ("TokenReview", {"token": ours, "audiences": [AUDIENCE]})


def test_an_api_server_that_knows_no_audiences_vouches_for_nobody_here() -> None:
    class Older(AccessServer):
        async def create(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
            answer = await super().create(resource, body)
            answer["status"].pop("audiences", None)
            return answer

    server, token = Older(), jwt(aud=AUDIENCE, exp=time.time() + 600)
    server.tokens[token] = JANE
    with pytest.raises(Unauthenticated):
        seen(gate(server, audience=AUDIENCE), token)


def test_random_tokens_do_not_become_as_many_questions_to_the_api_server() -> None:
    server, now, soon = AccessServer(), [0.0], time.time() + 600
    asks = gate(server, lambda: now[0], AUDIENCE)
    good, other = jwt(aud=AUDIENCE, exp=soon), jwt(aud=AUDIENCE, exp=soon, sub="other")
    server.tokens |= {good: JANE, other: JANE}
    seen(asks, good, peer="10.0.0.7")
    held = 0
    for n in range(1000):
        now[0] = n / 100
        try:
            seen(asks, jwt(aud=AUDIENCE, exp=soon, n=n), peer="10.0.0.66")
        except TooMany as error:
            held += 0 < error.seconds <= 1 / PER_PEER.rate
        except Unauthenticated:
            pass
    assert server.count("TokenReview") <= 1 + PER_PEER.burst + 10 * PER_PEER.rate + 1
    assert held == 1001 - server.count("TokenReview")
    assert seen(asks, other, peer="10.0.0.8").name == "jane", "others are asked about"
    before = server.count("TokenReview")
    for n in range(1000):
        with pytest.raises((TooMany, Unauthenticated)):
            seen(asks, jwt(aud=AUDIENCE, exp=soon, m=n), peer=f"10.0.{n // 250}.{n % 250}")
    assert server.count("TokenReview") - before <= IN_ALL.burst
    now[0] += TOKEN_SECONDS / 100
    assert seen(asks, good, peer="10.0.0.7").name == "jane", "known, and remembered"
    now[0] += TOKEN_SECONDS
    for n in range(1000):
        with contextlib.suppress(TooMany, Unauthenticated):
            seen(asks, jwt(aud=AUDIENCE, exp=soon, k=n), peer=f"10.1.{n // 250}.{n % 250}")
    assert seen(asks, good, peer="10.0.0.7").name == "jane", "known, and asked about out of turn"


def test_the_key_is_the_whole_key() -> None:
    viewer = Viewer("you", None, True)
    asks = KeyGate("secret", viewer)
    assert asyncio.run(asks.viewer("secret", (), "")) is viewer
    for wrong in ("", "secre", "secret ", "SECRET", "sécret"):
        with pytest.raises(Unauthenticated):
            asyncio.run(asks.viewer(wrong, (), ""))


@pytest.mark.parametrize(
    ("rights", "wanted", "namespaces", "expected"),
    [
        ({"": 1, "pools": 1}, (), None, Viewer("you", None, True)),
        ({"": 1}, ("b",), None, Viewer("you", frozenset(), False)),
        ({"a": 1}, (), ["a", "b"], Viewer("you", frozenset({"a"}), False)),
        ({"mine": 1}, (), None, Viewer("you", frozenset({"mine"}), False)),
        ({"a": 1, "b": 1, "pools": 1}, ("a",), None, Viewer("you", frozenset({"a"}), True)),
    ],
)
def test_ones_own_rights_decide_what_is_followed(
    rights: dict[str, int], wanted: tuple[str, ...], namespaces: list[str] | None, expected: Viewer
) -> None:
    reviews = AccessServer()
    reviews.namespaces = namespaces
    reviews.rights = {(GPUPOOLS.plural, "") if n == "pools" else (RLHFJOBS.plural, n) for n in rights}
    work = own_rights(reviews, wanted, "mine")  # type: ignore[arg-type]
    if not expected.namespaces and expected.namespaces is not None:
        with pytest.raises(Forbidden, match="kubectl create rolebinding"):
            asyncio.run(work)
    else:
        assert asyncio.run(work) == expected
