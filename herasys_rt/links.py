"""Links: one-way, micro-batched sockets between the processes on a run's path.

A process owns one `Inbox` (a PULL socket that everybody may send to) and one `Outbox`
(a PUSH socket per peer). Messages are tagged msgspec structs; whatever is posted to a
peer between two flushes travels as one frame, so a busy process pays per batch and an
idle one waits for nothing. IPC on one host, TCP with CURVE between hosts: the server's
public key travels only over an authenticated channel (a Ray call or a 0600 file), so
knowing it is the permission to send.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from herasys_rt.errors import EnvironmentFaultError
from herasys_rt.graph import codec

M = TypeVar("M")

log = logging.getLogger(__name__)

_HIGH_WATER = 100_000  # frames queued per peer before a send counts as refused
_DRAIN_LIMIT = 256  # frames taken before the owner gets to flush
_RECONNECT_MAX_MS = 5000  # a peer that is gone is not asked for in a tight loop
_SOCKET_PATH_LIMIT = 107


class Endpoint(msgspec.Struct, frozen=True):
    """Where an inbox listens. ``host`` names the machine; ``tcp`` and ``key`` may be
    empty when the inbox serves one host only."""

    host: str
    ipc: str
    tcp: str = ""
    key: bytes = b""


def host_identity() -> str:
    """A name of this machine and boot: equal for processes that share its file system."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Two containers of one machine share the boot but not the file system.
        return f"{boot}/{os.stat('/proc/self/ns/mnt').st_ino}"
    except OSError:
        return format(uuid.getnode(), "x")


