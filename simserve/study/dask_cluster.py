"""Dask: many runs on an existing cluster, `tcp://host:port`; only plain data is exchanged."""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from simserve.errors import SimserveError
from simserve.study.processes import Answers, Lost, Task, Work
from simserve.version import __version__

CONNECT_S = 5
NO_WORKERS_S = 30
"""Time without any worker before the sweep gives up."""

POLL_S = 1.0
"""Interval of asking the scheduler for its workers while no answer arrives."""

AHEAD = 2
"""Tasks submitted per thread of the cluster, so that no worker waits for the next."""

LOGS = ("distributed", "distributed.client", "distributed.core", "distributed.comm", "distributed.utils")


class DaskCluster:
    """A scheduler and its workers."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self._address = address

    def run(self, work: Work, tasks: Sequence[Task]) -> Answers:
        """Run all tasks, as many at once as the workers have threads.

        A task of a worker that disappears is given to another. A task that was on several lost workers (four, unless
        the scheduler says otherwise) may not be the cause: it is run again alone, and only then Lost. Raises
        SimserveError where the scheduler or all workers disappear.
        """
        suspects = []
        for place, answer in self._concurrent(work, enumerate(tasks)):
            if isinstance(answer, Lost):
                suspects.append(place)
            else:
                yield place, answer
        for place in suspects:
            yield from self._concurrent(work, [(place, tasks[place])])

    def _concurrent(self, work: Work, tasks: Iterable[tuple[int, Task]]) -> Answers:
        from distributed import wait

        left = iter(tasks)
        running: dict[Any, int] = {}
        last_seen_s = time.monotonic()
        while True:
            n_threads = sum(worker["nthreads"] for worker in self._workers().values())
            for place, task in islice(left, max(0, AHEAD * max(1, n_threads) - len(running))):
                with self._reporting_loss():
                    running[self._client.submit(_checked, __version__, work, task, pure=False)] = place
            if not running:
                return
            if n_threads:
                last_seen_s = time.monotonic()
            elif time.monotonic() - last_seen_s > NO_WORKERS_S:
                raise self._gone(f"has had no worker for {NO_WORKERS_S} s")
            with self._reporting_loss(), suppress(TimeoutError), self._client.as_current():
                wait(list(running), timeout=POLL_S, return_when="FIRST_COMPLETED")
            for future in [future for future in running if future.done()]:
                yield running.pop(future), self._answer(future)

    def check_versions(self) -> None:
        """Check that all workers have this version of simserve. Raises SimserveError otherwise, or without workers."""
        self._wait_for_a_worker()
        with self._reporting_loss():
            versions = self._client.run(_version, on_error="return")
        for worker, version in versions.items():
            if version != __version__:
                got = version if isinstance(version, str) else "none that can be imported"
                rule = f"needs simserve {__version__}, as here"
                raise SimserveError(
                    f"command line --dask {self._address}: {worker} {rule}, got {got}; install it there"
                )

    def _wait_for_a_worker(self) -> None:
        until_s = time.monotonic() + CONNECT_S
        while not self._workers():
            if time.monotonic() > until_s:
                rule = "needs workers, got none"
                raise SimserveError(f"command line --dask {self._address}: {rule}; start some with `dask worker`")
            time.sleep(0.1)

    def _workers(self) -> dict[str, Any]:
        with self._reporting_loss():
            match: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        if self._client.status != "running":
            raise self._gone("disappeared")
        return match

    def _answer(self, future: Any) -> Any:
        with self._reporting_loss():
            if future.status == "finished":
                return future.result()
            error = future.exception()  # raises where it is canceled or lost with the scheduler
        return Lost(f"the cluster could not run it: {type(error).__name__}: {error}")

    @contextmanager
    def _reporting_loss(self) -> Iterator[None]:
        """Report any error of a lost scheduler in one line."""
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:
            raise self._gone(f"disappeared ({_short(error)})") from None

    def _gone(self, what: str) -> SimserveError:
        return SimserveError(f"command line --dask {self._address}: the cluster {what}; check it and start again")


@contextmanager
def dask_cluster(address: str) -> Iterator[DaskCluster]:
    """Connect to the cluster at an address; tasks still running at the end are canceled. Raises SimserveError."""
    try:
        from distributed import Client
    except ImportError:
        remedy = 'install it: pip install "simserve[cluster]"'
        raise SimserveError(f"command line --dask {address}: needs the package distributed; {remedy}") from None
    for name in LOGS:  # failures of the cluster are reported here, without stack traces
        logging.getLogger(name).setLevel(logging.CRITICAL)
    _check_scheduler(address)
    client = Client(address, timeout=CONNECT_S, set_as_default=False)
    try:
        cluster = DaskCluster(client, address)
        cluster.check_versions()
        yield cluster
    finally:
        with suppress(OSError):  # the scheduler may be gone
            client.close(timeout=CONNECT_S)


def _check_scheduler(address: str) -> None:
    """Raise SimserveError where no scheduler answers: the client itself takes long to give up, with verbose logs."""
    from distributed.comm import connect

    async def greet() -> None:
        comm = await connect(address, timeout=CONNECT_S)
        await comm.close()

    try:
        asyncio.run(greet())
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        rule = f"no scheduler answers there within {CONNECT_S} s ({_short(error)})"
        remedy = "start one with `dask scheduler --host 127.0.0.1`, and give its address as tcp://host:port"
        raise SimserveError(f"command line --dask {address}: {rule}; {remedy}") from None


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _checked(version: str, work: Work, task: Task) -> Any:
    """Run a task on a worker; with another version of simserve on a late worker, the task is Lost and retried."""
    here = _version()
    if here != version:
        return Lost(f"its worker needs simserve {version}, got {here}; install it there")
    return work(task)


def _version() -> str:
    """Return the version on a worker."""
    from simserve.version import __version__ as here

    return here
