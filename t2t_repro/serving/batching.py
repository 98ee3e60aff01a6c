"""Dynamic batching: requests of several clients that ask the same of a model are run as one."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from t2t_repro.serving.model import JOINED
from t2t_repro.serving.protocol import Request

Outputs = dict[str, np.ndarray]
Run = Callable[[str, Mapping[str, np.ndarray]], Outputs]


class Overloaded(Exception):  # noqa: N818
    """As much is under way as may."""


@dataclass(eq=False)  # two requests for the same are two
class _Job:
    request: Request
    arrived: float
    outputs: asyncio.Future[Outputs] = field(repr=False)

    @property
    def key(self) -> tuple[object, ...]:
        """Jobs of one key may be joined."""
        if self.request.signature not in JOINED:
            return (id(self),)
        return (self.request.signature, *sorted((name, value.item()) for name, value in self.request.options.items()))


class Batcher:
    """Runs requests on a model, `at_once` batches at a time, each in a thread of its own.

    The oldest request waits at most `wait` seconds for others of its kind, until there are `max_rows` rows; those that
    come while every thread is busy are the next batch. Threads that have nothing to do share what waits. Beyond
    `max_waiting` rows in all, new ones are refused. `on_batch` is told the rows of each batch.
    """

    def __init__(
        self,
        run: Run,
        max_rows: int,
        wait: float,
        max_waiting: int,
        on_batch: Callable[[int], None] = lambda rows: None,
        at_once: int = 1,
    ):
        self._run, self._max_rows, self._wait, self._max_waiting = run, max_rows, wait, max_waiting
        self._on_batch = on_batch
        self._jobs: deque[_Job] = deque()
        self._came = asyncio.Event()
        self._threads = ThreadPoolExecutor(at_once, "model")
        self._idle = at_once  # threads
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Rows that wait for the model."""
        return sum(job.request.rows for job in self._jobs)

    async def start(self) -> None:
        self._begin(self._work())

    async def stop(self) -> None:
        """Ends the work; to be called when nobody waits any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown()

    async def __call__(self, request: Request) -> Outputs:
        """The outputs for the rows of this request alone. Raises `Overloaded`, or what the model raises."""
        if self.waiting + request.rows > self._max_waiting and self._jobs:
            raise Overloaded("too many sentences are waiting")
        loop = asyncio.get_running_loop()
        job = _Job(request, loop.time(), loop.create_future())
        self._jobs.append(job)
        self._came.set()
        try:
            return await job.outputs
        finally:
            job.outputs.cancel()  # where whoever waited has gone

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._came.wait()
            self._drop_abandoned()
            if not self._jobs or not self._idle:
                self._came.clear()
                continue
            left = self._jobs[0].arrived + self._wait - loop.time()
            if left > 0 and sum(job.request.rows for job in self._alike()) < self._max_rows:
                self._came.clear()
                try:
                    await asyncio.wait_for(self._came.wait(), left)
                except TimeoutError:
                    self._came.set()
                continue
            batch = self._alike()
            for job in batch:
                self._jobs.remove(job)
            self._idle -= 1
            self._begin(self._occupy(batch))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # else nothing would keep it
        task.add_done_callback(self._tasks.discard)

    async def _occupy(self, batch: list[_Job]) -> None:
        """Has a thread answer a batch."""
        try:
            await self._answer(batch)
        finally:
            self._idle += 1
            self._came.set()

    def _drop_abandoned(self) -> None:
        self._jobs = deque(job for job in self._jobs if not job.outputs.done())

    def _alike(self) -> list[_Job]:
        """The oldest job and those that may be joined to it, as many as fit, or as are an idle thread's share."""
        first, rows, batch = self._jobs[0], 0, []
        most = min(self._max_rows, math.ceil(self.waiting / self._idle))
        for job in self._jobs:
            if job.key == first.key and (not batch or rows + job.request.rows <= most):
                batch.append(job)
                rows += job.request.rows
        return batch

    async def _answer(self, batch: list[_Job]) -> None:
        """Runs a batch and gives each job its rows. What one job makes fail is not the others' failure."""
        loop = asyncio.get_running_loop()
        rows = [job.request.rows for job in batch]
        first = batch[0].request
        joined = {name: np.concatenate([job.request.inputs[name] for job in batch]) for name in first.inputs}
        self._on_batch(sum(rows))
        try:
            outputs = await loop.run_in_executor(self._threads, self._run, first.signature, joined | first.options)
        except Exception as error:
            if len(batch) > 1:
                for job in batch:
                    await self._answer([job])
                return
            for job in batch:
                if not job.outputs.done():
                    job.outputs.set_exception(error)
            return
        ends = np.cumsum(rows)
        for job, start, end in zip(batch, ends - rows, ends, strict=True):
            if not job.outputs.done():
                job.outputs.set_result({name: value[start:end] for name, value in outputs.items()})
