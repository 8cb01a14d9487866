"""The main thread waits for a lock that another thread keeps while it sleeps."""

import threading
import time

guard = threading.Lock()


def keeper(rounds: int) -> None:
    for _ in range(rounds):
        with guard:
            time.sleep(0.2)
        time.sleep(0.001)


def update(rounds: int) -> int:
    done = 0
    for _ in range(rounds):
        guard.acquire()
        done += 1
        guard.release()
        time.sleep(0.002)
    return done


worker = threading.Thread(target=keeper, args=(10,))
worker.start()
update(10)
worker.join()
