"""The hostile tenants, as a process of their own: `python -m tests.bench.tenants.hostile CONFIG`.

Each attack goes against something that docs/operate/security.md promises, with the rights of a tenant (role
`edit` in its namespace), of `bob` (rights on RLHFJobs alone, in the honest namespaces), or of a pod
(connections), again and again until the process is killed. Each second it writes down what it has done:
attack -> requests that went through, that were refused, and that went through although they must not
(*breaches*).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import random
import socket
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from controller import names
from tests.bench.tenants.pages import HEAD, page, serve, whole
from tests.bench.tenants.plan import Object
from tests.bench.tenants.race import Racer
from tests.bench.tenants.stage import RLHFJOBS, rlhfjob, template
from tests.support.pills import pills

_SLOW = 4.9  # s
_LIVE = 5  # objects of one attack in a namespace at a time: more is a matter of ResourceQuotas
_MERGE = "application/merge-patch+json"
_PAGE, _AUDIENCE = "/view/", "evalstop-dashboard"
_GPU = names.GPU_RESOURCE


@dataclass(slots=True)
class Told:
    """Requests of one attack."""

    through: int = 0
    refused: int = 0
    failed: int = 0
    breaches: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class User:
    """Whose credentials, and in which namespace."""

    name: str
    namespace: str
    session: aiohttp.ClientSession
    url: str

    async def send(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        text = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type}
        async with self.session.request(method, self.url + path, data=text, headers=headers) as answer:
            return answer.status, await answer.read()

    def at(self, kind: str) -> str:
        roots = {
            "rlhfjobs": RLHFJOBS,
            "jobs": "/apis/batch/v1",
            "deployments": "/apis/apps/v1",
        }
        return f"{roots.get(kind, '/api/v1')}/namespaces/{self.namespace}/{kind}"


class Hostile:
    """All of it. ``given``: what the bench wrote for this process (`command._config`)."""

    def __init__(self, given: Object) -> None:
        self.given = given
        self.pool: str = given["pool"]
        self.pause = len(given["tenants"]) / given["rate"]
        self.told: dict[str, Told] = {}
        self.servers: list[asyncio.Server] = []
        self.made = 0

    # -- pages -----------------------------------------------------------------------------------------

    async def run_of(self, user: User, number: int) -> None:
        """An RLHFJob with a page of one of the kinds."""
        kinds = ["slow", "liar", "falls", "names", "done", "endless", "garbage", "redirect", "pill"]
        kind = kinds[number % len(kinds)]
        uid, reads = "", 0

        async def answer(writer: asyncio.StreamWriter) -> None:
            nonlocal reads
            reads += 1
            self.count(f"13, 3, 10: pages ({kind})")
            draw = random.Random(f"{kind} {number}")
            if kind == "slow":
                await asyncio.sleep(_SLOW)
                whole(writer, page(uid, "1-h", (0.9,) * min(reads, 32)))
            elif kind in ("liar", "pill"):  # as good as never noisy, and better than all peers
                whole(writer, page(uid, "1-h", tuple(0.95 + draw.gauss(0, 1e-6) for _ in range(32))))
            elif kind == "falls":  # all of them at one moment
                whole(
                    writer, page(uid, "1-h", (0.9,) * min(reads, 20) + (0.1,) * max(0, min(reads - 20, 12)))
                )
            elif kind == "names":
                more = "\n".join(
                    f'rlhf_eval_score{{metric="m{n}",step="10",attempt="1-h"}} 0.5' for n in range(40)
                )
                whole(writer, page(uid, "1-h", (0.5,), more=more))
            elif kind == "done":  # no loss, and all steps done, for ever
                whole(writer, page(uid, "1-h", (0.9,), more="rlhf_total_steps 10"))
            elif kind == "endless":
                writer.write(HEAD + b"\r\n")
                for n in range(2000):
                    writer.write(b'rlhf_eval_score{metric="gold",step="%d",attempt="1-h"} 1\n' % n * 100)
                    await writer.drain()
            elif kind == "garbage":
                whole(writer, b"[" * 100_000)
            else:
                writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n")
            await writer.drain()

        server, port = await serve(answer)
        self.servers.append(server)
        more: Object = {"expectedDurationSeconds": 1} if kind == "done" else {}
        body = rlhfjob(f"{kind}-{number}", self.pool, port, {"kDeclines": {"k": 3}}, **more)
        status, text = await user.send("POST", user.at("rlhfjobs"), body)
        self.note("3, 10, 13: runs", status)
        if status < 300:
            uid = json.loads(text)["metadata"]["uid"]
            self.made += 1

    # -- what is counted -------------------------------------------------------------------------------

    def count(self, attack: str) -> None:
        self.told.setdefault(attack, Told()).through += 1

    def note(self, attack: str, status: int, must_fail: str = "") -> None:
        told = self.told.setdefault(attack, Told())
        if status >= 500 or status in (0, 429):
            told.failed += 1
        elif status >= 400:
            told.refused += 1
        else:
            told.through += 1
            if must_fail:
                told.breaches.append(must_fail)

    async def again(self, attack: str, once: Callable[[int], Awaitable[int]], must_fail: str = "") -> None:
        """Until cancelled; what goes wrong on the way is the attacker's own affair."""
        for number in itertools.count():
            try:
                status = await once(number)
            except (aiohttp.ClientError, TimeoutError, OSError):
                status = 0
            self.note(attack, status, must_fail)
            await asyncio.sleep(self.pause * random.uniform(0.5, 1.5))

    # -- attacks with objects --------------------------------------------------------------------------

    def attacks(self, user: User) -> list[Awaitable[None]]:
        """Of a tenant with role `edit`."""
        fake_owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "run-0",
            "uid": "made-up",
            "controller": True,
        }
        trainer = {"name": "x", "image": "x", "resources": {"limits": {_GPU: "1"}}}
        tolerant = {"key": names.POOL_TAINT, "operator": "Exists"}

        async def live(kind: str, name: str, number: int, body: Any) -> int:
            """Make one, and take the one of `_LIVE` before away."""
            status, _ = await user.send("POST", user.at(kind), body)
            if number >= _LIVE:
                former = f"{name.format(number - _LIVE)}?gracePeriodSeconds=0"
                await user.send("DELETE", f"{user.at(kind)}/{former}")
            return status

        async def deep(number: int) -> int:
            body = rlhfjob(f"deep-{number}", self.pool, 9400, {"kDeclines": {"k": 3}})
            body["spec"]["workload"] = {"template": {"spec": {"x": "DEEP"}}}
            text = json.dumps(body).replace('"DEEP"', '{"a":' * 5000 + "1" + "}" * 5000)
            return await live("rlhfjobs", "deep-{}", number, text.encode())

        async def run_json(number: int) -> int:
            name = f"liar-{number % 100}-run"
            patch = {"data": {names.RUN_KEY: random.choice(["[" * 100_000, '{"uid":' + "9" * 5000, "null"])}}
            status, _ = await user.send("PATCH", f"{user.at('configmaps')}/{name}", patch, _MERGE)
            made = {
                "metadata": {"name": f"own-{number}-run", "labels": {names.LABEL_JOB: f"own-{number}"}},
                **patch,
            }
            return await live("configmaps", "own-{}-run", number, made) if status == 404 else status

        async def digits(number: int) -> int:
            metadata = {
                "name": f"digits-{number}",
                "labels": {names.LABEL_JOB: "run-0", names.LABEL_COMPONENT: "workload"},
                "annotations": {names.ANNOTATION_ADMISSION: "9" * 5000},
                "ownerReferences": [fake_owner],
            }
            spec = {"schedulerName": "nobody", "containers": [trainer]}
            return await live("pods", "digits-{}", number, {"metadata": metadata, "spec": spec})

        texts = pills(10_000, hash(user.name) & 0xFFFF)

        async def arbitrary(number: int) -> int:
            kind, _, text = next(texts)
            if kind.plural not in ("rlhfjobs", "pods", "jobs", "configmaps"):
                return 404
            try:
                obj = json.loads(text)
            except (RecursionError, ValueError):
                return 400
            metadata = obj["metadata"] if isinstance(obj.get("metadata"), dict) else {}
            for field_ in ("uid", "resourceVersion", "namespace"):
                metadata.pop(field_, None)
            obj["metadata"] = metadata | {"name": f"any-{number}"}
            if isinstance(obj.get("spec"), dict):
                obj["spec"].pop("nodeName", None)
            return await live(kind.plural, "any-{}", number, obj)

        async def broken(number: int) -> int:
            body = rlhfjob(f"broken-{number}", self.pool, 9400, {"kDeclines": {"k": 3}})
            pod = body["spec"]["workload"]["template"]["spec"]["template"]["spec"]
            limits = {"resources": {"limits": {_GPU: "1" * 5000}}}
            pod |= random.choice(
                [{"containers": "abc"}, {"initContainers": {}}, {"volumes": ["x"]}, {"containers": [limits]}]
            )
            return await live("rlhfjobs", "broken-{}", number, body)

        async def stores(number: int) -> int:
            uri = random.choice(
                ["http://169.254.169.254/x", "file:///etc", "s3a://work/run-0", "s3://work/run-0"]
            )
            body = rlhfjob(f"store-{number}", self.pool, 9400, {"kDeclines": {"k": 3}})
            body["spec"]["checkpoints"]["location"] = {"objectStore": {"uri": uri}}
            return await live("rlhfjobs", "store-{}", number, body)

        async def priority(number: int) -> int:
            body = rlhfjob(f"priority-{number}", self.pool, 9400, {"kDeclines": {"k": 3}}, priority=10)
            pod = body["spec"]["workload"]["template"]["spec"]["template"]["spec"]
            pod["priorityClassName"] = "system-node-critical"
            return await live("rlhfjobs", "priority-{}", number, body)

        async def past_the_queue(number: int) -> int:
            spec: Object = {"containers": [trainer], "restartPolicy": "Never"}
            kind = number % 3
            if kind == 0:
                spec["tolerations"] = [random.choice([tolerant, {"operator": "Exists"}])]
            elif kind == 1:
                spec["nodeName"] = f"{self.pool}-0"
            body = {"metadata": {"name": f"past-{number}"}, "spec": spec}
            if kind < 2:
                return (await user.send("POST", user.at("pods"), body))[0]
            made = template(9400)
            made["metadata"] = {"name": f"past-{number}"}
            made["spec"]["template"]["spec"]["tolerations"] = [tolerant]
            return (await user.send("POST", user.at("jobs"), made))[0]

        async def grown(number: int) -> int:
            """Of a waiting run's workload: more pods, or more GPUs, than were asked for."""
            status, text = await user.send("GET", user.at("jobs"))
            if status >= 300:
                return status
            waiting = [job for job in json.loads(text)["items"] if job["spec"].get("suspend")]
            if not waiting:
                return 404
            job = random.choice(waiting)
            patch: Object = {"spec": {"parallelism": 4, "completions": 4}}
            if number % 2:
                containers = job["spec"]["template"]["spec"]["containers"]
                containers[0]["resources"] = {"limits": {_GPU: "8"}, "requests": {_GPU: "8"}}
                patch = {"spec": {"template": {"spec": {"containers": containers}}}}
            path = f"{user.at('jobs')}/{job['metadata']['name']}"
            return (await user.send("PATCH", path, patch, _MERGE))[0]

        async def forged(number: int) -> int:
            name = f"forged-{number}"
            labels = {
                names.LABEL_JOB: "run-0",
                names.LABEL_COMPONENT: "access",
                names.LABEL_MANAGED_BY: names.MANAGED_BY,
            }
            body = template(9400, 0)
            body["metadata"] = {"name": name, "labels": labels}
            container = body["spec"]["template"]["spec"]["containers"][0]
            container["env"] = [{"name": "EVALSTOP_REQUEST", "value": '{"operation":"claim","step":0}'}]
            body["spec"]["template"]["metadata"] = {"labels": labels}
            return await live("jobs", "forged-{}", number, body)

        async def flood(number: int) -> int:
            name = f"{user.at('rlhfjobs')}/liar-1"
            if number % 3 == 0:
                body = rlhfjob(f"churn-{number}", self.pool, 9400, {"scan": {}})
                return await live("rlhfjobs", "churn-{}", number, body)
            if number % 3 == 1:
                return (await user.send("GET", user.at("rlhfjobs")))[0]
            patch = {
                "metadata": {"annotations": {"x": str(number) * 1000}},
                "spec": {"priority": number % 10},
            }
            return (await user.send("PATCH", name, patch, _MERGE))[0]

        return [
            self.again("1: RLHFJobs nested 5,000 deep", deep),
            self.again("1, 14: run.json of 100,000 brackets", run_json),
            self.again("1: pods with 5,000 digits and a made-up owner", digits),
            self.again("1: arbitrary objects", arbitrary),
            self.again("2: templates that cannot be read", broken),
            self.again("9: PriorityClasses", priority),
            self.again("9: past queue and extender", past_the_queue, "a pod or Job past the queue"),
            self.again("9: workloads grown while they wait", grown),
            self.again("14: stores", stores),
            self.again("14: forged access Jobs", forged),
            self.again("flood of the API", flood),
        ]

    def bob(self, user: User, job: str) -> list[Awaitable[None]]:
        """Stop a colleague's run, redirect its weights, name another workload: refused, each time."""

        async def patch(number: int) -> int:
            spec = random.choice(
                [
                    {"runState": "Stopped"},
                    {"checkpoints": {"retention": {"objectStore": {"uri": "s3://bob"}}}},
                    {"mode": "Off"},
                    {"priority": -1},
                ]
            )
            return (await user.send("PATCH", f"{user.at('rlhfjobs')}/{job}", {"spec": spec}, _MERGE))[0]

        async def status(number: int) -> int:
            body = {"status": {"decision": None, "attempt": 7}}
            return (await user.send("PATCH", f"{user.at('rlhfjobs')}/{job}/status", body, _MERGE))[0]

        return [
            self.again("8: a colleague's spec changed", patch, f"{user.name} changed {job}"),
            self.again("8: a colleague's status written", status, f"{user.name} wrote {job}'s status"),
        ]

    # -- attacks with connections ----------------------------------------------------------------------

    async def idle(self, ports: list[int], most: int) -> None:
        """Connections from fifty addresses that say nothing, as many as can be had."""
        held: list[asyncio.StreamWriter] = []
        try:
            for number in itertools.count():
                port, peer = ports[number % len(ports)], f"127.0.0.{2 + number % 50}"
                with contextlib.suppress(OSError, TimeoutError):
                    _, writer = await asyncio.wait_for(
                        asyncio.open_connection("127.0.0.1", port, local_addr=(peer, 0)), 5.0
                    )
                    held.append(writer)
                    self.count("6: idle connections")
                while len(held) > most * len(ports):
                    held.pop(0).close()
                await asyncio.sleep(0.02)
        finally:
            for writer in held:
                writer.close()

    async def tokens(self, metrics: int, queue: int) -> None:
        """Random tokens at the metrics, and a name that resolves to the queue API's address."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10.0)) as session:

            async def metric(number: int) -> int:
                headers = {"Authorization": f"Bearer {random.getrandbits(256):x}"}
                url = f"https://127.0.0.1:{metrics}/metrics"
                async with session.get(url, headers=headers, ssl=context) as answer:
                    return answer.status

            async def named(number: int) -> int:
                headers = {"Host": "evil.example"}
                async with session.get(f"http://127.0.0.1:{queue}/queue", headers=headers) as answer:
                    return answer.status

            async with asyncio.TaskGroup() as group:
                group.create_task(self.again("12: random tokens", metric, "metrics without a right"))
                group.create_task(self.again("12: a name that resolves to it", named, "the queue by a name"))

    async def services(self, given: Object) -> None:
        """Random tokens, and another name, at the dashboard; a certificate of the extender's authority that
        bears another name."""
        port, context = given["dashboard"], ssl.create_default_context(cafile=given["extenderCa"])
        context.load_cert_chain(*given["stolen"])
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10.0)) as session:

            async def shown(headers: Object) -> int:
                url = f"http://127.0.0.1:{port}{_PAGE}"
                async with session.get(url, headers=headers, allow_redirects=False) as answer:
                    return answer.status

            async def token(number: int) -> int:
                claims = {"aud": [_AUDIENCE], "exp": 1 << 32, "n": random.getrandbits(64)}
                parts = (json.dumps(part).encode() for part in ({"alg": "RS256"}, claims, "signed by nobody"))
                text = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
                status = await shown({"Authorization": f"Bearer {text}"})
                return 403 if status == 429 else status  # its limit on tokens that nobody knows

            async def named(number: int) -> int:
                return await shown({"Host": "evil.example"})

            async def asked(number: int) -> int:
                pod = {"metadata": {"name": "x", "namespace": "x"}, "spec": {}}
                body = {"Pod": pod, "NodeNames": [f"{self.pool}-0"]}
                async with session.post(f"{given['extender']}/filter", json=body, ssl=context) as answer:
                    return answer.status

            async with asyncio.TaskGroup() as group:
                group.create_task(
                    self.again("12: random tokens at the dashboard", token, "a page without a token")
                )
                group.create_task(
                    self.again("12: the dashboard by another name", named, "a page by another name")
                )
                group.create_task(
                    self.again("11: another name's certificate", asked, "the extender heard it")
                )

    async def races(self, folder: Path) -> None:
        """A trainer that swaps files while they are copied."""
        racer = await asyncio.to_thread(Racer, folder)
        try:

            async def once(number: int) -> int:
                return 200 if await asyncio.to_thread(racer.once) else 403

            await self.again("7: files swapped while they are copied", once, "another's weights in a copy")
        finally:
            racer.end()

    async def quoted(self, user: User) -> None:
        """A run whose trainer is somebody else's page, of which nothing may stand in its status."""
        secret = f"secret-{random.getrandbits(64):x}"

        async def answer(writer: asyncio.StreamWriter) -> None:
            whole(writer, f"{secret} is no metric {secret}\n".encode() * 20)
            await writer.drain()

        server, port = await serve(answer)
        self.servers.append(server)
        body = rlhfjob("quoted", self.pool, port, {"kDeclines": {"k": 3}})
        await user.send("POST", user.at("rlhfjobs"), body)

        async def once(number: int) -> int:
            status, text = await user.send("GET", f"{user.at('rlhfjobs')}/quoted")
            return status if status >= 500 or secret.encode() in text else 404

        await self.again("15: another's page, quoted in a status", once, "a page was quoted")

    # -- all of it -------------------------------------------------------------------------------------

    async def run(self) -> None:
        given = self.given
        async with contextlib.AsyncExitStack() as stack:
            tenants = [await stack.enter_async_context(user(given, one)) for one in given["tenants"]]
            bobs = [await stack.enter_async_context(user(given, one)) for one in given["bobs"]]
            for number in range(given["runs"]):
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    await self.run_of(tenants[number % len(tenants)], number)
            await asyncio.to_thread(Path(given["ready"]).write_text, str(self.made))
            everything = [attack for one in tenants for attack in self.attacks(one)]
            for one in bobs:
                for job in given["honest"].get(one.namespace, ()):
                    everything += self.bob(one, job)
            everything += [
                self.idle(given["ports"], given["idle"]),
                self.tokens(given["ports"][1], given["ports"][2]),
                self.services(given["services"]),
                self.races(Path(given["races"])),
                *(self.quoted(one) for one in tenants),
            ]
            everything.append(self.write_down(Path(given["told"])))
            async with asyncio.TaskGroup() as group:  # one that falls over ends all: less would be measured
                for attack in everything:
                    group.create_task(_of(attack))

    async def write_down(self, path: Path) -> None:
        """What has been done, each second; whole at each moment."""
        while True:
            found = {
                attack: {
                    "through": told.through,
                    "refused": told.refused,
                    "failed": told.failed,
                    "breaches": dict(Counter(told.breaches)),
                }
                for attack, told in sorted(self.told.items())
            }
            beside = path.with_suffix(".tmp")
            await asyncio.to_thread(beside.write_text, json.dumps(found, indent=1))
            await asyncio.to_thread(beside.replace, path)
            await asyncio.sleep(1.0)


async def _of(attack: Awaitable[None]) -> None:
    await attack


@contextlib.asynccontextmanager
async def user(given: Object, one: Object) -> AsyncIterator[User]:
    """A session with a tenant's certificate."""
    context = ssl.create_default_context(cafile=given["ca"])
    context.load_cert_chain(one["certificate"], one["key"])
    connector = aiohttp.TCPConnector(ssl=context, limit=8)
    timeout = aiohttp.ClientTimeout(total=30.0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield User(one["name"], one["namespace"], session, given["url"])


def main() -> int:
    path = Path(sys.argv[1])
    given = json.loads(path.read_text())
    socket.setdefaulttimeout(30.0)
    asyncio.run(Hostile(given).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
