"""Several GPUs, processes or ranks of one job: who did what, what communication cost, who waited for whom.

`identify` decides whether several captures are ranks of one job or repetitions of one run. `overlap` splits the time of
each rank into computation, communication and copies. `collectives` says what each collective moved and how late ranks
came to it, `traffic` how many bytes went between them. `rank_analysis` puts the three together.

Read `rank_analysis`, then `overlap`. Called by `pipeline.analyze`; works on timelines alone.
"""
