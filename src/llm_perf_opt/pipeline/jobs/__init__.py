"""The jobs of a sweep, wherever they run: here, in processes, on Slurm, on Ray.

`record.py` what was asked for (`jobs.json`, written before anything is launched) → `sweeper.py` launches what is to be
done → `launchers.py` hands jobs to submitit, joblib or Ray and waits without believing in their answers → `states.py`
reads from the run directories and from the scheduler how each job stands. `turns.py`: one run at a time on a device.

Nothing here decides where or when a job runs; launchers and schedulers do. Start reading in `states.py`.
"""
