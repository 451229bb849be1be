"""A relay between two parties on a bad network: latency, little bandwidth, resets, a cut, silence.

It serves in a thread of its own. What is done to the network holds for open connections too.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

CHUNK = 4096
RESET_SECONDS = 0.25
_LINGER_NOT = struct.pack("ii", 1, 0)
"""A socket with this option is reset when it is closed."""


class Link:
    """A relayed connection between two parties.

    Attributes:
        url: what the one party is given instead of the other's URL.
        latency: seconds that each direction takes.
        rate: bytes a second in each direction; None for no limit.
        resets: every connection is reset after a quarter of a second.
        cut: open connections end, and new ones too.
        silent: connections stay open and nothing comes through: a pulled cable.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = str(parts.hostname), int(parts.port or 80)
        self.latency, self.rate = 0.0, None
        self.resets = self.cut = self.silent = False
        self._loop = asyncio.new_event_loop()
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        port = server.sockets[0].getsockname()[1]
        self.url = urlunsplit(parts._replace(netloc=f"127.0.0.1:{port}"))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @contextmanager
    def harmed(self, **harm: float | bool) -> Iterator[None]:
        """The network is so for the time of the block."""
        before = {name: getattr(self, name) for name in harm}
        self.__dict__.update(harm)
        try:
            yield
        finally:
            self.__dict__.update(before)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            if not self.cut:
                there, back = await asyncio.open_connection(*self._target)
                pumps = [asyncio.ensure_future(self._pump(reader, back))]
                pumps.append(asyncio.ensure_future(self._pump(there, writer)))
                await self._watch(writer, pumps)
                back.close()
        writer.close()

    async def _watch(self, writer: asyncio.StreamWriter, pumps: list[asyncio.Future[None]]) -> None:
        """Wait until a side has ended, or the connection is cut or reset."""
        began = time.monotonic()
        while not any(pump.done() for pump in pumps) and not self.cut:
            await asyncio.wait(pumps, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
            if self.resets and time.monotonic() > began + RESET_SECONDS:
                option = (socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
                writer.get_extra_info("socket").setsockopt(*option)
                break
        for pump in pumps:
            pump.cancel()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await asyncio.sleep(self.latency + (len(data) / self.rate if self.rate else 0))
                while self.silent:
                    await asyncio.sleep(0.05)
                writer.write(data)
                await writer.drain()