class Inbox(Generic[M]):
    """Receives messages of the union ``kind``. Used by one thread.

    Closing removes the socket file. ``tcp_host`` also binds an encrypted TCP socket on
    that interface.
    """

    def __init__(self, run_dir: Path, name: str, kind: Any, *, tcp_host: str = "") -> None:
        self._context = zmq.Context.instance()
        self._decoder = codec.typed_decoder(list[kind])
        self._path = run_dir / f"{name}-{os.urandom(4).hex()}"
        if len(os.fsencode(self._path)) > _SOCKET_PATH_LIMIT:
            raise EnvironmentFaultError(
                f"the socket path {self._path} is longer than {_SOCKET_PATH_LIMIT} bytes",
                hint="Set HERASYS_RUN_DIR to a shorter directory.",
            )
        self._sockets: list[zmq.Socket[bytes]] = [self._bind(f"ipc://{self._path}")]
        tcp, key = "", b""
        if tcp_host:
            key, secret = zmq.curve_keypair()
            socket = self._bind(f"tcp://{tcp_host}:*", (key, secret))
            self._sockets.append(socket)
            tcp = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        for socket in self._sockets:
            self._poller.register(socket, zmq.POLLIN)
        self.endpoint = Endpoint(host_identity(), f"ipc://{self._path}", tcp, key)

    def _bind(self, address: str, curve: tuple[bytes, bytes] | None = None) -> Any:
        socket = self._context.socket(zmq.PULL)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
        if curve:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, curve[0])
            socket.setsockopt(zmq.CURVE_SECRETKEY, curve[1])
        try:
            socket.bind(address)
        except zmq.ZMQError as e:
            socket.close()
            raise EnvironmentFaultError(
                f"no socket can be made at {address}: {e.strerror}",
                hint="Without that directory the runtime cannot be reached: `herasys "
                "down`, then `herasys up`.",
            ) from e
        return socket

    def receive(self, timeout_s: float) -> list[M]:
        """Every message that is here, waiting up to ``timeout_s`` for the first.

        Errors: `msgspec.MsgspecError` never escapes: a frame that is no batch of known
        messages is dropped, as its sender speaks another version.
        """
        messages: list[M] = []
        for socket, _ in self._poller.poll(int(timeout_s * 1000)):
            for _ in range(_DRAIN_LIMIT):
                try:
                    frame = socket.recv(zmq.NOBLOCK)  # pyright: ignore
                except zmq.Again:
                    break
                messages.extend(self._decode(frame))  # pyright: ignore
        return messages

    def _decode(self, frame: bytes) -> Sequence[M]:
        try:
            return self._decoder.decode(frame)
        except (msgspec.MsgspecError, codec.CodecError) as e:
            log.warning("a frame of %d bytes was dropped: %s", len(frame), e)
            return ()

    def remove_neighbour(self, peer: Endpoint) -> None:
        """Remove the socket file that a process that is gone left beside this one."""
        path = Path(peer.ipc.removeprefix("ipc://"))
        if path.parent == self._path.parent and path != self._path:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unbind and remove the socket file. Idempotent."""
        for socket in self._sockets:
            socket.close(linger=0)
        self._sockets.clear()
        self._path.unlink(missing_ok=True)


class Watch:
    """Whether the connection to a peer is lost. Made by `Outbox.watch`, used by one
    thread."""

    def __init__(self, monitor: zmq.Socket[bytes], end: Callable[[], None]) -> None:
        self._monitor = monitor
        self._end = end
        self._lost = False

    def lost(self) -> bool:
        """True from when the peer's process ended, or the network between cut the
        connection, until it is made again; a machine that vanishes goes unnoticed."""
        while self._monitor.poll(0):
            event: Any = recv_monitor_message(self._monitor)["event"]
            self._lost = event == zmq.EVENT_DISCONNECTED
        return self._lost

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if not self._monitor.closed:
            # First of all nobody may tell anything any more: ZeroMQ's own thread, which
            # serves every link of this process, would wait for a reader for ever.
            self._end()
            self._monitor.close(linger=0)


class Outbox:
    """Sends messages to peers, one frame per peer and flush. Safe from any thread."""

    def __init__(self) -> None:
        self._context = zmq.Context.instance()
        self._host = host_identity()
        self._sockets: dict[Endpoint, zmq.Socket[bytes]] = {}
        self._pending: dict[Endpoint, list[Any]] = {}
        self._lock = threading.RLock()

    def post(self, peer: Endpoint, message: Any) -> None:
        """Queue a message for the next `flush`."""
        with self._lock:
            queue = self._pending.get(peer)
            if queue is None:
                self._pending[peer] = [message]
            else:
                queue.append(message)

    def send(self, peer: Endpoint, message: Any) -> bool:
        """`post` and `flush` at once; whether the peer's queue took it."""
        with self._lock:
            self.post(peer, message)
            return peer not in self.flush()

    def flush(self) -> list[Endpoint]:
        """Send what is queued; returns the peers whose queues are full (batch dropped)."""
        refused: list[Endpoint] = []
        with self._lock:
            if not self._pending:
                return refused
            pending, self._pending = self._pending, {}
            for peer, batch in pending.items():
                try:
                    self._socket(peer).send(self._frame(batch), zmq.NOBLOCK)
                except zmq.Again:
                    refused.append(peer)
        return refused

    def _frame(self, batch: list[Any]) -> bytes:
        """The batch as one frame; a message that cannot be encoded is left out alone."""
        try:
            return codec.encode(batch)
        except codec.CodecError:
            good: list[Any] = []
            for message in batch:
                try:
                    codec.encode(message)
                    good.append(message)
                except codec.CodecError as e:
                    log.error("a %s was not sent: %s", type(message).__name__, e)
            return codec.encode(good)

    def _socket(self, peer: Endpoint) -> Any:
        socket = self._sockets.get(peer)
        if socket is None:
            socket = self._context.socket(zmq.PUSH)
            socket.setsockopt(zmq.LINGER, 200)  # ms: last words get out, exit never hangs
            socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
            if peer.host == self._host:
                socket.connect(peer.ipc)
            else:
                self._connect_tcp(socket, peer)
            self._sockets[peer] = socket
        return socket

    @staticmethod
    def _connect_tcp(socket: Any, peer: Endpoint) -> None:
        if not peer.tcp:
            raise EnvironmentFaultError(
                "the peer listens on another host and offers no TCP address",
                hint="Start the runtime with --address so that it listens on the network.",
            )
        public, secret = zmq.curve_keypair()
        socket.setsockopt(zmq.CURVE_SERVERKEY, peer.key)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        socket.connect(peer.tcp)

    def watch(self, peer: Endpoint) -> Watch:
        """Notice from now on when the connection to a peer is lost; close it before this
        outbox. A peer is watched once."""
        with self._lock:
            events = zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED
            socket = self._socket(peer)
            monitor = socket.get_monitor_socket(events)

        def end() -> None:
            with self._lock:
                if not socket.closed:
                    socket.disable_monitor()

        return Watch(monitor, end)

    def peers(self) -> list[Endpoint]:
        """To whom sockets are open."""
        with self._lock:
            return list(self._sockets)

    def forget(self, peer: Endpoint) -> None:
        """Close the socket to a peer that is gone; what it had not taken is dropped."""
        with self._lock:
            self._pending.pop(peer, None)
            socket = self._sockets.pop(peer, None)
            if socket is not None:
                socket.close(linger=0)

    def close(self) -> None:
        """Send what is queued and close. Idempotent."""
        with self._lock:
            self.flush()
            for socket in self._sockets.values():
                socket.close()
            self._sockets.clear()
