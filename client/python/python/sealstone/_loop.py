"""Operations of the native half on the event loop of the caller."""

import asyncio
import atexit
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from . import _native

if TYPE_CHECKING:
    from ._native import NativeOperation

_T = TypeVar("_T")


class LoopBridge:
    """Runs operations, and delivers their results in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._native = _native.NativeLoop()
        # The event loop keeps this object by the callback, and this object must not keep the loop:
        # a future does.
        self._futures: weakref.WeakValueDictionary[int, asyncio.Future[Any]] = weakref.WeakValueDictionary()
        loop.add_reader(self._native.fileno(), self._deliver)

    async def run(self, operation: "NativeOperation[_T]", loop: asyncio.AbstractEventLoop) -> _T:
        """Run an operation. A cancellation of the caller cancels it."""
        number = self._native.start(operation)
        future: asyncio.Future[_T] = loop.create_future()
        self._futures[number] = future
        try:
            return await future
        finally:
            if future.cancelled() or not future.done():
                self._native.abort(number)

    def abort_all(self) -> None:
        """Cancel all operations."""
        self._native.abort_all()

    def _deliver(self) -> None:
        for number, value, error in self._native.completed():
            future = self._futures.pop(number, None)
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)


_bridges: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopBridge]" = weakref.WeakKeyDictionary()


async def run(operation: "NativeOperation[_T]") -> _T:
    """Run an operation on the running event loop."""
    loop = asyncio.get_running_loop()
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = LoopBridge(loop)
    return await bridge.run(operation, loop)


@atexit.register
def _abort_all() -> None:
    # No operation outlives the interpreter, whose objects it may use.
    for bridge in list(_bridges.values()):
        bridge.abort_all()
