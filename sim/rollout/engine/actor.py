"""One actor: continuous batching, iteration by iteration, advanced over stretches in which nothing changes.

In each iteration every live response gets one token. Between two changes of the batch the length of n
iterations is a sum of n known terms, so they are one event of the kernel; a test holds that to a loop over
single tokens. Something that comes from outside (a moved response, a recall) waits for the end of the
iteration that runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from sim.kernel import Kernel
from sim.rollout.engine.work import ActorReport, Response
from sim.rollout.laws import Law


class Actor:
    """Slots for live responses, a queue of its own, and the clock of its iterations.

    Args:
        kernel: of virtual time.
        law: seconds of an iteration and of a prefill.
        slots: responses that are live at a time.
        bound: when the pod was bound to its GPUs (s).
        ready: when it can take the first prompt (s).
        boundary: called with the actor after every stretch, the ended responses already in ``ended``.
    """

    __slots__ = (
        "_began",
        "_boundary",
        "_context",
        "_iterations",
        "_kernel",
        "_law",
        "_planned",
        "_prefill",
        "_seen",
        "_shared",
        "_ticket",
        "_tie",
        "cut",
        "dealt",
        "dealt_done",
        "ended",
        "first_token",
        "in_transit",
        "live",
        "recalled",
        "released",
        "report",
        "slots",
        "unreported",
        "waiting",
    )

    def __init__(
        self,
        number: int,
        kernel: Kernel,
        law: Law,
        slots: int,
        *,
        bound: float,
        ready: float,
        boundary: Callable[[Actor], None],
        shared_prefill: bool = True,
    ) -> None:
        self.report = ActorReport(number, bound, ready)
        self.slots = slots
        self.live: list[tuple[int, int, Response]] = []  # ends with iteration, tie, response
        self.waiting: deque[Response] = deque()
        self.ended: list[Response] = []  # since the boundary before
        self.in_transit = 0  # responses that were given to it, and are on their way
        self.unreported = 0  # responses that ended, and that the client has not heard of yet
        self.first_token: float | None = None  # s, since it last had nothing to do
        self.cut = self.recalled = self.released = False
        self.dealt = self.dealt_done = (
            0  # responses that were dealt to it first, and those of them that ended
        )
        self._kernel, self._law, self._boundary = kernel, law, boundary
        self._shared = shared_prefill
        self._seen: set[int] = set()  # prompts whose cache is here
        self._iterations = 0  # since it was ready
        self._context = 0  # tokens of all live responses
        self._began, self._planned, self._prefill = 0.0, 0, 0.0  # of the stretch that runs
        self._ticket: int | None = None
        self._tie = 0

    @property
    def number(self) -> int:
        return self.report.number

    @property
    def now(self) -> float:
        """Seconds of virtual time."""
        return self._kernel.now

    @property
    def free(self) -> int:
        """Slots that the client knows to be free, and that nothing of its own queue will take."""
        held = len(self.live) + len(self.waiting) + self.in_transit + self.unreported
        return max(0, self.slots - held)

    @property
    def left(self) -> int:
        """Responses that it holds, live or waiting or on their way."""
        return len(self.live) + len(self.waiting) + self.in_transit

    @property
    def running(self) -> bool:
        """Return whether a stretch is under way."""
        return self._ticket is not None

    def admit(self, prefilled: bool = False) -> None:
        """Fill free slots from its queue. Only between two stretches.

        Args:
            prefilled: whether the cache of a prompt comes from elsewhere (the paper's prefill actor).
        """
        law, live = self._law, self.live
        while self.waiting and len(live) < self.slots:
            response = self.waiting.popleft()
            number = response.prompt.number
            compute = response.generated
            if not prefilled and not (self._shared and number in self._seen):
                compute += response.prompt.tokens
            self._seen.add(number)
            self._prefill += compute * law.prefill
            self.report.prefilled += compute
            self._tie += 1
            heappush(live, (self._iterations + response.left, self._tie, response))
            self._context += response.context

    def go(self) -> None:
        """Begin a stretch up to the end of the next response. Between two stretches, with something live."""
        self._began = self._kernel.now
        self._planned = self.live[0][0] - self._iterations
        if self.first_token is None:
            self.first_token = self._began + self._seconds(1)
        self._ticket = self._kernel.at(
            self._began + self._seconds(self._planned), self.number, self._arrive, None
        )

    def poke(self) -> None:
        """End the stretch with the iteration that runs, so that what changed meanwhile is seen."""
        if self._ticket is None:
            return
        passed = self._kernel.now - self._began
        low, high = 1, self._planned  # fewest iterations that take at least as long
        while low < high:
            middle = (low + high) // 2
            if self._seconds(middle) >= passed:
                high = middle
            else:
                low = middle + 1
        if low == self._planned:
            return
        self._kernel.cancel(self._ticket)
        self._planned = low
        at = max(self._kernel.now, self._began + self._seconds(low))
        self._ticket = self._kernel.at(at, self.number, self._arrive, None)

    def take_all(self) -> list[Response]:
        """Return all responses that it holds, with what they have, and hold none. Between two stretches."""
        held = []
        for end, _, response in sorted(self.live):
            response.generated = response.length - (end - self._iterations)
            held.append(response)
        held += self.waiting
        self.live.clear()
        self.waiting.clear()
        self._context, self._prefill = 0, 0.0
        return held

    def _seconds(self, iterations: int) -> float:
        law, b, n = self._law, len(self.live), iterations
        tokens = self._context * n + b * (n * (n - 1) // 2)
        return self._prefill + n * (law.iteration + law.sequence * b) + law.context * tokens

    def _arrive(self, _: object) -> bool:
        n, b, live, report = self._planned, len(self.live), self.live, self.report
        report.decoding += self._seconds(n) - self._prefill
        report.iterations += n
        report.tokens += n * b
        report.context += self._context * n + b * (n * (n - 1) // 2)
        self._iterations += n
        self._context += n * b
        self._ticket, self._prefill = None, 0.0
        while live and live[0][0] == self._iterations:
            _, _, response = heappop(live)
            response.generated = response.length
            self._context -= response.context
            report.responses += 1
            self.ended.append(response)
        self._boundary(self)
        return True
