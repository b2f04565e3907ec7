"""Parts of a group's pod by themselves: devices, host memory, disk, frames, tickets, the turn log."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.group.account import Account, Clock
from controller.group.app import Door
from controller.group.devices import LocalDevice, NvmlDevice, until_free
from controller.group.disk import Disk, Kept, Residency, text
from controller.group.links import Link, Outbox
from controller.group.memory import HostMemory
from controller.group.metrics import GroupMetrics
from controller.group.registration import Admitted
from controller.group.turn_log import TurnLog, main, replay
from controller.group.wire import Frames, Refused, envelope, framed, header_of, packed, token_of, unpacked
from controller.policy.sharing import coordinator as co
from controller.policy.sharing import messages as ms
from controller.policy.sharing.charging import UNITS, Charges
from controller.web.group_tickets import JOB, MEMBER, GroupTicket, check, read
from controller.web.tickets import Signer, TicketError

TOKEN = ms.Token(1, 2, "ab", 3)


@pytest.fixture
def volume() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_local_device_is_free_when_nobody_has_it_open_by_whatever_link(volume: Path) -> None:
    device = LocalDevice(volume / "device", 8192)
    link = device.link("a")
    assert link == device.link("a")
    assert asyncio.run(device.free(1))
    file = os.open(str(link), os.O_RDWR)
    assert not asyncio.run(device.free(1))
    assert not asyncio.run(until_free(device, 0, 0.01))
    os.close(file)
    assert asyncio.run(until_free(device, 0))
    device.unlink("a")
    device.unlink("a")
    assert not Path(str(link)).exists()


ASKED = """
import json, sys
before = {before}
for line in sys.stdin:
    before -= 1
    if before == 0:
        {then}
    print(json.dumps({{"used": {used}}}), flush=True)
