"""Dynamic batching: requests that ask the same of a model are run together, and long requests in slices."""

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

Outputs = dict[str, np.ndarray]
Run = Callable[[str, Mapping[str, np.ndarray], Cancellation], Outputs]
SLICE_POSITIONS = 1 << 17  # of a batch, or one row: as much as 64 sentences of 450 bytes need, with a beam of 4
LIGHT_POSITIONS = 1 << 14  # of a request for which there is always a thread: some 20 sentences
_MISSING = {"scores": -np.inf}  # what fills up outputs that are narrower than those of other slices; else 0 or ""


class Overloaded(Exception):  # noqa: N818
    """As much is under way as may."""


@dataclass(eq=False)  # two requests for the same are two
class _Job:
    """A request, of which batches take slices."""

    request: Request
    run: Run
    arrived: float
    outputs: asyncio.Future[Outputs] = field(repr=False)
    taken: int = 0  # rows
    finished: dict[int, Outputs] = field(default_factory=dict, repr=False)  # slices by their first row

    @property
    def left(self) -> int:
        return self.request.rows - self.taken

    @property
    def is_light(self) -> bool:
        return int(self.request.positions.sum()) <= LIGHT_POSITIONS

    @property
    def key(self) -> tuple[object, ...]:
        """Jobs of one key may be joined. Options that differ by row make outputs as wide as the widest row asks for."""
        request = self.request
        if request.signature not in JOINED or len(request.inputs) > 1:
            return (id(self),)
        options = sorted((name, value.item()) for name, value in request.options.items())
        return (self.run, request.signature, self.is_light, *options)

    def fitting(self, rows: int, positions: int) -> int:
        """How many of the rows that are left a batch has room for."""
        if self.request.signature == ATTENTION:  # its weights are as large as the longest pair, and no slice is alike
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
    """Slices of one key that run together."""

    slices: list[_Slice]
    started: float
    cancellation: Cancellation = field(default_factory=Cancellation)

    @property
    def is_light(self) -> bool:
        return self.slices[0].job.is_light

    def cancel_if_abandoned(self, _: object = None) -> None:
        if all(each.job.outputs.done() for each in self.slices):
            self.cancellation.cancel()


class Batcher:
    """Runs requests on a model, `at_once` batches in parallel, each in a thread of its own.

    A batch has at most `max_rows` rows and `SLICE_POSITIONS`, so a longer request is run in slices, and the slices of
    several requests alternate. While long requests have all threads, one more runs batches of short ones.

    The oldest request waits at most `wait` seconds for others of its kind, until there are `max_rows` rows; those that
    come while every thread is busy are the next batch. Threads that have nothing to do share what waits. New requests
    are refused beyond `max_waiting` rows: of long requests and of short ones, so that long ones cannot crowd out short
    ones. `on_batch` receives the rows of each batch.

    A request that is cancelled has no more slices run, and a batch of which every request is cancelled ends at the next
    step of decoding.
    """

    def __init__(
        self,
        max_rows: int,
        wait: float,
        max_waiting: int,
        on_batch: Callable[[int], None] = lambda rows: None,
        at_once: int = 1,
    ):
        self._max_rows, self._wait, self._max_waiting = max_rows, wait, max_waiting
        self._on_batch = on_batch
        self._jobs: deque[_Job] = deque()
        self._came = asyncio.Event()
        self._threads = ThreadPoolExecutor(at_once + 1, "model")
        self._idle = at_once  # threads; -1 if the one for short requests runs too
        self._light = 0  # batches of short requests that are running
        self._running: set[_Batch] = set()  # in the threads
        self._tasks: set[asyncio.Task[None]] = set()
        self.stuck = False  # whether `stop` left a thread behind

    @property
    def waiting(self) -> int:
        """Rows that wait for the model."""
        return sum(job.left for job in self._jobs)

    @property
    def longest(self) -> float:
        """Seconds for which the oldest batch has been running; 0 if there is none."""
        now = asyncio.get_running_loop().time()
        return max((now - batch.started for batch in self._running), default=0.0)

    async def start(self) -> None:
        self._begin(self._work())

    async def stop(self, seconds: float = 2.0) -> None:
        """Cancels what is running. A thread that has not ended after so many seconds is left behind."""
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
        """The outputs for the rows of this request alone. Raises `Overloaded`, or what `run` raises."""
        loop = asyncio.get_running_loop()
        job = _Job(request, run, loop.time(), loop.create_future())
        ahead = sum(each.left for each in self._jobs if each.is_light == job.is_light)
        if ahead and ahead + request.rows > self._max_waiting:
            raise Overloaded("too many sentences are waiting")
        self._jobs.append(job)
        self._came.set()
        try:
            return await job.outputs
        finally:
            job.outputs.cancel()  # if whoever waited has left
            self._came.set()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._came.wait()
            self._drop_abandoned()
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
        """The oldest job for which there is a thread."""
        if self._idle > 0:
            return self._jobs[0] if self._jobs else None
        if self._light or self._idle < 0:
            return None
        return next((job for job in self._jobs if job.is_light), None)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # else nothing would keep it
        task.add_done_callback(self._tasks.discard)

    async def _occupy(self, batch: list[_Slice], is_light: bool) -> None:
        """Has a thread answer a batch."""
        try:
            await self._answer(batch)
        finally:
            self._idle += 1
            self._light -= is_light
            self._came.set()

    def _drop_abandoned(self) -> None:
        self._jobs = deque(job for job in self._jobs if not job.outputs.done())

    def _alike(self, first: _Job) -> list[_Job]:
        """A job and those that may be joined to it, the oldest first."""
        key = first.key
        return [job for job in self._jobs if job.key == key]

    def _take(self, first: _Job) -> list[_Slice]:
        """The next batch: slices of jobs like `first`, as many rows as fit, or as are an idle thread's share.

        A job that fits in a batch is not cut to fill one up. A job of which rows are left waits behind the others.
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
        """Runs a batch and gives each job its rows. If one job makes it fail, the others are run without it."""
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
    """The rows of all parts; those that are narrower than others are filled up."""
    if len(parts) == 1:
        return parts[0]
    shape = np.max([part.shape[1:] for part in parts], axis=0)
    missing = b"" if parts[0].dtype == object else _MISSING.get(name, 0)
    filled = []
    for part in parts:
        more = [(0, 0), *((0, int(size - own)) for size, own in zip(shape, part.shape[1:], strict=True))]
        filled.append(np.pad(part, more, constant_values=missing))
    return np.concatenate(filled)
