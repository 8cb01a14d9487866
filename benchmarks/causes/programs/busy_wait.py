"""Asks in a loop whether a thread has finished."""

import os
import threading
import time

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


class Job:
    def __init__(self) -> None:
        self.done = False

    def work(self) -> None:
        time.sleep(SECONDS)
        self.done = True

    def wait_until_done(self) -> None:
        while not self.done:
            pass


job = Job()
threading.Thread(target=job.work).start()
job.wait_until_done()
