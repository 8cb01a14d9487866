"""Images to send: noise, so that no two are alike in a server's cache of images, as PNG in a data URL."""

import base64
import random
import struct
import zlib


def noise_png(size: int, seed: str) -> str:
    """A square of random grey dots, as a `data:` URL."""
    rows = random.Random(seed).randbytes(size * size)
    raw = b"".join(b"\0" + rows[at : at + size] for at in range(0, size * size, size))
    head = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, body) for kind, body in ((b"IHDR", head), (b"IDAT", zlib.compress(raw, 1)), (b"IEND", b""))
    )
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
