"""The jobs of a sweep, wherever they run: here, in processes, on Slurm, on Ray.

`record` is what was requested (`jobs.json`, written before anything is launched). `sweeper` launches what is left to
do; `launchers` hands jobs to submitit, joblib or Ray and waits without relying on job return values. `states` reads
from the run directories and from the scheduler where each job is. `device_lock`: one run at a time on a device.

Nothing here decides where or when a job runs; launchers and schedulers do. Start reading in `states`.
"""