"""


@pytest.mark.parametrize("then", ["import time; time.sleep(600)", "sys.exit(3)", "print('no'); continue"])
def test_nvml_that_hangs_dies_or_lies_leaves_the_device_taken(
    then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.group.devices.ASK_SECONDS", 0.5)
    code = ASKED.format(before=2, then=then, used=100)

    async def ask() -> list[bool]:
        device = NvmlDevice(0, (sys.executable, "-c", code))
        monkeypatch.setattr("controller.group.devices.ASK_SECONDS", 30.0)
        await device.begin()
        monkeypatch.setattr("controller.group.devices.ASK_SECONDS", 0.5)
        first = await device.free(0)
        monkeypatch.setattr("controller.group.devices.ASK_SECONDS", 30.0)
        second = await device.free(0)  # by a new process
        await device.close()
        return [first, second]

    assert asyncio.run(ask()) == [False, True]


def test_sleepers_may_keep_their_residual_bytes_and_no_more() -> None:
    async def ask() -> list[bool]:
        device = NvmlDevice(
            50, (sys.executable, "-c", ASKED.format(before=0, then="pass", used="100 - 60 * before"))
        )
        await device.begin()  # 160
        found = [await device.free(1), await device.free(3)]  # 220, 280
        await device.close()
        return found

    assert asyncio.run(ask()) == [False, True]


def test_without_a_driver_the_pod_says_so() -> None:
    async def ask() -> None:
        device = NvmlDevice(0)
        try:
            await device.begin()
        finally:
            await device.close()

    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is a driver")
    with pytest.raises(OSError, match="NVML does not answer"):
        asyncio.run(ask())


def test_versions_are_whole_or_not_there_and_what_they_share_counts_once(volume: Path) -> None:
    memory = HostMemory(volume, 250)
    part = memory.begin("a", 1, 100)
    (part / "weights").write_bytes(bytes(100))
    assert memory.versions() == ()
    memory.done(part)
    assert memory.versions() == (("a", 1),)
    part = memory.begin("a", 2, 100)
    os.link(memory.folder("a", 1) / "weights", part / "weights")
    memory.done(part)
    assert memory.used() == 100
    with pytest.raises(MemoryError, match="151 bytes more than 100 of 250"):
        memory.begin("b", 1, 151)
    memory.set_newest((3, 4))
    left = memory.begin("b", 1, 10)
    again = HostMemory(volume, 250)  # after a restart
    assert not left.exists()
    assert again.newest() == (3, 4)
    assert again.regions("a", 2) == {"weights": 100}
    dropped = again.drop("a")
    assert again.versions() == ()
    assert dropped is not None
    assert again.used() == 100  # until it is erased
    again.erase(dropped)
    assert again.used() == 0
    assert again.drop("a", 7) is None


def test_what_is_on_disk_comes_back_and_damage_is_told(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    assert disk.read() == Kept()
    kept = Kept(2, 3, 1.5, {"a": 4}, {"a": Residency("uid", 10, "kind", 7)}, ["b"], ["c"], [])
    disk.write(text(kept))
    assert disk.read() == kept
    (tmp_path / "group.json").write_text('{"start": 1}')
    with pytest.raises(OSError, match="not what was written there"):
        disk.read()


def test_frames_are_cut_as_they_come_and_a_too_large_one_is_refused() -> None:
    whole = b"".join(b"".join(framed(envelope({"n": n}, bytes(n)))) for n in range(4))
    for size in (1, 7, len(whole)):
        frames, found = Frames(1000), []
        for at in range(0, len(whole), size):
            found += frames.feed(whole[at : at + size])
        assert [header_of(one)["n"] for one in found] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="at most 10 are read"):
        Frames(10).feed(whole)


@pytest.mark.parametrize(
    "message",
    [
        ms.Load(TOKEN, "a", 1, (("a", 1), ("b", 0))), ms.Run(TOKEN, 1, "f"), ms.Write(TOKEN, 2),
        ms.Kill(TOKEN), ms.Forget(1, 2, "a"), ms.Loaded(TOKEN), ms.Missing(TOKEN), ms.Ran(TOKEN, 1, "ok"),
        ms.Written(TOKEN, 2), ms.Died(TOKEN), ms.Gone("a"),
    ],
)  # fmt: skip
def test_messages_between_members_come_out_as_they_went_in(message: Any) -> None:
    assert unpacked(packed(message)) == message
    for field in message._fields:
        with pytest.raises(Refused):
            unpacked({**packed(message), field: None})


@pytest.mark.parametrize(
    "given", ["", "1.2.3", "1.2.x.3", "1.2.ab.-3", "1.2.ab.3.4", None, "1.2.AB.3", "1" * 200]
)
def test_no_token_is_refused(given: Any) -> None:
    with pytest.raises(Refused, match="is no token"):
        token_of(given)


def test_what_a_peer_did_not_confirm_is_sent_again_and_taken_once() -> None:
    async def played() -> list[list[int]]:
        out, sent = Outbox(), []

        async def some(count: int) -> list[int]:
            frames, found = out.frames(), []
            for _ in range(count):
                found.append(header_of(b"".join(await anext(frames))[8:])["n"])
            await frames.aclose()
            return found

        for n in range(3):
            out.put({"is": "x", "n": n})
        sent.append(await some(3))
        out.confirmed(1)
        out.again()
        sent.append(await some(2))
        out.new_peer()
        out.put({"is": "x"})
        sent.append(await some(1))
        assert [out.takes(1), out.takes(1), out.takes(2)] == [True, False, True]
        return sent

    assert asyncio.run(played()) == [[1, 2, 3], [2, 3], [1]]


def test_a_new_life_of_a_member_is_told() -> None:
    told: list[tuple[str, bool]] = []

    async def played() -> None:
        link = Link("pod-1", 1, 1000, lambda uid, message, new: told.append((uid, new)), lambda *_: None)
        for life in ("x", "x", "y"):
            hello = b"".join(framed(envelope({"n": 0, "have": 0, "message": {"is": "Hello", "life": life}})))

            async def stream(hello: bytes = hello) -> Any:
                yield hello

            _ = [one async for one in link.serve(stream())]
            assert not link.connected

    asyncio.run(played())
    assert told == [("pod-1", True), ("pod-1", False), ("pod-1", True)]


def test_a_ticket_opens_its_group_and_admission_and_no_other() -> None:
    signer = Signer()
    ticket = GroupTicket(
        MEMBER, "wg", 2, "pod-0", 100.0, pods=("pod-0", "pod-1"), address="a:1", fingerprint="f"
    )
    given = signer.sign(ticket)
    keys = [Signer().public, signer.public]

    def opens(**other: Any) -> GroupTicket:
        return check(given, keys, **{"kinds": [MEMBER], "group": "wg", "admission": 2, "now": 99.0, **other})

    assert opens() == ticket
    for other, message in (
        ({"kinds": [JOB]}, "of kind member, expected job"), ({"group": "wh"}, "for group wg, this is wh"),
        ({"admission": 3}, "of admission 2, this is 3"), ({"now": 100.0}, "has ended"),
    ):  # fmt: skip
        with pytest.raises(TicketError, match=message):
            opens(**other)
    with pytest.raises(TicketError, match="not signed"):
        read(given, keys[:1])
    with pytest.raises(TicketError, match="no ticket of a worker group"):
        read(signer.sign(Residency("x", 1)), keys)


def test_the_turn_log_is_replayed_and_a_changed_line_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, path = TurnLog(tmp_path / "turns.jsonl"), tmp_path / "turns.jsonl"
    state = co.restarted(1, 1, "ab", ("p0", "p1"), {"a": 3}, leaving=("gone",))

    def tell(name: str, *given: Any) -> None:
        nonlocal state
        before = state
        state, _ = getattr(co, name)(before, *given)
        log.write(7, before, name, given, state)

    tell("join", "b")
    tell("ask", "b")
    assert state.turn is not None
    for uid in ("p0", "p1"):
        tell("receive", uid, ms.Loaded(state.turn.token))
    tell("call", "b", state.turn.token, 1, "f")
    tell("expire", state.turn.token)
    tell("receive", "p1", ms.Gone("gone"))
    log.close()
    assert replay(path.read_text().splitlines()) == (7, 1)
    assert main([str(path)]) == 0
    assert "7 events, 1 turns: every state as it was" in capsys.readouterr().out
    path.write_text(path.read_text().replace('"p1"', '"p0"', 1))
    assert main([str(path)]) == 1


def test_charges_go_on_from_what_was_written() -> None:
    charges: Charges[str] = Charges(2, 0)
    charges.join("a", 10)
    charges.join("b", 20)
    charges.hold("a", 30)
    kept = charges.as_dict(40)
    again = Charges.of(kept, 50)
    charges.release(40)
    assert again.charge("a", 60) == charges.charge("a", 60)
    assert again.total(60) + again.vacant(60) == UNITS * 2 * 60
    for wrong in ({**kept, "now": 51}, {**kept, "each": "1"}, {**kept, "held": {}}, {}):
        with pytest.raises(ValueError, match=r"charges|time does not go back"):
            Charges.of(wrong, 50)


def test_a_clock_that_was_set_back_goes_on_from_what_was_seen() -> None:
    clock = Clock(100.0, lambda: 90.0, lambda: 5.0)
    assert clock.now() == 0
    clock.not_before(7_000_000)
    assert clock.now() == 7_000_000
    clock.not_before(1)
    assert clock.now() == 7_000_000


def test_an_account_has_waits_turns_and_switches() -> None:
    account = Account(2, 0)
    state = co.restarted(1, 1, "ab", ("p",), {})

    def tell(now: int, name: str, *given: Any) -> None:
        nonlocal state
        before = state
        state, _ = getattr(co, name)(before, *given)
        account.follow(before, state, now)

    def turn(resident: str, begun: int, granted: int, over: int) -> None:
        assert state.turn is not None
        token = state.turn.token
        tell(granted, "receive", "p", ms.Loaded(token))
        tell(over, "release", resident, token)
        tell(over, "receive", "p", ms.Written(token, state.turn.version + 1))
        tell(over, "recorded", resident, state.turn.version + 1, token)

    for name in ("a", "b"):
        tell(0, "join", name)
    tell(10, "ask", "a")
    tell(15, "ask", "b")
    turn("a", 10, 20, 50)
    turn("b", 50, 60, 80)
    tell(100, "ask", "a")
    turn("a", 100, 110, 130)
    a, b = account.records["a"], account.records["b"]
    assert list(a.turns) == [(0, 30, -1, 10), (50, 20, -1, 10)]
    assert list(b.turns) == [(0, 20, -1, 45)]
    assert (a.longest_wait, b.longest_wait) == (10, 45)
    assert (a.released, b.released, account.expired) == (2, 1, 0)
    assert list(account.recent) == [
        ("a", 10, 20, 50, True), ("b", 50, 60, 80, True), ("a", 100, 110, 130, True),
    ]  # fmt: skip
    # Held times are their holders'; 10 before the first turn and 20 after b's are shared.
    assert account.charges.charge("a", 130) == UNITS * 2 * (40 + 30 + 15)
    assert account.charges.charge("b", 130) == UNITS * 2 * (30 + 15)
    # A turn that is taken away before its state is loaded was never granted.
    tell(140, "ask", "b")
    assert state.turn is not None
    tell(145, "expire", state.turn.token)
    assert account.recent[-1] == ("b", 140, 145, 145, False)


def test_more_calls_than_a_ticket_may_make_are_refused(volume: Path) -> None:
    signer = Signer()
    member = GroupTicket(MEMBER, "wg", 1, "pod-0", time.time() + 1000.0, pods=("pod-0",))
    door = Door(HostMemory(volume, 1), GroupMetrics(), 1000)
    request = SimpleNamespace(headers={})

    def ask(kind: str = JOB) -> GroupTicket:
        return door.let_in(request, (kind,))  # type: ignore[arg-type]

    with pytest.raises(Refused, match="expected the header"):
        ask()
    job = signer.sign(GroupTicket(JOB, "wg", 1, "pod-j", time.time() + 1000.0, resident="a"))
    request.headers["authorization"] = f"Bearer {job}"
    with pytest.raises(Refused, match="has no ticket from the operator yet"):
        ask()
    door.admitted = Admitted(signer.sign(member), member, 0, (signer.public,))
    with pytest.raises(Refused, match="of kind job, expected operator"):
        ask("operator")
    with pytest.raises(Refused, match="more than 200 calls per second") as refused:
        _ = [ask() for _ in range(10_000)]
    assert refused.value.status == 429
    door.admitted = Admitted(signer.sign(member), member, 0, (Signer().public,))  # another leader's key alone
    door.keys_changed()
    with pytest.raises(Refused, match="not signed"):
        ask()
