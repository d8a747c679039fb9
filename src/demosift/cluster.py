"""Connecting to a Ray cluster, for whatever runs on one: `reproduce --engine ray` and `score --engine ray`."""

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from demosift.errors import InputError

Engine = Literal["local", "ray"]
ENGINES: tuple[Engine, ...] = ("local", "ray")
RETRIES = 5  # of a task whose worker or node died
ANSWER_SECONDS = 30.0  # in which a cluster must answer
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # and an empty frame of settings, type 4


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Ray, connected to the cluster at `address` or to one started on this machine; an existing connection is kept."""
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray needs Ray: pip install 'demosift[ray]'") from None
    if ray.is_initialized():
        yield
        return
    check_answers(address or os.environ.get("RAY_ADDRESS"))
    try:
        with warnings.catch_warnings(action="ignore"):  # JAX warns of forks; Ray's become other programs at once
            dashboard = None if address else False
            ray.init(address, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"--address {address}: no Ray cluster there ({str(error).splitlines()[0]})") from error
    try:
        yield
    finally:
        ray.shutdown()


def check_answers(address: str | None) -> None:
    """Refuse an address at which nobody answers as gRPC does; Ray itself would go on trying for many minutes."""
    host, separator, port = (address or "").removeprefix("ray://").rpartition(":")
    if not separator or not port.isdigit():
        return  # `auto`, `local`, or nothing
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS) as peer:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            peer.sendall(HTTP2_GREETING)
            answered = peer.recv(9)[3:4] == HTTP2_GREETING[-6:-5]
    except (OSError, OverflowError) as error:
        raise InputError(f"--address {address}: no Ray cluster there ({error})") from error
    if not answered:
        raise InputError(f"--address {address}: no Ray cluster there (whoever listens is not one)")
