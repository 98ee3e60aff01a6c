"""Dynamic batching: compatible requests run in one batch, and long requests run in slices."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from t2t_repro.serving.cancellation import Cancellation, Cancelled
from t2t_repro.serving.model import ATTENTION, JOINED
from t2t_repro.serving.protocol import Request
from t2t_repro.text.translations import WORDS

Outputs = dict[str, np.ndarray]
Run = Callable[[str, Mapping[str, np.ndarray], Cancellation], Outputs]
SLICE_POSITIONS = 1 << 17  # per batch, unless a single row has more: 64 sentences of 450 bytes with a beam of 4
LIGHT_POSITIONS = 1 << 14  # maximum of a short request, for which a thread is reserved: about 20 sentences
_MISSING = {"scores": -np.inf}  # padding for outputs that are narrower than those of other slices; otherwise 0 or ""


class Overloaded(Exception):  # noqa: N818
    """The queue or the number of requests in progress is at its limit."""


@dataclass(eq=False)  # equal requests are still two requests
class _Job:
    """A request that is run in slices."""

    request: Request
    run: Run
    arrived: float
    outputs: asyncio.Future[Outputs] = field(repr=False)
    taken: int = 0  # rows
    finished: dict[int, Outputs] = field(default_factory=dict, repr=False)  # outputs of slices, by their first row

    @property
    def left(self) -> int:
        return self.request.rows - self.taken

    @property
    def is_light(self) -> bool:
        return int(self.request.positions.sum()) <= LIGHT_POSITIONS

    @property
    def key(self) -> tuple[object, ...]:
        """The key of jobs that may share a batch. Per-row options pad outputs to the widest row, so they are not
        shared."""
        request = self.request
        if request.signature not in JOINED or len(request.inputs) > 1:
            return (id(self),)
        options = sorted((name, value.item()) for name, value in request.options.items())
        return (self.run, request.signature, self.is_light, *options)

    def fitting(self, rows: int, positions: int) -> int:
        """Returns how many of the remaining rows fit into a batch."""
        if self.request.signature == ATTENTION:  # weights are padded to the longest pair: slices would differ in size
            return self.left
        up_to = np.cumsum(self.request.positions[self.taken : self.taken + max(rows, 0)])
        return int(np.searchsorted(up_to, positions, side="right"))

    def finish(self, start: int, outputs: Outputs) -> None:
        self.finished[start] = outputs
        if sum(len(next(iter(part.values()))) for part in self.finished.values()) < self.request.rows:
            return
        parts = [self.finished[first] for first in sorted(self.finished)]
        if not self.outputs.done():
            self.outputs.set_result({name: _joined(name, [part[name] for part in parts]) for name in parts[0]})


class _Slice(NamedTuple):
    job: _Job
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


@dataclass(eq=False)
class _Batch:
    """Slices with the same key that run together."""

    slices: list[_Slice]
    started: float
    cancellation: Cancellation = field(default_factory=Cancellation)

    def cancel_if_abandoned(self, _: object = None) -> None:
        if all(each.job.outputs.done() for each in self.slices):
            self.cancellation.cancel()


class Batcher:
    """Runs requests on a model in batches, `parallel` of them at the same time, each in its own thread.

    A batch has at most `max_rows` rows and `SLICE_POSITIONS` positions. Longer requests run in slices, and the slices
    of several requests alternate. When long requests occupy all threads, one more thread runs batches of short
    requests.

    The oldest request waits at most `wait` seconds for compatible requests, or until there are `max_rows` rows.
    Requests that arrive while every thread is busy form the next batch. Idle threads share the queued rows. New
    requests are refused beyond `max_waiting` queued rows, counted separately for long and short requests, so that long
    ones cannot crowd out short ones. `on_batch` receives the number of rows of each batch.

    No further slices of a canceled request are run. A batch whose requests are all canceled stops at the next decoding
    step.
    """

    def __init__(
        self,
        max_rows: int,
        wait: float,
        max_waiting: int,
        on_batch: Callable[[int], None] = lambda rows: None,
        parallel: int = 1,
    ):
        self._max_rows, self._wait, self._max_waiting = max_rows, wait, max_waiting
        self._on_batch = on_batch
        self._jobs: deque[_Job] = deque()
        self._came = asyncio.Event()
        self._threads = ThreadPoolExecutor(parallel + 1, "model")
        self._idle = parallel  # idle threads; -1 while the reserved thread for short requests runs too
        self._light = 0  # running batches of short requests
        self._running: set[_Batch] = set()  # batches in the threads
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self.stuck = False  # true if a thread was still running after `stop`

    @property
    def waiting(self) -> int:
        """Number of queued rows."""
        return sum(job.left for job in self._jobs)

    @property
    def longest(self) -> float:
        """Seconds for which the oldest batch has been running; 0 if there is none."""
        now = asyncio.get_running_loop().time()
        return max((now - batch.started for batch in self._running), default=0.0)

    async def start(self) -> None:
        self._begin(self._work())

    async def stop(self, seconds: float = 2.0) -> None:
        """Cancels the running batches, and all later requests. Threads that do not end within `seconds` are
        abandoned."""
        self._stopped = True
        for job in {each.job for batch in self._running for each in batch.slices} | set(self._jobs):
            if not job.outputs.done():
                job.outputs.set_exception(Cancelled())
        for batch in self._running:
            batch.cancellation.cancel()
        end = asyncio.get_running_loop().time() + seconds
        while self._running and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        self.stuck |= bool(self._running)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False)

    async def __call__(self, request: Request, run: Run) -> Outputs:
        """Returns the outputs for the rows of this request. Raises `Overloaded`, `Cancelled` once it is stopped, and
        the exceptions of `run`."""
        if self._stopped:
            raise Cancelled
        loop = asyncio.get_running_loop()
        job = _Job(request, run, loop.time(), loop.create_future())
        ahead = sum(each.left for each in self._jobs if each.is_light == job.is_light)
        if ahead and ahead + request.rows > self._max_waiting:
            raise Overloaded("too many sentences in the queue")
        self._jobs.append(job)
        self._came.set()
        try:
            return await job.outputs
        finally:
            job.outputs.cancel()  # no effect unless the caller was canceled
            self._came.set()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._came.wait()
            self._jobs = deque(job for job in self._jobs if not job.outputs.done())
            first = self._next()
            if first is None:
                self._came.clear()
                continue
            left = first.arrived + self._wait - loop.time()
            if left > 0 and sum(job.left for job in self._alike(first)) < self._max_rows:
                self._came.clear()
                try:
                    await asyncio.wait_for(self._came.wait(), left)
                except TimeoutError:
                    self._came.set()
                continue
            batch = self._take(first)
            self._idle -= 1
            self._light += first.is_light
            self._begin(self._occupy(batch, first.is_light))

    def _next(self) -> _Job | None:
        """Returns the oldest job for which there is a thread."""
        if self._idle > 0:
            return self._jobs[0] if self._jobs else None
        if self._light or self._idle < 0:
            return None
        return next((job for job in self._jobs if job.is_light), None)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # keeps a reference to the task
        task.add_done_callback(self._tasks.discard)

    async def _occupy(self, batch: list[_Slice], is_light: bool) -> None:
        """Runs a batch in a thread."""
        try:
            await self._answer(batch)
        finally:
            self._idle += 1
            self._light -= is_light
            self._came.set()

    def _alike(self, first: _Job) -> list[_Job]:
        """Returns a job and those that may share its batch, oldest first."""
        key = first.key
        return [job for job in self._jobs if job.key == key]

    def _take(self, first: _Job) -> list[_Slice]:
        """Returns the next batch: slices of jobs like `first`, up to the limits of a batch and an idle thread's share.

        A job that fits into a batch is not split to fill one up. A job with remaining rows moves to the end of the
        queue.
        """
        rows = min(self._max_rows, max(1, math.ceil(self.waiting / max(1, self._idle))))
        positions = SLICE_POSITIONS
        batch: list[_Slice] = []
        for job in self._alike(first):
            taken = job.fitting(rows, positions)
            if batch and (not taken or taken < job.left <= self._max_rows):
                continue
            taken = max(taken, min(job.left, 1))
            batch.append(_Slice(job, job.taken, job.taken + taken))
            rows -= taken
            positions -= int(job.request.positions[job.taken : job.taken + taken].sum())
            job.taken += taken
            self._jobs.remove(job)
            if job.left:
                self._jobs.append(job)
        return batch

    async def _answer(self, slices: Sequence[_Slice]) -> None:
        """Runs a batch and gives each job its rows. If the batch fails, each slice is run alone."""
        loop = asyncio.get_running_loop()
        batch = _Batch([each for each in slices if not each.job.outputs.done()], loop.time())
        if not batch.slices:
            return
        for job in {each.job for each in batch.slices}:
            job.outputs.add_done_callback(batch.cancel_if_abandoned)
        self._on_batch(sum(each.rows for each in batch.slices))
        self._running.add(batch)
        try:
            outputs = await asyncio.shield(loop.run_in_executor(self._threads, _run, batch))
        except Exception as error:
            if len(batch.slices) > 1:
                for each in batch.slices:
                    await self._answer([each])
                return
            job = batch.slices[0].job
            if not job.outputs.done():
                job.outputs.set_exception(error)
            return
        finally:
            self._running.discard(batch)
        start = 0
        for each in batch.slices:
            each.job.finish(each.start, {name: value[start : start + each.rows] for name, value in outputs.items()})
            start += each.rows


def _run(batch: _Batch) -> Outputs:
    first = batch.slices[0].job
    inputs = {
        name: np.concatenate([each.job.request.inputs[name][each.start : each.stop] for each in batch.slices])
        for name in first.request.inputs
    }
    return first.run(first.request.signature, inputs | first.request.options, batch.cancellation)


def _joined(name: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the rows of all parts. Narrower parts are padded."""
    if len(parts) == 1:
        return parts[0]
    shape = np.max([part.shape[1:] for part in parts], axis=0)
    missing = b"" if parts[0].dtype == object else _MISSING.get(name, 0)
    filled = []
    for part in parts:
        more = [(0, 0), *((0, int(size - own)) for size, own in zip(shape, part.shape[1:], strict=True))]
        filled.append(np.pad(part, more, constant_values=missing))
    joined = np.concatenate(filled)
    if name in WORDS:  # lists
        for place in np.ndindex(joined.shape):
            joined[place] = joined[place] or []
    return joined
