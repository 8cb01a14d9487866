"""Waits for a slow server on loopback."""

import socket
import threading
import time


def serve(listener: socket.socket, rounds: int) -> None:
    connection, _ = listener.accept()
    for _ in range(rounds):
        time.sleep(0.2)
        connection.sendall(b"answer")


def fetch(client: socket.socket, rounds: int) -> int:
    size = 0
    for _ in range(rounds):
        size += len(client.recv(64))
    return size


with socket.create_server(("127.0.0.1", 0)) as listener:
    threading.Thread(target=serve, args=(listener, 10)).start()
    with socket.create_connection(listener.getsockname()) as client:
        fetch(client, 10)
